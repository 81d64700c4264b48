package model

import (
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"strconv"
	"strings"
	"weak"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Class is what a pod asks of the scheduler, with its selectors compiled. All pods that ask for the same thing share one
// Class; it is immutable.
type Class struct {
	// Signature is equal for two pods exactly when nothing that can change a placement or a preemption differs.
	Signature string
	// Shape is Signature without namespace and labels: what a node alone can see of the pod. Pods that differ only in
	// their labels (those of a StatefulSet, say) have one Shape.
	Shape string

	Namespace     string
	Labels        map[string]string
	SchedulerName string
	Priority      int32
	NeverPreempts bool
	Gated         bool
	StrictBudgets bool // no disruption budget is violated for the pod

	Request Resources
	NonZero Resources
	Ports   []HostPort
	// RunsAtMostSeconds bounds how long a pod of the class can run once it has started: its activeDeadlineSeconds, rounded
	// up to a power of two so that few classes differ by it alone; 0 where there is no bound.
	RunsAtMostSeconds int64

	Tolerations []corev1.Toleration
	Affinity    *corev1.Affinity
	Spread      []corev1.TopologySpreadConstraint

	// Images are those that the pod needs, by the names that nodes report, once for each use; Containers is the number of
	// its containers, ImageSet both in one. Nodes that hold images already score higher; they are in Signature and not in
	// Shape.
	Images     []string
	Containers int
	ImageSet   string

	nodeLabels []nodeLabel
	required   *nodeSelector  // nil: nothing
	selects    bool           // nodeLabels or required demand something
	preferred  *nodeSelector  // nil: nothing
	added      *AddedAffinity // of the profile; nil: nothing
	volumes    *Volumes       // of the claims; nil: they ask nothing

	terms *podTerms // nil: none
}

// ClassOf compiles the pod's class. Callers that meet many pods use Classes, which compiles each class once.
func ClassOf(pod *corev1.Pod) *Class {
	var sig signer
	return compileClass(pod, sig.sign(pod))
}

// Classes hands out one shared Class for all pods of one signature, for as long as somebody has it: it keeps none alive.
// The zero value is ready. It is not safe for concurrent use; classes themselves are.
type Classes struct {
	bySignature map[string]weak.Pointer[Class]
	sig         signer
	sweepAt     int // entries at which those are dropped whose class is gone
}

const leastSweep = 1 << 10

// Of returns the pod's class.
func (cs *Classes) Of(pod *corev1.Pod) *Class {
	s := cs.sig.sign(pod)
	if known, ok := cs.bySignature[string(s.full[:])]; ok {
		if c := known.Value(); c != nil {
			return c
		}
	}
	if cs.bySignature == nil {
		cs.bySignature, cs.sweepAt = map[string]weak.Pointer[Class]{}, leastSweep
	}
	if len(cs.bySignature) >= cs.sweepAt {
		cs.sweep()
	}
	c := compileClass(pod, s)
	cs.bySignature[c.Signature] = weak.Make(c)
	return c
}

// sweep costs each class that was ever compiled its share, because the next one comes when there are twice as many.
func (cs *Classes) sweep() {
	alive := map[string]weak.Pointer[Class]{}
	// order does not matter: what is dropped is nobody's.
	for signature, c := range cs.bySignature {
		if c.Value() != nil {
			alive[signature] = c
		}
	}
	cs.bySignature, cs.sweepAt = alive, max(leastSweep, 2*len(alive))
}

// Len is how many classes are known; some of them may be gone.
func (cs *Classes) Len() int { return len(cs.bySignature) }

func compileClass(pod *corev1.Pod, s signatures) *Class {
	c := &Class{
		Signature:         string(s.full[:]),
		Shape:             string(s.shape[:]),
		Namespace:         pod.Namespace,
		Labels:            pod.Labels,
		SchedulerName:     pod.Spec.SchedulerName,
		Priority:          Priority(pod),
		NeverPreempts:     NeverPreempts(pod),
		Gated:             Gated(pod),
		StrictBudgets:     DemandsStrictBudgets(pod),
		RunsAtMostSeconds: RunsAtMostSeconds(pod),
		Request:           s.request,
		NonZero:           s.nonZero,
		Ports:             HostPorts(pod),
		Tolerations:       pod.Spec.Tolerations,
		Affinity:          pod.Spec.Affinity,
		Spread:            pod.Spec.TopologySpreadConstraints,
		nodeLabels:        compileNodeLabels(pod.Spec.NodeSelector),
		terms:             compileTerms(pod),
		Images:            imagesOf(pod, nil),
		Containers:        len(pod.Spec.InitContainers) + len(pod.Spec.Containers),
	}
	c.ImageSet = strconv.Itoa(c.Containers) + " " + strings.Join(c.Images, " ")
	if c.terms != nil {
		c.terms.signRules(c)
	}
	if a := pod.Spec.Affinity; a != nil && a.NodeAffinity != nil {
		c.required, _ = compileNodeSelector(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
		c.preferred = compileNodePreferences(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	c.selects = c.required != nil || len(c.nodeLabels) > 0
	return c
}

// rehash is the signature of a class that demands more than the one it was made from.
func rehash(signature, more string) string {
	sum := sha256.Sum256([]byte(signature + more))
	return string(sum[:16])
}

type signatures struct {
	full, shape      [16]byte
	request, nonZero Resources
}

// signer writes what matters of a pod into one reused buffer in an unambiguous form (every string with its length) and
// hashes it.
type signer struct {
	buf    []byte
	images []string
}

func (w *signer) sign(pod *corev1.Pod) signatures {
	var s signatures
	spec := &pod.Spec
	s.request, s.nonZero = PodRequest(pod), PodNonZeroRequest(pod)
	w.buf = w.buf[:0]
	w.str(spec.SchedulerName)
	w.num(int64(Priority(pod)))
	w.flag(NeverPreempts(pod))
	w.flag(Gated(pod))
	w.flag(DemandsStrictBudgets(pod))
	w.num(RunsAtMostSeconds(pod))
	w.resources(s.request)
	w.num(s.nonZero.MilliCPU)
	w.num(s.nonZero.MemoryBytes)
	w.pairs(spec.NodeSelector)
	w.tolerations(spec.Tolerations)
	ports := HostPorts(pod)
	w.num(int64(len(ports)))
	for _, p := range ports {
		w.str(p.IP)
		w.str(p.Protocol)
		w.num(int64(p.Port))
	}
	if spec.Affinity != nil {
		w.message(spec.Affinity)
	}
	w.num(int64(len(spec.TopologySpreadConstraints)))
	for i := range spec.TopologySpreadConstraints {
		w.message(&spec.TopologySpreadConstraints[i])
	}
	sum := sha256.Sum256(w.buf)
	copy(s.shape[:], sum[:])

	w.buf = append(w.buf[:0], s.shape[:]...)
	w.str(pod.Namespace)
	w.pairs(pod.Labels)
	w.images = imagesOf(pod, w.images[:0])
	w.num(int64(len(w.images)))
	for _, name := range w.images {
		w.str(name)
	}
	w.num(int64(len(spec.InitContainers) + len(spec.Containers)))
	sum = sha256.Sum256(w.buf)
	copy(s.full[:], sum[:])
	return s
}

func (w *signer) str(s string) {
	w.buf = binary.AppendUvarint(w.buf, uint64(len(s)))
	w.buf = append(w.buf, s...)
}

func (w *signer) num(n int64) { w.buf = binary.AppendVarint(w.buf, n) }

func (w *signer) flag(b bool) {
	if b {
		w.buf = append(w.buf, 1)
		return
	}
	w.buf = append(w.buf, 0)
}

func (w *signer) resources(r Resources) {
	w.num(r.MilliCPU)
	w.num(r.MemoryBytes)
	w.num(r.EphemeralStorageBytes)
	w.num(int64(len(r.Scalars)))
	for _, s := range r.Scalars {
		w.str(s.Name)
		w.num(s.Value)
	}
}

func (w *signer) pairs(m map[string]string) {
	w.num(int64(len(m)))
	if len(m) == 1 {
		// order does not matter: there is only one.
		for k, v := range m {
			w.str(k)
			w.str(v)
		}
		return
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.str(k)
		w.str(m[k])
	}
}

func (w *signer) tolerations(ts []corev1.Toleration) {
	w.num(int64(len(ts)))
	for i := range ts {
		// tolerationSeconds says how long a pod stays, not whether it may come.
		w.str(ts[i].Key)
		w.str(string(ts[i].Operator))
		w.str(ts[i].Value)
		w.str(string(ts[i].Effect))
	}
}

// message writes an API object in its protobuf form, which Kubernetes' marshallers write with sorted map keys.
func (w *signer) message(m interface{ Marshal() ([]byte, error) }) {
	b, err := m.Marshal()
	if err != nil {
		// These marshallers fail only on a size that they computed themselves.
		panic("model: marshalling an affinity or a spread constraint: " + err.Error())
	}
	w.num(int64(len(b)))
	w.buf = append(w.buf, b...)
}

// Asks is how many conditions the class has for a node object's labels, those that are merely preferred and each value that
// one names among them.
func (c *Class) Asks() int {
	n := AsksOf(c.Affinity)
	if c.added != nil {
		n += c.added.asks
	}
	return n + c.volumes.conditions()
}

// AsksOf is Asks of a class of an affinity, nil or not, but for what profiles and volumes add to it.
func AsksOf(a *corev1.Affinity) int {
	if a == nil {
		return 1
	}
	return 1 + asksOf(a.NodeAffinity)
}

// AsksOfPods is how many conditions for other pods an affinity, nil or not, and constraints have: each of them, and each label
// and value that it names.
func AsksOfPods(a *corev1.Affinity, spread []corev1.TopologySpreadConstraint) (n int) {
	selector := func(s *metav1.LabelSelector) {
		if s == nil {
			return
		}
		n += len(s.MatchLabels)
		for i := range s.MatchExpressions {
			n += 1 + len(s.MatchExpressions[i].Values)
		}
	}
	term := func(t *corev1.PodAffinityTerm) {
		n += 1 + len(t.Namespaces) + len(t.MatchLabelKeys) + len(t.MismatchLabelKeys)
		selector(t.LabelSelector)
		selector(t.NamespaceSelector)
	}
	terms := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		for i := range required {
			term(&required[i])
		}
		for i := range preferred {
			term(&preferred[i].PodAffinityTerm)
		}
	}
	if a != nil && a.PodAffinity != nil {
		terms(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a != nil && a.PodAntiAffinity != nil {
		terms(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution, a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	for i := range spread {
		n += 1 + len(spread[i].MatchLabelKeys)
		selector(spread[i].LabelSelector)
	}
	return n
}

func asksOf(a *corev1.NodeAffinity) int {
	if a == nil {
		return 0
	}
	n := 0
	count := func(t *corev1.NodeSelectorTerm) {
		for i := range t.MatchExpressions {
			n += 1 + len(t.MatchExpressions[i].Values)
		}
		n += len(t.MatchFields)
	}
	if r := a.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
		for i := range r.NodeSelectorTerms {
			count(&r.NodeSelectorTerms[i])
		}
	}
	for i := range a.PreferredDuringSchedulingIgnoredDuringExecution {
		count(&a.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference)
	}
	return n
}
