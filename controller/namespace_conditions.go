package controller

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

const (
	// tellAfterSeconds is how long a namespace has to end before it says what
	// holds it: most are gone by then.
	tellAfterSeconds = 2
	// maxRemaining bounds what is counted for that in one namespace, and
	// remainingBatch in all that end, at a time.
	maxRemaining   = 10_000
	remainingBatch = 50_000
)

// remaining is what is still in a namespace that ends.
type remaining struct {
	resources, finalizers map[string]int // "pods." -> 3, "example.com/hold" -> 1
	counted               int
}

// remainingIn counts what is in a namespace, but for events.
func remainingIn(v *fsm.View, namespace string) remaining {
	r := remaining{resources: map[string]int{}, finalizers: map[string]int{}}
	count := func(resource string, o metav1.Object) bool {
		r.resources[resource]++
		for _, f := range o.GetFinalizers() {
			r.finalizers[f]++
		}
		r.counted++
		return r.counted <= maxRemaining
	}
	v.Pods.Scan(namespace+"/", func(_ string, pod *corev1.Pod) bool { return count("pods.", pod) })
	if r.counted <= maxRemaining {
		v.Budgets.Scan(namespace+"/", func(_ string, b *policyv1.PodDisruptionBudget) bool { return count("poddisruptionbudgets.policy", b) })
	}
	if r.counted <= maxRemaining {
		v.NamespaceObjects(namespace, func(o *fsm.Object) bool {
			kind, _ := fsm.KindOf(o.Resource)
			names := kind.GroupResource()
			return count(names.Resource+"."+names.Group, o.Value)
		})
	}
	return r
}

// say names the counts in Kubernetes' words, sorted.
func (r *remaining) say(counts map[string]int, how string) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		out = append(out, fmt.Sprintf("%s %s %d resource instances", name, how, counts[name]))
	}
	if r.counted > maxRemaining {
		out = append(out, fmt.Sprintf("of the first %d", maxRemaining))
	}
	return strings.Join(out, ", ")
}

// conditions are what Kubernetes' namespace controller tells of a namespace that
// ends, in its order and words.
func (r *remaining) conditions() []corev1.NamespaceCondition {
	no := func(t corev1.NamespaceConditionType, reason, message string) corev1.NamespaceCondition {
		return corev1.NamespaceCondition{Type: t, Status: corev1.ConditionFalse, Reason: reason, Message: message}
	}
	content := no(corev1.NamespaceContentRemaining, "ContentRemoved", "All content successfully removed")
	if len(r.resources) > 0 {
		content.Status, content.Reason = corev1.ConditionTrue, "SomeResourcesRemain"
		content.Message = "Some resources are remaining: " + r.say(r.resources, "has")
	}
	finalizers := no(corev1.NamespaceFinalizersRemaining, "ContentHasNoFinalizers", "All content-preserving finalizers finished")
	if len(r.finalizers) > 0 {
		finalizers.Status, finalizers.Reason = corev1.ConditionTrue, "SomeFinalizersRemain"
		finalizers.Message = "Some content in the namespace has finalizers remaining: " + r.say(r.finalizers, "in")
	}
	return []corev1.NamespaceCondition{
		no(corev1.NamespaceDeletionDiscoveryFailure, "ResourcesDiscovered", "All resources successfully discovered"),
		no(corev1.NamespaceDeletionGVParsingFailure, "ParsedGroupVersions", "All legacy kube types successfully parsed"),
		no(corev1.NamespaceDeletionContentFailure, "ContentDeleted", "All content successfully deleted, may be waiting on finalization"),
		content,
		finalizers,
	}
}

// tell is the command that has a namespace say what holds it; nil if it says so
// already.
func (r *remaining) tell(ns *corev1.Namespace, nowUnixNano int64) fsm.Command {
	next := ns.DeepCopy()
	changed := false
	for _, c := range r.conditions() {
		c.LastTransitionTime = metav1.NewTime(time.Unix(0, nowUnixNano).UTC().Truncate(time.Second))
		at := slices.IndexFunc(next.Status.Conditions, func(o corev1.NamespaceCondition) bool { return o.Type == c.Type })
		if at < 0 {
			next.Status.Conditions = append(next.Status.Conditions, c)
			changed = true
			continue
		}
		old := &next.Status.Conditions[at]
		if old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		changed = changed || *old != c
		*old = c
	}
	if !changed {
		return nil
	}
	revision, err := strconv.ParseInt(ns.ResourceVersion, 10, 64)
	if err != nil {
		return nil // every row has a revision
	}
	return &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: next}, Revision: revision}
}
