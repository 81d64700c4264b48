package agent_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// workloads is a namespace of a cluster, and what may be asked of it.
type workloads struct {
	*testing.T
	kubernetes.Interface
	server *server.Server
	ns     string
}

func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// await waits for a state of which ok holds, and for every state until then always must.
func (w *workloads) await(what string, ok func(v *fsm.View) bool, always ...func(v *fsm.View) string) {
	w.Helper()
	await(w.T, w.server, what, func(v *fsm.View) bool {
		for _, f := range always {
			if wrong := f(v); wrong != "" {
				w.Fatalf("until %s: %s", what, wrong)
			}
		}
		return ok(v)
	})
}

// pods are those that there are, by name.
func (w *workloads) pods(v *fsm.View) []*corev1.Pod {
	var out []*corev1.Pod
	v.Pods.Scan(w.ns+"/", func(_ string, p *corev1.Pod) bool {
		out = append(out, p)
		return true
	})
	return out
}

// names are those of the pods of which f holds.
func (w *workloads) names(v *fsm.View, f func(p *corev1.Pod) bool) string {
	var out []string
	for _, p := range w.pods(v) {
		if f(p) {
			out = append(out, p.Name)
		}
	}
	return strings.Join(out, " ")
}

func row[T any](v *fsm.View, resource, namespace, name string) (out T) {
	if o, ok := v.Objects.Get(fsm.ObjectKey(resource, namespace, name)); ok {
		out, _ = o.Value.(T)
	}
	return out
}

// job gives the Job as it is; nil: it is gone.
func (w *workloads) job(v *fsm.View) *batchv1.Job { return row[*batchv1.Job](v, "jobs", w.ns, "web") }

func ready(p *corev1.Pod) bool { return model.Ready(p) && p.DeletionTimestamp == nil }

func template(cpu string, annotations ...string) corev1.PodTemplateSpec {
	p := pod("", cpu)
	p.Spec.TerminationGracePeriodSeconds = new(int64)
	*p.Spec.TerminationGracePeriodSeconds = 1
	t := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}, Annotations: map[string]string{}}, Spec: p.Spec}
	for i := 0; i < len(annotations); i += 2 {
		t.Annotations[fake.Prefix+annotations[i]] = annotations[i+1]
	}
	return t
}

func to[T any](v T) *T { return &v }

var (
	web      = metav1.ObjectMeta{Name: "web"}
	selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
)

// set is a StatefulSet of ready pods, one claim each if claims.
func set(replicas int32, claims bool) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{ObjectMeta: web, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: template("10m"), ServiceName: "web"}}
	if claims {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data"}, Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: to("berth-local"),
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{"storage": resource.MustParse("1Mi")}},
		}}}
	}
	return s
}

// newJob ends at once, with this code.
func newJob(completions int32, exit string) *batchv1.Job {
	t := template("10m", "run-seconds", "0", "exit-code", exit)
	t.Spec.RestartPolicy, t.Labels = corev1.RestartPolicyNever, nil
	return &batchv1.Job{ObjectMeta: web, Spec: batchv1.JobSpec{Completions: &completions, Parallelism: &completions, BackoffLimit: to(int32(0)), Template: t}}
}

// workloadRules are what Kubernetes promises of workloads that its [Conformance] tests do not ask, each in a namespace of its own.
var workloadRules = map[string]func(w *workloads){
	"StatefulSet/ordinals": func(w *workloads) {
		s := set(3, false)
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 5}
		must[*appsv1.StatefulSet](w.T)(w.AppsV1().StatefulSets(w.ns).Create(w.Context(), s, metav1.CreateOptions{}))
		// One after another: each is made when the one before it is ready.
		w.await("three pods", func(v *fsm.View) bool { return w.names(v, ready) == "web-5 web-6 web-7" }, func(v *fsm.View) string {
			pods := w.pods(v)
			for _, p := range pods[:max(0, len(pods)-1)] {
				if !ready(p) {
					return fmt.Sprintf("%s is not ready, and there is %s", p.Name, pods[len(pods)-1].Name)
				}
			}
			return ""
		})
		w.patch("statefulsets", `{"spec":{"replicas":1}}`)
		w.await("one pod", func(v *fsm.View) bool { return len(w.pods(v)) == 1 && w.names(v, ready) == "web-5" }, func(v *fsm.View) string {
			if going := w.names(v, func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil }); strings.Contains(going, " ") {
				return "more than one goes at a time: " + going
			}
			return ""
		})
	},
	"StatefulSet/partition and revisions": func(w *workloads) {
		must[*appsv1.StatefulSet](w.T)(w.AppsV1().StatefulSets(w.ns).Create(w.Context(), set(3, false), metav1.CreateOptions{}))
		w.await("three pods", func(v *fsm.View) bool { return w.names(v, ready) == "web-0 web-1 web-2" })
		w.patch("statefulsets", `{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":2}},"template":{"metadata":{"annotations":{"roll":"1"}}}}}`)
		fresh := func(p *corev1.Pod) bool { return ready(p) && p.Annotations["roll"] == "1" }
		w.await("the last pod to be a new one", func(v *fsm.View) bool {
			s := row[*appsv1.StatefulSet](v, "statefulsets", w.ns, "web")
			return w.names(v, fresh) == "web-2" && s.Status.UpdatedReplicas == 1 && s.Status.CurrentRevision != s.Status.UpdateRevision
		}, w.neverBelow(2))
		w.patch("statefulsets", `{"spec":{"updateStrategy":{"rollingUpdate":{"partition":0}}}}`)
		w.await("all to be new ones", func(v *fsm.View) bool {
			s := row[*appsv1.StatefulSet](v, "statefulsets", w.ns, "web")
			return w.names(v, fresh) == "web-0 web-1 web-2" && s.Status.CurrentRevision == s.Status.UpdateRevision
		}, w.neverBelow(2))
	},
	"StatefulSet/so many may be away during an update as it says": func(w *workloads) {
		s := set(4, false)
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: to(intstr.FromString("50%"))}
		must[*appsv1.StatefulSet](w.T)(w.AppsV1().StatefulSets(w.ns).Create(w.Context(), s, metav1.CreateOptions{}))
		w.await("four pods", func(v *fsm.View) bool { return w.names(v, ready) == "web-0 web-1 web-2 web-3" })
		w.patch("statefulsets", `{"spec":{"template":{"spec":{"nodeSelector":{"there":"nowhere"}}}}}`)
		w.await("two to be away", func(v *fsm.View) bool { return w.names(v, ready) == "web-0 web-1" }, w.neverBelow(2))
	},
	"StatefulSet/claims go when it is scaled, and stay when it is deleted": func(w *workloads) {
		s := set(2, true)
		s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement // nobody makes the volumes, so no pod is ready
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: appsv1.DeletePersistentVolumeClaimRetentionPolicyType, WhenDeleted: appsv1.RetainPersistentVolumeClaimRetentionPolicyType,
		}
		s.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
		must[*appsv1.StatefulSet](w.T)(w.AppsV1().StatefulSets(w.ns).Create(w.Context(), s, metav1.CreateOptions{}))
		claims := func(v *fsm.View) (out []string) {
			v.Objects.Scan(fsm.VolumeClaims+"/"+w.ns+"/", func(_ string, o *fsm.Object) bool {
				if o.Value.GetDeletionTimestamp() == nil {
					out = append(out, o.Value.GetName())
				}
				return true
			})
			return out
		}
		w.await("two claims", func(v *fsm.View) bool { return slices.Equal(claims(v), []string{"data-web-0", "data-web-1"}) })
		w.patch("statefulsets", `{"spec":{"replicas":1}}`)
		w.await("one claim", func(v *fsm.View) bool { return slices.Equal(claims(v), []string{"data-web-0"}) })
		if err := w.AppsV1().StatefulSets(w.ns).Delete(w.Context(), "web", metav1.DeleteOptions{PropagationPolicy: to(metav1.DeletePropagationForeground)}); err != nil {
			w.Fatal(err)
		}
		w.await("it and its pods to go", func(v *fsm.View) bool {
			return row[*appsv1.StatefulSet](v, "statefulsets", w.ns, "web") == nil && len(w.pods(v)) == 0
		}, func(v *fsm.View) string {
			if !slices.Contains(claims(v), "data-web-0") {
				return "its claim went with it"
			}
			return ""
		})
	},
	"DaemonSet/a new pod is ready before the old one goes": func(w *workloads) {
		d := &appsv1.DaemonSet{ObjectMeta: web, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template("10m"), UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
			Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxSurge: to(intstr.FromInt32(1)), MaxUnavailable: to(intstr.FromInt32(0))},
		}}}
		must[*appsv1.DaemonSet](w.T)(w.AppsV1().DaemonSets(w.ns).Create(w.Context(), d, metav1.CreateOptions{}))
		w.await("a pod on each node", func(v *fsm.View) bool { return len(w.pods(v)) == 2 && strings.Contains(w.names(v, ready), " ") })
		w.patch("daemonsets", `{"spec":{"template":{"metadata":{"annotations":{"roll":"1"}}}}}`)
		w.await("new ones", func(v *fsm.View) bool {
			fresh := w.names(v, func(p *corev1.Pod) bool { return ready(p) && p.Annotations["roll"] == "1" })
			return strings.Contains(fresh, " ") && len(w.pods(v)) == 2
		}, func(v *fsm.View) string {
			on, surging := map[string]int{}, 0
			for _, p := range w.pods(v) {
				switch {
				case ready(p):
					on[p.Spec.NodeName]++
				case p.Annotations["roll"] == "1" && p.DeletionTimestamp == nil:
					surging++ // one that is ready is none: the next is made beside it before its old one is gone
				}
			}
			if len(on) < 2 || surging > 1 {
				return fmt.Sprintf("ready pods by nodes: %v, %d new ones are not ready", on, surging)
			}
			return ""
		})
	},
	"DaemonSet/finds its place on full nodes by its class": func(w *workloads) {
		w = newWorkloads(w.T, w.ns) // where nobody else is a victim, or takes the room
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.ns}, Value: 1000}
		must[*schedulingv1.PriorityClass](w.T)(w.SchedulingV1().PriorityClasses().Create(w.Context(), class, metav1.CreateOptions{}))
		filler := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "filler"}, Spec: appsv1.ReplicaSetSpec{Replicas: to(int32(10)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "filler"}}, Template: template("1")}}
		filler.Spec.Template.Labels = map[string]string{"app": "filler"}
		must[*appsv1.ReplicaSet](w.T)(w.AppsV1().ReplicaSets(w.ns).Create(w.Context(), filler, metav1.CreateOptions{}))
		of := func(v *fsm.View, app string, f func(*corev1.Pod) bool) (n int) {
			for _, p := range w.pods(v) {
				if p.Labels["app"] == app && f(p) {
					n++
				}
			}
			return n
		}
		w.await("full nodes", func(v *fsm.View) bool {
			waiting := of(v, "filler", func(p *corev1.Pod) bool { return p.Spec.NodeName == "" })
			return of(v, "filler", ready) >= 4 && waiting > 0 && of(v, "filler", ready)+waiting == 10
		})
		d := &appsv1.DaemonSet{ObjectMeta: web, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template("1")}}
		d.Spec.Template.Spec.PriorityClassName = class.Name
		must[*appsv1.DaemonSet](w.T)(w.AppsV1().DaemonSets(w.ns).Create(w.Context(), d, metav1.CreateOptions{}))
		w.await("a pod on each node", func(v *fsm.View) bool { return of(v, "web", ready) == 2 }, func(v *fsm.View) string {
			if n := of(v, "web", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed }); n > 0 {
				return fmt.Sprintf("%d failed", n)
			}
			return ""
		})
	},
	"Deployment/one that does not go on says so": func(w *workloads) {
		d := &appsv1.Deployment{ObjectMeta: web, Spec: appsv1.DeploymentSpec{Replicas: to(int32(2)), Selector: selector, Template: template("10m"), ProgressDeadlineSeconds: to(int32(2))}}
		must[*appsv1.Deployment](w.T)(w.AppsV1().Deployments(w.ns).Create(w.Context(), d, metav1.CreateOptions{}))
		w.await("two pods", func(v *fsm.View) bool { return strings.Contains(w.names(v, ready), " ") })
		w.patch("deployments", `{"spec":{"template":{"spec":{"nodeSelector":{"there":"nowhere"}}}}}`)
		w.await("its deadline", func(v *fsm.View) bool {
			d := row[*appsv1.Deployment](v, "deployments", w.ns, "web")
			return slices.ContainsFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool {
				return c.Type == appsv1.DeploymentProgressing && c.Status == corev1.ConditionFalse && c.Reason == "ProgressDeadlineExceeded"
			})
		}, w.neverBelow(2))
		w.patch("deployments", `{"spec":{"template":{"spec":{"nodeSelector":null}}}}`)
		w.await("it to go on", func(v *fsm.View) bool {
			d := row[*appsv1.Deployment](v, "deployments", w.ns, "web")
			return d.Status.ObservedGeneration == d.Generation && d.Status.AvailableReplicas == 2 && d.Status.UpdatedReplicas == 2 && d.Status.Replicas == 2
		}, w.neverBelow(2))
	},
	"Deployment/Recreate has no two revisions at a time": func(w *workloads) {
		d := &appsv1.Deployment{ObjectMeta: web, Spec: appsv1.DeploymentSpec{Replicas: to(int32(3)), Selector: selector, Template: template("10m"), Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}}}
		must[*appsv1.Deployment](w.T)(w.AppsV1().Deployments(w.ns).Create(w.Context(), d, metav1.CreateOptions{}))
		w.await("three pods", func(v *fsm.View) bool { return len(strings.Fields(w.names(v, ready))) == 3 })
		w.patch("deployments", `{"spec":{"template":{"metadata":{"annotations":{"roll":"1"}}}}}`)
		w.await("new ones", func(v *fsm.View) bool {
			return len(strings.Fields(w.names(v, func(p *corev1.Pod) bool { return ready(p) && p.Annotations["roll"] == "1" }))) == 3
		}, func(v *fsm.View) string {
			// One that has ended is left out: its object goes soon, and Kubernetes does not wait for that.
			was := w.names(v, func(p *corev1.Pod) bool { return p.Annotations["roll"] == "" && !model.Terminal(p) })
			if is := w.names(v, func(p *corev1.Pod) bool { return p.Annotations["roll"] != "" }); was != "" && is != "" {
				return was + " are there beside " + is
			}
			return ""
		})
	},
	"Job/a pod is replaced when it has failed, and not before": func(w *workloads) {
		j := newJob(1, "0")
		j.Spec.BackoffLimit, j.Spec.PodReplacementPolicy = to(int32(3)), to(batchv1.Failed)
		delete(j.Spec.Template.Annotations, fake.Prefix+"run-seconds") // it runs until it is told to end
		j.Spec.Template.Annotations[fake.Prefix+"term-exit-code"] = "1"
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), j, metav1.CreateOptions{}))
		runs := func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil }
		w.await("a pod", func(v *fsm.View) bool { return w.names(v, runs) != "" })
		first := w.names(w.server.View(), runs)
		if err := w.CoreV1().Pods(w.ns).Delete(w.Context(), first, metav1.DeleteOptions{}); err != nil {
			w.Fatal(err)
		}
		w.await("another pod", func(v *fsm.View) bool { n := w.names(v, runs); return n != "" && n != first }, func(v *fsm.View) string {
			active := w.names(v, func(p *corev1.Pod) bool { return !model.Terminal(p) })
			if strings.Contains(active, " ") {
				return active + " are there at a time"
			}
			return ""
		})
	},
	"Job/one that somebody else keeps is left alone": func(w *workloads) {
		j := newJob(2, "0")
		j.Spec.ManagedBy = to("example.com/queue")
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), j, metav1.CreateOptions{}))
		kept := newJob(1, "0")
		kept.Name = "kept"
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), kept, metav1.CreateOptions{}))
		w.await("the other Job", func(v *fsm.View) bool { return complete(row[*batchv1.Job](v, "jobs", w.ns, "kept")) }, func(v *fsm.View) string {
			if j := w.job(v); j.Status.StartTime != nil || strings.Contains(w.names(v, func(p *corev1.Pod) bool { return p.Labels["job-name"] == "web" }), "web") {
				return fmt.Sprintf("somebody works on it: %+v", j.Status)
			}
			return ""
		})
	},
	"Job/it goes when its time is over, with its pods": func(w *workloads) {
		j := newJob(2, "0")
		j.Spec.TTLSecondsAfterFinished = to(int32(1))
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), j, metav1.CreateOptions{}))
		w.await("it to complete", func(v *fsm.View) bool { return complete(w.job(v)) }, func(v *fsm.View) string {
			if w.job(v) == nil {
				return "it went before"
			}
			return ""
		})
		w.await("it to go", func(v *fsm.View) bool { return w.job(v) == nil && len(w.pods(v)) == 0 })
	},
	"Job/each piece fails by itself": func(w *workloads) {
		j := newJob(3, "0")
		j.Spec.CompletionMode, j.Spec.BackoffLimit, j.Spec.BackoffLimitPerIndex = to(batchv1.IndexedCompletion), nil, to(int32(0))
		j.Spec.Template.Annotations[fake.Prefix+"exit-code"] = "1"
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), j, metav1.CreateOptions{}))
		w.await("it to fail", func(v *fsm.View) bool {
			j := w.job(v)
			return j.Status.FailedIndexes != nil && *j.Status.FailedIndexes == "0-2" && j.Status.Failed == 3 && j.Status.Succeeded == 0
		}, func(v *fsm.View) string {
			if n := len(w.pods(v)); n > 3 {
				return fmt.Sprintf("%d pods for three pieces that may fail once", n)
			}
			return ""
		})
	},
	"Job/no pod keeps the finalizer that counted it": func(w *workloads) {
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), newJob(20, "0"), metav1.CreateOptions{}))
		w.await("it to complete, and its pods to be let go", func(v *fsm.View) bool {
			return complete(w.job(v)) && len(w.pods(v)) == 20 && w.names(v, func(p *corev1.Pod) bool { return len(p.Finalizers) > 0 }) == ""
		}, func(v *fsm.View) string {
			j := w.job(v)
			free := w.names(v, func(p *corev1.Pod) bool { return len(p.Finalizers) == 0 })
			counted := int(j.Status.Succeeded)
			if u := j.Status.UncountedTerminatedPods; u != nil {
				counted += len(u.Succeeded)
			}
			if n := len(strings.Fields(free)); n > counted {
				return fmt.Sprintf("%d were let go, and %d counted", n, counted)
			}
			return ""
		})
	},
	"Job/a suspended one has no pods, and goes on when it is told to": func(w *workloads) {
		j := newJob(2, "0")
		j.Spec.Suspend = to(true)
		delete(j.Spec.Template.Annotations, fake.Prefix+"run-seconds") // they run until they are told to end
		must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Create(w.Context(), j, metav1.CreateOptions{}))
		is := func(v *fsm.View, status corev1.ConditionStatus) bool {
			return slices.ContainsFunc(w.job(v).Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobSuspended && c.Status == status })
		}
		none := func(v *fsm.View) string { return w.names(v, func(*corev1.Pod) bool { return true }) }
		w.await("it to say so", func(v *fsm.View) bool { return is(v, corev1.ConditionTrue) && w.job(v).Status.StartTime == nil }, none)
		suspend := func(is string) {
			w.Helper()
			must[*batchv1.Job](w.T)(w.BatchV1().Jobs(w.ns).Patch(w.Context(), "web", types.MergePatchType, []byte(`{"spec":{"suspend":`+is+`}}`), metav1.PatchOptions{}))
		}
		suspend("false")
		w.await("its pods", func(v *fsm.View) bool {
			return is(v, corev1.ConditionFalse) && w.job(v).Status.StartTime != nil && len(strings.Fields(w.names(v, ready))) == 2
		})
		suspend("true")
		w.await("its pods to go", func(v *fsm.View) bool {
			return is(v, corev1.ConditionTrue) && w.job(v).Status.Active == 0 && len(w.pods(v)) == 0
		})
		if j := w.job(w.server.View()); j.Status.Failed > 0 {
			w.Errorf("pods that went because it is suspended count as failed: %+v", j.Status)
		}
	},
	"CronJob/its hours are those of its zone": func(w *workloads) {
		zone, err := time.LoadLocation("Asia/Kathmandu") // a quarter of an hour off everybody else's
		if err != nil {
			w.Fatal(err)
		}
		due := time.Now().Truncate(time.Minute).Add(-time.Minute)
		c := &batchv1.CronJob{ObjectMeta: web, Spec: batchv1.CronJobSpec{
			Schedule: due.In(zone).Format("4 15 * * *"), TimeZone: to(zone.String()), JobTemplate: batchv1.JobTemplateSpec{Spec: newJob(1, "0").Spec},
		}}
		c = must[*batchv1.CronJob](w.T)(w.BatchV1().CronJobs(w.ns).Create(w.Context(), c, metav1.CreateOptions{}))
		c.Status.LastScheduleTime = to(metav1.NewTime(due.Add(-2 * time.Hour))) // what it has missed since then is made up for
		must[*batchv1.CronJob](w.T)(w.BatchV1().CronJobs(w.ns).UpdateStatus(w.Context(), c, metav1.UpdateOptions{}))
		name := fmt.Sprintf("web-%d", due.Unix()/60)
		w.await("the run of a minute ago", func(v *fsm.View) bool { return row[*batchv1.Job](v, "jobs", w.ns, name) != nil })
	},
}

func complete(j *batchv1.Job) bool {
	return j != nil && slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool { return c.Type == batchv1.JobComplete })
}

// neverBelow is the promise that so many pods are ready.
func (w *workloads) neverBelow(n int) func(v *fsm.View) string {
	return func(v *fsm.View) string {
		if got := strings.Fields(w.names(v, model.Ready)); len(got) < n {
			return fmt.Sprintf("%v alone are ready", got)
		}
		return ""
	}
}

// patch changes the workload "web".
func (w *workloads) patch(resource, patch string) {
	w.Helper()
	err := w.AppsV1().RESTClient().Patch(types.StrategicMergePatchType).Namespace(w.ns).Resource(resource).Name("web").Body([]byte(patch)).Do(w.Context()).Error()
	if err != nil {
		w.Fatal(err)
	}
}

// newWorkloads is a namespace of a cluster with two workers, which ends with the test.
func newWorkloads(t *testing.T, ns string) *workloads {
	t.Helper()
	d := startDev(t, agent.DevConfig{DataDir: t.TempDir(), Servers: 1, Workers: 2, Capacity: corev1.ResourceList{"cpu": resource.MustParse("4")}})
	t.Cleanup(func() { stopDev(t, d) })
	s := d.Servers()[0]
	return (&workloads{t, client(t, d, s), s, ""}).in(t, ns)
}

// in makes a namespace in the same cluster.
func (w *workloads) in(t *testing.T, ns string) *workloads {
	t.Helper()
	must[*corev1.Namespace](t)(w.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}))
	return &workloads{t, w.Interface, w.server, ns}
}

// TestWorkloadRules: see workloadRules. What always holds is asked of every state that is seen.
func TestWorkloadRules(t *testing.T) {
	w := newWorkloads(t, "rules")
	t.Run("all", func(t *testing.T) {
		n := 0
		for name, rule := range workloadRules {
			n++
			ns := fmt.Sprintf("rules-%d", n)
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				rule(w.in(t, ns))
			})
		}
	})
}
