package model

import "slices"

// matchIndex finds the counters that are about a class without trying all: by namespace and by a label that they demand.
type matchIndex struct {
	byID map[string]*counter
	by   map[matchKey][]*counter
}

// matchKey is where a counter stands. namespace is anyNamespace for one with a namespaceSelector; key is empty for one
// that demands no label.
type matchKey struct{ namespace, key, value string }

const anyNamespace = "*"

func newMatchIndex() matchIndex {
	return matchIndex{byID: map[string]*counter{}, by: map[matchKey][]*counter{}}
}

// placesOf are the keys under which a counter stands: those of its first match.
func placesOf(m *podMatch) []matchKey {
	if m.nsSelector != nil {
		return []matchKey{{anyNamespace, m.key, m.value}}
	}
	out := make([]matchKey, len(m.namespaces))
	for i, ns := range m.namespaces {
		out[i] = matchKey{ns, m.key, m.value}
	}
	return out
}

func (x *matchIndex) add(c *counter) {
	x.byID[c.id] = c
	for _, at := range placesOf(c.match[0]) {
		x.by[at] = append(x.by[at], c)
	}
}

func (x *matchIndex) remove(c *counter) {
	delete(x.byID, c.id)
	for _, at := range placesOf(c.match[0]) {
		list := x.by[at]
		if i := slices.Index(list, c); i >= 0 {
			list = slices.Delete(list, i, i+1)
		}
		if len(list) == 0 {
			delete(x.by, at)
		} else {
			x.by[at] = list
		}
	}
}

// lookup calls f for every counter that is about pods of the class, in no order, and returns how many it tried.
func (x *matchIndex) lookup(c *Class, nsLabels map[string]string, f func(c *counter)) (tried int64) {
	if len(x.byID) == 0 {
		return 0
	}
	try := func(at matchKey) {
		tried += int64(len(x.by[at]))
		for _, m := range x.by[at] {
			if m.about(c, nsLabels) {
				f(m)
			}
		}
	}
	try(matchKey{c.Namespace, "", ""})
	try(matchKey{anyNamespace, "", ""})
	// order does not matter: whoever needs an order makes one.
	for key, value := range c.Labels {
		try(matchKey{c.Namespace, key, value})
		try(matchKey{anyNamespace, key, value})
	}
	return tried
}

// about says whether pods of the class are what the counter counts, or what the term that it counts carriers of is about.
func (c *counter) about(class *Class, nsLabels map[string]string) bool {
	for _, m := range c.match {
		if !m.matches(class.Namespace, class.Labels, nsLabels) {
			return false
		}
	}
	return true
}
