package apiserver

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/audittrail"
	"github.com/berth-dev/berth/fsm"
)

const jobController = "system:controller:job"

var jobGroups = []string{access.Controllers, access.ControllerGroup("job")}

// without gives a pod without what no two pods have in common, and without who wrote its fields.
func without(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.UID, pod.ResourceVersion, pod.CreationTimestamp, pod.ManagedFields = "", "", metav1.Time{}, nil
	if pod.GenerateName != "" {
		pod.Name = ""
	}
	for i := range pod.Spec.Volumes {
		pod.Spec.Volumes[i].Name = strconv.Itoa(i) // that of the account's token is drawn
	}
	for i := range pod.Spec.Containers {
		for j := range pod.Spec.Containers[i].VolumeMounts {
			pod.Spec.Containers[i].VolumeMounts[j].Name = ""
		}
	}
	return pod
}

// TestLocalPodsAreAsRequestsMakeThem: what a controller writes without a request is what a request would have made of it, refusals too.
func TestLocalPodsAreAsRequestsMakeThem(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx, admin := context.Background(), s.client(t)
	strict := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "strict", Labels: map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}}}
	if _, err := admin.CoreV1().Namespaces().Create(ctx, strict, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	h := newHook(t)
	create(t, admin, validatingHook(h, "pods", admissionv1.Fail, rulesFor("pods", admissionv1.Create)))
	eventually(t, "the webhook is asked", func() bool {
		_, err := admin.CoreV1().Pods("default").Create(ctx, labelledPod("refuse"), dryRunAll)
		return err != nil
	})
	byRequest := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://here", Transport: s.Local(jobController, jobGroups...), QPS: -1})
	local, made := s.LocalPods(jobController, jobGroups...), 0
	for name, tt := range map[string]struct {
		namespace string
		change    func(pod *corev1.Pod)
	}{
		"as it is": {"default", func(*corev1.Pod) {}},
		"of a job": {"default", func(p *corev1.Pod) {
			p.Finalizers, p.Spec.Hostname = []string{"batch.kubernetes.io/job-tracking"}, "web-0"
		}},
		"a generated name":  {"default", func(p *corev1.Pod) { p.Name, p.GenerateName = "", "web-0-" }},
		"of a system class": {"default", func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }},
		"of no class":       {"default", func(p *corev1.Pod) { p.Spec.PriorityClassName = "unheard" }},
		"without a name":    {"default", func(p *corev1.Pod) { p.Name = "" }},
		"of no image":       {"default", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" }},
		"a wild label":      {"default", func(p *corev1.Pod) { p.Labels = map[string]string{"a b": "c"} }},
		"a policy of its own": {"default", func(p *corev1.Pod) {
			p.Annotations = map[string]string{"berth.dev/disruption-policy": "unheard"}
		}},
		"no such namespace":         {"unheard", func(*corev1.Pod) {}},
		"another namespace":         {"default", func(p *corev1.Pod) { p.Namespace = "strict" }},
		"refused by security":       {"strict", func(*corev1.Pod) {}},
		"refused by a webhook":      {"default", func(p *corev1.Pod) { p.Labels = map[string]string{"refuse": "x"} }},
		"no such account":           {"default", func(p *corev1.Pod) { p.Spec.ServiceAccountName = "unheard" }},
		"a uid and time of its own": {"default", func(p *corev1.Pod) { p.UID, p.CreationTimestamp = "mine", metav1.Now() }},
		"a revision of its own":     {"default", func(p *corev1.Pod) { p.ResourceVersion = "7" }},
		"a phase of its own":        {"default", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }},
		"a large one":               {"default", func(p *corev1.Pod) { p.Annotations = map[string]string{"large": strings.Repeat("x", 300<<10)} }},
	} {
		t.Run(name, func(t *testing.T) {
			pod := testPod("web-" + strings.ReplaceAll(name, " ", "-"))
			tt.change(pod)
			kept := pod.DeepCopy()
			want, wantErr := byRequest.CoreV1().Pods(tt.namespace).Create(ctx, pod.DeepCopy(), metav1.CreateOptions{})
			if wantErr == nil {
				zero := int64(0)
				if err := admin.CoreV1().Pods(want.Namespace).Delete(ctx, want.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
					t.Fatal(err)
				}
				if _, _, err := local.RemoveFinalizers(ctx, want.Namespace, want.Name, want.Finalizers); err != nil && !apierrors.IsNotFound(err) {
					t.Fatal(err)
				}
			}
			got, err := local.Create(ctx, tt.namespace, pod)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || apierrors.ReasonForError(err) != apierrors.ReasonForError(wantErr) {
				t.Fatalf("it says %v, and a request is told %v", err, wantErr)
			}
			if err == nil {
				made++
			}
			if err == nil && !equality.Semantic.DeepEqual(without(got), without(want)) {
				t.Errorf("it made\n%+v\nand a request makes\n%+v", without(got), without(want))
			}
			if !equality.Semantic.DeepEqual(pod, kept) {
				t.Error("the caller's pod is another one now")
			}
		})
	}
	if made < 6 {
		t.Errorf("%d were made", made)
	}
}

func labelledPod(labels ...string) *corev1.Pod {
	p := testPod("labelled")
	p.Labels = map[string]string{}
	for _, l := range labels {
		p.Labels[l] = "x"
	}
	return p
}

// TestLocalPodsOfWhomMayNot: rights hold as for requests.
func TestLocalPodsOfWhomMayNot(t *testing.T) {
	s := start(t, newDouble(t), nil)
	other := s.LocalPods("system:controller:endpoint", access.Controllers, access.ControllerGroup("endpoint"))
	if _, err := other.Create(context.Background(), "default", testPod("web")); !apierrors.IsForbidden(err) {
		t.Errorf("it may make pods: %v", err)
	}
	if _, _, err := other.RemoveFinalizers(context.Background(), "default", "web", []string{"example.com/hold"}); !apierrors.IsForbidden(err) {
		t.Errorf("it may let go of pods: %v", err)
	}
}

// breaking is a backend that panics when it is told to.
type breaking struct {
	*double
	breaks atomic.Bool
}

func (b *breaking) Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, error) {
	if b.breaks.Load() {
		panic("on purpose")
	}
	return b.double.Propose(ctx, ps...)
}

// TestWhatLocalPodsLeaveToRequests: whoever has to be asked about a change of a pod is asked, no server gets a command that it
// does not know, and where an account is kept of requests, there are requests.
func TestWhatLocalPodsLeaveToRequests(t *testing.T) {
	ctx, hold := context.Background(), []string{"example.com/hold"}
	held := func(t *testing.T, s *testServer) *LocalPods {
		local := s.LocalPods(jobController, jobGroups...)
		pod := testPod("web")
		pod.Finalizers = hold
		if _, err := local.Create(ctx, "default", pod); err != nil {
			t.Fatal(err)
		}
		return local
	}
	t.Run("nothing", func(t *testing.T) {
		s := start(t, newDouble(t), nil)
		pod, done, err := held(t, s).RemoveFinalizers(ctx, "default", "web", hold)
		if !done || err != nil || len(pod.Finalizers) > 0 {
			t.Errorf("%v, done: %t, %v", pod, done, err)
		}
		if by := s.double.proposers(); by[len(by)-1] != jobController {
			t.Errorf("it was proposed by %s", by[len(by)-1])
		}
		if _, done, err := held(t, start(t, newDouble(t), nil)).RemoveFinalizers(ctx, "default", "other", hold); !done || !apierrors.IsNotFound(err) {
			t.Errorf("of a pod that is not there: done: %t, %v", done, err)
		}
	})
	t.Run("a panic", func(t *testing.T) {
		backend, counted := &breaking{double: newDouble(t)}, 0
		s := start(t, backend.double, func(c *Config) {
			c.Backend = backend
			c.Guard = func(_ string, f func()) (ok bool) {
				defer func() {
					if recover() != nil {
						counted++
					}
				}()
				f()
				return true
			}
		})
		local := held(t, s)
		backend.breaks.Store(true)
		if _, done, err := local.RemoveFinalizers(ctx, "default", "web", hold); !done || !apierrors.IsInternalError(err) || counted != 1 {
			t.Errorf("done: %t, %v, counted: %d", done, err, counted)
		}
		backend.breaks.Store(false)
		if _, _, err := local.RemoveFinalizers(ctx, "default", "web", hold); err != nil {
			t.Errorf("afterwards: %v", err)
		}
	})
	t.Run("what a webhook is asked about", func(t *testing.T) {
		s := start(t, newDouble(t), nil)
		local := held(t, s)
		create(t, s.client(t), validatingHook(newHook(t), "pods", admissionv1.Fail, rulesFor("pods", admissionv1.Update)))
		if _, done, err := local.RemoveFinalizers(ctx, "default", "web", hold); done || err != nil {
			t.Errorf("nobody is asked: %v", err)
		}
	})
	t.Run("what a server does not know", func(t *testing.T) {
		s := start(t, newDoubleAt(t, fsm.SinceRelease-1), nil)
		if _, done, err := held(t, s).RemoveFinalizers(ctx, "default", "web", hold); done || err != nil {
			t.Errorf("it is proposed: %v", err)
		}
	})
	t.Run("what an account is kept of", func(t *testing.T) {
		s := start(t, newDouble(t), func(c *Config) {
			c.Audit = audittrail.Config{MaxEventBytes: 100 << 10, Log: audittrail.Log{Path: filepath.Join(t.TempDir(), "audit.log"), MaxMebibytes: 2}}
		})
		if s.LocalPods(jobController, jobGroups...) != nil {
			t.Errorf("there are writes without an account")
		}
	})
}
