package apiserver

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/codec"
)

// foreignKinds are some kinds that have quantities, in fields, maps, names and annotations.
var foreignKinds = []schema.GroupVersionKind{
	corev1.SchemeGroupVersion.WithKind("Pod"),
	corev1.SchemeGroupVersion.WithKind("LimitRange"),
	corev1.SchemeGroupVersion.WithKind("ResourceQuota"),
	autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"),
	{Group: "apps", Version: "v1", Kind: "ControllerRevision"},
	{Group: "apps", Version: "v1", Kind: "StatefulSet"},
	{Group: "resource.k8s.io", Version: "v1", Kind: "ResourceSlice"},
}

// seedsOf are bodies of the kinds, with a quantity in them.
func seedsOf(quantity string) map[string]uint8 {
	pod := `{"spec":{"containers":[{"name":"main","resources":{"requests":{"memory":"` + quantity + `","hugepages-` + quantity + `":1}}}]}}`
	return map[string]uint8{
		pod: 0,
		`{"apiVersion":"v1","kind":"Pod","Spec":{"Containers":[{"Resources":{"Requests":{"cpu":"` + quantity + `"}}}]}}`: 0,
		`{"Spec":{"Containers":[{"Resources":{"Requests":{"cpu":"` + quantity + `"}}}]}}`:                                0,
		`{"spec":{"limits":[{"max":{"cpu":"` + quantity + `"}}]}}`:                                                       1,
		`{"spec":{"hard":{"requests.hugepages-` + quantity + `":"1"}}}`:                                                  2,
		`{"metadata":{"annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"targetAverageValue\":\"` +
			quantity + `\"}}]"}}}`: 3,
		`{"spec":{"metrics":[{"type":"Resource","resource":{"name":"cpu","target":{"averageValue":"` + quantity + `"}}}]}}`: 4,
		`{"data":{"spec":{"template":` + pod + `}}}`:                             5,
		`{"spec":{"template":` + pod + `}}`:                                      6,
		`{"spec":{"devices":[{"capacity":{"a":{"value":"` + quantity + `"}}}]}}`: 7,
	}
}

var farQuantities = []string{"1e3", "1e-2147483647", "1e2147483647", "e2147483647", "-.E2147483647", `1\u0065-999`, "1000000000000000000000e99"}

// FuzzCareful: whatever a body is of, in every form, what careful lets through becomes an object whose quantities can be reckoned with, by
// way of its version, its defaults and its annotations.
func FuzzCareful(f *testing.F) {
	infos := carefully(legacyscheme.Codecs.SupportedMediaTypes(), legacyscheme.Scheme)
	forms := map[string]uint8{}
	for i, info := range infos {
		forms[info.MediaType] = uint8(i)
	}
	for _, quantity := range farQuantities {
		for body, kind := range seedsOf(quantity) { // order does not matter: they are seeds
			f.Add(forms[runtime.ContentTypeJSON], kind, true, []byte(body))
			f.Add(forms[runtime.ContentTypeYAML], kind, true, []byte("# YAML\n"+body))
			f.Add(forms[runtime.ContentTypeYAML], kind, true, inUTF16(body))
			f.Add(forms[runtime.ContentTypeYAML], kind, true, []byte(inBase64(body, quantity)))
			f.Add(forms[runtime.ContentTypeJSON], kind, false, []byte(body))
			gvk := foreignKinds[kind]
			o, err := legacyscheme.Scheme.New(gvk)
			if err != nil {
				f.Fatal(err)
			}
			// The quantity that there is becomes another in protobuf, with a zero of its own length.
			zero := strings.Replace(body, quantity, strings.Repeat("0", len(quantity)), 1)
			if json.Unmarshal([]byte(zero), o) != nil {
				continue
			}
			raw, err := o.(codec.Object).Marshal()
			if err != nil {
				f.Fatal(err)
			}
			for _, version := range []string{gvk.GroupVersion().String(), "", "example.com/"} {
				b, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: gvk.Kind}, Raw: raw}).Marshal()
				if err != nil {
					f.Fatal(err)
				}
				f.Add(forms[runtime.ContentTypeProtobuf], kind, true, append([]byte("k8s\x00"), b...))
				f.Add(forms[runtime.ContentTypeProtobuf], kind, true, append([]byte("k8s\x00"), append(b, 15<<3|3, 15<<3|4)...))
			}
		}
	}
	f.Fuzz(func(t *testing.T, form, kind uint8, said bool, body []byte) {
		gvk := foreignKinds[int(kind)%len(foreignKinds)]
		internal := gvk.GroupKind().WithVersion(runtime.APIVersionInternal)
		into, err := legacyscheme.Scheme.New(internal)
		if err != nil {
			t.Fatal(err)
		}
		defaults := &gvk
		if !said {
			defaults = nil // as of what a patch has made
		}
		decoder := legacyscheme.Codecs.DecoderToVersion(infos[int(form)%len(infos)].Serializer, internal.GroupVersion())
		if o, _, err := decoder.Decode(body, defaults, into); err == nil {
			checkQuantities(t, reflect.ValueOf(o))
		}
	})
}

// FuzzPatches: the same of patches that become objects without a serializer.
func FuzzPatches(f *testing.F) {
	for _, quantity := range farQuantities {
		for body, kind := range seedsOf(quantity) { // order does not matter: they are seeds
			f.Add(kind, false, []byte(body))
			f.Add(kind, true, []byte("# YAML\n"+body))
			f.Add(kind, true, inUTF16(body))
			f.Add(kind, true, []byte(inBase64(body, quantity)))
		}
	}
	f.Add(uint8(0), false, []byte(`{"a":1e999,"spec":{"containers":[@]}}`))
	f.Add(uint8(0), true, []byte("a: &a [x]\nb: [*a, *a]\nspec: {containers: [{resources: {limits: {cpu: e2147483647}}}]}"))
	f.Fuzz(func(t *testing.T, kind uint8, applied bool, body []byte) {
		o, err := legacyscheme.Scheme.New(foreignKinds[int(kind)%len(foreignKinds)])
		if err != nil {
			t.Fatal(err)
		}
		form, text := types.StrategicMergePatchType, body
		if applied {
			form = types.ApplyYAMLPatchType
			if text, err = yaml.YAMLToJSON(body); err != nil {
				return
			}
		}
		if _, err := checkBody(body, string(form), reflect.TypeOf(o).Elem()); err != nil {
			return
		}
		var object map[string]any
		if kjson.UnmarshalCaseSensitivePreserveInts(text, &object) == nil && runtime.DefaultUnstructuredConverter.FromUnstructured(object, o) == nil {
			checkQuantities(t, reflect.ValueOf(o))
		}
	})
}

// checkQuantities fails for a quantity in a value that takes long to compare.
func checkQuantities(t *testing.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer, reflect.Interface:
		if !v.IsNil() {
			checkQuantities(t, v.Elem())
		}
	case reflect.Struct:
		if q, ok := v.Interface().(resource.Quantity); ok {
			q = q.DeepCopy()
			if d := q.AsDec(); int(d.Scale()) < -codec.MaxExponent || d.UnscaledBig().BitLen() > 8*codec.MaxQuantityLength {
				t.Fatalf("a quantity of %d bits, times ten to the power of %d", d.UnscaledBig().BitLen(), -d.Scale())
			}
			return
		}
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && mayHold(v.Type().Field(i).Type) {
				checkQuantities(t, v.Field(i))
			}
		}
	case reflect.Slice:
		for i := 0; i < v.Len() && mayHold(v.Type().Elem()); i++ {
			checkQuantities(t, v.Index(i))
		}
	case reflect.Map:
		for i := v.MapRange(); i.Next(); { // order does not matter: each is looked at
			checkQuantities(t, i.Value())
		}
	}
}

// FuzzShape: a shape is what encoding/json's tokens come to, and nothing is over what it is itself. A # stands for as many entries as may be.
func FuzzShape(f *testing.F) {
	for _, text := range []string{
		`{"a":[1,{"b":[#1]}],"c":{},"d":[[]]}`,
		`{"metadata":{"managedFields":[{"fieldsV1":{"f:a":{"f:b":{}},"k":[#1],"l":[#1,2]}}]}}`,
		`[{"metadata":{"managedFields":[{"fieldsV1":{"a":[#1]}}]}}]`,
		`{"metadata":{"managedFields":{"0":{"fieldsV1":{}}}},"a,]}\"":"\\"}`,
		`{"metadata":{"managedFields":[{"fields\u00561":{"a":1,"b":2}}],"managedFields":[[{"fieldsV1":[1,2]}]]}}`,
		strings.Repeat(`{"n":[`, maxNesting/2) + strings.Repeat("]}", maxNesting/2),
		strings.Repeat(`[`, maxNesting+1) + strings.Repeat("]", maxNesting+1),
		`]}"\`, `{"a":"`, ``, `"`, `1`,
	} {
		f.Add([]byte(text), false)
		f.Add([]byte(text), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, managed bool) {
		const most = 4
		if bytes.Count(text, []byte("#")) <= most {
			text = bytes.ReplaceAll(text, []byte("#"), bytes.Repeat([]byte("0,"), maxEntries))
		}
		s := shapeIn(text, managed)
		if over := s.over(&s); over != "" {
			t.Errorf("it is over itself: %s", over)
		}
		if !json.Valid(text) {
			return
		}
		is := tokenShape{Decoder: json.NewDecoder(bytes.NewReader(text)), outer: managed}
		is.UseNumber()
		is.value()
		if (s.deep != "") != is.deep {
			t.Fatalf("deep: %q, and is %v", s.deep, is.deep)
		}
		if is.deep {
			return
		}
		if s.values+s.managed != is.values+is.managed {
			t.Errorf("%d values and %d managed: there are %d and %d", s.values, s.managed, is.values, is.managed)
		}
		if bytes.Contains(text, []byte(`\`)) {
			return // a name that is written so is not known again: what lies below counts as everything does
		}
		if s.values != is.values || s.managed != is.managed || len(s.long) != len(is.long) {
			t.Fatalf("%d values, %d managed, %v: there are %d, %d and %v", s.values, s.managed, s.long, is.values, is.managed, is.long)
		}
		for i, l := range s.long {
			if l.entries != is.long[i] {
				t.Errorf("%s has %d entries: there are %d", l.way, l.entries, is.long[i])
			}
		}
	})
}

// tokenShape reads JSON as encoding/json has it.
type tokenShape struct {
	*json.Decoder
	outer           bool  // all of it is of managed fields
	way             []any // names, and -1 for lists
	deep            bool
	values, managed int
	long            []int
}

// value reads the next value. All names on the way to it are known.
func (s *tokenShape) value() {
	token, _ := s.Token()
	open, ok := token.(json.Delim)
	if !ok {
		return
	}
	managed := s.outer || len(s.way) >= 4 && reflect.DeepEqual(s.way[:4], []any{"metadata", "managedFields", -1, "fieldsV1"})
	if s.deep = s.deep || len(s.way) >= maxNesting; s.deep {
		return
	}
	s.way = append(s.way, -1)
	entries := 0
	for ; s.More() && !s.deep; entries++ {
		if open == '{' {
			s.way[len(s.way)-1], _ = s.Token()
		}
		s.value()
	}
	s.way = s.way[:len(s.way)-1]
	_, _ = s.Token() // its end
	most := maxEntries
	if managed {
		s.managed += max(entries, 1)
		most++
	} else {
		s.values += max(entries, 1)
	}
	if entries > most {
		s.long = append(s.long, entries)
	}
}
