package apiserver

import (
	"strconv"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	operators "k8s.io/apimachinery/pkg/selection"
)

// A selector may have thousands of terms, of a few bytes each, and thousands of values in one. Upstream's looks at one after the other, for every
// row of a list, and for every change that a watch is asked about. One of many terms is read once here, so that what it costs to ask it about an
// object goes by the object's labels, however many terms it has.

// fewTerms are so few, values counted, that nothing is gained.
const fewTerms = 8

// labelMatch says which labels a request selects.
type labelMatch interface{ Matches(labels.Labels) bool }

// fieldMatch says the same of fields.
type fieldMatch interface{ Matches(fields.Fields) bool }

// selectsLabels is a selector as objects are asked about it.
func selectsLabels(s labels.Selector) labelMatch {
	all, ok := s.Requirements()
	n := len(all)
	for i := range all {
		n += len(all[i].ValuesUnsorted())
	}
	if !ok || n <= fewTerms {
		return s
	}
	terms := &labelTerms{selector: s, of: map[string]*labelTerm{}}
	for i := range all {
		r := &all[i]
		one := terms.of[r.Key()]
		if one == nil {
			one = &labelTerm{}
			terms.of[r.Key()] = one
		}
		one.add(r)
	}
	// order does not matter: they are counted.
	for _, one := range terms.of {
		if one.present {
			terms.present++
		}
	}
	return terms
}

// labelTerms are those of a selector, by what they are about.
type labelTerms struct {
	selector labels.Selector
	of       map[string]*labelTerm
	present  int // how many labels must be there
}

// labelTerm is all that a selector says of one label.
type labelTerm struct {
	present, absent bool                // it must be there; it must not
	in              map[string]struct{} // nil: any
	notIn           map[string]struct{}
	never           bool // no number can be what is asked for
	numeric         bool
	over, under     *int64
}

func (t *labelTerm) add(r *labels.Requirement) {
	switch r.Operator() {
	case operators.In, operators.Equals, operators.DoubleEquals:
		values := setOf(r.ValuesUnsorted())
		// order does not matter: what is left is in both.
		for v := range t.in {
			if _, ok := values[v]; !ok {
				delete(t.in, v)
			}
		}
		if t.present = true; t.in == nil {
			t.in = values
		}
	case operators.NotIn, operators.NotEquals:
		if t.notIn == nil {
			t.notIn = map[string]struct{}{}
		}
		for _, v := range r.ValuesUnsorted() {
			t.notIn[v] = struct{}{}
		}
	case operators.Exists:
		t.present = true
	case operators.DoesNotExist:
		t.absent = true
	case operators.GreaterThan, operators.LessThan:
		t.bound(r)
	default:
		t.present, t.never = true, true
	}
}

// bound adds a comparison.
func (t *labelTerm) bound(r *labels.Requirement) {
	t.present, t.numeric = true, true
	values := r.ValuesUnsorted()
	if len(values) != 1 {
		t.never = true
		return
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	switch {
	case err != nil:
		t.never = true
	case r.Operator() == operators.GreaterThan:
		if t.over == nil || n > *t.over {
			t.over = &n
		}
	case t.under == nil || n < *t.under:
		t.under = &n
	}
}

func setOf(values []string) map[string]struct{} {
	set := make(map[string]struct{}, len(values))
	for _, v := range values {
		set[v] = struct{}{}
	}
	return set
}

// matches: a label that is there is as it is asked for.
func (t *labelTerm) matches(value string) bool {
	if _, ok := t.notIn[value]; ok || t.absent || t.never {
		return false
	}
	if _, ok := t.in[value]; !ok && t.in != nil {
		return false
	}
	if !t.numeric {
		return true
	}
	n, err := strconv.ParseInt(value, 10, 64)
	return err == nil && (t.over == nil || n > *t.over) && (t.under == nil || n < *t.under)
}

// Matches implements labelMatch.
func (t *labelTerms) Matches(of labels.Labels) bool {
	set, ok := of.(labels.Set)
	if !ok {
		return t.selector.Matches(of)
	}
	present := 0
	// order does not matter: all that are there are looked at.
	for key, value := range set {
		one := t.of[key]
		if one == nil {
			continue
		}
		if !one.matches(value) {
			return false
		}
		if one.present {
			present++
		}
	}
	return present == t.present
}

// selectsFields is the same for fields.
func selectsFields(s fields.Selector) fieldMatch {
	all := s.Requirements()
	if len(all) <= fewTerms {
		return s
	}
	terms := fieldTerms{}
	for _, r := range all {
		one := terms[r.Field]
		if one == nil {
			one = &fieldTerm{not: map[string]struct{}{}}
			terms[r.Field] = one
		}
		switch r.Operator {
		case operators.Equals, operators.DoubleEquals:
			one.never = one.never || one.is != nil && *one.is != r.Value
			one.is = &r.Value
		case operators.NotEquals:
			one.not[r.Value] = struct{}{}
		default:
			return s
		}
	}
	return terms
}

// fieldTerms are those of a selector, by what they are about: of a kind's objects there are few fields to ask for.
type fieldTerms map[string]*fieldTerm

// fieldTerm is all that a selector says of one field.
type fieldTerm struct {
	is    *string
	not   map[string]struct{}
	never bool
}

// Matches implements fieldMatch.
func (t fieldTerms) Matches(of fields.Fields) bool {
	// order does not matter: all must be as they are asked for.
	for field, one := range t {
		value := of.Get(field)
		if _, ok := one.not[value]; ok || one.never || one.is != nil && *one.is != value {
			return false
		}
	}
	return true
}
