package apiserver

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	core "k8s.io/kubernetes/pkg/apis/core"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/docs"
)

func TestShapes(t *testing.T) {
	entries := func(n int) string { return strings.TrimSuffix(strings.Repeat(`"a,]}\"",`, n), ",") }
	for name, c := range map[string]struct{ text, over string }{
		"as many as may be": {`{"a":[` + entries(maxEntries) + `]}`, ""},
		"a list":            {`{"a":[1,{"b":[` + entries(maxEntries+1) + `]}]}`, "a[1].b has more than 16384 entries"},
		"a map":             {`{"m":{"x":{}},"a":{` + strings.Repeat(`"k":"",`, maxEntries) + `"k":""}}`, "a has more than 16384 entries"},
		"the whole":         {`[` + entries(maxEntries+1) + `]`, "the whole has more than 16384 entries"},
		"deep":              {strings.Repeat(`{"n":[`, maxNesting/2) + strings.Repeat("]}", maxNesting/2), ""},
		"deeper":            {strings.Repeat(`{"n":[`, maxNesting/2) + "{}" + strings.Repeat("]}", maxNesting/2), "lies in 256 others"},
		"many in many":      {`[` + strings.TrimSuffix(strings.Repeat(`[`+entries(1000)+`],`, 100), ",") + `]`, ""},
		"many in many many": {`[` + strings.TrimSuffix(strings.Repeat(`[`+entries(1000)+`],`, maxContents/1000), ",") + `]`, "the whole has more than 131072 values"},
		"empty ones":        {`[` + strings.TrimSuffix(strings.Repeat(`[`+strings.TrimSuffix(strings.Repeat("{},", 10_000), ",")+`],`, 14), ",") + `]`, "the whole has more than 131072 values"},
		"no JSON":           {`]}"\`, ""},
		"nothing":           {``, ""},
	} {
		if got := overOf(c.text); (c.over == "") != (got == "") || !strings.Contains(got, c.over) {
			t.Errorf("%s: %q, want %q", name, got, c.over)
		}
	}
}

func overOf(text string) string {
	s := shapeOf([]byte(text))
	return s.over(nil)
}

// What was over a bound may be so as far as it was, wherever it is in its lists now.
func TestShapesOfBefore(t *testing.T) {
	list := func(n int) string { return "[" + strings.TrimSuffix(strings.Repeat("1,", n), ",") + "]" }
	of := func(text string) *shape {
		s := shapeOf([]byte(text))
		return &s
	}
	before := of(`{"c":[{"a":[]},{"a":` + list(maxEntries+2) + `}]}`)
	for name, c := range map[string]struct{ text, over string }{
		"as before":       {`{"c":[{"a":` + list(maxEntries+2) + `}]}`, ""},
		"less":            {`{"c":[{"a":` + list(maxEntries+1) + `}]}`, ""},
		"more":            {`{"c":[{"a":` + list(maxEntries+3) + `}]}`, "c[0].a has more than 16384 entries"},
		"twice":           {`{"c":[{"a":` + list(maxEntries+1) + `},{"a":` + list(maxEntries+1) + `}]}`, "c[1].a has more than 16384 entries"},
		"elsewhere":       {`{"c":[{"b":` + list(maxEntries+1) + `}]}`, "c[0].b has more than 16384 entries"},
		"managed":         {`{"metadata":{"managedFields":[{"fieldsV1":{"a":` + list(maxEntries+1) + `}}]}}`, ""},
		"not managed":     {`{"spec":{"managedFields":[{"fieldsV1":{"a":` + list(maxEntries+1) + `}}]}}`, "spec.managedFields[0].fieldsV1.a has more than 16384 entries"},
		"managed, longer": {`{"metadata":{"managedFields":[{"fieldsV1":{"a":` + list(maxEntries+2) + `}}]}}`, "metadata.managedFields[0].fieldsV1.a has more than 16384 entries"},
	} {
		if got := of(c.text).over(before); got != c.over {
			t.Errorf("%s: %q, want %q", name, got, c.over)
		}
	}
}

func TestTheTableOfShapes(t *testing.T) {
	is := func(want ...int64) func(*testing.T, docs.Row) {
		return func(t *testing.T, r docs.Row) {
			if got := r.Numbers(t, 1); !slices.Equal(got, want) {
				t.Errorf("the row says %d, and it is %d", got, want)
			}
		}
	}
	docs.Hold(t, "../docs/limits.md", "## What is sent", map[string]func(*testing.T, docs.Row){
		"entries of one list or map, in JSON, YAML, patches and protobuf (there with 400), of custom kinds too":                                                   is(maxEntries),
		"values of a body, all together, and of a custom object with its defaults; of a plan or a definition of a kind; bytes of a body in YAML that is not JSON": is(maxContents, maxLargeContents, maxYAMLBytes),
		"fields that the managers of an object manage together":                                                                                                   is(maxContents),     // TestManagersOfManyFields
		"ports of a service, and of a subset or slice of its endpoints":                                                                                           is(maxServicePorts), // TestPortsOfServices
		"bytes of a CronJob's schedule":                              is(maxSchedule),   // TestPortsOfServices
		"bytes of a bearer token":                                    is(maxTokenBytes), // TestLongTokens
		"lists and maps in each other, in a body of 32 KiB and more": is(maxNesting),
		"entries of a list that a strategic merge merges, in it and as it is stored (there with 422); squares of what comes of them together": is(maxMergeEntries, maxMergeWork),
		"values of an annotation that becomes a part of an autoscaler of `autoscaling/v1`, with 400":                                          is(maxTextValues),
		"errors that are told of one object; bytes of them":                                                                                   is(maxToldErrors, maxToldBytes),
	})
}

// A list or map of too many entries is refused in every form, before anything compares them.
func TestListsOfManyEntries(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	define(t, s, definition("gauges", "Gauge", apiextensionsv1.NamespaceScoped))
	rest := s.client(t).CoreV1().RESTClient()
	of := func(n int) []byte {
		m := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "many"}, Data: numbered(n)}
		text, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	const path, told = "/api/v1/namespaces/default/configmaps", "data has more than 16384 entries"
	post := func(path, form string, body []byte) error {
		return rest.Post().AbsPath(path).SetHeader("Content-Type", form).Body(body).Do(ctx).Error()
	}
	asYAML, err := yaml.JSONToYAML(of(maxEntries + 1))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "many"}, Data: numbered(maxEntries + 1)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post(path, "application/json", of(maxEntries+1)), 413, told)
	wantStatus(t, post(path, "application/yaml", asYAML), 413, told)
	wantStatus(t, post(path, "application/vnd.kubernetes.protobuf", inEnvelope(t, "v1", "ConfigMap", raw)), 400, told)
	managed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "many", ManagedFields: []metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: &metav1.FieldsV1{Raw: of(maxEntries + 2)}}}}}
	if raw, err = managed.Marshal(); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post(path, "application/vnd.kubernetes.protobuf", inEnvelope(t, "v1", "ConfigMap", raw)), 400, told)
	custom := strings.Replace(string(of(maxEntries+1)), `"apiVersion":"v1"`, `"apiVersion":"custom.example.com/v1beta1"`, 1)
	wantStatus(t, post("/apis/custom.example.com/v1beta1/namespaces/default/gauges", "application/json",
		[]byte(strings.Replace(custom, "ConfigMap", "Gauge", 1))), 413, told)
	if err := post(path, "application/json", of(maxEntries)); err != nil {
		t.Fatal(err)
	}
	for _, form := range []types.PatchType{types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType} {
		_, err := s.client(t).CoreV1().ConfigMaps("default").Patch(ctx, "many", form, of(maxEntries+1), metav1.PatchOptions{FieldManager: "test"})
		wantStatus(t, err, 413, told)
	}
}

// Many small values become large structs: they are counted before they do.
func TestBodiesOfManyValues(t *testing.T) {
	s := start(t, newDouble(t), nil)
	post := func(form string, body []byte) error {
		return s.client(t).CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/pods").SetHeader("Content-Type", form).Body(body).Do(t.Context()).Error()
	}
	containers := func(of corev1.Container, n int) []corev1.Container {
		return slices.Repeat([]corev1.Container{of}, n)
	}
	p := testPod("many")
	p.Spec.Containers = containers(corev1.Container{Env: make([]corev1.EnvVar, 10_000)}, 27)
	raw, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	wantStatus(t, post("application/vnd.kubernetes.protobuf", inEnvelope(t, "v1", "Pod", raw)), 400, tooManyValues(maxContents))
	flow := `{apiVersion: v1, kind: Pod, metadata: {name: '"'}, spec: {containers: [` + strings.Repeat("{},", maxYAMLBytes/3) + `{}]}}`
	wantStatus(t, post("application/yaml", []byte(flow)), 413, "the YAML has more than 524288 bytes")
	text := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"text"},"data":{"csv":"` + strings.Repeat("1,", maxContents+1) + `"}}`
	err = s.client(t).CoreV1().RESTClient().Post().AbsPath("/api/v1/namespaces/default/configmaps").SetHeader("Content-Type", "application/yaml").Body([]byte(text)).Do(t.Context()).Error()
	if err != nil {
		t.Errorf("what is in a text counts: %v", err)
	}
}

// What is said behind a form changes nothing, nor does what is asked for with it.
func TestBodiesOfEveryRequestAreLookedAt(t *testing.T) {
	s := start(t, newDouble(t), nil)
	rest := s.client(t).CoreV1().RESTClient()
	if _, err := s.client(t).CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/api/v1/namespaces/default/configmaps/m"
	long := []byte(`{"metadata":{"finalizers":[` + strings.TrimSuffix(strings.Repeat(`"a.b/c",`, maxMergeEntries+1), ",") + `]}}`)
	for _, form := range []types.PatchType{types.StrategicMergePatchType, types.StrategicMergePatchType + "; x", types.StrategicMergePatchType + ";a=1;a=2"} {
		err := rest.Patch(form).AbsPath(path).Body(long).Do(t.Context()).Error()
		wantStatus(t, err, 413, "a list that a strategic merge merges may have 2048")
	}
	yaml := []byte("kind: DeleteOptions\n#" + strings.Repeat("-\r", maxYAMLBytes))
	wantStatus(t, rest.Delete().AbsPath(path).SetHeader("Content-Type", "application/yaml").Body(yaml).Do(t.Context()).Error(), 413, "send what is longer as JSON")
	aliases := "a: &a [x,x,x,x,x,x,x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\n" +
		"c: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\n"
	if text, err := yamlShape([]byte(aliases)); err == nil && len(text) < 16*16*16*16 {
		t.Errorf("aliases are looked at as %d bytes", len(text))
	}
}

// What is older than a limit can be changed, finished and deleted, and does not grow.
func TestLimitsOfOlderObjects(t *testing.T) {
	with := func(finalizers int, label string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m", Labels: map[string]string{"a": label}, Finalizers: many(finalizers, "a.b/c%d")}}
	}
	internal := func(m *corev1.ConfigMap) *core.ConfigMap {
		return &core.ConfigMap{ObjectMeta: m.ObjectMeta}
	}
	old := internal(with(maxReferences+10, "x"))
	for what, c := range map[string]struct {
		now     int
		refused bool
	}{"as before": {maxReferences + 10, false}, "fewer": {maxReferences + 1, false}, "more": {maxReferences + 11, true}} {
		if err := checkChange(internal(with(c.now, "y")), old); (err != nil) != c.refused {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := checkChange(internal(with(maxReferences+1, "y")), internal(with(1, "y"))); err == nil {
		t.Error("what was under its bound may go over it")
	}
}
