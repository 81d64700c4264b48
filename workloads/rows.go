package workloads

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	podcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/history"
	"k8s.io/kubernetes/pkg/controller/volume/common"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
)

// rows reads one kind's objects from a view. Keys are "namespace/name", or "name".
type rows struct {
	// table is the table that they are in, prefix what their keys begin with there.
	table, prefix string
	get           func(v *fsm.View, key string) (any, bool)
	// scan calls f for those whose key begins so, in order, until f returns false.
	scan func(v *fsm.View, prefix string, f func(key string, o any) bool)
	// object is what a row of the table is, as the API shows it; nil for another kind's.
	object func(row any) any
	// indexes are those that the state has by itself.
	indexes map[string]index
}

// index finds objects by a value, as an index of client-go's does.
type index func(v *fsm.View, value string) []any

func (r *rows) list(v *fsm.View, prefix string) []any {
	out := []any{}
	r.scan(v, prefix, func(_ string, o any) bool {
		out = append(out, o)
		return true
	})
	return out
}

// typed are the rows of a table of their own.
func typed[T any](name string, table func(v *fsm.View) fsm.Table[T]) *rows {
	return &rows{
		table: name,
		get: func(v *fsm.View, key string) (any, bool) {
			o, ok := table(v).Get(key)
			return o, ok
		},
		scan: func(v *fsm.View, prefix string, f func(key string, o any) bool) {
			table(v).Scan(prefix, func(key string, o T) bool { return f(key, o) })
		},
		object: func(row any) any { return row },
	}
}

// plain are those of a resource in the table of plain objects.
func plain(resource string) *rows { return plainUnder(resource, resource+"/") }

// inNoNamespace are those of one whose objects are in no namespace.
func inNoNamespace(resource string) *rows {
	return plainUnder(resource, fsm.ObjectKey(resource, "", ""))
}

func plainUnder(resource, prefix string) *rows {
	return &rows{
		table: "objects", prefix: prefix,
		get: func(v *fsm.View, key string) (any, bool) {
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

const podTable = "pods"

func pods() *rows {
	r := typed(podTable, func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })
	r.indexes = map[string]index{
		podcontroller.PodControllerIndex: func(v *fsm.View, value string) []any {
			out := []any{}
			add := func(_ string, pod *corev1.Pod) bool {
				out = append(out, pod)
				return true
			}
			if owner, ok := ownerOf(value); ok {
				v.PodsOf(owner, add)
			} else {
				v.Orphans(value, add) // who has ended is nobody's any more
			}
			return out
		},
		podcontroller.PodNodeNameKeyIndex: func(v *fsm.View, node string) []any {
			out := []any{}
			v.PodsOnNode(node, func(pod *corev1.Pod) bool {
				out = append(out, pod)
				return true
			})
			return out
		},
		common.PodPVCIndex: func(v *fsm.View, claim string) []any {
			out := []any{}
			v.PodsWithClaim(claim, func(pod *corev1.Pod) bool {
				out = append(out, pod)
				return true
			})
			return out
		},
	}
	return r
}

func nodes() *rows {
	return typed("nodes", func(v *fsm.View) fsm.Table[*corev1.Node] { return v.Nodes })
}

const controllerRevisions = "controllerrevisions"

func revisions() *rows {
	r := plain(controllerRevisions)
	r.indexes = map[string]index{
		history.ControllerRevisionControllerIndex: func(v *fsm.View, value string) []any {
			owner, ok := ownerOf(value)
			if !ok {
				return slices.DeleteFunc(r.list(v, value+"/"), func(o any) bool { return metav1.GetControllerOfNoCopy(o.(*appsv1.ControllerRevision)) != nil })
			}
			out := []any{}
			v.Dependents(owner, "", func(_ string, ref fsm.ObjectRef, d owners.Dependent) bool {
				if o, ok := r.get(v, ref.Namespace+"/"+ref.Name); ok && d.Controller && ref.Resource == controllerRevisions {
					out = append(out, o)
				}
				return true
			})
			return out
		},
	}
	return r
}

// ownerOf reads a value of client-go's indexes by controller: "namespace/kind/name/uid",
// or the namespace alone for what has none.
func ownerOf(value string) (owners.ID, bool) {
	parts := strings.SplitN(value, "/", 4)
	if len(parts) < 4 {
		return owners.ID{}, false
	}
	return owners.ID{Namespace: parts[0], UID: types.UID(parts[3])}, true
}

// namespaceOf is the prefix of the keys of a namespace that client-go's listers ask for
// with an object.
func namespaceOf(o any) (string, error) {
	m, err := cache.MetaNamespaceIndexFunc(o)
	if err != nil || len(m) == 0 || m[0] == "" {
		return "", err
	}
	return m[0] + "/", nil
}
