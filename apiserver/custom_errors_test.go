package apiserver

import (
	"fmt"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/types"
)

// ruled is a definition with rules of its own.
func ruled(name string) *apiextensionsv1.CustomResourceDefinition {
	d := definition(name, "Meter", apiextensionsv1.NamespaceScoped)
	d.UID, d.Generation = types.UID(name), 1
	negative := apiextensionsv1.ValidationRules{{Rule: "self < 0", Message: "is not negative"}}
	most, one := int64(4000), apiextensionsv1.JSONSchemaProps{Type: "integer"}
	one.XValidations = negative
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"list": {Type: "array", MaxItems: &most, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &one}},
		"map":  {Type: "object", MaxProperties: &most, AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Allows: true, Schema: &one}},
		"all": {Type: "array", MaxItems: &most, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "integer", AllOf: []apiextensionsv1.JSONSchemaProps{{XValidations: negative}}}}},
	}}
	return d
}

// What few rules are asked about upstream asks, and nobody asks it twice.
func TestRulesAreAskedOnce(t *testing.T) {
	checks, err := newCustomChecks(ruled("meters.custom.example.com"), "v1")
	if err != nil {
		t.Fatal(err)
	}
	entries := map[string]func(n int) any{
		"list": func(n int) any {
			var out []any
			for range n {
				out = append(out, int64(1))
			}
			return out
		},
		"map": func(n int) any {
			out := map[string]any{}
			for i := range n {
				out[fmt.Sprint(i)] = int64(1)
			}
			return out
		},
	}
	entries["all"] = entries["list"]
	for name, of := range entries {
		object := func(n int) map[string]any { return map[string]any{"spec": map[string]any{name: of(n)}} }
		if n := rulesAbout(checks.structural, object(500), 0); n != 500 {
			t.Errorf("%s: %d rules are asked about 500", name, n)
		}
		if errs := checks.many(t.Context(), object(freeRules), nil); len(errs) > 0 {
			t.Errorf("%s: asked about here: %d errors", name, len(errs))
		}
		if errs := checks.many(t.Context(), object(freeRules+1), nil); len(errs) < maxToldErrors {
			t.Errorf("%s: %d errors of more than are upstream's", name, len(errs))
		}
	}
}

// Checks are made anew when the definition is another one, or says something else, and for nothing else.
func TestChecksAreKept(t *testing.T) {
	e := newCustomErrors(nil)
	of := func(d *apiextensionsv1.CustomResourceDefinition) *customChecks {
		t.Helper()
		c, err := e.checksOf(d, "v1")
		if err != nil || c == nil {
			t.Fatalf("%v, %v", c, err)
		}
		return c
	}
	d := ruled("meters.custom.example.com")
	was := of(d)
	d = d.DeepCopy()
	d.Status.Conditions = append(d.Status.Conditions, apiextensionsv1.CustomResourceDefinitionCondition{Type: apiextensionsv1.Established})
	if of(d) != was {
		t.Error("they are made anew for a status")
	}
	d.Generation++
	next := of(d)
	if next == was {
		t.Error("they stay when the definition has changed")
	}
	d.UID = "another"
	if of(d) == next {
		t.Error("they stay when the definition is another one")
	}
	kept := of(d)
	for i := range maxCustomChecks - 1 {
		e.keep(fmt.Sprint(i), &customChecks{})
	}
	of(d)
	e.keep("new", &customChecks{})
	if of(d) != kept || e.kinds["0"] != nil || e.kinds["1"] == nil || len(e.kinds) != maxCustomChecks {
		t.Errorf("%d are kept, not those that were asked for last", len(e.kinds))
	}
}
