package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/fsm"
)

// kind says how one resource of the API meets the state machine: which table
// holds its rows, how a row becomes the object that upstream's registry works
// with, and which command each of its writes is.
type kind struct {
	resource schema.GroupResource
	rows     rows
	// newObject makes an empty object of the internal type.
	newObject func() runtime.Object
	// present returns the function that shows rows of a view as internal
	// objects. These share memory with the row: they may be read and copied
	// shallowly, never changed.
	present func(v *fsm.View) presenter
	// presentChange is present for watches; nil where there is no difference.
	presentChange func(v *fsm.View) presenter
	// The commands of the writes; nil where the API has no such write.
	create func(obj runtime.Object) (fsm.Command, error)
	update func(obj runtime.Object, revision int64) (fsm.Command, error)
	remove func(key string, p fsm.Precondition) fsm.Command
	// emptied: upstream's registry deletes what an update has taken the last finalizer
	// from, and does not store the update first.
	emptied bool
	// current says whether a row is written as it would be now; nil where there is one
	// way to write it.
	current func(row any, obj runtime.Object) bool
}

// presenter fills an empty internal object from a row.
type presenter func(row any, into runtime.Object) error

// show presents one row of a view.
func (k *kind) show(v *fsm.View, row any) (runtime.Object, error) { return k.showing(v)(row) }

// showing presents several rows of a view: what they have in common is looked up once.
func (k *kind) showing(v *fsm.View) func(row any) (runtime.Object, error) {
	present := k.present(v)
	return func(row any) (runtime.Object, error) {
		into := k.newObject()
		return into, present(row, into)
	}
}

// rows reads one kind's rows. Keys are "namespace/name", or "name".
type rows struct {
	// table is the fsm table that the rows are in, keyPrefix what their keys
	// begin with there.
	table, keyPrefix string
	get              func(v *fsm.View, key string) (any, bool)
	// scan calls f for the rows whose key starts with prefix, from the key
	// from on, in order.
	scan func(v *fsm.View, prefix, from string, f func(key string, row any) bool)
	// onNode is scan restricted to a node, where there is an index for it.
	onNode func(v *fsm.View, node string, f func(key string, row any) bool)
	// nodeOf is the node that a row belongs to, where onNode is given.
	nodeOf func(row any) string
	// labels are a row's. fields are what selectors may ask of a row, where
	// they can be read without presenting it.
	labels func(row any) labels.Set
	fields func(row any) fields.Fields
}

// rowsOf reads a table whose keys are the API's.
func rowsOf[T any](name string, table func(v *fsm.View) fsm.Table[T]) rows {
	return rows{
		table:  name,
		labels: func(row any) labels.Set { return labelsOf(row) },
		get: func(v *fsm.View, key string) (any, bool) {
			row, ok := table(v).Get(key)
			return row, ok
		},
		scan: func(v *fsm.View, prefix, from string, f func(key string, row any) bool) {
			table(v).ScanFrom(prefix, from, func(key string, row T) bool { return f(key, row) })
		},
	}
}

func labelsOf(row any) labels.Set {
	if m, ok := row.(metav1.Object); ok {
		return m.GetLabels()
	}
	return nil
}

// converting presents rows by conversion to the internal type, which aliases
// what the row points to.
func converting(row func(any) runtime.Object) func(*fsm.View) presenter {
	return func(*fsm.View) presenter {
		return func(r any, into runtime.Object) error {
			if err := legacyscheme.Scheme.Convert(row(r), into, nil); err != nil {
				return fmt.Errorf("show a %T: %w", r, err)
			}
			return nil
		}
	}
}

// defaulted gives an object that a client could have sent what is left to defaults, and converts it to the internal one.
func defaulted[T any, P interface {
	*T
	runtime.Object
}](in runtime.Object) (P, error) {
	legacyscheme.Scheme.Default(in)
	out := P(new(T))
	return out, legacyscheme.Scheme.Convert(in, out, nil)
}

// versioned converts an internal object to the one that commands carry.
func versioned[T any, P interface {
	*T
	runtime.Object
}](obj runtime.Object) (P, error) {
	out := P(new(T))
	if err := legacyscheme.Scheme.Convert(obj, out, nil); err != nil {
		return nil, fmt.Errorf("convert a %T: %w", obj, err)
	}
	return out, nil
}

func asObject(row any) runtime.Object { return row.(runtime.Object) }

func metaOf(obj runtime.Object) metav1.Object { return obj.(metav1.Object) }
