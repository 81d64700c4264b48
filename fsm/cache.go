package fsm

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// cache lets equal things be one object in memory and be worked out once. It
// never changes what the state is, only what it costs, and is therefore in no
// snapshot. What it holds is alive, or bounded by bytes.
type cache struct {
	classes   model.Classes
	specs     sharedSpecs
	decoded   recent[*decodedSpec] // by its bytes in a command
	fields    recent[[]byte]
	diagnoses recent[*Diagnosis]
	counters  *counters
	// restored are the specs of a snapshot that is being restored, by what
	// identifies them as long as nobody else makes pods: their containers.
	restored map[*corev1.Container]*admittedSpec

	// work is what was done so far, see live.work.
	work int64

	mostPods int // at once, since counters were made or dropped
}

// decodedSpec is a spec as it comes in commands and snapshots, without what is
// a pod's own, with what became of it.
type decodedSpec struct {
	spec     corev1.PodSpec
	admitted map[admission]*admittedSpec
}

// admission is what is decided of a spec when its pod is admitted.
type admission struct {
	class    string
	priority int32
	policy   corev1.PreemptionPolicy
}

// admittedSpec is an interned spec with what follows from it.
type admittedSpec struct {
	spec    corev1.PodSpec
	shared  *sharedSpec // nil if it is shared by nobody
	qos     corev1.PodQOSClass
	classes []*model.Class // of the last few kinds of pods that have it
}

const maxSpecsClasses = 8

func newCache() *cache {
	return &cache{
		counters: new(counters),
		specs:    sharedSpecs{byHash: map[[32]byte]*sharedSpec{}, byContainers: map[*corev1.Container]*sharedSpec{}},
		decoded:  recent[*decodedSpec]{mostBytes: 8 << 20}, fields: recent[[]byte]{mostBytes: 4 << 20},
		diagnoses: recent[*Diagnosis]{mostBytes: 8 << 20},
	}
}

// settle is called at the end of every entry. When nearly all pods that there were at
// once have gone it lets go of what was worked out for them. What the counters were told
// is kept until the entry is shown.
func (v *live) settle() {
	defer func() {
		if recover() != nil { // no command could be refused for it: what was worked out is worked out anew, as after a restart
			v.cache, v.effective = newCache(), new(effectiveClasses)
		}
	}()
	c, pods := v.cache, v.Pods.Len()
	c.specs.settle()
	c.mostPods = max(c.mostPods, pods)
	if c.mostPods < 1<<10 || pods > min(c.mostPods/16, 1<<13) {
		return
	}
	c.mostPods = pods
	c.decoded.clear()
	c.fields.clear()
	c.diagnoses.clear()
	if c.counters.topology != nil {
		c.counters = &counters{topology: v.countAll()} // of the few that are left
	}
	v.effective = new(effectiveClasses)
}

// diagnosis is an equal diagnosis, shared by all who failed for the same
// reasons.
func (c *cache) diagnosis(d *Diagnosis) *Diagnosis {
	if d == nil {
		return nil
	}
	b, err := store.Marshal(d)
	if err != nil {
		return d
	}
	if shared, ok := c.diagnoses.get(string(b)); ok {
		return shared
	}
	c.diagnoses.put(string(b), d, len(b)+d.Bytes())
	return d
}

// class is the pod's class, compiled once for all pods that ask for the same.
func (c *cache) class(pod *corev1.Pod) *model.Class {
	if c.restored != nil && len(pod.Spec.Containers) > 0 {
		if a, ok := c.restored[&pod.Spec.Containers[0]]; ok {
			return a.class(c, pod)
		}
	}
	shared := c.specs.of(&pod.Spec)
	if shared != nil && shared.class != nil && isOfClass(pod, shared.class) {
		return shared.class
	}
	class := c.compile(pod)
	if shared != nil {
		shared.class = class
	}
	return class
}

// compile works out what a pod asks for, and counts that.
func (c *cache) compile(pod *corev1.Pod) *model.Class {
	class := c.classes.Of(pod)
	c.work += workOfClass(class.Asks(), model.AsksOfPods(class.Affinity, class.Spread), len(class.Labels))
	return class
}

// isOfClass says whether a pod is of a class that another one with its spec is of.
func isOfClass(pod *corev1.Pod, class *model.Class) bool {
	return class.Namespace == pod.Namespace && class.StrictBudgets == model.DemandsStrictBudgets(pod) && maps.Equal(class.Labels, pod.Labels)
}

// decodeSpec decodes a spec, unless its bytes are known.
func (c *cache) decodeSpec(b []byte) (*decodedSpec, error) {
	if d, ok := c.decoded.get(string(b)); ok {
		return d, nil
	}
	d := &decodedSpec{admitted: map[admission]*admittedSpec{}}
	if err := codec.Unmarshal(b, &d.spec); err != nil {
		return nil, err
	}
	c.decoded.put(string(b), d, structBytes+6*len(b))
	return d, nil
}

// admit interns the spec of a pod whose priority is resolved, and gives its
// quality of service and its class. origin is where the spec was decoded, nil
// if that is not known.
func (c *cache) admit(pod *corev1.Pod, origin *decodedSpec) (corev1.PodQOSClass, *model.Class) {
	c.internFields(pod)
	if origin == nil {
		c.internSpec(pod)
		return model.QOS(pod), c.class(pod)
	}
	a := c.admitted(pod, origin)
	own := takeOwn(&pod.Spec)
	pod.Spec = a.spec
	own.put(&pod.Spec)
	return a.qos, a.class(c, pod)
}

// admitted is what became of a spec that was decoded before, for pods of the
// same class, priority and policy.
func (c *cache) admitted(pod *corev1.Pod, origin *decodedSpec) *admittedSpec {
	key := admission{class: pod.Spec.PriorityClassName, priority: model.Priority(pod)}
	if p := pod.Spec.PreemptionPolicy; p != nil {
		key.policy = *p
	}
	a, ok := origin.admitted[key]
	if !ok {
		like := *pod
		takeOwn(&like.Spec)
		c.internSpec(&like)
		a = &admittedSpec{spec: like.Spec, qos: model.QOS(pod), shared: c.specs.of(&like.Spec)}
		origin.admitted[key] = a
	}
	c.specs.again(a.shared)
	return a
}

// class is the class of a pod with this spec.
func (a *admittedSpec) class(c *cache, pod *corev1.Pod) *model.Class {
	for _, class := range a.classes {
		if isOfClass(pod, class) {
			return class
		}
	}
	class := c.compile(pod)
	if len(a.classes) == maxSpecsClasses {
		a.classes = nil
	}
	a.classes = append(a.classes, class)
	return class
}

// restore decodes a pod of a snapshot and lets it share what it has in common
// with others.
func (c *cache) restore(b []byte) (*corev1.Pod, error) {
	w := PodWire{raw: b}
	if err := w.unpack(c); err != nil {
		return nil, err
	}
	defer func() { model.ShareResources(&w.Object.Status, &w.Object.Spec) }()
	c.internFields(w.Object)
	if w.origin == nil {
		c.internSpec(w.Object)
		return w.Object, nil
	}
	a := c.admitted(w.Object, w.origin)
	own := takeOwn(&w.Object.Spec)
	w.Object.Spec = a.spec
	own.put(&w.Object.Spec)
	if len(a.spec.Containers) > 0 && c.restored != nil {
		c.restored[&a.spec.Containers[0]] = a
	}
	return w.Object, nil
}

// intern replaces everything that the pod's spec and managed fields point to
// by an equal, shared copy: 1,000,000 pods of one template hold one.
func (c *cache) intern(pod *corev1.Pod) {
	c.internSpec(pod)
	c.internFields(pod)
}

func (c *cache) internSpec(pod *corev1.Pod) {
	own := takeOwn(&pod.Spec)
	c.specs.intern(&pod.Spec)
	own.put(&pod.Spec)
}

func (c *cache) internFields(pod *corev1.Pod) {
	for i := range pod.ManagedFields {
		f := pod.ManagedFields[i].FieldsV1
		if f == nil {
			continue
		}
		raw, ok := c.fields.get(string(f.Raw))
		if !ok {
			raw = f.Raw
			c.fields.put(string(raw), raw, 2*len(raw))
		}
		f.Raw = raw
	}
}
