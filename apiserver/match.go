package apiserver

import (
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// matcher tells which rows a request selects, presenting as few of them as
// possible.
type matcher struct {
	rows   rows
	labels labelMatch      // nil: every
	fields fields.Selector // nil: every
	asked  fieldMatch      // the same, as objects are asked
	attrs  storage.AttrFunc
}

func newMatcher(k *kind, p storage.SelectionPredicate, attrs storage.AttrFunc) matcher {
	m := matcher{rows: k.rows, attrs: attrs}
	if p.Label != nil && !p.Label.Empty() {
		m.labels = selectsLabels(p.Label)
	}
	if p.Field != nil && !p.Field.Empty() {
		m.fields, m.asked = p.Field, selectsFields(p.Field)
	}
	if p.GetAttrs != nil {
		m.attrs = p.GetAttrs
	}
	return m
}

// all reports whether every row is selected.
func (m *matcher) all() bool { return m.labels == nil && m.fields == nil }

// node is the node that the request confines itself to, if rows are indexed by
// it.
func (m *matcher) node() (string, bool) {
	if m.fields == nil || m.rows.onNode == nil {
		return "", false
	}
	node, ok := m.fields.RequiresExactMatch("spec.nodeName")
	return node, ok && node != ""
}

// matches reports whether a row is selected; show presents it, if need be.
func (m *matcher) matches(row any, show func() (runtime.Object, error)) (bool, error) {
	if m.labels != nil && !m.labels.Matches(m.rows.labels(row)) {
		return false, nil
	}
	if m.fields == nil {
		return true, nil
	}
	if m.rows.fields != nil {
		return m.asked.Matches(m.rows.fields(row)), nil
	}
	obj, err := show()
	if err != nil {
		return false, err
	}
	_, set, err := m.attrs(obj)
	return err == nil && m.asked.Matches(set), err
}
