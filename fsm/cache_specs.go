package fsm

import (
	"crypto/sha256"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/quotas"
)

// sharedSpecs are the specs that pods of the state have, each once: 1,000,000
// pods of one template hold one. A spec is known by its containers, which all
// who share it have in common, and is forgotten when the last pod that has it
// goes.
type sharedSpecs struct {
	byHash       map[[32]byte]*sharedSpec // of its bytes, without what is a pod's own
	byContainers map[*corev1.Container]*sharedSpec
	fresh        []*sharedSpec // perhaps without a pod; see settle
}

type sharedSpec struct {
	spec  corev1.PodSpec // without what is a pod's own
	hash  [32]byte
	bytes int          // see specBytes
	pods  int          // of the state
	class *model.Class // of the last pod that was asked about; nil: none was
	// charge is what quotas count; nil: nobody has asked.
	charge *quotas.Charge
}

// podsOwn is what is different in the specs of pods of one template: the node, and the hostname of a piece of a Job.
type podsOwn struct{ node, hostname string }

// takeOwn takes it out of a spec.
func takeOwn(spec *corev1.PodSpec) podsOwn {
	own := podsOwn{spec.NodeName, spec.Hostname}
	spec.NodeName, spec.Hostname = "", ""
	return own
}

func (o podsOwn) put(spec *corev1.PodSpec) { spec.NodeName, spec.Hostname = o.node, o.hostname }

// intern replaces everything that a spec points to, from which a pod's own was taken, by an equal,
// shared copy.
func (s *sharedSpecs) intern(spec *corev1.PodSpec) {
	if len(spec.Containers) == 0 {
		return
	}
	b, err := spec.Marshal()
	if err != nil {
		return
	}
	hash := sha256.Sum256(b)
	shared, ok := s.byHash[hash]
	if !ok {
		shared = &sharedSpec{spec: *spec, hash: hash, bytes: len(b)}
		// Specs that become different ones (another priority) may come from one.
		shared.spec.Containers = slices.Clone(spec.Containers)
		s.keep(shared)
	}
	*spec = shared.spec
}

func (s *sharedSpecs) keep(shared *sharedSpec) {
	s.byHash[shared.hash], s.byContainers[&shared.spec.Containers[0]] = shared, shared
	s.fresh = append(s.fresh, shared)
}

// of is the shared spec that a spec is, or nil.
func (s *sharedSpecs) of(spec *corev1.PodSpec) *sharedSpec {
	if len(spec.Containers) == 0 {
		return nil
	}
	return s.byContainers[&spec.Containers[0]]
}

// again makes a spec known that may have been forgotten, for a pod that is to
// have it. Should an equal one be known by now, the two are not told to be one.
func (s *sharedSpecs) again(shared *sharedSpec) {
	if shared != nil && s.byHash[shared.hash] == nil {
		s.keep(shared)
	}
}

// follow counts the pods that have a spec.
func (s *sharedSpecs) follow(before, now *corev1.Pod) {
	if before != nil && now != nil && sameSpec(&before.Spec, &now.Spec) {
		return
	}
	if now != nil {
		if shared := s.of(&now.Spec); shared != nil {
			shared.pods++
		}
	}
	if before != nil {
		if shared := s.of(&before.Spec); shared != nil {
			if shared.pods--; shared.pods <= 0 {
				s.forget(shared)
			}
		}
	}
}

// settle forgets those whose pods were refused.
func (s *sharedSpecs) settle() {
	for _, shared := range s.fresh {
		if shared.pods <= 0 {
			s.forget(shared)
		}
	}
	s.fresh = nil
}

func (s *sharedSpecs) forget(shared *sharedSpec) {
	if s.byHash[shared.hash] == shared {
		delete(s.byHash, shared.hash)
	}
	if at := &shared.spec.Containers[0]; s.byContainers[at] == shared {
		delete(s.byContainers, at)
	}
	if len(s.byHash) == 0 { // maps do not shrink
		s.byHash, s.byContainers = map[[32]byte]*sharedSpec{}, map[*corev1.Container]*sharedSpec{}
	}
}

// recent remembers what was asked for of late, by its bytes: two generations of
// so many bytes each, of which the older one goes when the newer one is full.
// The zero value holds nothing for long.
type recent[V any] struct {
	newer, older map[string]costing[V]
	bytes        int // of newer
	mostBytes    int
}

type costing[V any] struct {
	value V
	bytes int
}

func (r *recent[V]) get(key string) (V, bool) {
	if c, ok := r.newer[key]; ok {
		return c.value, true
	}
	c, ok := r.older[key]
	if ok {
		r.put(key, c.value, c.bytes)
	}
	return c.value, ok
}

func (r *recent[V]) put(key string, value V, bytes int) {
	if r.newer == nil || r.bytes+bytes > r.mostBytes {
		r.older, r.newer, r.bytes = r.newer, map[string]costing[V]{}, 0
	}
	r.newer[key] = costing[V]{value, bytes}
	r.bytes += bytes
}

func (r *recent[V]) clear() { r.newer, r.older, r.bytes = nil, nil, 0 }
