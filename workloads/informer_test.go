package workloads

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	podcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/history"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// world is a state that tests write to.
type world struct {
	*fsm.State
	index uint64
}

func newWorld(t failer) *world {
	w := &world{State: fsm.NewState()}
	for _, name := range []string{"a", "b"} {
		w.do(t, &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ns-" + name)}}}, Create: true})
	}
	return w
}

type failer interface {
	Fatalf(format string, args ...any)
}

// do carries a command out, and says whether it was.
func (w *world) do(t failer, c fsm.Command) bool {
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: time.Unix(1e9, 0).UnixNano()},
		[]fsm.Proposal{{User: "test", Groups: []string{"system:masters"}, Command: c}})
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.index++
	rs, err := w.Apply(w.index, 1, entry)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return !rs[0].Refused()
}

// meta names an object that belongs to one of two owners, or to none.
func meta(namespace, name string, owner int) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)}
	if owner > 0 {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "StatefulSet", Name: fmt.Sprint("set-", owner), UID: types.UID(fmt.Sprint("set-uid/", owner)), Controller: &yes}}
	}
	return m
}

// step changes the world at random.
func (w *world) step(t *rapid.T) {
	namespace := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
	name := rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "name")
	m := meta(namespace, name, rapid.IntRange(0, 2).Draw(t, "owner"))
	key := namespace + "/" + name
	switch rapid.SampledFrom([]string{"pod", "end", "bind", "revision", "drop", "set", "service"}).Draw(t, "what") {
	case "pod":
		w.do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{
			NodeName: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"), Containers: []corev1.Container{{Name: "main", Image: "i"}}}}}})
	case "end":
		now := int64(0)
		w.do(t, &fsm.DeletePod{Key: key, GraceSeconds: &now})
	case "revision":
		w.put(t, controllerRevisions, &appsv1.ControllerRevision{ObjectMeta: m})
	case "set":
		w.put(t, "statefulsets", &appsv1.StatefulSet{ObjectMeta: m})
	case "service":
		w.put(t, "services", &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
			Selector: rapid.SampledFrom([]map[string]string{nil, {"app": "x"}}).Draw(t, "selector")}})
	case "drop":
		w.do(t, &fsm.DeleteObject{Resource: rapid.SampledFrom([]string{controllerRevisions, "statefulsets", "services"}).Draw(t, "kind"), Namespace: namespace, Name: name})
	}
}

func (w *world) put(t failer, resource string, o interface{ Marshal() ([]byte, error) }) {
	raw, err := o.Marshal()
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.do(t, &fsm.PutObject{Resource: resource, Raw: raw, Create: true})
}

// TestTheIndexIsClientGos: what a lister reads from the state is what it would read from
// client-go's own store of the same objects, by every index.
func TestTheIndexIsClientGos(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			w.step(t)
		}
		for _, r := range []*rows{pods(), revisions(), plain("statefulsets"), plain(fsm.VolumeClaims)} {
			ours := newInformer(r, w.View)
			if err := ours.AddIndexers(indexers()); err != nil {
				t.Fatalf("%v", err)
			}
			theirs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			if err := theirs.AddIndexers(indexers()); err != nil {
				t.Fatalf("%v", err)
			}
			for _, o := range ours.List() {
				if err := theirs.Add(o); err != nil {
					t.Fatalf("%v", err)
				}
			}
			for name := range theirs.GetIndexers() {
				for _, value := range append(theirs.ListIndexFuncValues(name), "nobody") {
					equal(t, ours, theirs, name, value)
				}
			}
			for _, key := range append(theirs.ListKeys(), "a/none") {
				x, okX, _ := ours.GetByKey(key)
				y, okY, _ := theirs.GetByKey(key)
				if x != y || okX != okY {
					t.Fatalf("%s is %v and %v", key, x, y)
				}
			}
		}
	})
}

func equal(t *rapid.T, ours, theirs cache.Indexer, name, value string) {
	x, errX := ours.ByIndex(name, value)
	y, errY := theirs.ByIndex(name, value)
	set := func(list []any) map[any]bool {
		m := map[any]bool{}
		for _, o := range list {
			m[o] = true
		}
		return m
	}
	if errX != nil || errY != nil || len(x) != len(y) || !reflect.DeepEqual(set(x), set(y)) {
		t.Fatalf("%s of %s: %d objects and %d (%v, %v)", name, value, len(x), len(y), errX, errY)
	}
	keysX, _ := ours.IndexKeys(name, value)
	keysY, _ := theirs.IndexKeys(name, value)
	if len(keysX) != len(keysY) {
		t.Fatalf("%s of %s: keys %v and %v", name, value, keysX, keysY)
	}
}

// indexers are those that Kubernetes' controllers ask for, and one that the state does
// not have.
func indexers() cache.Indexers {
	return cache.Indexers{
		podcontroller.PodControllerIndex: func(o any) ([]string, error) {
			if pod, ok := o.(*corev1.Pod); ok {
				return []string{podcontroller.PodControllerIndexKey(pod.Namespace, metav1.GetControllerOf(pod))}, nil
			}
			return nil, nil
		},
		podcontroller.PodNodeNameKeyIndex: func(o any) ([]string, error) {
			if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		},
		history.ControllerRevisionControllerIndex: func(o any) ([]string, error) {
			if r, ok := o.(*appsv1.ControllerRevision); ok {
				return []string{history.ControllerRevisionControllerIndexKey(r.Namespace, metav1.GetControllerOf(r))}, nil
			}
			return nil, nil
		},
		"name": func(o any) ([]string, error) { return []string{o.(metav1.Object).GetName()}, nil },
	}
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
	w := newWorld(t)
	change := rapid.Custom(func(t *rapid.T) int { w.step(t); return 0 })
	for i := range 50 {
		change.Example(i)
	}
	factory, f := newFactory(w)
	known := map[*informer]*told{}
	for _, i := range f.informers {
		known[i] = &told{at: map[string]any{}, t: t}
		if _, err := i.AddEventHandler(known[i]); err != nil {
			t.Fatal(err)
		}
	}
	if factory.Core().V1().Pods().Informer().HasSynced() {
		t.Error("it is synced before it begins")
	}
	at := f.begin()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- f.follow(ctx, at) }()
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
	if lister := factory.Core().V1().Pods().Lister(); len(known[f.informers[0]].at) == 0 || lister == nil {
		t.Error("there was nothing to tell of")
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	w.Feed().Reset(w.View().Revision()+10, func() {})
	if err := f.follow(t.Context(), at); !errors.Is(err, store.ErrCompacted) {
		t.Error(err)
	}
}

func (k *told) is(i *informer) bool {
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

// TestNothingCanBePutIntoTheState but by commands.
func TestNothingCanBePutIntoTheState(t *testing.T) {
	i := newInformer(pods(), newWorld(t).View)
	for what, err := range map[string]error{
		"add": i.Add(nil), "update": i.Update(nil), "delete": i.Delete(nil), "replace": i.Replace(nil, ""), "transform": i.SetTransform(nil),
	} {
		if err == nil {
			t.Errorf("%s was done", what)
		}
	}
	if err := i.AddIndexers(indexers()); err != nil {
		t.Fatal(err)
	}
	if err := i.AddIndexers(indexers()); err == nil {
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
		w := newWorld(t)
		some := func() {
			for range rapid.IntRange(0, 40).Draw(t, "steps") {
				w.step(t)
			}
		}
		some()
		sets, services := inObjectsOf("statefulsets"), inServices()
		for _, i := range []*interest{sets, services} {
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
		now, nowServices := inObjectsOf("statefulsets"), inServices()
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
	w := newWorld(t)
	_, f := newFactory(w)
	told := map[string][]string{}
	for name, i := range map[string]*interest{"all": nil, "sets": inObjectsOf("statefulsets"), "services": inServices()} {
		f.begins(i)
		note := func(o any) { told[name] = append(told[name], o.(*corev1.Pod).Name) }
		if _, err := f.informers[0].AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: note, UpdateFunc: func(old, _ any) { note(old) }, DeleteFunc: note,
		}); err != nil {
			t.Fatal(err)
		}
	}
	admit := func(namespace, name string, finalizers ...string) {
		m := meta(namespace, name, 0)
		m.Finalizers = finalizers
		w.do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "main", Image: "i"}}}}}})
	}
	service := func(name string, selector map[string]string) {
		w.put(t, "services", &corev1.Service{ObjectMeta: meta("b", name, 0), Spec: corev1.ServiceSpec{Selector: selector}})
	}
	w.put(t, "statefulsets", &appsv1.StatefulSet{ObjectMeta: meta("a", "set", 0)})
	service("plain", nil)
	admit("a", "before")
	at := f.begin()
	admit("a", "owned")
	admit("b", "free")
	admit("b", "held", "example.com/mine")
	service("selects", map[string]string{"app": "x"})
	admit("b", "served")
	w.do(t, &fsm.DeleteObject{Resource: "services", Namespace: "b", Name: "selects"})
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
