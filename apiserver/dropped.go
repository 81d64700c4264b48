package apiserver

import (
	"context"
	"fmt"
	"reflect"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/certificates"
	core "k8s.io/kubernetes/pkg/apis/core"
)

// Upstream's strategies leave out, without a word, the fields of features that are off. Whoever asked for one is told, by a
// warning for each.

// tellingCreation is a strategy that tells what it leaves out of a new object.
type tellingCreation struct{ rest.RESTCreateStrategy }

func telling(s rest.RESTCreateStrategy) rest.RESTCreateStrategy {
	if s == nil {
		return nil
	}
	return tellingCreation{s}
}

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s tellingCreation) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	tellDropped(ctx, obj, func() { s.RESTCreateStrategy.PrepareForCreate(ctx, obj) })
}

// tellingChange is the same for an object that is changed.
type tellingChange struct{ rest.RESTUpdateStrategy }

func tellingChanges(s rest.RESTUpdateStrategy) rest.RESTUpdateStrategy {
	if s == nil {
		return nil
	}
	return tellingChange{s}
}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s tellingChange) PrepareForUpdate(ctx context.Context, obj, old runtime.Object) {
	tellDropped(ctx, obj, func() { s.RESTUpdateStrategy.PrepareForUpdate(ctx, obj, old) })
}

func tellDropped(ctx context.Context, obj runtime.Object, prepare func()) {
	now := specOf(obj)
	if who, _ := request.UserFrom(ctx); !now.IsValid() || isController(who) { // who reads no warnings
		prepare()
		return
	}
	asked := copiedSpec(obj)
	prepare()
	for _, path := range dropped(nil, "spec", asked, now) {
		warning.AddWarning(ctx, "", fmt.Sprintf("%s is left out: it is of a feature that is not served", path))
	}
}

// specOf is the spec of an object of which nothing is left out on purpose: the type of a service, or who asks for a certificate,
// says what the rest of it may be.
func specOf(obj runtime.Object) reflect.Value {
	switch obj.(type) {
	case *core.Service, *certificates.CertificateSigningRequest, *core.Namespace:
		return reflect.Value{}
	}
	v := reflect.ValueOf(obj)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		return reflect.Value{}
	}
	return v.Elem().FieldByName("Spec")
}

// copiedSpec is a copy of the spec of such an object, and of nothing else: the rest may be large, and nothing of it is compared.
func copiedSpec(obj runtime.Object) reflect.Value {
	alone := reflect.New(reflect.TypeOf(obj).Elem())
	alone.Elem().FieldByName("Spec").Set(specOf(obj))
	return specOf(alone.Interface().(runtime.Object).DeepCopyObject())
}

// dropped adds the paths of what was set, and is not any more. Of lists it looks at what has kept its place.
func dropped(to []string, path string, was, is reflect.Value) []string {
	switch {
	case was.IsZero():
		return to
	case is.IsZero() && was.Kind() != reflect.Struct:
		return append(to, path)
	}
	switch was.Kind() {
	case reflect.Pointer:
		return dropped(to, path, was.Elem(), is.Elem())
	case reflect.Struct:
		for i := range was.NumField() {
			if f := was.Type().Field(i); f.IsExported() {
				at := path
				if !f.Anonymous {
					at += "." + fieldName(f.Name)
				}
				to = dropped(to, at, was.Field(i), is.Field(i))
			}
		}
	case reflect.Slice:
		for i := range min(was.Len(), is.Len()) {
			to = dropped(to, fmt.Sprintf("%s[%d]", path, i), was.Index(i), is.Index(i))
		}
	}
	return to
}

// fieldName is a field as the API calls it: DNSPolicy is dnsPolicy.
func fieldName(name string) string {
	letters := []rune(name)
	for i, r := range letters {
		if !unicode.IsUpper(r) || i > 0 && i+1 < len(letters) && unicode.IsLower(letters[i+1]) {
			break
		}
		letters[i] = unicode.ToLower(r)
	}
	return string(letters)
}
