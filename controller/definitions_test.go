package controller_test

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// TestDefinitionsEndAfterTheirObjects: what a deleted definition defines is deleted, said
// to be on its way out while finalizers hold some of it, and then the definition goes.
func TestDefinitionsEndAfterTheirObjects(t *testing.T) {
	w := newWorld(t)
	w.upgrade()
	apply := w.must
	put := func(resource string, o codec.Object, create bool) {
		t.Helper()
		raw, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		apply(&fsm.PutObject{Resource: resource, Raw: raw, Create: create})
	}
	const name = "widgets.example.com"
	put(fsm.CustomResourceDefinitions, &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"},
		Spec:       apiextensionsv1.CustomResourceDefinitionSpec{Group: "example.com", Scope: apiextensionsv1.NamespaceScoped},
	}, true)
	object := func(name string, finalizers ...string) *codec.CustomObject {
		return &codec.CustomObject{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Finalizers: finalizers}}
	}
	put(name, object("free"), true)
	put(name, object("held", "example.com/hold"), true)
	step := func(want int) {
		t.Helper()
		commands := controller.Definitions(w.state.View(), w.now.UnixNano())
		if len(commands) != want {
			t.Errorf("%d commands, want %d: %v", len(commands), want, commands)
		}
		for _, c := range commands {
			apply(c)
		}
	}
	step(0)
	apply(&fsm.DeleteObject{Resource: fsm.CustomResourceDefinitions, Name: name})
	step(3) // both objects, and what the definition says
	step(0)
	d, ok := w.state.View().Definition(name)
	if !ok || len(d.Status.Conditions) != 1 || d.Status.Conditions[0].Type != apiextensionsv1.Terminating {
		t.Fatalf("the definition says %v", d)
	}
	put(name, object("held"), false)
	step(1)
	if _, ok := w.state.View().Definition(name); ok {
		t.Error("the definition is there")
	}
}
