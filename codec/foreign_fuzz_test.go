package codec

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"reflect"
	"runtime/metrics"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"
)

// Wire types of protobuf that Kubernetes does not write, and its decoders pass over.
const startsGroup, endsGroup = 3, 4

type message interface {
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// foreignTypes are what is decoded of what others send: quantities are in maps, lists and fields, and some types hold themselves or JSON.
var foreignTypes = []func() message{
	func() message { return new(corev1.Pod) },
	func() message { return new(corev1.Node) },
	func() message { return new(corev1.PodStatus) },
	func() message { return new(corev1.NodeStatus) },
	func() message { return new(corev1.Event) },
	func() message { return new(corev1.LimitRange) },
	func() message { return new(autoscalingv2.HorizontalPodAutoscaler) },
	func() message { return new(resourcev1.ResourceSlice) },
	func() message { return new(resourcev1.ResourceClaim) },
	func() message { return new(appsv1.ControllerRevision) },
	func() message { return new(apiextensionsv1.CustomResourceDefinition) },
}

func foreignType(which uint8) message { return foreignTypes[int(which)%len(foreignTypes)]() }

// foreignObjects are some of each type.
func foreignObjects() []message {
	q := resource.MustParse
	list := corev1.ResourceList{"cpu": q("1500m"), "hugepages-2Mi": q("4Mi"), "example.com/gpu": q("1e3")}
	pod := &corev1.Pod{}
	pod.Name, pod.Annotations = "p", map[string]string{"autoscaling.alpha.kubernetes.io/metrics": `[{"resource":{"targetAverageValue":"1e3"}}]`}
	pod.Spec.Containers = []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{Requests: list}}}
	limit := q("1Gi")
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: "HugePages-2Mi", SizeLimit: &limit}}}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", AllocatedResources: list}}
	slice := &resourcev1.ResourceSlice{}
	slice.Spec.Devices = []resourcev1.Device{{Name: "d", Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: q("80Gi")}}}}
	claim := &resourcev1.ResourceClaim{}
	claim.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Data: &runtime.RawExtension{Raw: []byte(`{"spec":{"capacity":{"cpu":"1"}}}`)}}}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1", Schema: &apiextensionsv1.CustomResourceValidation{
		OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{Properties: map[string]apiextensionsv1.JSONSchemaProps{"a": {Not: &apiextensionsv1.JSONSchemaProps{}}}}}}}
	return []message{pod, &corev1.Node{Status: corev1.NodeStatus{Capacity: list}}, &pod.Status, &corev1.NodeStatus{Allocatable: list},
		&corev1.Event{Reason: "Failed"}, &corev1.LimitRange{Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{Max: list}}}},
		&autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Metrics: []autoscalingv2.MetricSpec{{
			Resource: &autoscalingv2.ResourceMetricSource{Target: autoscalingv2.MetricTarget{AverageValue: &limit}}}}}},
		slice, claim, &appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"spec":{"template":{}}}`)}}, crd}
}

// aField is a field of protobuf that has bytes.
func aField(number uint64, b []byte) []byte {
	out := binary.AppendUvarint(nil, number<<3|wireBytes)
	return append(binary.AppendUvarint(out, uint64(len(b))), b...)
}

// hidden are a pod's bytes in which an endless quantity lies where Kubernetes' decoders find it.
func hidden(text string) map[string][]byte {
	in := func(entry []byte) []byte { return aField(2, aField(2, aField(8, aField(2, entry)))) }
	quantity := aField(1, []byte(text))
	untyped := func(wire uint64) []byte {
		return append(binary.AppendUvarint(binary.AppendUvarint(aField(1, []byte("cpu")), 2<<3|wire), uint64(len(quantity))), quantity...)
	}
	entry := append(aField(1, []byte("cpu")), aField(2, quantity)...)
	return map[string][]byte{
		"as it is":                  in(entry),
		"a varint, as it says":      in(untyped(wireVarint)),
		"32 bits, as it says":       in(untyped(wireFixed32)),
		"behind a group":            append([]byte{15<<3 | startsGroup, 15<<3 | endsGroup}, in(entry)...),
		"behind a field far off":    append(binary.AppendUvarint(nil, 1<<32-8), append([]byte{0}, in(entry)...)...),
		"behind its entry's group":  in(append([]byte{15<<3 | startsGroup, 15<<3 | endsGroup}, entry...)),
		"in an entry that is short": append(in(untyped(wireVarint)[:5]), quantity...),
	}
}

// endless are quantities by which a decoder, or whoever compares them, reckons without end.
var endless = []string{"1e-2147483647", "1e2147483647", "e2147483647", "-E2147483647", ".e-2147483647",
	"e0000000000000000000000000000000000000000000000000000002147483647", "e+000000000000000000000000000000000000000000000000000000000000000000000002147483647"}

// TestEndlessQuantitiesAreFound: also where the bytes do not say it, and without a digit before the exponent.
func TestEndlessQuantitiesAreFound(t *testing.T) {
	for _, text := range endless {
		for how, b := range hidden(text) {
			if err := CheckForeign(b, reflect.TypeFor[corev1.Pod]()); err == nil {
				t.Errorf("%s, %s: taken", text, how)
			}
		}
		for _, raw := range []string{
			`{"spec":{"containers":[{"resources":{"limits":{"cpu":"` + text + `"}}}]}}`,
			`{"spec":{"containers":[{"resources":{"limits":{"hugepages-` + text + `":"1"}}}]}}`,
			`{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"resource\":{\"targetAverageValue\":\"` + text + `\"}}]"}}}`,
		} {
			if err := CheckForeignJSON([]byte(raw), reflect.TypeFor[corev1.Pod]()); err == nil {
				t.Errorf("%s: taken", raw)
			}
		}
	}
	// What is only a word is not looked at any further.
	for _, word := range []string{"node100", "release-2024", "stage-0001", "E2E"} {
		if Odd([]byte(`{"name":"` + word + `"}`)) {
			t.Errorf("%s is odd", word)
		}
	}
}

// TestBrokenJSONIsLeft: where JSON ends in the midst of something, the look at it does, too, and what was wrong before is told.
func TestBrokenJSONIsLeft(t *testing.T) {
	for text, want := range map[string]string{
		`{"status":{"capacity":{"cpu":"1e999"`:                                                     "its exponent",
		`{"a":1e999,"status":{"addresses":[@]}}`:                                                   "",
		`{"a":1e999,"status":{"addresses":[{]}}`:                                                   "",
		`{"a":1e999,"status":{"addresses":[1}]}`:                                                   "",
		`{"a":1e999,"status":[[[,"a`:                                                               "",
		`{"a":1e999,"metadata":{"annotations":{"volume.alpha.kubernetes.io/pre-resize-capacity":@`: "",
	} {
		err := CheckForeignJSON([]byte(text), reflect.TypeFor[corev1.Node]())
		checkRefusal(t, text, err, "", want)
	}
	raw, err := (&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: []byte(`{"a":1e999,"spec":[@]}`)}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "protobuf", CheckForeign(raw, reflect.TypeFor[appsv1.ControllerRevision]()), "", "")
}

// TestDeepJSONIsFound: also where texts seem to end what they do not.
func TestDeepJSONIsFound(t *testing.T) {
	const deep = 600
	b := []byte(`{}`)
	for range deep {
		b = append(append([]byte(`{"title":"}\"}","not":`), b...), '}')
	}
	checkRefusal(t, "JSON", CheckForeignJSON(b, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()), "", "more than 500 deep")
	raw, err := (&appsv1.ControllerRevision{Data: runtime.RawExtension{Raw: b}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	checkRefusal(t, "protobuf", CheckForeign(raw, reflect.TypeFor[appsv1.ControllerRevision]()), "", "more than 500 deep")
	var wide []byte
	for range deep {
		wide = append(wide, `{"title":"{{"},`...)
	}
	wide = append(append([]byte(`{"allOf":[`), wide[:len(wide)-1]...), "]}"...)
	checkRefusal(t, "wide", CheckForeignJSON(wide, reflect.TypeFor[apiextensionsv1.JSONSchemaProps]()), "", "")
}

// FuzzForeign: what CheckForeign lets through, Kubernetes' decoder reads without a panic, into quantities that can be reckoned with; how
// many values it becomes was known; and what has come of it is let through again.
func FuzzForeign(f *testing.F) {
	for i, o := range foreignObjects() {
		b, err := o.Marshal()
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	for _, text := range append([]string{"1e3", "5Ei"}, endless...) {
		for _, b := range hidden(text) { // order does not matter: they are seeds
			f.Add(uint8(0), b)
		}
	}
	f.Add(uint8(len(foreignTypes)-1), aField(2, aField(7, aField(4, aField(1, nestedSchemas(3, 28))))))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		o := foreignType(which)
		of := reflect.TypeOf(o)
		var err error
		if n := allocated(func() { err = CheckForeign(b, of) }); n > mostAllocated(len(b)) {
			t.Errorf("to look at %d bytes took %d", len(b), n)
		}
		if err != nil || o.Unmarshal(b) != nil {
			return
		}
		fine := checkQuantities(t, o)
		const most = 1 << 20
		if n, err := Values(b, of, most); err == nil && n < entriesOf(reflect.ValueOf(o)) {
			t.Errorf("%d values become %d entries", n, entriesOf(reflect.ValueOf(o)))
		}
		if checkForeign(b, of, 0) != nil {
			return // it was not looked at, for there is nothing odd in it
		}
		again, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := checkForeign(again, of, 0); err != nil && fine {
			t.Errorf("taken, and not taken again: %v", err)
		}
	})
}

// FuzzForeignJSON: the same of JSON, which lies no deeper than it may.
func FuzzForeignJSON(f *testing.F) {
	for i, o := range foreignObjects() {
		b, err := json.Marshal(o)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint8(i), b)
	}
	for _, text := range append([]string{"1e3", `1\u0065-999`}, endless...) {
		f.Add(uint8(0), []byte(`{"spec":{"containers":[{"resources":{"limits":{"cpu":"`+text+`","hugepages-`+text+`":1e3}}}]}}`))
		f.Add(uint8(0), []byte(`{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"a\":\"`+text+`\"},`+text+`]"}}}`))
		f.Add(uint8(9), []byte(`{"data":{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"cpu":"`+text+`"}}}]}}}}}`))
	}
	f.Add(uint8(0), []byte(`{"a":1e999,"spec":{"containers":[@]}}`))
	f.Add(uint8(10), []byte(`{"spec":{"versions":[{"schema":{"openAPIV3Schema":{"title":"}}}","not":{"items":[[]]}}}}]}}`))
	f.Fuzz(func(t *testing.T, which uint8, b []byte) {
		o := foreignType(which)
		of := reflect.TypeOf(o)
		var err error
		if n := allocated(func() { err = CheckForeignJSON(b, of) }); n > mostAllocated(len(b)) {
			t.Errorf("to look at %d bytes took %d", len(b), n)
		}
		if err != nil || !json.Valid(b) {
			return
		}
		if d := depthOf(b); d > MaxNesting+1 { // the outermost lies in nothing
			t.Errorf("it is %d deep", d)
		}
		if kjson.UnmarshalCaseSensitivePreserveInts(b, o) != nil {
			return
		}
		fine := checkQuantities(t, o)
		if again, err := json.Marshal(o); err == nil && fine {
			if err := CheckForeignJSON(again, of); err != nil {
				t.Errorf("taken, and not taken again: %v", err)
			}
		}
	})
}

// FuzzEnvelope: it reads what Kubernetes' decoder does, or nothing.
func FuzzEnvelope(f *testing.F) {
	b, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "Pod"}, Raw: []byte("x")}).Marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add(append(b, b...))
	f.Add(append(b, 15<<3|startsGroup, 15<<3|endsGroup))
	f.Add(append(b, aField(1, aField(2, nil))...))
	f.Fuzz(func(t *testing.T, b []byte) {
		apiVersion, kind, object, ok := Envelope(append([]byte("k8s\x00"), b...))
		var is runtime.Unknown
		if err := is.Unmarshal(b); err != nil || !ok {
			return
		}
		if apiVersion != is.APIVersion || kind != is.Kind || string(object) != string(is.Raw) {
			t.Errorf("%q, %q, %q: it is %v", apiVersion, kind, object, is)
		}
	})
}

// checkQuantities looks at all quantities of a value, and says whether they are written as what may be sent: 1000e99 is 1e102.
func checkQuantities(t *testing.T, o any) (fine bool) {
	t.Helper()
	fine = true
	eachQuantity(reflect.ValueOf(o), func(q resource.Quantity) {
		d := q.AsDec()
		if s := int(d.Scale()); s < -MaxExponent || s > MaxExponent+MaxQuantityLength || d.UnscaledBig().BitLen() > 8*MaxQuantityLength {
			t.Fatalf("a quantity of %d bits, times ten to the power of %d", d.UnscaledBig().BitLen(), -s)
		}
		fine = fine && CheckQuantity(q.String()) == nil
	})
	return fine
}

func eachQuantity(v reflect.Value, do func(resource.Quantity)) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			eachQuantity(v.Elem(), do)
		}
	case reflect.Struct:
		if v.Type() == quantityType {
			do(v.Interface().(resource.Quantity).DeepCopy())
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				eachQuantity(v.Field(i), do)
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				eachQuantity(v.Index(i), do)
			}
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); { // order does not matter: each is looked at
			eachQuantity(i.Value(), do)
		}
	}
}

// entriesOf are all entries of lists and maps in a value.
func entriesOf(v reflect.Value) (n int) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			return entriesOf(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				n += entriesOf(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return 0
		}
		n = v.Len()
		for i := range v.Len() {
			n += entriesOf(v.Index(i))
		}
	case reflect.Map:
		n = v.Len()
		for i := v.MapRange(); i.Next(); { // order does not matter: they are counted
			n += entriesOf(i.Value())
		}
	}
	return n
}

// depthOf is how deep JSON is.
func depthOf(b []byte) (most int) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	for depth := 0; ; {
		token, err := d.Token()
		if err != nil {
			return most
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth++
			most = max(most, depth)
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// mostAllocated is how much memory one may take to look at so many bytes: some hundreds for each, and what is small beside a body.
func mostAllocated(n int) uint64 { return 4<<20 + 512*uint64(n) }

// allocated is about how many bytes of memory something takes.
func allocated(do func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	do()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}
