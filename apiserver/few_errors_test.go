package apiserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/rbac"
)

func TestFewErrors(t *testing.T) {
	list := func(n int, value string) (out field.ErrorList) {
		for i := range n {
			out = append(out, field.Invalid(field.NewPath("data").Index(i), value, "is none"))
		}
		return out
	}
	if got := few(list(maxToldErrors, "v")); len(got) != maxToldErrors {
		t.Errorf("%d of %d are told", len(got), maxToldErrors)
	}
	got := few(list(12_500, "v"))
	if last := got[len(got)-1].Error(); len(got) != maxToldErrors+1 || last != "data[100]: Forbidden: 12400 more errors are not told" {
		t.Errorf("%d are told, the last is %q", len(got), last)
	}
	if got := few(list(50, strings.Repeat("v", maxToldBytes/10))); len(got) > 13 {
		t.Errorf("%d long ones are told", len(got))
	}
	if got := few(list(1, strings.Repeat("v", 2*maxToldBytes))); len(got) != 1 {
		t.Errorf("of one %d are told", len(got))
	}
}

// wantFew: an object that is wrong in many places is refused with few of them.
func wantFew(t *testing.T, what string, err error, told string) {
	t.Helper()
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != 422 || status.Status().Details == nil {
		t.Errorf("%s: %v", what, err)
		return
	}
	if n := len(status.Status().Details.Causes); n > maxToldErrors+1 || !strings.Contains(err.Error(), told) {
		t.Errorf("%s: %d causes, and no %q in %.300s", what, n, told, err.Error())
	}
}

// Objects that are wrong in many places, however they are written.
func TestManyErrors(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	const wrong, more = 2000, "more errors are not told"
	maps := s.client(t).CoreV1().ConfigMaps("default")
	there, err := maps.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "there"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	bad := map[string]string{}
	for _, key := range many(wrong, "-/%d") {
		bad[key] = ""
	}
	for what, c := range map[string]struct {
		change func(m *corev1.ConfigMap)
		told   string
	}{
		"data":        {func(m *corev1.ConfigMap) { m.Data = bad }, more},
		"annotations": {func(m *corev1.ConfigMap) { m.Annotations = bad }, more},
		"labels":      {func(m *corev1.ConfigMap) { m.Labels = bad }, "metadata.labels: Too many: 2000: must have at most 128 items"},
		"finalizers":  {func(m *corev1.ConfigMap) { m.Finalizers = many(wrong, "%d") }, "metadata.finalizers: Too many: 2000: must have at most 64 items"},
		"owners":      {func(m *corev1.ConfigMap) { m.OwnerReferences = ownersOf(wrong) }, "metadata.ownerReferences: Too many: 2000: must have at most 64 items"},
	} {
		made := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "new"}}
		c.change(made)
		_, err := maps.Create(ctx, made, metav1.CreateOptions{})
		wantFew(t, "a new one with bad "+what, err, c.told)
		changed := there.DeepCopy()
		c.change(changed)
		_, err = maps.Update(ctx, changed, metav1.UpdateOptions{})
		wantFew(t, "another with bad "+what, err, c.told)
		patch := &corev1.ConfigMap{}
		c.change(patch)
		text, err := json.Marshal(patch)
		if err != nil {
			t.Fatal(err)
		}
		_, err = maps.Patch(ctx, "there", types.MergePatchType, text, metav1.PatchOptions{})
		wantFew(t, "one patched with bad "+what, err, c.told)
	}
	// Where the status is written by itself.
	pods := s.client(t).CoreV1().Pods("default")
	pod, err := pods.Create(ctx, testPod("p"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range wrong {
		pod.Status.PodIPs = append(pod.Status.PodIPs, corev1.PodIP{IP: fmt.Sprint("no address ", i)})
	}
	_, err = pods.UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	wantFew(t, "a status", err, more)
}

// Custom objects, whose strategy is upstream's own.
func TestManyErrorsOfCustomKinds(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	d := definition("meters", "Meter", apiextensionsv1.NamespaceScoped)
	set := "set"
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema
	of := apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "integer"}}
	most := int64(4000)
	spec.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"numbers": {Type: "array", Items: &of},
		"set":     {Type: "array", Items: &of, XListType: &set},
		"ruled": {Type: "array", MaxItems: &most, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{
			Type: "integer", XValidations: apiextensionsv1.ValidationRules{{Rule: "self < 0", Message: "is not negative"}}}}},
	}}
	spec.Properties["status"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"numbers": {Type: "array", Items: &of},
	}}
	define(t, s, d)
	api := dynamicClient(t, s).Resource(customResource("meters", "v1")).Namespace("default")
	there, err := api.Create(ctx, customObject("Meter", "v1", "there", map[string]any{}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const wrong = 3000
	list := func(one func(i int) any) (out []any) {
		for i := range wrong {
			out = append(out, one(i))
		}
		return out
	}
	text := func(i int) any { return fmt.Sprint(i) }
	good := list(func(i int) any { return int64(i) })
	if _, err := api.Create(ctx, customObject("Meter", "v1", "good", map[string]any{"numbers": good, "set": good}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for what, spec := range map[string]map[string]any{
		"by schema": {"numbers": list(text)},
		"twice":     {"set": list(func(i int) any { return int64(i / 2) })},
		"by a rule": {"ruled": good},
	} {
		_, err := api.Create(ctx, customObject("Meter", "v1", "new", spec), metav1.CreateOptions{})
		wantFew(t, what, err, "spec.")
		changed := there.DeepCopy()
		changed.Object["spec"] = spec
		_, err = api.Update(ctx, changed, metav1.UpdateOptions{})
		wantFew(t, what+", changed", err, "spec.")
	}
	changed := there.DeepCopy()
	changed.Object["status"] = map[string]any{"numbers": list(text)}
	_, err = api.UpdateStatus(ctx, changed, metav1.UpdateOptions{})
	wantFew(t, "a status", err, "status.numbers")
	if _, err := api.Update(ctx, changed, metav1.UpdateOptions{}); err != nil { // nothing of it is stored
		t.Errorf("an update with a bad status: %v", err)
	}
}

// What is granted by a role is compared one by one with what its author may.
func TestRolesThatGrantTooMuch(t *testing.T) {
	rules := func(names int) []rbac.PolicyRule {
		return []rbac.PolicyRule{{Verbs: many(32, "v%d"), APIGroups: many(8, "g%d"), Resources: many(16, "r%d"), ResourceNames: many(names, "n%d")},
			{Verbs: many(2, "v%d"), NonResourceURLs: many(1, "/%d")}}
	}
	for names, refused := range map[int]bool{0: false, 15: false, 16: true, 1 << 16: true} {
		for _, role := range []runtime.Object{&rbac.Role{Rules: rules(names)}, &rbac.ClusterRole{Rules: rules(names)}} {
			if err := checkLimits(role); (err != nil) != refused {
				t.Errorf("%T with %d names: %v", role, names, err)
			}
		}
	}
	s := share(t)
	all := many(1000, "x%d")
	_, err := s.client(t).RbacV1().Roles("default").Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Rules: []rbacv1.PolicyRule{
		{Verbs: all, APIGroups: all, Resources: all, ResourceNames: all}}}, metav1.CreateOptions{})
	wantStatus(t, err, 422, "verbs times groups times resources times names come to more than 65536")
}
