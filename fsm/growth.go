package fsm

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
)

// What the state may take is bounded where commands are proposed and not in Apply: it is a
// matter of the servers' memory, and no two need have the same. Here is what a command would
// add to the state's bytes, as far as that can be told before it is applied.

// Growth is what a command would add to the bytes of the state (store.Position.Bytes), at most or nearly so.
type Growth struct {
	Kind  GrowthKind
	Bytes int64
}

// GrowthKind says for what a command would make the state grow.
type GrowthKind uint8

const (
	// GrowsNot: what the command adds is nothing, or has a bound of its own, as deletions, evictions, plans and
	// events have. All commands that are not among the others.
	GrowsNot GrowthKind = iota
	// GrowsAsNeeded: without it the cluster does not go on, as what workers say of their nodes and pods.
	GrowsAsNeeded
	// GrowsSlightly: an object becomes a little larger, or is on its way out.
	GrowsSlightly
	// GrowsInPlace: an object becomes larger.
	GrowsInPlace
	// GrowsByObjects: there is one more object.
	GrowsByObjects
	// GrowsByPods: there are more pods, or pieces of a snapshot: not even Berth makes them where there is no room.
	GrowsByPods
)

const (
	// slightBytes is by how much an object grows slightly: another owner of its fields, a condition, an annotation.
	slightBytes = 1024
	// finishBytes is what Apply adds to a new object: times, a name, what follows from its class, a mark of a node.
	finishBytes = 512
	// lastWordBytes is what the status of a pod that is to go may take in any case: some containers' termination messages.
	lastWordBytes = 16 << 10
	// claimBytes is what an owner's reference takes.
	claimBytes = 256
)

// MostGrowth is what a command would add if nothing was there. It looks at the command alone.
func MostGrowth(c Command) int64 { return growthOf(nil, c).Bytes }

// GrowthOf is what a command would add to a state. What replaces something adds the difference.
func GrowthOf(v *View, c Command) Growth {
	if g := growthOf(v, c); g.Bytes > 0 {
		return g
	}
	return Growth{}
}

// growthOf takes everything for new where there is no view.
func growthOf(v *View, c Command) Growth {
	switch c := c.(type) {
	case *AdmitPod:
		return Growth{GrowsByPods, newPodBytes(c.Pod.Object)}
	case *AdmitPods:
		return Growth{GrowsByPods, int64(c.Count) * newPodBytes(c.Template.Object)}
	case *UpdatePod:
		return podGrowth(v, c.Pod.Object)
	case *ReportPods:
		return reportGrowth(v, c)
	case *ClaimPods:
		return Growth{GrowsAsNeeded, int64(len(c.Adopt)) * claimBytes}
	case *PutObject:
		return putGrowth(v, c)
	case *PutNamespace:
		g := rowGrowth(v, namespacesOf, c.Namespace.Object, c.Create)
		if g.Kind == GrowsByObjects { // its service account and config map
			g.Bytes += 2*(structBytes+finishBytes) + int64(len(c.RootCA))
		}
		return g
	case *PutDisruptionBudget:
		return rowGrowth(v, budgetsOf, c.Budget.Object, c.Create)
	case *CreatePriorityClass:
		return rowGrowth(v, priorityClassesOf, c.Class.Object, true)
	case *UpdatePriorityClass:
		return rowGrowth(v, priorityClassesOf, c.Class.Object, false)
	case *PutNode:
		return Growth{GrowsAsNeeded, rowGrowth(v, nodesOf, c.Node.Object, c.Create).Bytes}
	case *RegisterNode:
		return Growth{GrowsAsNeeded, registeredGrowth(v, c.Node.Object)}
	case *ConfigureScheduler:
		return Growth{GrowsAsNeeded, int64(2 * len(c.JSON))}
	case *AddSigningKey:
		return Growth{GrowsAsNeeded, int64(smallBytes + len(c.Private) + len(c.Public))}
	case *StageSnapshot:
		return Growth{GrowsByPods, int64(smallBytes + len(c.Data))}
	}
	return Growth{}
}

// newPodBytes is what a pod takes that is made, with its entry in the queue.
func newPodBytes(pod *corev1.Pod) int64 {
	if pod == nil {
		return 0
	}
	own := len(pod.Namespace) + maxGeneratedName
	return int64(podTakes(pod, specBytes(&pod.Spec)) + entryTakes(&QueueEntry{}) + 2*own + finishBytes)
}

func podGrowth(v *View, now *corev1.Pod) Growth {
	if now == nil {
		return Growth{}
	}
	if v == nil {
		return Growth{GrowsInPlace, newPodBytes(now)}
	}
	old, ok := v.Pods.Get(PodKey(now.Namespace, now.Name))
	if !ok {
		return Growth{}
	}
	return changeOf(old, now, int64(podTakes(now, specBytes(&now.Spec))-podTakes(old, specBytes(&old.Spec))))
}

// reportGrowth is what the statuses of pods become larger.
func reportGrowth(v *View, c *ReportPods) Growth {
	g := Growth{Kind: GrowsAsNeeded}
	for i := range c.Reports {
		r := &c.Reports[i]
		if r.Status.Object == nil {
			continue
		}
		if v == nil {
			g.Bytes += int64(r.Status.Object.Size())
			continue
		}
		old, ok := v.Pods.Get(r.Key)
		if !ok || string(old.UID) != r.UID || lastWord(old, r) {
			continue
		}
		now := *old
		now.Status = *r.Status.Object
		// What others wrote into the status stays, and is not more than it has.
		g.Bytes += max(0, int64(podTakes(&now, 0)-podTakes(old, 0)))
	}
	return g
}

// lastWord says whether a report is of a pod that is to go, and there is room for it however full the state is: without it the pod would
// stay, and a full state could not be emptied.
func lastWord(pod *corev1.Pod, r *PodReport) bool {
	return model.Terminating(pod) && (r.Removed && len(pod.Finalizers) == 0 || r.Status.Object.Size() <= lastWordBytes)
}

// registeredGrowth is what a worker's word makes its node larger. What others wrote of it stays.
func registeredGrowth(v *View, now *corev1.Node) int64 {
	if now == nil {
		return 0
	}
	n := int64(structBytes + now.Size() + finishBytes)
	if v == nil {
		return n
	}
	if old, ok := v.Nodes.Get(now.Name); ok {
		return int64(now.Size() - old.Size())
	}
	return n
}

func putGrowth(v *View, c *PutObject) Growth {
	n := int64(structBytes + len(c.Raw) + finishBytes)
	if v == nil {
		return Growth{GrowsByObjects, n}
	}
	kind, ok := KindOf(c.Resource)
	if !ok {
		return Growth{}
	}
	now := c.value
	if now == nil {
		if now = kind.New(); codec.Unmarshal(c.Raw, now) != nil {
			return Growth{} // it is refused when it is applied
		}
	}
	old, known := v.Objects.Get(ObjectKey(c.Resource, now.GetNamespace(), now.GetName()))
	if known == c.Create {
		return Growth{} // as above
	}
	g := Growth{GrowsByObjects, n}
	if known {
		g = changeOf(old.Value, now, int64(now.Size()-old.Value.Size()))
	}
	if _, isLease := now.(*coordinationv1.Lease); isLease && (known || now.GetNamespace() == corev1.NamespaceNodeLease) {
		g.Kind = GrowsAsNeeded // somebody leads by it, or a node is heard
	}
	return g
}

// rowGrowth is what an object adds whose key in a table is its name, with its namespace before it.
func rowGrowth[P sizedObject](v *View, table func(v *View) Table[P], now P, create bool) Growth {
	var none P
	if now == none {
		return Growth{}
	}
	n := Growth{GrowsByObjects, int64(structBytes + now.Size() + finishBytes)}
	if v == nil {
		return n
	}
	key := now.GetName()
	if space := now.GetNamespace(); space != "" {
		key = space + "/" + key
	}
	old, known := table(v).Get(key)
	switch {
	case known == create:
		return Growth{} // it is refused when it is applied
	case known:
		return changeOf(old, now, int64(now.Size()-old.Size()))
	}
	return n
}

// sizedObject is a row that is an object of Kubernetes.
type sizedObject interface {
	comparable
	metav1.Object
	Size() int
}

func namespacesOf(v *View) Table[*corev1.Namespace]                { return v.Namespaces }
func nodesOf(v *View) Table[*corev1.Node]                          { return v.Nodes }
func budgetsOf(v *View) Table[*policyv1.PodDisruptionBudget]       { return v.Budgets }
func priorityClassesOf(v *View) Table[*schedulingv1.PriorityClass] { return v.PriorityClasses }

// changeOf is what an object adds that takes the place of another one. One that is on its way out has to lose its
// finalizers, by writers who leave their names in it.
func changeOf(old, now metav1.Object, bytes int64) Growth {
	if bytes <= slightBytes || old.GetDeletionTimestamp() != nil || now.GetDeletionTimestamp() != nil {
		return Growth{GrowsSlightly, bytes}
	}
	return Growth{GrowsInPlace, bytes}
}
