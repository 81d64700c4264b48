package fsm

import (
	"crypto/sha256"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// cache lets equal things be one object in memory. It never changes what the
// state is, only what it costs, and is therefore in no snapshot.
type cache struct {
	classes   model.Classes
	specs     map[[32]byte]*corev1.PodSpec
	fields    map[string][]byte
	diagnoses map[string]*Diagnosis
}

// Bounds of the caches. A full one starts again from nothing: what is shared
// already stays shared.
const (
	maxClasses = 1 << 16
	maxSpecs   = 1 << 14
)

func newCache() *cache {
	return &cache{specs: map[[32]byte]*corev1.PodSpec{}, fields: map[string][]byte{}, diagnoses: map[string]*Diagnosis{}}
}

// diagnosis is an equal diagnosis, shared by all who failed for the same
// reasons.
func (c *cache) diagnosis(d *Diagnosis) *Diagnosis {
	if d == nil {
		return nil
	}
	b, err := marshal(d)
	if err != nil {
		return d
	}
	shared, ok := c.diagnoses[string(b)]
	if !ok {
		if len(c.diagnoses) >= maxSpecs {
			clear(c.diagnoses)
		}
		shared = d
		c.diagnoses[string(b)] = d
	}
	return shared
}

// class is the pod's class, compiled once for all pods that ask for the same.
func (c *cache) class(pod *corev1.Pod) *model.Class {
	if c.classes.Len() > maxClasses {
		c.classes = model.Classes{}
	}
	return c.classes.Of(pod)
}

// intern replaces everything that the pod's spec and managed fields point to
// by an equal, shared copy: 1,000,000 pods of one template hold one.
func (c *cache) intern(pod *corev1.Pod) {
	node := pod.Spec.NodeName
	pod.Spec.NodeName = ""
	if b, err := pod.Spec.Marshal(); err == nil {
		key := sha256.Sum256(b)
		shared, ok := c.specs[key]
		if !ok {
			if len(c.specs) >= maxSpecs {
				clear(c.specs)
			}
			spec := pod.Spec
			shared = &spec
			c.specs[key] = shared
		}
		pod.Spec = *shared
	}
	pod.Spec.NodeName = node
	for i := range pod.ManagedFields {
		f := pod.ManagedFields[i].FieldsV1
		if f == nil {
			continue
		}
		raw, ok := c.fields[string(f.Raw)]
		if !ok {
			if len(c.fields) >= maxSpecs {
				clear(c.fields)
			}
			raw = f.Raw
			c.fields[string(raw)] = raw
		}
		f.Raw = raw
	}
}
