package codec

import (
	"encoding/binary"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// rawQuantity is a pod's protobuf whose memory request is a text that the decoder would choke on.
func rawQuantity(text string) []byte {
	field := func(number uint64, b []byte) []byte {
		out := binary.AppendUvarint(nil, number<<3|wireBytes)
		return append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	pair := append(field(1, []byte("memory")), field(2, field(1, []byte(text)))...)
	container := append(field(1, []byte("main")), field(8, field(2, pair))...)
	return field(2, field(2, container))
}

func TestForeignQuantities(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"1e3", ""},
		{"1.5E-9", ""},
		{"5E", ""},
		{"100Ei", ""},
		{"12e+99", ""},
		{"1e99", ""},
		{"1e00012", ""},
		{"", ""},
		{"1e100", `quantity "1e100": its exponent may be from -99 to 99`},
		{"1e-2147483647", "its exponent may be"},
		{"1e2147483646", "its exponent may be"},
		{"-7.0E+99999999999999999999", "its exponent may be"},
		{strings.Repeat("1", 129), "a quantity of 129 characters"},
		{"0." + strings.Repeat("0", 500) + "1", "a quantity of 503 characters"},
	} {
		const way = ".Spec.Containers.Resources.Requests"
		err := CheckForeign(rawQuantity(c.text), reflect.TypeFor[*corev1.Pod]())
		checkRefusal(t, "protobuf "+c.text, err, way, c.want)
		for _, spelt := range []string{c.text, escaped(c.text)} {
			raw := `{"metadata":{"labels":{"a":"` + spelt + `"}},"spec":{"containers":[{"name":"main"},{"resources":{"requests":{"memory":"` + spelt + `"}}}]}}`
			checkRefusal(t, "JSON "+spelt, CheckForeignJSON([]byte(raw), reflect.TypeFor[corev1.Pod]()), ".spec.containers.resources.requests.memory", c.want)
		}
		// A label may be what it likes.
		raw := `{"metadata":{"labels":{"a":"` + c.text + `"}},"spec":{"nothing":{"memory":"` + c.text + `"}}}`
		checkRefusal(t, "label "+c.text, CheckForeignJSON([]byte(raw), reflect.TypeFor[corev1.Pod]()), "", "")
	}
}

func escaped(s string) string {
	var out strings.Builder
	for _, c := range []byte(s) {
		out.WriteString(`\u00` + string("0123456789abcdef"[c>>4]) + string("0123456789ABCDEF"[c&15]))
	}
	return out.String()
}

func checkRefusal(t *testing.T, name string, err error, way, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), way)):
		t.Errorf("%s: %v, want %s… %s", name, err, way, want)
	}
}

// The size of pages is in the names of resources and of media, and an autoscaler's metrics and a volume's size in annotations.
func TestForeignQuantitiesInTexts(t *testing.T) {
	const endless = "1e-2147483647"
	pod := func(resource, medium string, annotations map[string]string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{
			Limits: corev1.ResourceList{corev1.ResourceName(resource): {}}}}}}}
		p.Annotations = annotations
		p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMedium(medium)}}}}
		return p
	}
	annotated := func(key, text string) *corev1.Pod { return pod("cpu", "", map[string]string{key: text}) }
	const metrics, behavior = "autoscaling.alpha.kubernetes.io/metrics", "autoscaling.alpha.kubernetes.io/behavior"
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want string
	}{
		"usual":                  {pod("hugepages-2Mi", "HugePages-2Mi", map[string]string{metrics: `[{"resource":{"targetAverageValue":"1e3"}}]`}), ""},
		"resource":               {pod("hugepages-"+endless, "", nil), "its exponent"},
		"of quotas":              {pod("requests.hugepages-"+endless, "", nil), "its exponent"},
		"of quotas, limits":      {pod("limits.hugepages-"+endless, "", nil), "its exponent"},
		"another":                {pod("example.com/"+endless, "", nil), ""},
		"long":                   {pod("hugepages-"+strings.Repeat("1", 200), "", nil), "a quantity of 200 characters"},
		"medium":                 {pod("cpu", "HugePages-"+endless, nil), "its exponent"},
		"metrics":                {annotated(metrics, `[{"resource":{"targetAverageValue":"`+endless+`"}}]`), "its exponent"},
		"metrics in capitals":    {annotated(metrics, `[{"RESOURCE":{"TargetAverageValue":"`+endless+`"}}]`), "its exponent"},
		"number":                 {annotated(metrics, `[{"resource":{"targetAverageValue":`+endless+`}}]`), "its exponent"},
		"escaped":                {annotated(metrics, `[{"resource":{"targetAverageValue":"1\u0065-2147483647"}}]`), "its exponent"},
		"current metrics":        {annotated("autoscaling.alpha.kubernetes.io/current-metrics", `[{"resource":{"currentAverageValue":"`+endless+`"}}]`), "its exponent"},
		"behavior":               {annotated(behavior, `{"ScaleUp":{"Tolerance":"`+endless+`"}}`), "its exponent"},
		"names of metrics":       {annotated(metrics, `[{"pods":{"metricName":"node1e500"}}]`), ""},
		"no JSON":                {annotated(metrics, endless), "its exponent"},
		"size before":            {annotated("volume.alpha.kubernetes.io/pre-resize-capacity", endless), "its exponent"},
		"annotation of somebody": {annotated("example.com/commit", endless), ""},
	} {
		raw, err := c.pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		checkRefusal(t, "protobuf, "+name, CheckForeign(raw, reflect.TypeFor[corev1.Pod]()), "", c.want)
		if raw, err = json.Marshal(c.pod); err != nil {
			t.Fatal(err)
		}
		checkRefusal(t, "JSON, "+name, CheckForeignJSON(raw, reflect.TypeFor[corev1.Pod]()), "", c.want)
	}
	for _, hidden := range []string{`1\u0065-2147483647`, `1\\u0065-2147483647`, `1\u005cu0065-2147483647`, `1\\\u00750065-2147483647`, `1e\\u002\u0062214748364`} {
		raw := `{"metadata":{"annotations":{"` + metrics + `":"[{\"resource\":{\"targetAverageValue\":\"` + hidden + `\"}}]"}}}`
		checkRefusal(t, hidden, CheckForeignJSON([]byte(raw), reflect.TypeFor[corev1.Pod]()), ".metadata.annotations."+metrics, "its exponent")
	}
}

// A member that is there twice is decoded twice, and a number needs no quotes.
func TestForeignJSONIsReadAsItIs(t *testing.T) {
	node := reflect.TypeFor[corev1.Node]()
	for _, raw := range []string{
		`{"status":{"capacity":{"cpu":"1e999"},"capacity":{"cpu":"1"}}}`,
		`{"status":{"capacity":{"cpu":1e-999}}}`,
	} {
		checkRefusal(t, raw, CheckForeignJSON([]byte(raw), node), ".status.capacity.cpu", "its exponent")
	}
	if err := CheckForeignJSON([]byte(`{"status":{"capacity":{"cpu":"1e999`), node); err != nil {
		t.Errorf("%v: what is no JSON is the decoder's to refuse", err)
	}
}

// A revision's data becomes a StatefulSet again.
func TestForeignRevisions(t *testing.T) {
	raw := `{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"1e-5000"}}}]}}}}`
	revision := &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(raw)}}
	b, err := revision.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "protobuf", CheckForeign(b, reflect.TypeOf(revision)), ".Data.spec.template.spec.containers", "its exponent")
	if b, err = json.Marshal(revision); err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "JSON", CheckForeignJSON(b, reflect.TypeOf(revision)), ".data.spec.template.spec.containers", "its exponent")
}

// A schema in a schema, deeper than the stack of the decoder.
func TestForeignNesting(t *testing.T) {
	const not = 28 // JSONSchemaProps.not
	if f := protobufFields(reflect.TypeFor[apiextensionsv1.JSONSchemaProps]())[not]; f.Name != "Not" {
		t.Fatalf("field %d is %s", not, f.Name)
	}
	for _, c := range []struct {
		deep int
		want string
	}{{100, ""}, {20_000, "more than 500 deep"}} {
		schema := nestedSchemas(c.deep, not)
		checkRefusal(t, "nested", CheckForeign(schema, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()), "", c.want)
	}
	for _, c := range []struct {
		deep int
		want string
	}{{100, ""}, {5000, "more than 500 deep"}} {
		schema := strings.Repeat(`{"not":`, c.deep) + "{}" + strings.Repeat("}", c.deep)
		checkRefusal(t, "nested JSON", CheckForeignJSON([]byte(schema), reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()), "", c.want)
	}
	if nests(reflect.TypeFor[corev1.Pod]()) || !nests(reflect.TypeFor[*apiextensionsv1.CustomResourceDefinition]()) {
		t.Error("a pod holds no pods, and a schema schemas")
	}
}

// nestedSchemas writes from the inside out, backwards.
func nestedSchemas(deep int, field uint64) []byte {
	var reversed []byte
	for range deep {
		head := binary.AppendUvarint(binary.AppendUvarint(nil, field<<3|wireBytes), uint64(len(reversed)))
		for i := len(head) - 1; i >= 0; i-- {
			reversed = append(reversed, head[i])
		}
	}
	for i, j := 0, len(reversed)-1; i < j; i, j = i+1, j-1 {
		reversed[i], reversed[j] = reversed[j], reversed[i]
	}
	return reversed
}

func TestEnvelope(t *testing.T) {
	b, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, Raw: []byte("x")}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	version, kind, object, ok := Envelope(append([]byte("k8s\x00"), b...))
	if version != "apps/v1" || kind != "Deployment" || string(object) != "x" || !ok {
		t.Errorf("%q, %q, %q, %v", version, kind, object, ok)
	}
	if _, _, _, ok := Envelope(b); ok {
		t.Error("there was no magic number")
	}
}

func BenchmarkOdd(b *testing.B) {
	raw := []byte(strings.Repeat(`{"metadata":{"name":"a-pod-of-some-length","labels":{"app":"web","tier":"frontend"}},"spec":{"x":12}},`, 20))
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if Odd(raw) {
			b.Fatal("it is not")
		}
	}
}
