package fsm

import (
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/quotas"
	"github.com/berth-dev/berth/store"
	"github.com/berth-dev/berth/usage"
)

// compareViews fails unless two views hold the same state: the same digest,
// and indexes that say the same.
func compareViews(t failer, what string, want, got *View) {
	t.Helper()
	if a, b := want.Digest(), got.Digest(); a != b {
		t.Fatalf("%s: digests differ: %s, %s", what, a, b)
	}
	if want.Position != got.Position {
		t.Fatalf("%s: positions differ: %+v, %+v", what, want.Position, got.Position)
	}
	compareIndexes(t, what, want, got)
}

func compareIndexes(t failer, what string, want, got *View) {
	t.Helper()
	a, b := describeIndexes(want), describeIndexes(got)
	a["owners"], b["owners"] = describeIndex(want.owners.Describe), describeIndex(got.owners.Describe)
	a["budgets"], b["budgets"] = describeIndex(want.budgets.Describe), describeIndex(got.budgets.Describe)
	a["quotas"], b["quotas"] = describeIndex(want.quotas.Describe), describeIndex(got.quotas.Describe)
	a["usage"], b["usage"] = describeIndex(want.usage.Describe), describeIndex(got.usage.Describe)
	a["queue"], b["queue"] = describeIndex(want.queue.Describe), describeIndex(got.queue.Describe)
	for name := range a {
		if a[name] != b[name] {
			t.Fatalf("%s: index %s differs:\n%s\n--- and ---\n%s", what, name, a[name], b[name])
		}
	}
}

// describeIndexes writes every index down in a form that does not depend on
// where its rows are in memory.
func describeIndexes(v *View) map[string]string {
	pod := func(p *corev1.Pod) string { return PodKey(p.Namespace, p.Name) + "@" + p.ResourceVersion }
	return map[string]string{
		"unclaimed":       list(v.unclaimed, pod),
		"ended":           list(v.ended, pod),
		"services":        list(v.services, asText),
		"given":           list(v.given, asText),
		"grants":          fmt.Sprintln(v.roles) + list(v.grants, func(o *Object) string { return o.Value.GetName() + "@" + o.Value.GetResourceVersion() }),
		"users":           list(v.volumes.users, pod),
		"ending":          list(v.volumes.ending, func(o *corev1.PersistentVolume) string { return o.Name + "@" + o.ResourceVersion }),
		"meant":           list(v.volumes.meant, func(o *corev1.PersistentVolume) string { return o.Name + "@" + o.ResourceVersion }),
		"offered":         list(v.volumes.offered, func(f *model.FreeVolume) string { return f.Volume.Name + "@" + f.Volume.ResourceVersion }),
		"shelves":         list(v.volumes.shelves, asText),
		"waiting":         list(v.devices.waiting, pod),
		"named":           list(v.devices.named, pod),
		"owned":           list(v.devices.owned, func(o *resourcev1.ResourceClaim) string { return o.Name + "@" + o.ResourceVersion }),
		"taken":           list(v.devices.taken, asText),
		"inNamespace":     list(v.eventShares.inNamespace, asText),
		"shares":          list(v.eventShares.shares, asText),
		"largest":         list(v.eventShares.largest, asText),
		"eventOrder":      list(v.eventOrder, asText),
		"preemptionOrder": fmt.Sprintf("%+v\n", v.remembered) + list(v.preemptionOrder, asText),
		"defaultClasses":  list(v.defaultClasses, asText),
		"definedKinds":    list(v.definedKinds, asText),
	}
}

func describeIndex(index func(f func(line string))) string {
	var b strings.Builder
	index(func(line string) { fmt.Fprintf(&b, "%q\n", line) })
	return b.String()
}

func asText[T any](v T) string { return fmt.Sprintf("%+v", reflect.Indirect(reflect.ValueOf(v))) }

func list[V any](m store.Tree[V], describe func(V) string) string {
	out := ""
	m.Scan("", func(key string, value V) bool {
		out += fmt.Sprintf("%q: %s\n", key, describe(value))
		return true
	})
	return out
}

// TestEveryIndexIsCompared fails when an index is added and the tests do not
// know it.
func TestEveryIndexIsCompared(t *testing.T) {
	var names, compared []string
	eachTree(reflect.ValueOf(View{}), func(name string, _ reflect.Value) {
		if !strings.HasSuffix(name, ".rows") { // of a table
			names = append(names, name)
		}
	})
	v := newView()
	for name := range describeIndexes(&v) {
		compared = append(compared, name)
	}
	for _, index := range []any{budgets.Index{}, owners.Index{}, queue.Index{}, quotas.Index{}, usage.Index{}} { // they describe themselves
		eachTree(reflect.ValueOf(index), func(name string, _ reflect.Value) { compared = append(compared, name) })
	}
	sort.Strings(names)
	sort.Strings(compared)
	if !reflect.DeepEqual(names, compared) {
		t.Errorf("the indexes are %v, the tests compare %v", names, compared)
	}
}

// eachTree calls f for every tree in a view, whatever part it is in.
func eachTree(v reflect.Value, f func(name string, tree reflect.Value)) {
	for i := range v.NumField() {
		name, field := v.Type().Field(i).Name, v.Field(i)
		switch {
		case field.Kind() != reflect.Struct:
		case strings.HasPrefix(field.Type().Name(), "Tree["):
			f(name, field)
		case strings.HasPrefix(field.Type().Name(), "Table["):
			f(name+".rows", field.FieldByName("rows"))
		default:
			eachTree(field, f)
		}
	}
}

// TestForkCopiesEveryField fails when a table or an index is added and fork, or
// the list of tables, leaves it out: a fork has all trees, and shares none.
func TestForkCopiesEveryField(t *testing.T) {
	v := newView()
	eachTree(reflect.ValueOf(&v).Elem(), func(_ string, tree reflect.Value) {
		set := reflect.NewAt(tree.Type(), unsafe.Pointer(tree.UnsafeAddr())).MethodByName("Set")
		set.Call([]reflect.Value{reflect.ValueOf("key"), reflect.Zero(set.Type().In(1))})
	})
	forked, tables := v.fork(), 0
	trees := map[string]uintptr{}
	eachTree(reflect.ValueOf(v), func(name string, tree reflect.Value) { trees[name] = tree.FieldByName("rows").Pointer() })
	eachTree(reflect.ValueOf(forked), func(name string, tree reflect.Value) {
		if strings.HasSuffix(name, ".rows") {
			tables++
		}
		switch got := tree.FieldByName("rows").Pointer(); {
		case got == 0:
			t.Errorf("fork leaves %s out", name)
		case got == trees[name]:
			t.Errorf("fork shares %s", name)
		}
	})
	if got := len(v.tables()); got != tables {
		t.Errorf("View has %d tables, tables() lists %d", tables, got)
	}
}
