package informers

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers/worldtest"
	"github.com/berth-dev/berth/store"
)

func pods() *Rows {
	return Typed(podTable, func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })
}

// told is a handler that keeps what it was told of.
type told struct {
	mu sync.Mutex
	at map[string]any
	t  testing.TB
}

func (k *told) OnAdd(o any, _ bool) { k.set(nil, o) }
func (k *told) OnUpdate(old, o any) { k.set(old, o) }
func (k *told) OnDelete(o any)      { k.set(o, nil) }
func (k *told) set(old, now any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	which := now
	if now == nil {
		which = old
	}
	key, err := cache.MetaNamespaceKeyFunc(which)
	if err != nil {
		k.t.Error(err)
	}
	if k.at[key] != old {
		k.t.Errorf("%s was %v and is said to have been %v", key, k.at[key], old)
	}
	if k.at[key] = now; now == nil {
		delete(k.at, key)
	}
}

// TestHandlersAreToldEverything: what was told adds up to the state, from whatever state
// on it began, and ends with the context or when changes were missed.
func TestHandlersAreToldEverything(t *testing.T) {
	w := worldtest.New(t)
	change := rapid.Custom(func(t *rapid.T) int { w.Step(t); return 0 })
	for i := range 50 {
		change.Example(i)
	}
	f := NewFeed(w)
	for _, rows := range []*Rows{pods(), Plain(worldtest.ControllerRevisions), Plain("statefulsets"), Plain("services")} {
		f.Add(rows)
		if rows.table != podTable {
			rows.Rests = func(_ *fsm.View, o any) bool { return len(o.(metav1.Object).GetName())%2 == 0 }
		}
	}
	known := map[*Informer]*told{}
	for _, i := range f.informers {
		known[i] = &told{at: map[string]any{}, t: t}
		if _, err := i.AddEventHandler(known[i]); err != nil {
			t.Fatal(err)
		}
	}
	if f.informers[0].HasSynced() {
		t.Error("it is synced before it begins")
	}
	at := f.Begin()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.Follow(ctx, at) }()
	for i := range 300 {
		change.Example(1000 + i)
	}
	for i, k := range known {
		<-i.HasSyncedChecker().Done()
		for deadline := time.After(30 * time.Second); !k.is(i); {
			select {
			case <-deadline:
				t.Fatalf("%s: told of %d, and there are %d", i.Name(), len(k.at), len(i.List()))
			case <-time.After(time.Millisecond):
			}
		}
		if _, err := i.AddEventHandler(k); !errors.Is(err, errBegun) {
			t.Errorf("a handler came late: %v", err)
		}
	}
	if len(known[f.informers[0]].at) == 0 {
		t.Error("there was nothing to tell of")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Feed().Reset(w.View().Revision()+10, nil, func() {})
	if err := f.Follow(t.Context(), at); !errors.Is(err, store.ErrCompacted) {
		t.Error(err)
	}
}

func (k *told) is(i *Informer) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := i.List()
	if len(list) != len(k.at) {
		return false
	}
	for _, o := range list {
		key, _ := cache.MetaNamespaceKeyFunc(o)
		if k.at[key] != o {
			return false
		}
	}
	return true
}

// TestANamespacesListIsOfNow: who asks for the same of the same state shares it, and nobody gets one of before.
func TestANamespacesListIsOfNow(t *testing.T) {
	w := worldtest.New(t)
	i := New(Plain("services"), w.View)
	list := func(namespace string, want int) []any {
		t.Helper()
		byIndex, err := i.ByIndex(cache.NamespaceIndex, namespace)
		if err != nil {
			t.Fatal(err)
		}
		index, err := i.Index(cache.NamespaceIndex, &metav1.ObjectMeta{Namespace: namespace})
		if err != nil || len(index) != want || len(byIndex) != want {
			t.Fatalf("%s has %d and %d, and not %d: %v", namespace, len(index), len(byIndex), want, err)
		}
		if want > 0 && &index[0] != &byIndex[0] {
			t.Errorf("what %s has was listed twice", namespace)
		}
		return index
	}
	list("a", 0)
	w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("a", "p", 0)})
	before := list("a", 1)
	list("b", 0)
	w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("b", "p", 0)})
	list("b", 1)
	w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("a", "q", 0)})
	if list("a", 2); len(before) != 1 {
		t.Error("what was given has changed")
	}
	for n := range listKept {
		w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("a", fmt.Sprint("r-", n), 0)})
	}
	if all := i.listed("a/"); len(all) != listKept+2 || len(i.last.Load().items) == len(all) {
		t.Errorf("of %d in a namespace %d are kept", len(all), len(i.last.Load().items))
	}
}

// TestNothingCanBePutIntoTheState but by commands.
func TestNothingCanBePutIntoTheState(t *testing.T) {
	i := New(pods(), worldtest.New(t).View)
	for what, err := range map[string]error{
		"add": i.Add(nil), "update": i.Update(nil), "delete": i.Delete(nil), "replace": i.Replace(nil, ""), "transform": i.SetTransform(nil),
	} {
		if err == nil {
			t.Errorf("%s was done", what)
		}
	}
	byName := cache.Indexers{"name": func(o any) ([]string, error) { return []string{o.(metav1.Object).GetName()}, nil }}
	if err := i.AddIndexers(byName); err != nil {
		t.Fatal(err)
	}
	if err := i.AddIndexers(byName); err == nil {
		t.Error("an index was added twice")
	}
	if _, err := i.ByIndex("unknown", ""); err == nil {
		t.Error("an index that nobody added was read")
	}
	if i.LastSyncResourceVersion() == "" || i.LastSyncResourceVersion() == "0" {
		t.Error("it does not say how far it is")
	}
}

// TestInterestFollowsTheState: whatever happens, an interest knows of the namespaces that
// have what it is about, as one that begins now does.
func TestInterestFollowsTheState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worldtest.New(t)
		some := func() {
			for range rapid.IntRange(0, 40).Draw(t, "steps") {
				w.Step(t)
			}
		}
		some()
		sets, services := InObjectsOf("statefulsets"), InServices()
		for _, i := range []*Interest{sets, services} {
			i.begin(w.View())
		}
		at := w.View().Revision()
		some()
		changes, err := w.Feed().After(at, changesAtOnce)
		if err != nil {
			t.Fatalf("%v", err)
		}
		for c := range changes {
			sets.follow(&changes[c])
			services.follow(&changes[c])
		}
		now, nowServices := InObjectsOf("statefulsets"), InServices()
		now.begin(w.View())
		nowServices.begin(w.View())
		if !reflect.DeepEqual(sets.in, now.in) || !reflect.DeepEqual(services.in, nowServices.in) {
			t.Fatalf("sets %v and %v, services %v and %v", sets.in, now.in, services.in, nowServices.in)
		}
	})
}

// TestOnlyWhoHasAnInterestIsTold of a pod: who has something in its namespace, and of one
// with a finalizer everybody.
func TestOnlyWhoHasAnInterestIsTold(t *testing.T) {
	w := worldtest.New(t)
	f := NewFeed(w)
	f.Add(pods())
	told := map[string][]string{}
	for name, i := range map[string]*Interest{"all": nil, "sets": InObjectsOf("statefulsets"), "services": InServices()} {
		f.Begins(i)
		note := func(o any) { told[name] = append(told[name], o.(*corev1.Pod).Name) }
		if _, err := f.informers[0].AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: note, UpdateFunc: func(old, _ any) { note(old) }, DeleteFunc: note,
		}); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(namespace, name string, finalizers ...string) {
		m := worldtest.Meta(namespace, name, 0)
		m.Finalizers = finalizers
		w.Do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "i"}}}}}})
	}
	service := func(name string, selector map[string]string) {
		w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("b", name, 0), Spec: corev1.ServiceSpec{Selector: selector}})
	}
	w.Put(t, "statefulsets", &appsv1.StatefulSet{ObjectMeta: worldtest.Meta("a", "set", 0)})
	service("plain", nil)
	admit("a", "before")
	at := f.Begin()
	admit("a", "owned")
	admit("b", "free")
	admit("b", "held", "example.com/mine")
	service("selects", map[string]string{"app": "x"})
	admit("b", "served")
	w.Do(t, &fsm.DeleteObject{Resource: "services", Namespace: "b", Name: "selects"})
	admit("b", "late")
	changes, err := w.Feed().After(at, changesAtOnce)
	if err != nil {
		t.Fatal(err)
	}
	for c := range changes {
		f.tell(&changes[c])
	}
	if want := map[string][]string{
		"all":  {"before", "owned", "free", "held", "served", "late"},
		"sets": {"before", "owned", "held"}, "services": {"held", "served"},
	}; !reflect.DeepEqual(told, want) {
		t.Errorf("told were %v, and not %v", told, want)
	}
}
