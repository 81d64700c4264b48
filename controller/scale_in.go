package controller

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
)

// Which pods of a workload go first when there are to be fewer. The order is
// that of Kubernetes' ActivePodsWithRanks, with what was decided for T9 (the
// rank counts the active pods of all ReplicaSets that have the same controller)
// and T10 (the UID decides inside of a bucket, so that SI7 is not reached by two
// pods that became ready at different times of one bucket).

// Rule names what decided between two pods.
type Rule string

// The rules, in the order in which they are asked.
const (
	RuleUnassigned   Rule = "SI1" // unassigned before assigned
	RulePhase        Rule = "SI2" // Pending, Unknown, Running
	RuleReady        Rule = "SI3" // not ready before ready
	RuleCost         Rule = "SI4" // lower deletion cost first
	RuleRelated      Rule = "SI5" // more related pods on the node first
	RuleReadySince   Rule = "SI6" // ready for a shorter time first
	RuleRestarts     Rule = "SI7" // more restarts first
	RuleCreated      Rule = "SI8" // newer first
	RuleUID          Rule = "SI9" // nothing else tells them apart
	RuleReadyByUID   Rule = "SI6, by UID (SI9)"
	RuleCreatedByUID Rule = "SI8, by UID (SI9)"
	RuleSpread       Rule = "spread"
)

// Explanation says in words what a rule means for the pod that goes first.
func (r Rule) Explanation() string {
	switch r {
	case RuleUnassigned:
		return "it has no node"
	case RulePhase:
		return "its phase is further from running"
	case RuleReady:
		return "it is not ready"
	case RuleCost:
		return "its deletion cost is lower"
	case RuleRelated:
		return "more related pods are on its node"
	case RuleReadySince:
		return "it has been ready for a shorter time"
	case RuleRestarts:
		return "it has restarted more often"
	case RuleCreated:
		return "it is newer"
	case RuleUID:
		return "its UID comes first; nothing else tells them apart"
	case RuleReadyByUID:
		return "its UID comes first; they have been ready for about as long"
	case RuleCreatedByUID:
		return "its UID comes first; they are about as old"
	case RuleSpread:
		return "its domain holds the most"
	}
	return ""
}

// Annotations by which the order is chosen.
const (
	// ScaleInAnnotation of a ReplicaSet chooses how its pods are chosen.
	ScaleInAnnotation = "berth.dev/scale-in"
	ScaleInKubernetes = "kubernetes"
	ScaleInSpread     = "spread"
)

// ValidateScaleIn checks the annotation of a ReplicaSet: a mode that is mistyped would be the default without a word.
func ValidateScaleIn(annotations map[string]string) field.ErrorList {
	switch v, ok := annotations[ScaleInAnnotation]; {
	case !ok, v == ScaleInKubernetes, v == ScaleInSpread:
		return nil
	default:
		path := field.NewPath("metadata", "annotations").Key(ScaleInAnnotation)
		return field.ErrorList{field.NotSupported(path, v, []string{ScaleInKubernetes, ScaleInSpread})}
	}
}

// Victim is a pod that a scale-in deletes.
type Victim struct {
	Key string
	Pod *corev1.Pod
	// Rule is what puts it before the first pod that stays, or, if none stays,
	// before the next that goes. Detail is what the rule saw.
	Rule   Rule
	Detail string
}

// candidate is a pod with everything that the rules ask.
type candidate struct {
	key                string
	pod                *corev1.Pod
	phase              int
	ready              bool
	cost               int32
	related            int
	readyAt            metav1.Time
	readyBucket        int64
	restarts, sidecars int32
	createdBucket      int64
}

// ScaleIn chooses so many of a ReplicaSet's active pods, in the order in which
// they go.
func ScaleIn(v *fsm.View, rs *appsv1.ReplicaSet, count int, nowUnixNano int64) []Victim {
	all := candidates(v, rs, nowUnixNano)
	slices.SortStableFunc(all, func(a, b *candidate) int {
		order, _ := compareCandidates(a, b)
		return order
	})
	count = min(max(count, 0), len(all))
	if rs.Annotations[ScaleInAnnotation] == ScaleInSpread && count > 0 {
		if spreads := spreadsOf(v, all); len(spreads) > 0 {
			return spreadScaleIn(spreads, all, count)
		}
	}
	out := make([]Victim, count)
	for i := range out {
		against := min(i+1, len(all)-1)
		if count < len(all) {
			against = count
		}
		out[i] = Victim{Key: all[i].key, Pod: all[i].pod}
		if against != i {
			_, out[i].Rule = compareCandidates(all[i], all[against])
			out[i].Detail = detail(out[i].Rule, all[i], all[against])
		}
	}
	return out
}

// candidates are a ReplicaSet's active pods, in key order.
func candidates(v *fsm.View, rs *appsv1.ReplicaSet, nowUnixNano int64) []*candidate {
	related := relatedOnNodes(v, rs)
	var all []*candidate
	v.PodsOf(owners.IDOf(rs), func(key string, pod *corev1.Pod) bool {
		if owners.Active(pod) {
			c := candidateOf(key, pod, nowUnixNano)
			c.related = related[pod.Spec.NodeName]
			all = append(all, c)
		}
		return true
	})
	return all
}

func candidateOf(key string, pod *corev1.Pod, nowUnixNano int64) *candidate {
	c := &candidate{
		key: key, pod: pod, phase: phaseOrdinal(pod.Status.Phase), ready: model.Ready(pod), cost: deletionCost(pod),
		createdBucket: bucket(pod.CreationTimestamp, nowUnixNano),
	}
	if c.ready {
		c.readyAt = readySince(pod)
		c.readyBucket = bucket(c.readyAt, nowUnixNano)
	}
	c.restarts, c.sidecars = restarts(pod)
	return c
}

// compareCandidates says which of two pods goes first (below zero: a), and by
// which rule.
func compareCandidates(a, b *candidate) (int, Rule) {
	if u, w := a.pod.Spec.NodeName == "", b.pod.Spec.NodeName == ""; u != w {
		return firstIf(u), RuleUnassigned
	}
	if a.phase != b.phase {
		return cmp.Compare(a.phase, b.phase), RulePhase
	}
	if a.ready != b.ready {
		return firstIf(!a.ready), RuleReady
	}
	if a.cost != b.cost {
		return cmp.Compare(a.cost, b.cost), RuleCost
	}
	if a.related != b.related {
		return cmp.Compare(b.related, a.related), RuleRelated
	}
	if a.ready && !a.readyAt.Equal(&b.readyAt) {
		return compareAges(a, b, a.readyAt, b.readyAt, a.readyBucket, b.readyBucket, RuleReadySince, RuleReadyByUID)
	}
	if a.restarts != b.restarts {
		return cmp.Compare(b.restarts, a.restarts), RuleRestarts
	}
	if a.sidecars != b.sidecars {
		return cmp.Compare(b.sidecars, a.sidecars), RuleRestarts
	}
	if s, t := a.pod.CreationTimestamp, b.pod.CreationTimestamp; !s.Equal(&t) {
		return compareAges(a, b, s, t, a.createdBucket, b.createdBucket, RuleCreated, RuleCreatedByUID)
	}
	return cmp.Or(cmp.Compare(a.pod.UID, b.pod.UID), cmp.Compare(a.key, b.key)), RuleUID
}

// compareAges: the younger first, on a logarithmic scale; inside of a bucket
// the UID decides. A time that is not set is the youngest.
func compareAges(a, b *candidate, s, t metav1.Time, bucketA, bucketB int64, rule, byUID Rule) (int, Rule) {
	switch {
	case s.IsZero() || t.IsZero():
		return firstIf(s.IsZero()), rule
	case bucketA != bucketB:
		return cmp.Compare(bucketA, bucketB), rule
	}
	return cmp.Compare(a.pod.UID, b.pod.UID), byUID
}

func firstIf(first bool) int {
	if first {
		return -1
	}
	return 1
}

// bucket is the whole part of the logarithm, to the base of 2, of an age in
// nanoseconds.
func bucket(since metav1.Time, nowUnixNano int64) int64 {
	if age := nowUnixNano - since.UnixNano(); age > 0 {
		return int64(bits.Len64(uint64(age)) - 1)
	}
	return -1
}

func phaseOrdinal(phase corev1.PodPhase) int {
	switch phase {
	case corev1.PodUnknown:
		return 1
	case corev1.PodRunning:
		return 2
	}
	return 0
}

// deletionCost is the pod's annotation; one that is no number counts as none.
func deletionCost(pod *corev1.Pod) int32 {
	value, ok := pod.Annotations[corev1.PodDeletionCost]
	if !ok || value == "" || !strings.ContainsRune("-123456789", rune(value[0])) && value != "0" {
		return 0
	}
	n, err := strconv.ParseInt(value, 10, 32)
	if err != nil {
		return 0
	}
	return int32(n)
}

func readySince(pod *corev1.Pod) metav1.Time {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime
		}
	}
	return metav1.Time{}
}

// restarts are the most of any container, and of any sidecar.
func restarts(pod *corev1.Pod) (containers, sidecars int32) {
	for i := range pod.Status.ContainerStatuses {
		containers = max(containers, pod.Status.ContainerStatuses[i].RestartCount)
	}
	for i := range pod.Status.InitContainerStatuses {
		s := &pod.Status.InitContainerStatuses[i]
		if slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == s.Name && c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		}) {
			sidecars = max(sidecars, s.RestartCount)
		}
	}
	return containers, sidecars
}

// relatedOnNodes counts by node the active pods of all ReplicaSets that have
// the same controller (T9); of the ReplicaSet alone if it has none.
func relatedOnNodes(v *fsm.View, rs *appsv1.ReplicaSet) map[string]int {
	sets := []owners.ID{owners.IDOf(rs)}
	if c := owners.ControllerOf(rs); c != nil {
		sets = sets[:0]
		v.Dependents(owners.ID{Namespace: rs.Namespace, UID: c.UID}, "", func(_ string, ref fsm.ObjectRef, d owners.Dependent) bool {
			if d.Controller && ref.Resource == fsm.ReplicaSets {
				sets = append(sets, owners.ID{Namespace: ref.Namespace, UID: types.UID(ref.UID)})
			}
			return true
		})
	}
	related := map[string]int{}
	for _, set := range sets {
		v.PodsOf(set, func(_ string, pod *corev1.Pod) bool {
			if pod.Spec.NodeName != "" && owners.Active(pod) {
				related[pod.Spec.NodeName]++
			}
			return true
		})
	}
	return related
}

// detail is what a rule saw of the pod that goes and of the other.
func detail(r Rule, a, b *candidate) string {
	switch r {
	case RulePhase:
		return fmt.Sprintf("%s, not %s", a.pod.Status.Phase, b.pod.Status.Phase)
	case RuleCost:
		return fmt.Sprintf("%d, not %d", a.cost, b.cost)
	case RuleRelated:
		return fmt.Sprintf("%d on %s, %d on %s", a.related, a.pod.Spec.NodeName, b.related, b.pod.Spec.NodeName)
	case RuleRestarts:
		return fmt.Sprintf("%d, not %d", max(a.restarts, a.sidecars), max(b.restarts, b.sidecars))
	}
	return ""
}
