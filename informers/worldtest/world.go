// Package worldtest gives tests of what follows a state one that changes at random.
package worldtest

import (
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
)

// ControllerRevisions is a resource of which there are objects.
const ControllerRevisions = "controllerrevisions"

// World is a state that tests write to.
type World struct {
	*fsm.State
	index uint64
}

// New gives one with the namespaces a and b.
func New(t Failer) *World {
	w := &World{State: fsm.NewState()}
	for _, name := range []string{"a", "b"} {
		w.Do(t, &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ns-" + name)}}}, Create: true})
	}
	return w
}

// Failer is a test, of any kind.
type Failer interface {
	Fatalf(format string, args ...any)
}

// Do carries a command out, and says whether it was.
func (w *World) Do(t Failer, c fsm.Command) bool {
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

// Meta names an object that belongs to one of two owners, or to none.
func Meta(namespace, name string, owner int) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + namespace + "-" + name)}
	if owner > 0 {
		yes := true
		m.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "apps/v1", Kind: "StatefulSet", Name: fmt.Sprint("set-", owner), UID: types.UID(fmt.Sprint("set-uid/", owner)), Controller: &yes}}
	}
	return m
}

// Step changes the world at random.
func (w *World) Step(t *rapid.T) {
	namespace := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "namespace")
	name := rapid.SampledFrom([]string{"p", "q", "r", "s"}).Draw(t, "name")
	m := Meta(namespace, name, rapid.IntRange(0, 2).Draw(t, "owner"))
	key := namespace + "/" + name
	switch rapid.SampledFrom([]string{"pod", "end", "bind", "revision", "drop", "set", "service"}).Draw(t, "what") {
	case "pod":
		w.Do(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{ObjectMeta: m, Spec: corev1.PodSpec{
			NodeName: rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"), Containers: []corev1.Container{{Name: "main", Image: "i"}}}}}})
	case "end":
		now := int64(0)
		w.Do(t, &fsm.DeletePod{Key: key, GraceSeconds: &now})
	case "revision":
		w.Put(t, ControllerRevisions, &appsv1.ControllerRevision{ObjectMeta: m})
	case "set":
		w.Put(t, "statefulsets", &appsv1.StatefulSet{ObjectMeta: m})
	case "service":
		w.Put(t, "services", &corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
			Selector: rapid.SampledFrom([]map[string]string{nil, {"app": "x"}}).Draw(t, "selector")}})
	case "drop":
		w.Do(t, &fsm.DeleteObject{Resource: rapid.SampledFrom([]string{ControllerRevisions, "statefulsets", "services"}).Draw(t, "kind"), Namespace: namespace, Name: name})
	}
}

// Put stores an object.
func (w *World) Put(t Failer, resource string, o interface{ Marshal() ([]byte, error) }) {
	raw, err := o.Marshal()
	if err != nil {
		t.Fatalf("%v", err)
	}
	w.Do(t, &fsm.PutObject{Resource: resource, Raw: raw, Create: true})
}
