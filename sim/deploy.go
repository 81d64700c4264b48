package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
)

// What the workloads of Kubernetes' controllers are. keptBy is the label of their
// pods.
const (
	keptBy     = "kept-by"
	deployment = "web"
	surge      = 1
	daemons    = "each"
	ordered    = "db"
	replicas   = 3
	// Of every Job:
	completions = 4
	parallelism = 2
)

// deploy keeps a Deployment, a StatefulSet and a DaemonSet, changes their pods again and
// again, and makes Jobs. It begins when all servers know these kinds.
func (u *user) deploy(ctx context.Context) {
	least, most, half, of := intstr.FromInt32(1), intstr.FromInt32(surge), intstr.FromString("50%"), int32(replicas)
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		selector, template := templateOf(deployment, -1)
		_, err := c.AppsV1().Deployments(space).Create(ctx, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: deployment}, Spec: appsv1.DeploymentSpec{
			Replicas: &of, Selector: selector, Template: template,
			Strategy: appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &least, MaxSurge: &most}},
		}}, metav1.CreateOptions{})
		return err
	})
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		selector, template := templateOf(ordered, -1)
		_, err := c.AppsV1().StatefulSets(space).Create(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: ordered}, Spec: appsv1.StatefulSetSpec{
			Replicas: &of, Selector: selector, Template: template}}, metav1.CreateOptions{})
		return err
	})
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		selector, template := templateOf(daemons, -1)
		_, err := c.AppsV1().DaemonSets(space).Create(ctx, &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: daemons}, Spec: appsv1.DaemonSetSpec{
			Selector: selector, Template: template, UpdateStrategy: appsv1.DaemonSetUpdateStrategy{
				RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &half}}}}, metav1.CreateOptions{})
		return err
	})
	u.serve(ctx)
	u.schedule(ctx)
	defer u.suspend(context.WithoutCancel(ctx))
	n := 0
	u.every(ctx, 15*time.Second, func() {
		n++
		u.runJob(ctx, n)
		pause(ctx, time.Duration(u.rand.IntN(10))*time.Second)
		patch := fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"round":"%d"}}}}}`, n)
		kind := []string{"deployments", "statefulsets", "daemonsets"}[u.rand.IntN(3)]
		name := map[string]string{"deployments": deployment, "statefulsets": ordered, "daemonsets": daemons}[kind]
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.AppsV1().RESTClient().Patch(types.MergePatchType).Namespace(space).Resource(kind).Name(name).Body(patch).Do(ctx).Error()
		})
		u.world.story.tell(u.name, "changes the pods of %s %s: %v", kind, name, err)
	})
}

// rationed is the class of which a namespace may have so many pods at a time, and ration
// the name of the quota that says so.
const (
	rationed   = "low"
	ration     = "few"
	rationPods = 40
)

// ration lets the namespace have few pods of the lowest class.
func (u *user) ration(ctx context.Context) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().ResourceQuotas(space).Create(ctx, &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: ration}, Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: *resource.NewQuantity(rationPods, resource.DecimalSI)},
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
				ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{rationed},
			}}},
		}}, metav1.CreateOptions{})
		return err
	})
	u.world.story.tell(u.name, "has made quota %s", ration)
}

// rations looks at a pod that has just been made: its namespace may have it.
func (m *mirror) rations(revision int64, pod *corev1.Pod) {
	if !m.rationed || pod.Spec.PriorityClassName != rationed {
		return
	}
	have := 1
	for _, p := range m.pods {
		if p.Spec.PriorityClassName == rationed && p.Namespace == pod.Namespace && p.UID != pod.UID && !ended(p) {
			have++
		}
	}
	if have > rationPods {
		m.fault(revision, "pod %s is made, the %dth of class %s, and quota %s allows %d", pod.Name, have, rationed, ration, rationPods)
	}
}

// runJob makes a Job, and removes one of some time ago.
func (u *user) runJob(ctx context.Context, n int) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		name := fmt.Sprintf("job-%d", n)
		_, err := c.BatchV1().Jobs(space).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: jobOf(name, u.rand.IntN(5))}, metav1.CreateOptions{})
		return err
	})
	background := metav1.DeletePropagationBackground
	_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error { // it may stay
		return c.BatchV1().Jobs(space).Delete(ctx, fmt.Sprintf("job-%d", n-8), metav1.DeleteOptions{PropagationPolicy: &background})
	})
}

// jobOf is of pods that run for some seconds.
func jobOf(name string, seconds int) batchv1.JobSpec {
	_, template := templateOf(name, seconds)
	want, at, patience, indexed := int32(completions), int32(parallelism), int32(1000), batchv1.IndexedCompletion
	return batchv1.JobSpec{
		Completions: &want, Parallelism: &at, BackoffLimit: &patience, CompletionMode: &indexed, Template: template,
		PodFailurePolicy: &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:          batchv1.PodFailurePolicyActionIgnore,
			OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue}},
		}}},
	}
}

// templateOf is of pods that run for some seconds; for ever, if they are negative.
func templateOf(name string, seconds int) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	pod := podOf("", classes[len(classes)-1].name, 50, seconds)
	pod.Labels = map[string]string{keptBy: name}
	return &metav1.LabelSelector{MatchLabels: pod.Labels}, corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
}

// kept looks at a pod that a workload has just made: none has more than it may.
func (m *mirror) kept(revision int64, pod *corev1.Pod) {
	name := pod.Labels[keptBy]
	most := 0
	switch {
	case name == "" || name == chiming: // how many of its Jobs go on nothing bounds
		return
	case name == deployment:
		most = replicas + surge
	case name == ordered:
		most = replicas
	case name == daemons:
		most = 1
	default:
		most = parallelism
	}
	have := 1
	for _, p := range m.pods {
		if p.Labels[keptBy] == name && p.UID != pod.UID && p.DeletionTimestamp == nil && !ended(p) && (name != daemons || wantsNode(p) == wantsNode(pod)) {
			have++
		}
	}
	if have > most {
		m.fault(revision, "%s makes pod %s, and has %d, where %d is the most", name, pod.Name, have, most)
	}
}

// wantsNode is the node that a DaemonSet's pod is for.
func wantsNode(p *corev1.Pod) string {
	if p.Spec.Affinity == nil || p.Spec.Affinity.NodeAffinity == nil || p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	for _, t := range p.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, f := range t.MatchFields {
			return f.Values[0]
		}
	}
	return ""
}

// job looks at a Job that has changed: what is complete has succeeded once for each of its
// pieces. Of a CronJob there is one for each time of its schedule, and where it forbids more the next one comes when the last
// has ended.
func (m *mirror) job(revision int64, key string, job *batchv1.Job) {
	over := slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
	by := metav1.GetControllerOf(job)
	if by != nil && by.Kind == "CronJob" {
		at := by.Name + " " + job.Annotations[batchv1.CronJobScheduledTimestampAnnotation]
		if of, ran := m.runs[at]; ran && of != job.UID {
			m.fault(revision, "%s is made for %s, as another was before", key, at)
		}
		m.runs[at] = job.UID
	}
	m.chime(job)
	if !ticks(job) || over {
		delete(m.ticks, key)
	} else {
		for other := range m.ticks {
			if m.ticks[key] == nil {
				m.fault(revision, "%s is made, and %s goes on", key, other)
			}
		}
		m.ticks[key] = job
	}
	if job.Status.Succeeded > completions {
		m.fault(revision, "job %s has succeeded %d times, of %d", key, job.Status.Succeeded, completions)
	}
	for _, c := range job.Status.Conditions {
		if c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue && len(m.pieces[job.UID]) != completions {
			m.fault(revision, "job %s is complete, and pods of %d of its %d pieces have succeeded", key, len(m.pieces[job.UID]), completions)
		}
	}
}

// ticks: of such Jobs there is one at a time.
func ticks(job *batchv1.Job) bool {
	by := metav1.GetControllerOf(job)
	return by != nil && by.Kind == "CronJob" && by.Name == ticking
}

// piece notes a piece of a Job whose pod has succeeded.
func (m *mirror) piece(pod *corev1.Pod) {
	owner := metav1.GetControllerOf(pod)
	if owner == nil || owner.Kind != "Job" || pod.Status.Phase != corev1.PodSucceeded {
		return
	}
	if m.pieces[owner.UID] == nil {
		m.pieces[owner.UID] = map[string]bool{}
	}
	m.pieces[owner.UID][pod.Annotations[batchv1.JobCompletionIndexAnnotation]] = true
}

// kept: every workload of Kubernetes' controllers has come to where it was to come.
func kept(v *fsm.View) (unsettled []string) {
	nodes := int32(v.Nodes.Len())
	for _, name := range []string{foreign, rack} { // their taints keep those of DaemonSets off
		if _, ok := v.Nodes.Get(name); ok {
			nodes--
		}
	}
	v.Objects.Scan("", func(key string, o *fsm.Object) bool {
		is, want := "", ""
		switch w := o.Value.(type) {
		case *appsv1.Deployment:
			s := w.Status
			is = fmt.Sprintf("generation %d: %d pods, %d new, %d available", s.ObservedGeneration, s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
			want = fmt.Sprintf("generation %d: %d pods, %d new, %d available", w.Generation, replicas, replicas, replicas)
		case *appsv1.StatefulSet:
			s := w.Status
			is = fmt.Sprintf("generation %d: %d pods, %d new, %d ready", s.ObservedGeneration, s.Replicas, s.UpdatedReplicas, s.ReadyReplicas)
			want = fmt.Sprintf("generation %d: %d pods, %d new, %d ready", w.Generation, replicas, replicas, replicas)
		case *appsv1.DaemonSet:
			s := w.Status
			is = fmt.Sprintf("generation %d: %d wanted, %d new, %d ready", s.ObservedGeneration, s.DesiredNumberScheduled, s.UpdatedNumberScheduled, s.NumberReady)
			want = fmt.Sprintf("generation %d: %d wanted, %d new, %d ready", w.Generation, nodes, nodes, nodes-waiting(v, w.Name))
		case *batchv1.Job:
			is, want = fmt.Sprintf("%d succeeded", w.Status.Succeeded), fmt.Sprintf("%d succeeded", completions)
		}
		if is != want {
			unsettled = append(unsettled, fmt.Sprintf("%s has %s, and should have %s%s", key, is, want, piecesOf(v, o.Value.GetName())))
		}
		return true
	})
	return unsettled
}

// waiting is how many pods of a workload have no node yet: whether they find one is asked of all who wait.
func waiting(v *fsm.View, workload string) (n int32) {
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Labels[keptBy] == workload && p.Spec.NodeName == "" && !ended(p) {
			n++
		}
		return true
	})
	return n
}

// piecesOf tells of the pods of a workload, and since when they are ready, or are not.
func piecesOf(v *fsm.View, workload string) (told string) {
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Labels[keptBy] != workload {
			return true
		}
		told += fmt.Sprintf("; pod %s on %q, made at %s, is %s", p.Name, p.Spec.NodeName, clockTime(p.CreationTimestamp), p.Status.Phase)
		if p.DeletionTimestamp != nil {
			told += ", is to go"
		}
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodReady {
				told += fmt.Sprintf(", ready %s since %s (%s %s)", c.Status, clockTime(c.LastTransitionTime), c.Reason, c.Message)
			}
		}
		return true
	})
	return told
}

func clockTime(t metav1.Time) string { return t.UTC().Format("15:04:05") }
