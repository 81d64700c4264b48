package model

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// What a pod, a profile or a volume asks of a node's labels and name (AF1), compiled. Upstream has this as a library, which
// makes a map of each node's name to match it with: ten thousand nodes are asked by each new shape of pods, so it is done
// here without one. Upstream's parser says what is a requirement, and a property compares the two.

// nodeSelector is a node selector: a node must match one of the terms.
type nodeSelector struct{ terms []nodeTerm }

// nodeTerm is matched by nodes that meet all of its requirements. An empty one is matched by none.
type nodeTerm struct {
	nothing bool // it is empty, or does not parse
	labels  []nodeRequirement
	fields  []nodeField
	weight  int64 // of a term that is preferred
}

type nodeRequirement struct {
	key    string
	op     corev1.NodeSelectorOperator
	values []string // sorted
	number int64    // for Gt and Lt
}

// nodeField demands, or forbids, the value of a field.
type nodeField struct {
	key, value string
	forbids    bool
}

// nodeLabel is a label that a node must have.
type nodeLabel struct{ key, value string }

var nodeOperators = map[corev1.NodeSelectorOperator]selection.Operator{
	corev1.NodeSelectorOpIn: selection.In, corev1.NodeSelectorOpNotIn: selection.NotIn, corev1.NodeSelectorOpExists: selection.Exists,
	corev1.NodeSelectorOpDoesNotExist: selection.DoesNotExist, corev1.NodeSelectorOpGt: selection.GreaterThan, corev1.NodeSelectorOpLt: selection.LessThan,
}

// compileNodeTerm says of a term that does not parse that no node matches it.
func compileNodeTerm(term *corev1.NodeSelectorTerm, weight int32) (out nodeTerm, parses bool) {
	out, parses = nodeTerm{weight: int64(weight)}, true
	for i := range term.MatchExpressions {
		e := &term.MatchExpressions[i]
		if _, err := labels.NewRequirement(e.Key, nodeOperators[e.Operator], e.Values); err != nil {
			parses = false
			continue
		}
		r := nodeRequirement{key: e.Key, op: e.Operator, values: e.Values}
		switch r.op {
		case corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt:
			r.number, _ = strconv.ParseInt(e.Values[0], 10, 64)
		default:
			if !slices.IsSorted(r.values) {
				r.values = slices.Sorted(slices.Values(r.values))
			}
		}
		out.labels = append(out.labels, r)
	}
	for i := range term.MatchFields {
		e := &term.MatchFields[i]
		if len(e.Values) != 1 || e.Operator != corev1.NodeSelectorOpIn && e.Operator != corev1.NodeSelectorOpNotIn {
			parses = false
			continue
		}
		out.fields = append(out.fields, nodeField{e.Key, e.Values[0], e.Operator == corev1.NodeSelectorOpNotIn})
	}
	out.nothing = !parses || len(out.labels)+len(out.fields) == 0
	return out, parses
}

// compileNodeSelector returns nil for none. A term that does not parse is matched by no node; the others are as they are.
func compileNodeSelector(s *corev1.NodeSelector) (out *nodeSelector, parses bool) {
	if s == nil {
		return nil, true
	}
	out, parses = &nodeSelector{}, true
	for i := range s.NodeSelectorTerms {
		term, ok := compileNodeTerm(&s.NodeSelectorTerms[i], 0)
		out.terms = append(out.terms, term)
		parses = parses && ok
	}
	return out, parses
}

// compileWholeSelector is compileNodeSelector for a selector that is matched by no node if one of its terms does not parse.
func compileWholeSelector(s *corev1.NodeSelector) *nodeSelector {
	out, parses := compileNodeSelector(s)
	if !parses {
		return &nodeSelector{}
	}
	return out
}

// compileNodePreferences returns nil where nothing is preferred. If one does not parse, none counts.
func compileNodePreferences(terms []corev1.PreferredSchedulingTerm) *nodeSelector {
	if len(terms) == 0 {
		return nil
	}
	out := &nodeSelector{}
	for i := range terms {
		if terms[i].Weight == 0 {
			continue
		}
		term, parses := compileNodeTerm(&terms[i].Preference, terms[i].Weight)
		if !parses {
			return nil
		}
		out.terms = append(out.terms, term)
	}
	return out
}

func compileNodeLabels(m map[string]string) []nodeLabel {
	var out []nodeLabel
	for _, key := range slices.Sorted(maps.Keys(m)) {
		out = append(out, nodeLabel{key, m[key]})
	}
	return out
}

// match says whether a node matches one of the terms; without any, none does.
func (s *nodeSelector) match(n *corev1.Node) bool {
	for i := range s.terms {
		if s.terms[i].match(n) {
			return true
		}
	}
	return false
}

// score adds up the weights of the terms that a node matches.
func (s *nodeSelector) score(n *corev1.Node) (sum int64) {
	for i := range s.terms {
		if s.terms[i].match(n) {
			sum += s.terms[i].weight
		}
	}
	return sum
}

func (t *nodeTerm) match(n *corev1.Node) bool {
	if t.nothing {
		return false
	}
	for i := range t.labels {
		if !t.labels[i].match(n.Labels) {
			return false
		}
	}
	for i := range t.fields {
		f, value := &t.fields[i], ""
		if f.key == metav1.ObjectNameField {
			value = n.Name
		}
		if (value == f.value) == f.forbids {
			return false
		}
	}
	return true
}

func (r *nodeRequirement) match(has map[string]string) bool {
	value, ok := has[r.key]
	switch r.op {
	case corev1.NodeSelectorOpExists:
		return ok
	case corev1.NodeSelectorOpDoesNotExist:
		return !ok
	case corev1.NodeSelectorOpIn:
		return ok && r.names(value)
	case corev1.NodeSelectorOpNotIn:
		return !ok || !r.names(value)
	}
	number, err := strconv.ParseInt(value, 10, 64)
	return ok && err == nil && (r.op == corev1.NodeSelectorOpGt && number > r.number || r.op == corev1.NodeSelectorOpLt && number < r.number)
}

func (r *nodeRequirement) names(value string) bool {
	if len(r.values) == 1 {
		return r.values[0] == value
	}
	_, ok := slices.BinarySearch(r.values, value)
	return ok
}

// matchesAffinity applies nodeSelector and required node affinity (AF1).
func matchesAffinity(c *Class, n *corev1.Node) bool {
	for i := range c.nodeLabels {
		if value, ok := n.Labels[c.nodeLabels[i].key]; !ok || value != c.nodeLabels[i].value {
			return false
		}
	}
	return c.required == nil || c.required.match(n)
}
