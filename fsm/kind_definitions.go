package fsm

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/codec"
)

// SinceDefinitions is the version of the rules that brought custom kinds and their
// definitions.
const SinceDefinitions = 9

// CustomResourceDefinitions is the resource of the definitions of custom kinds.
const CustomResourceDefinitions = "customresourcedefinitions"

// A custom kind is one more part of the table of plain objects, under the name of its
// definition: "widgets.example.com/namespace/name". What its definition demands of an
// object is checked before the object is proposed; here the definition has to be there.
// It goes after its objects, so that none is ever left that nobody can ask for.

func definitionKind() ObjectKind {
	return ObjectKind{
		Group: apiextensions.GroupName, Resource: CustomResourceDefinitions, Kind: "CustomResourceDefinition", ClusterScoped: true,
		Since: SinceDefinitions, New: func() codec.Object { return new(apiextensionsv1.CustomResourceDefinition) },
	}
}

// customKind is the kind of a resource that has the form of a custom one.
func customKind(resource string) (ObjectKind, bool) {
	plural, group, ok := strings.Cut(resource, ".")
	if !ok || plural == "" || group == "" || strings.Contains(resource, "/") {
		return ObjectKind{}, false
	}
	return ObjectKind{
		Group: group, Resource: resource, Custom: true, Since: SinceDefinitions,
		New: func() codec.Object { return new(codec.CustomObject) },
	}, true
}

// Definition is what users say of a custom kind. It must not be changed.
func (v *View) Definition(resource string) (*apiextensionsv1.CustomResourceDefinition, bool) {
	o, ok := v.Objects.Get(ObjectKey(CustomResourceDefinitions, "", resource))
	if !ok {
		return nil, false
	}
	return o.Value.(*apiextensionsv1.CustomResourceDefinition), true
}

// Definitions calls f for every definition, in the order of their names, until f returns
// false.
func (v *View) Definitions(f func(d *apiextensionsv1.CustomResourceDefinition) bool) {
	v.Objects.Scan(ObjectKey(CustomResourceDefinitions, "", ""), func(_ string, o *Object) bool {
		return f(o.Value.(*apiextensionsv1.CustomResourceDefinition))
	})
}

// CustomObjects calls f for the objects of a custom kind, in the order of their keys, until f
// returns false.
func (v *View) CustomObjects(resource string, f func(o *codec.CustomObject) bool) {
	v.Objects.Scan(resource+"/", func(_ string, o *Object) bool { return f(o.Value.(*codec.CustomObject)) })
}

// definedKindKey: two definitions can name one kind until one of them is told that it
// may not.
func definedKindKey(kind schema.GroupKind, resource string) string {
	return kind.Group + "/" + kind.Kind + "/" + resource
}

// indexDefinition keeps which kinds are defined, by the names that were accepted.
func indexDefinition(v *live, old, now *Object) {
	if key, _ := definedBy(old); key != "" {
		v.definedKinds.Delete(key)
	}
	if key, resource := definedBy(now); key != "" {
		v.definedKinds.Set(key, resource)
	}
}

func definedBy(o *Object) (key, resource string) {
	if o == nil {
		return "", ""
	}
	d, ok := o.Value.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || d.Status.AcceptedNames.Kind == "" {
		return "", ""
	}
	return definedKindKey(schema.GroupKind{Group: d.Spec.Group, Kind: d.Status.AcceptedNames.Kind}, d.Name), d.Name
}

// definedKind is the definition of a custom kind, by the name that was accepted.
func (v *View) definedKind(kind schema.GroupKind) (d *apiextensionsv1.CustomResourceDefinition, ok bool) {
	v.definedKinds.Scan(definedKindKey(kind, ""), func(_, resource string) bool {
		d, ok = v.Definition(resource)
		return !ok
	})
	return d, ok
}

// checkDefined refuses a new custom object whose definition is not there, is going, or
// means another scope.
func (v *View) checkDefined(kind ObjectKind, value codec.Object) (Result, bool) {
	if !kind.Custom {
		return Result{}, true
	}
	d, ok := v.Definition(kind.Resource)
	switch {
	case !ok:
		return refuseNotFound(schema.GroupResource{Group: apiextensions.GroupName, Resource: CustomResourceDefinitions}, kind.Resource), false
	case d.DeletionTimestamp != nil:
		return refuseForbidden(kind.GroupResource(), value.GetName(), "create not allowed while custom resource definition is terminating"), false
	case (d.Spec.Scope == apiextensionsv1.ClusterScoped) != (value.GetNamespace() == ""):
		return refuseBadRequest(fmt.Sprintf("PutObject: %s are of scope %s, and this one is in the namespace %q", kind.Resource, d.Spec.Scope, value.GetNamespace())), false
	}
	return Result{}, true
}

// inUse: there are objects of a custom kind.
func (v *View) inUse(resource string) bool {
	used := false
	v.CustomObjects(resource, func(*codec.CustomObject) bool {
		used = true
		return false
	})
	return used
}

// checkHeld refuses to let go of a definition that is to end while objects are left of it:
// by other finalizers that go later, it would end without their being asked for.
func (v *View) checkHeld(kind ObjectKind, value codec.Object) (Result, bool) {
	name := value.GetName()
	if kind.Resource != CustomResourceDefinitions || value.GetDeletionTimestamp() == nil ||
		slices.Contains(value.GetFinalizers(), apiextensionsv1.CustomResourceCleanupFinalizer) || !v.inUse(name) {
		return Result{}, true
	}
	return refuseConflict(kind.GroupResource(), name,
		fmt.Sprintf("there are objects of this kind: the finalizer %s goes when they are gone", apiextensionsv1.CustomResourceCleanupFinalizer)), false
}

// finalizersOfDefinition holds a definition that is deleted until its objects are gone.
func (v *View) finalizersOfDefinition(o *Object, finalizers []string) []string {
	if o.Resource != CustomResourceDefinitions || slices.Contains(finalizers, apiextensionsv1.CustomResourceCleanupFinalizer) ||
		!v.inUse(o.Value.GetName()) {
		return finalizers
	}
	return append(slices.Clip(finalizers), apiextensionsv1.CustomResourceCleanupFinalizer)
}

// storageVersion is the version that a definition's objects are stored in.
func storageVersion(d *apiextensionsv1.CustomResourceDefinition) string {
	for i := range d.Spec.Versions {
		if d.Spec.Versions[i].Storage {
			return d.Spec.Versions[i].Name
		}
	}
	return ""
}
