package model

// Peek calls f, which may change the topology to see what would be then, and has to take everything back that it changed:
// Version is as it was.
func (t *Topology) Peek(f func()) {
	before := t.version
	if t.stamps != nil {
		t.stamps.quiet = true
		defer func() { t.stamps.quiet = false }()
	}
	f()
	t.peeked += t.version - before
}

// Minds says whether pods of another class, coming or going, can change what the judge's class fails by: one of its hard
// rules is about them, or they carry a required anti-affinity about it.
func (j *Judge) Minds(other *Class) bool {
	labels := j.t.namespaceLabels(other.Namespace)
	for i := range j.own {
		switch k := &j.own[i]; k.role {
		case hardSpread, ownAffinity, ownAntiAffinity:
			if k.counter.about(other, labels) {
				return true
			}
		}
	}
	if other.terms == nil {
		return false
	}
	labels = j.t.namespaceLabels(j.class.Namespace)
	for i := range other.terms.antiAffinity {
		if other.terms.antiAffinity[i].match.matches(j.class.Namespace, j.class.Labels, labels) {
			return true
		}
	}
	return false
}

// Welcomes says whether a pod of another class that comes to a node can end what the judge's class fails by: required
// affinity wants it, or it fills a domain and so evens out a skew.
func (j *Judge) Welcomes(other *Class) bool {
	labels := j.t.namespaceLabels(other.Namespace)
	for i := range j.own {
		if k := &j.own[i]; (k.role == hardSpread || k.role == ownAffinity) && k.counter.about(other, labels) {
			return true
		}
	}
	return false
}
