package informers

import (
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
)

// Rows reads one kind's objects from a view. Keys are "namespace/name", or "name".
type Rows struct {
	// table is the table that they are in, prefix what their keys begin with there.
	table, prefix string
	// Get gives the object of a key.
	Get func(v *fsm.View, key string) (any, bool)
	// scan calls f for those whose key begins so, in order, until f returns false.
	scan func(v *fsm.View, prefix string, f func(key string, o any) bool)
	// object is what a row of the table is, as the API shows it; nil for another kind's.
	object func(row any) any
	// Indexes are those that the state has by itself.
	Indexes map[string]Index
	// Rests says of an object that nothing seems to be left to do for it, so that its handlers may be told a while later that
	// it is there (later.go); nil: of none.
	Rests func(v *fsm.View, o any) bool
}

// Index finds objects by a value, as an index of client-go's does.
type Index func(v *fsm.View, value string) []any

// List gives all whose key begins so.
func (r *Rows) List(v *fsm.View, prefix string) []any {
	out := []any{}
	r.scan(v, prefix, func(_ string, o any) bool {
		out = append(out, o)
		return true
	})
	return out
}

// Typed are the rows of a table of their own.
func Typed[T any](name string, table func(v *fsm.View) fsm.Table[T]) *Rows {
	return &Rows{
		table: name,
		Get: func(v *fsm.View, key string) (any, bool) {
			o, ok := table(v).Get(key)
			return o, ok
		},
		scan: func(v *fsm.View, prefix string, f func(key string, o any) bool) {
			table(v).Scan(prefix, func(key string, o T) bool { return f(key, o) })
		},
		object: func(row any) any { return row },
	}
}

// Plain are those of a resource in the table of plain objects.
func Plain(resource string) *Rows { return plainUnder(resource, resource+"/") }

// InNoNamespace are those of one whose objects are in no namespace.
func InNoNamespace(resource string) *Rows {
	return plainUnder(resource, fsm.ObjectKey(resource, "", ""))
}

func plainUnder(resource, prefix string) *Rows {
	return &Rows{
		table: "objects", prefix: prefix,
		Get: func(v *fsm.View, key string) (any, bool) {
			o, ok := v.Objects.Get(prefix + key)
			if !ok {
				return nil, false
			}
			return o.Value, true
		},
		scan: func(v *fsm.View, p string, f func(key string, o any) bool) {
			v.Objects.Scan(prefix+p, func(key string, o *fsm.Object) bool { return f(key[len(prefix):], o.Value) })
		},
		object: func(row any) any {
			if o, ok := row.(*fsm.Object); ok && o.Resource == resource {
				return o.Value
			}
			return nil
		},
	}
}

// podTable is the table of pods, which are the rows that change most.
const podTable = "pods"

// namespaceOf is the prefix of the keys of a namespace that client-go's listers ask for
// with an object.
func namespaceOf(o any) (string, error) {
	m, err := cache.MetaNamespaceIndexFunc(o)
	if err != nil || len(m) == 0 || m[0] == "" {
		return "", err
	}
	return m[0] + "/", nil
}
