package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/agent/fleet"
)

// replicaSet keeps pods of one template.
func replicaSet(of *corev1.Pod, replicas int32) *appsv1.ReplicaSet {
	labels := map[string]string{"app": of.Name}
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: of.Namespace, Name: of.Name},
		Spec: appsv1.ReplicaSetSpec{
			Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: of.Spec},
		},
	}
}

// sets is a namespace of ReplicaSets that ends with its test.
type sets struct {
	*cluster
	t  *testing.T
	ns string
}

func newSets(t *testing.T, c *cluster, ns string) *sets {
	s := &sets{c, t, c.namespace(t, ns)}
	t.Cleanup(func() {
		background := metav1.DeletePropagationBackground
		err := c.Reader().Kube.AppsV1().ReplicaSets(s.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{PropagationPolicy: &background}, metav1.ListOptions{})
		if err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *sets) create(rs *appsv1.ReplicaSet) {
	s.t.Helper()
	if _, err := s.Reader().Kube.AppsV1().ReplicaSets(s.ns).Create(s.t.Context(), rs, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

// settled waits until a ReplicaSet has said that it has so many pods, all of
// them ready, and there are exactly so many.
func (s *sets) settled(name string, replicas int) []corev1.Pod {
	s.t.Helper()
	var out []corev1.Pod
	s.eventually(s.t, fmt.Sprintf("%s to have %d pods", name, replicas), func(ctx context.Context) error {
		kube := s.Reader().Kube
		rs, err := kube.AppsV1().ReplicaSets(s.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if st := rs.Status; int(st.Replicas) != replicas || int(st.ReadyReplicas) != replicas || int(st.AvailableReplicas) != replicas || st.ObservedGeneration != rs.Generation {
			return fmt.Errorf("the status is %+v of generation %d", st, rs.Generation)
		}
		out = s.active(ctx, name)
		if len(out) != replicas {
			return fmt.Errorf("there are %d pods", len(out))
		}
		return nil
	})
	return out
}

// active are the pods with a ReplicaSet's label that neither ended nor end.
func (s *sets) active(ctx context.Context, name string) []corev1.Pod {
	list, err := s.Reader().Kube.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		return nil
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil && p.Status.Phase != corev1.PodFailed && p.Status.Phase != corev1.PodSucceeded {
			out = append(out, p)
		}
	}
	return out
}

func (s *sets) gone(name string) {
	s.t.Helper()
	s.eventually(s.t, "ReplicaSet "+name+" to go", func(ctx context.Context) error {
		_, err := s.Reader().Kube.AppsV1().ReplicaSets(s.ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %w", err)
	})
}

func (s *sets) kubectl(args ...string) string {
	s.t.Helper()
	return s.berth(s.t, append(args, "-n", s.ns)...)
}

// Up and down, with pods that are lost on the way, by the commands that users
// have.
func TestReplicaSetScales(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "scales")
	has(t, "apply", s.kubectl("apply", "-f", "../examples/manifests/replicaset.yaml"), "replicaset.apps/even created")
	pods := s.settled("even", 4)
	if o := pods[0].OwnerReferences; len(o) != 1 || o[0].Kind != "ReplicaSet" || o[0].Name != "even" || !*o[0].Controller || !strings.HasPrefix(pods[0].Name, "even-") {
		t.Errorf("the owners of %s are %+v", pods[0].Name, o)
	}
	has(t, "get all", s.kubectl("get", "all"), "pod/even-", "replicaset.apps/even", "DESIRED", "4         4         4")

	// One is killed, one is deleted: two others take their places.
	s.kubectl("delete", "pod", pods[0].Name, "--grace-period=0", "--force")
	s.kubectl("delete", "pod", pods[1].Name, "--wait=false")
	s.eventually(t, "the lost pods to be replaced", func(ctx context.Context) error {
		now := s.active(ctx, "even")
		for _, p := range now {
			if p.UID == pods[0].UID || p.UID == pods[1].UID {
				return fmt.Errorf("%s is still there", p.Name)
			}
		}
		if len(now) != 4 {
			return fmt.Errorf("there are %d", len(now))
		}
		return nil
	})
	s.settled("even", 4)
	has(t, "scale", s.kubectl("scale", "rs/even", "--replicas=7"), "scaled")
	s.settled("even", 7)
	has(t, "plan", s.kubectl("plan", "--scale", "rs/even=9"), "even-planned-9", "would be bound to")
	going := s.kubectl("plan", "--scale", "rs/even=1")
	has(t, "plan", going, "ORDER", "RULE", "nothing was changed")
	if n := strings.Count(going, s.ns+"/even-"); n != 6 {
		t.Errorf("%d of 7 pods would go:\n%s", n, going)
	}
	s.kubectl("scale", "rs/even", "--replicas=1")
	s.settled("even", 1)
	s.kubectl("scale", "rs/even", "--replicas=0")
	s.settled("even", 0)
	has(t, "events", s.kubectl("get", "events"), "SuccessfulCreate", "SuccessfulDelete")

	// A pod that was there before is adopted, and one that is relabelled goes its
	// own way.
	create(t, s.Reader().Kube, pod(s.ns, "mine", "exec sleep 1000", func(p *corev1.Pod) { p.Labels = map[string]string{"app": "even"} }))
	s.eventually(t, "the pod too many to go", func(ctx context.Context) error {
		if n := len(s.active(ctx, "even")); n > 0 {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	s.kubectl("scale", "rs/even", "--replicas=2")
	pods = s.settled("even", 2)
	s.kubectl("label", "pod", pods[0].Name, "app=free", "--overwrite")
	pods2 := s.settled("even", 2)
	if pods2[0].UID == pods[0].UID || pods2[1].UID == pods[0].UID {
		t.Error("a pod that does not match any more still counts")
	}
	free, err := s.Reader().Kube.CoreV1().Pods(s.ns).Get(t.Context(), pods[0].Name, metav1.GetOptions{})
	if err != nil || len(free.OwnerReferences) != 0 {
		t.Errorf("the pod that was let go: %v %v", free.OwnerReferences, err)
	}
}

// What is preempted is made again, and waits for a place.
func TestReplicaSetReplacesPreempted(t *testing.T) {
	c := sharedCluster(t)
	makeClass(t, c, "set-low", 5)
	makeClass(t, c, "set-high", 5000)
	s := newSets(t, c, "preempted")
	s.create(replicaSet(pod(s.ns, "low", "exec sleep 1000", cpu("2"), class("set-low"), on("worker-1")), 2))
	before := s.settled("low", 2)
	create(t, s.Reader().Kube, pod(s.ns, "high", "exec sleep 1000", cpu("2"), class("set-high"), on("worker-1")))
	c.waitRunning(t, s.ns, "high")
	s.eventually(t, "the victim to be replaced by one that waits", func(ctx context.Context) error {
		now := s.active(ctx, "low")
		waits := 0
		for _, p := range now {
			if p.Spec.NodeName == "" && p.UID != before[0].UID && p.UID != before[1].UID {
				waits++
			}
		}
		if len(now) != 2 || waits != 1 {
			return fmt.Errorf("%d pods, of which %d wait", len(now), waits)
		}
		return nil
	})
	s.kubectl("delete", "pod", "high", "--wait=false")
	s.settled("low", 2)
}

// What becomes of the pods when their ReplicaSet is deleted.
func TestReplicaSetCascades(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "cascades")
	for _, name := range []string{"fore", "back", "orphan"} {
		s.create(replicaSet(pod(s.ns, name, saving, cpu("100m")), 2))
	}
	orphans := s.settled("orphan", 2)
	s.settled("back", 2)
	s.settled("fore", 2)

	// In the foreground it stays until the last of its pods has ended.
	s.kubectl("delete", "rs", "fore", "--cascade=foreground", "--wait=false")
	s.eventually(t, "the pods to end before their ReplicaSet", func(ctx context.Context) error {
		// Who is listed after the ReplicaSet was found gone has outlived it.
		_, gone := s.Reader().Kube.AppsV1().ReplicaSets(s.ns).Get(ctx, "fore", metav1.GetOptions{})
		list, err := s.Reader().Kube.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=fore"})
		if err != nil {
			return err
		}
		for _, p := range list.Items {
			if p.DeletionTimestamp == nil {
				return fmt.Errorf("%s is not ending", p.Name)
			}
			if apierrors.IsNotFound(gone) {
				t.Errorf("the ReplicaSet went before its pod %s: %v", p.Name, gone)
			}
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d pods are ending", len(list.Items))
		}
		return nil
	})
	s.gone("fore")

	s.kubectl("delete", "rs", "back", "--wait=false")
	s.gone("back")
	s.eventually(t, "its pods to end", func(ctx context.Context) error {
		if n := len(s.active(ctx, "back")); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})

	s.kubectl("delete", "rs", "orphan", "--cascade=orphan")
	s.gone("orphan")
	left := s.active(t.Context(), "orphan")
	if len(left) != 2 || len(left[0].OwnerReferences)+len(left[1].OwnerReferences) != 0 || left[0].UID != orphans[0].UID {
		t.Errorf("the orphans are %d: %+v", len(left), left)
	}
	// A new one of the name takes them in.
	s.create(replicaSet(pod(s.ns, "orphan", saving, cpu("100m")), 2))
	again := s.settled("orphan", 2)
	if again[0].UID != orphans[0].UID || again[1].UID != orphans[1].UID {
		t.Error("other pods than those that were left")
	}

	// A namespace takes everything along.
	s.kubectl("create", "configmap", "of", "--from-literal=a=b")
	s.kubectl("delete", "namespace", s.ns, "--wait=false")
	s.eventually(t, "the namespace to go", func(ctx context.Context) error {
		_, err := s.Reader().Kube.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("it is still there: %w", err)
	})
}

// counter follows the pods of a namespace on one server and remembers the most
// that there were at a time.
type counter struct {
	mu        sync.Mutex
	now, most int
}

func (n *counter) follow(ctx context.Context, p *fleet.Process, ns, version string) error {
	w, err := p.Kube.CoreV1().Pods(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	go func() {
		defer w.Stop()
		for e := range w.ResultChan() {
			n.mu.Lock()
			switch e.Type {
			case watch.Added:
				n.now++
			case watch.Deleted:
				n.now--
			}
			n.most = max(n.most, n.now)
			n.mu.Unlock()
		}
	}()
	return nil
}

// The leader is killed while a thousand pods are being made: there are exactly
// as many in the end, and never more on the way.
func TestLeaderKilledDuringScaleUp(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "scaleup")
	s.create(replicaSet(pod(s.ns, "many", "", pretended), 0))
	s.settled("many", 0)
	survivor := c.followers(t)[0]
	list, err := survivor.Kube.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var n counter
	if err := n.follow(ctx, survivor, s.ns, list.ResourceVersion); err != nil {
		t.Fatal(err)
	}
	leader := c.waitLeader(t)
	patch := []byte(`{"spec":{"replicas":1000}}`)
	if _, err := survivor.Kube.AppsV1().ReplicaSets(s.ns).Patch(t.Context(), "many", "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	leader.Kill()
	t.Cleanup(func() {
		if !leader.Running() {
			c.restart(t, leader)
		}
	})
	c.waitLeader(t)
	s.settled("many", 1000)
	n.mu.Lock()
	most := n.most
	n.mu.Unlock()
	if most != 1000 {
		t.Errorf("there were up to %d pods", most)
	}
	c.restart(t, leader)
	c.verify(t, 3)
	began := time.Now()
	s.kubectl("scale", "rs/many", "--replicas=0")
	s.settled("many", 0)
	t.Logf("1,000 pods were gone after %s", time.Since(began))
}
