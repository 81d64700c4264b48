package fsm

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// What several commands do to pods.

// findPod returns the pod under a key if it is still the one that is meant.
func (tx *Tx) findPod(ref PodRef) (*corev1.Pod, bool) {
	pod, ok := tx.view.Pods.Get(ref.Key)
	return pod, ok && string(pod.UID) == ref.UID
}

// resolvePriority gives a new pod the priority of its class (AD1–AD5). Whether
// a workload's pods may have a system class was asked when its template was
// written, of who wrote it.
func (tx *Tx) resolvePriority(pod *corev1.Pod, owner *workload) (Result, bool) {
	refuse := func(why string) (Result, bool) {
		return refuseForbidden(podResource.groupResource(), givenName(pod), why), false
	}
	config := tx.view.SchedulerConfig()
	if !*config.Spec.Preemption.Enabled { // PC11
		if pod.Spec.PriorityClassName != "" {
			return refuse(fmt.Sprintf("priority is switched off in this cluster, so a pod may not name a PriorityClass (%s)", pod.Spec.PriorityClassName))
		}
		return tx.setPriority(pod, model.DefaultPriority, corev1.PreemptLowerPriority)
	}
	name := pod.Spec.PriorityClassName
	named := name != "" // the default is for everybody
	if !named {
		class, ok := tx.view.DefaultPriorityClass()
		if !ok { // PC5
			return tx.setPriority(pod, model.DefaultPriority, corev1.PreemptLowerPriority)
		}
		name = class.Name
		pod.Spec.PriorityClassName = name
	}
	class, ok := tx.view.PriorityClasses.Get(name)
	if !ok { // AD2
		return refuse(fmt.Sprintf("no PriorityClass with name %s was found", name))
	}
	if why := tx.noUse(class.Name, model.RestrictsUse(class)); owner == nil && (named || model.IsSystemClass(name)) && why != "" { // AD5
		return refuse(why)
	}
	inheritDisruptionPolicy(pod, class)
	policy := corev1.PreemptLowerPriority
	if class.PreemptionPolicy != nil {
		policy = *class.PreemptionPolicy
	}
	return tx.setPriority(pod, class.Value, policy)
}

// inheritDisruptionPolicy copies the class's annotation to a pod that has none
// of its own.
func inheritDisruptionPolicy(pod *corev1.Pod, class *schedulingv1.PriorityClass) {
	policy, ok := class.Annotations[model.DisruptionPolicyAnnotation]
	if _, own := pod.Annotations[model.DisruptionPolicyAnnotation]; own || !ok {
		return
	}
	annotations := make(map[string]string, len(pod.Annotations)+1)
	maps.Copy(annotations, pod.Annotations)
	annotations[model.DisruptionPolicyAnnotation] = policy
	pod.Annotations = annotations
}

// givenName is what a pod is called in errors before it has its name.
func givenName(pod *corev1.Pod) string {
	if pod.Name == "" {
		return pod.GenerateName
	}
	return pod.Name
}

// setPriority: a pod may not bring another priority or policy than its class's
// (AD3).
func (tx *Tx) setPriority(pod *corev1.Pod, priority int32, policy corev1.PreemptionPolicy) (Result, bool) {
	if p := pod.Spec.Priority; p != nil && *p != priority {
		return refuseForbidden(podResource.groupResource(), givenName(pod), fmt.Sprintf(
			"the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *p, priority)), false
	}
	if p := pod.Spec.PreemptionPolicy; p != nil && *p != policy {
		return refuseForbidden(podResource.groupResource(), givenName(pod), fmt.Sprintf(
			"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *p, policy)), false
	}
	pod.Spec.Priority, pod.Spec.PreemptionPolicy = &priority, &policy
	return Result{}, true
}

// SinceAbsentClasses is the LogVersion from which on a template may name a class that
// is not there only by whoever may use it: it may come to be restricted.
const SinceAbsentClasses = 28

// checkTemplate refuses a workload whose template names a class that its
// writer may not use (AD5). What is left of an old template as it was, by those
// who change something else, was asked before.
func (tx *Tx) checkTemplate(kind ObjectKind, value, old codec.Object) (Result, bool) {
	if kind.Workload == nil || kind.Workload.Template == nil {
		return Result{}, true
	}
	template := kind.Workload.Template(value)
	if template == nil {
		return Result{}, true
	}
	name := template.Spec.PriorityClassName
	class, there := tx.view.PriorityClasses.Get(name)
	restricted := there && model.RestrictsUse(class) || !there && name != "" && tx.view.Version() >= SinceAbsentClasses
	why := tx.noUse(name, restricted)
	if !there && why != "" {
		why = fmt.Sprintf("no PriorityClass with name %s was found: as it may come to be restricted, who names it needs the verb \"use\" on it (priorityclasses of scheduling.k8s.io), and User %q has no role with that", name, tx.User)
	}
	if why == "" {
		return Result{}, true
	}
	if old != nil && equality.Semantic.DeepEqual(kind.Workload.Template(old), template) {
		return Result{}, true
	}
	res := resource{kind.Group, kind.Resource, kind.Kind}
	return refuseForbidden(res.groupResource(), value.GetName(), why), false
}

// noUse says why the command's user may not make pods of a class, which may be one that
// is not there; empty: they may. Controllers make pods of templates, whose writers were asked.
func (tx *Tx) noUse(class string, restricted bool) string {
	version := tx.view.Version()
	system := model.IsSystemClass(class)
	switch {
	case slices.Contains(tx.Groups, access.Controllers) && version >= SinceWorkloads,
		slices.Contains(tx.Groups, access.ClassUsers(class)) && version >= SinceRoles:
		return ""
	case system && !tx.maySystemClass():
		return fmt.Sprintf("pods with the PriorityClass %s may be created only by the users and groups named in the scheduler configuration (spec.systemClasses), and %q is not one of them", class, tx.User)
	case !system && version >= SinceRoles && restricted:
		return fmt.Sprintf("the use of the PriorityClass %s is restricted, and User %q has no role with the verb \"use\" on it (priorityclasses of scheduling.k8s.io)", class, tx.User)
	}
	return ""
}

func (tx *Tx) maySystemClass() bool {
	allowed := tx.view.SchedulerConfig().Spec.SystemClasses
	if slices.Contains(allowed.Users, tx.User) {
		return true
	}
	return slices.ContainsFunc(tx.Groups, func(g string) bool { return slices.Contains(allowed.Groups, g) })
}

// checkNamedNode refuses new pods that name a node which counts as many pods as
// it can (see model.MaxPodsPerNode): no scheduler looks at whether they fit.
func (v *View) checkNamedNode(pod *corev1.Pod, more int64) (Result, bool) {
	node := pod.Spec.NodeName
	if node == "" || v.Usage(node).Requested.Pods+more <= model.MaxPodsPerNode {
		return Result{}, true
	}
	return refuseForbidden(podResource.groupResource(), givenName(pod), fmt.Sprintf(
		"spec.nodeName: node %s would have more than %d pods", node, model.MaxPodsPerNode)), false
}

// finishNewPod gives a pod that is to be stored the status that every new pod
// has, and lets it share what it has in common with others. It returns what
// the pod asks for.
func (tx *Tx) finishNewPod(w *PodWire) *model.Class {
	pod := w.Object
	qos, class := tx.view.cache.admit(pod, w.origin)
	pod.Status = corev1.PodStatus{Phase: corev1.PodPending, QOSClass: qos}
	if model.Gated(pod) {
		pod.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonSchedulingGated,
			Message: "Scheduling is blocked due to non-empty scheduling gates",
		}}
	}
	return class
}

// storeNewPod stores a finished pod and puts it into the queue, unless it
// comes bound or another scheduler is to place it.
func (tx *Tx) storeNewPod(key string, pod *corev1.Pod, class *model.Class) {
	put(tx, tx.view.Pods, key, pod)
	if tx.view.waits(pod) {
		tx.enqueue(key, pod, class)
	}
}

// enqueue puts an unbound pod into the queue (QU4).
func (tx *Tx) enqueue(key string, pod *corev1.Pod, class *model.Class) {
	put(tx, tx.view.Queue, key, queue.NewEntry(pod, class, tx.view.Revision()+1, tx.view.TimeUnixNano()))
}

// dequeue takes a pod out of the queue.
func (tx *Tx) dequeue(key string) {
	remove(tx, tx.view.Queue, key)
}

// modifyPod stores a changed shallow copy of a pod. change may replace fields,
// and must copy what it changes inside of slices and maps.
func (tx *Tx) modifyPod(key string, old *corev1.Pod, change func(pod *corev1.Pod)) *corev1.Pod {
	pod := *old
	change(&pod)
	put(tx, tx.view.Pods, key, &pod)
	return &pod
}

// bind gives the pod its node. The caller has checked that it may.
func (tx *Tx) bind(key string, old *corev1.Pod, node string) *corev1.Pod {
	if n, ok := tx.view.Nominations.Get(key); ok {
		state, reason := berthv1.PreemptionBound, ""
		if n.Node != node {
			state, reason = berthv1.PreemptionReleased, "bound to "+node+" instead"
		}
		tx.endNomination(n, state, reason)
	}
	pod := tx.modifyPod(key, old, func(pod *corev1.Pod) {
		pod.Spec.NodeName = node
		pod.Status.NominatedNodeName = ""
		setCondition(&pod.Status, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: tx.now(),
			ObservedGeneration: pod.Generation,
		})
	})
	tx.dequeue(key)
	tx.scheduled(schedulerOf(pod), pod, corev1.EventTypeNormal, "Scheduled", "Successfully assigned "+key+" to "+node)
	return pod
}

// deletePod carries out a deletion with a grace period: a pod that nobody runs
// goes at once (TM1), another is marked and goes when its worker confirms.
// graceSeconds nil means the pod's own. The pod may be changed already and not
// stored. It returns the pod as it is then, and whether it is gone.
func (tx *Tx) deletePod(key string, old *corev1.Pod, graceSeconds *int64, condition *corev1.PodCondition) (*corev1.Pod, bool) {
	at, grace := tx.endOf(old, graceSeconds)
	if grace == 0 && len(old.Finalizers) == 0 {
		tx.removePod(key, old)
		return old, true
	}
	pod := old
	begins := old.DeletionTimestamp == nil
	stored, _ := tx.view.Pods.Get(key)
	if begins || old != stored || condition != nil || old.DeletionGracePeriodSeconds == nil || grace != *old.DeletionGracePeriodSeconds {
		pod = tx.modifyPod(key, old, func(pod *corev1.Pod) {
			if condition != nil {
				condition.ObservedGeneration = pod.Generation
				setCondition(&pod.Status, *condition)
			}
			if begins && pod.Generation > 0 {
				pod.Generation++
			}
			pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &at, &grace
			pod.Status.NominatedNodeName = ""
		})
	}
	tx.stopScheduling(key, pod)
	return pod, false
}

// propagate settles what becomes of the objects that a pod owns once it is
// deleted. What deletePod is to be given is not stored before: it may be the end.
func propagate(pod *corev1.Pod, p Propagation) *corev1.Pod {
	finalizers := finalizersFor(pod.Finalizers, p)
	if slices.Equal(finalizers, pod.Finalizers) {
		return pod
	}
	next := *pod
	next.Finalizers = finalizers
	return &next
}

// endOf is when a pod that is deleted has to have ended, and the grace that it
// has until then. A grace period under way only ever shrinks, and counts from
// when it began (TM1).
func (tx *Tx) endOf(pod *corev1.Pod, graceSeconds *int64) (metav1.Time, int64) {
	if pod.DeletionTimestamp == nil {
		grace := gracePeriod(pod, graceSeconds)
		if pod.Spec.NodeName == "" || model.Terminal(pod) {
			grace = 0
		}
		return metav1.NewTime(tx.now().Add(model.Seconds(grace))), grace
	}
	before := int64(0)
	if pod.DeletionGracePeriodSeconds != nil {
		before = *pod.DeletionGracePeriodSeconds
	}
	if graceSeconds == nil || gracePeriod(pod, graceSeconds) >= before {
		return *pod.DeletionTimestamp, before
	}
	grace := gracePeriod(pod, graceSeconds)
	began := pod.DeletionTimestamp.Add(-model.Seconds(before))
	at := metav1.NewTime(began.Add(model.Seconds(grace)))
	if now := tx.now(); at.Before(&now) {
		at, grace = now, min(grace, 1) // all of it is over; a worker still has to confirm
	}
	return at, grace
}

// gracePeriod is the grace that a deletion gives a running pod: what is asked
// for, or else the pod's own.
func gracePeriod(pod *corev1.Pod, graceSeconds *int64) int64 {
	grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		grace = *pod.Spec.TerminationGracePeriodSeconds
	}
	if graceSeconds != nil {
		grace = *graceSeconds
	}
	if grace < 0 {
		return 1
	}
	return grace
}

// stopScheduling takes a pod that is going away out of the queue and releases
// its nomination.
func (tx *Tx) stopScheduling(key string, pod *corev1.Pod) {
	if n, ok := tx.view.Nominations.Get(key); ok && n.UID == pod.UID {
		tx.endNomination(n, berthv1.PreemptionReleased, "the pod was deleted")
	}
	tx.dequeue(key)
}

// removePod takes a pod out of the state and tells those who waited for it.
func (tx *Tx) removePod(key string, pod *corev1.Pod) {
	tx.stopScheduling(key, pod)
	remove(tx, tx.view.Pods, key)
	if !model.Terminal(pod) {
		tx.leftNode(pod)
	}
}

// leftNode follows a pod's removal, or its change to a terminal phase: it uses
// its node no more.
func (tx *Tx) leftNode(pod *corev1.Pod) {
	if pod.Spec.NodeName != "" {
		tx.victimGone(pod)
	}
}

// setCondition replaces or adds a condition in a copy of the list; the
// transition time stays if the status does.
func setCondition(status *corev1.PodStatus, c corev1.PodCondition) {
	conditions := make([]corev1.PodCondition, 0, len(status.Conditions)+1)
	conditions = append(conditions, status.Conditions...)
	i := slices.IndexFunc(conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
	if i < 0 {
		status.Conditions = append(conditions, c)
		return
	}
	if conditions[i].Status == c.Status {
		c.LastTransitionTime = conditions[i].LastTransitionTime
	}
	conditions[i] = c
	status.Conditions = conditions
}

func findCondition(status *corev1.PodStatus, t corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == t {
			return &status.Conditions[i]
		}
	}
	return nil
}

func podRefOf(pod *corev1.Pod) berthv1.PodReference {
	return berthv1.PodReference{Namespace: pod.Namespace, Name: pod.Name, UID: types.UID(pod.UID), Priority: model.Priority(pod)}
}
