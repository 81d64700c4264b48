package apiserver

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
)

// A quantity that takes hours to decode, or to compare, is refused at once in whatever form it comes.
func TestQuantitiesThatNobodyCanCompute(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	pods := s.client(t).CoreV1().Pods("default")
	if _, err := pods.Create(ctx, testPod("there"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rest := s.client(t).CoreV1().RESTClient()
	for _, quantity := range []string{"1e-2147483647", "1e2147483646", "e2147483646", `1\u0065-2147483647`} {
		pod := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"there"},"spec":{"containers":[{"name":"main","image":"i","resources":{"requests":{"memory":"` + quantity + `"}}}]}}`
		post := func(contentType, resource, body string) {
			t.Helper()
			err := rest.Post().Namespace("default").Resource(resource).SetHeader("Content-Type", contentType).Body([]byte(body)).Do(ctx).Error()
			wantStatus(t, err, 400, "its exponent may be from -99 to 99")
		}
		post("application/json", "pods", pod)
		post("application/json", "configmaps", pod) // it is decoded as what it says it is
		post("application/yaml", "pods", "# YAML\n"+pod)
		post("application/yaml", "pods", string(inUTF16("# YAML\n"+pod)))
		if !strings.Contains(quantity, `\`) {
			post("application/vnd.kubernetes.protobuf", "pods", string(protobufPod(t, quantity)))
			post("application/yaml", "pods", inBase64(pod, quantity))
		}
		type patch struct {
			form types.PatchType
			body string
			code int32 // upstream's, where it decodes what the patch makes
		}
		patches := []patch{
			{types.StrategicMergePatchType, pod, 400},
			{types.ApplyYAMLPatchType, pod, 400},
			{types.ApplyYAMLPatchType, string(inUTF16("# YAML\n" + pod)), 400},
			{types.MergePatchType, pod, 422},
			{types.JSONPatchType, `[{"op":"add","path":"/spec/containers/0/resources","value":{"requests":{"memory":"` + quantity + `"}}}]`, 422},
		}
		if !strings.Contains(quantity, `\`) { // in base64 an escape is none
			patches = append(patches, patch{types.ApplyYAMLPatchType, inBase64(pod, quantity), 400})
		}
		for _, patch := range patches {
			_, err := pods.Patch(ctx, "there", patch.form, []byte(patch.body), metav1.PatchOptions{FieldManager: "test"})
			wantStatus(t, err, patch.code, "its exponent may be from -99 to 99")
		}
	}
	// As a label it means nothing.
	for _, form := range []types.PatchType{types.StrategicMergePatchType, types.MergePatchType} {
		if _, err := pods.Patch(ctx, "there", form, []byte(`{"metadata":{"labels":{"commit":"1e12345"}}}`), metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// inUTF16 is a text of ASCII as YAML may be written, too.
func inUTF16(text string) []byte {
	out := []byte{0xff, 0xfe}
	for _, c := range []byte(text) {
		out = append(out, c, 0)
	}
	return out
}

// inBase64 is JSON as YAML, a text of it in base64.
func inBase64(text, hidden string) string {
	return strings.Replace(text, `"`+hidden+`"`, `!!binary "`+base64.StdEncoding.EncodeToString([]byte(hidden))+`"`, 1)
}

// Nor is one that upstream's decoders find where nobody else looks for it.
func TestQuantitiesThatAreHidden(t *testing.T) {
	s := start(t, newDouble(t), nil)
	pods := s.client(t).CoreV1().Pods("default")
	if _, err := pods.Create(t.Context(), testPod("there"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// What no longer says what it is becomes Kubernetes' internal type, whose fields have names of their own.
	const quantity, spec = "1e-2147483647", `{"Containers":[{"Name":"main","Resources":{"Requests":{"memory":"1e-2147483647"}}}]}`
	for form, patch := range map[types.PatchType]string{
		types.MergePatchType: `{"kind":null,"apiVersion":null,"Spec":` + spec + `}`,
		types.JSONPatchType:  `[{"op":"remove","path":"/kind"},{"op":"remove","path":"/apiVersion"},{"op":"add","path":"/Spec","value":` + spec + `}]`,
	} {
		_, err := pods.Patch(t.Context(), "there", form, []byte(patch), metav1.PatchOptions{})
		wantStatus(t, err, 422, "its exponent may be from -99 to 99")
	}
	// Who looks for one in what is no JSON comes to an end.
	_, err := pods.Patch(t.Context(), "there", types.StrategicMergePatchType, []byte(`{"a":1e999,"spec":{"containers":[@]}}`), metav1.PatchOptions{})
	wantStatus(t, err, 400, "invalid character")
	whole := protobufPod(t, quantity)
	_, _, raw, _ := codec.Envelope(whole)
	group, far := []byte{15<<3 | 3, 15<<3 | 4}, append(binary.AppendUvarint(nil, 1<<32-8), 0)
	many := testPod("many")
	many.Spec.Containers = slices.Repeat([]corev1.Container{{Env: make([]corev1.EnvVar, 10_000)}}, 27)
	contents, err := many.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		body []byte
		told string
	}{
		"a group in its envelope":        {append(bytes.Clone(whole), group...), "not in the form of protobuf"},
		"a far field in its envelope":    {append(bytes.Clone(whole), far...), "not in the form of protobuf"},
		"a group in it":                  {inEnvelope(t, "v1", "Pod", append(bytes.Clone(group), raw...)), "not in the form of protobuf"},
		"a group without a version":      {inEnvelope(t, "example.com/", "Pod", raw), "its exponent may be from -99 to 99"},
		"no kind, and no version":        {inEnvelope(t, "", "", raw), "its exponent may be from -99 to 99"},
		"many values, behind a group":    {inEnvelope(t, "v1", "Pod", append(bytes.Clone(group), contents...)), "not in the form of protobuf"},
		"many values, as they should be": {inEnvelope(t, "v1", "Pod", contents), tooManyValues(maxContents)},
	} {
		err := s.client(t).CoreV1().RESTClient().Post().Namespace("default").Resource("pods").SetHeader("Content-Type", runtime.ContentTypeProtobuf).Body(c.body).Do(t.Context()).Error()
		if status := new(apierrors.StatusError); !errors.As(err, &status) || status.ErrStatus.Code != 400 || !strings.Contains(err.Error(), c.told) {
			t.Errorf("%s: %v, want %s", what, err, c.told)
		}
	}
}

// The same in the names of resources, in annotations that become numbers, and in the objects of a plan.
func TestQuantitiesInTextsThatNobodyCanCompute(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) { c.Planner = fakePlanner{} })
	rest := s.client(t).CoreV1().RESTClient()
	const pods = `"containers":[{"name":"main","image":"i","resources":{"limits":{"cpu":"1","hugepages-1e-2147483647":"1"}}}]`
	for path, body := range map[string]string{
		"/api/v1/namespaces/default/pods": `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p"},"spec":{` + pods + `}}`,
		"/apis/apps/v1/namespaces/default/daemonsets": `{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":"p"},"spec":{"selector":{"matchLabels":{"a":"b"}},
			"template":{"metadata":{"labels":{"a":"b"}},"spec":{` + pods + `}}}}`,
		"/api/v1/namespaces/default/resourcequotas": `{"apiVersion":"v1","kind":"ResourceQuota","metadata":{"name":"p"},"spec":{"hard":{"requests.hugepages-1e-2147483647":"1"}}}`,
		"/apis/autoscaling/v1/namespaces/default/horizontalpodautoscalers": `{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"p",
			"annotations":{"autoscaling.alpha.kubernetes.io/metrics":"[{\"type\":\"Resource\",\"resource\":{\"name\":\"cpu\",\"targetAverageValue\":\"1e-2147483647\"}}]"}},
			"spec":{"scaleTargetRef":{"kind":"Deployment","name":"d","apiVersion":"apps/v1"},"maxReplicas":3}}`,
		"/apis/berth.dev/v1/plans": `{"apiVersion":"berth.dev/v1","kind":"Plan","spec":{"pods":[{"metadata":{"name":"p"},"spec":{` + pods + `}}]}}`,
		"/apis/berth.dev/v1/plans ": `{"apiVersion":"berth.dev/v1","kind":"Plan","spec":{"objects":[{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"p"},
			"spec":{"template":{"spec":{"containers":[{"name":"main","resources":{"limits":{"cpu":"1e-2147483647"}}}]}}}}]}}`,
	} {
		err := rest.Post().AbsPath(strings.TrimSpace(path)).SetHeader("Content-Type", "application/json").Body([]byte(body)).Do(context.Background()).Error()
		wantStatus(t, err, 400, "its exponent may be from -99 to 99")
	}
	// What cannot be planned is not decoded.
	err := rest.Post().AbsPath("/apis/berth.dev/v1/plans").SetHeader("Content-Type", "application/json").Body([]byte(
		`{"apiVersion":"berth.dev/v1","kind":"Plan","spec":{"objects":[{"apiVersion":"v1","kind":"Pod","spec":{"containers":[{"resources":{"limits":{"cpu":"1e-2147483647"}}}]}}]}}`,
	)).Do(context.Background()).Error()
	wantStatus(t, err, 400, "a Pod of v1 can not be planned")
}

// protobufPod is a pod that asks for memory in so many words.
func protobufPod(t *testing.T, quantity string) []byte {
	pod := testPod("there")
	// As long as the text that takes its place.
	is := resource.MustParse(strings.Repeat("1", min(len(quantity), 18)))
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"memory": is}
	raw, err := pod.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.Replace(raw, []byte(is.String()), []byte(quantity), 1)
	return inEnvelope(t, "v1", "Pod", raw)
}

func inEnvelope(t *testing.T, apiVersion, kind string, raw []byte) []byte {
	b, err := (&runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: apiVersion, Kind: kind}, Raw: raw}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte("k8s\x00"), b...)
}

// A schema that lies in itself so often that its decoder overflows the stack, which would end the server.
func TestSchemasWithoutEnd(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	field := func(number uint64, b []byte) []byte {
		out := binary.AppendUvarint(nil, number<<3|2)
		return append(binary.AppendUvarint(out, uint64(len(b))), b...)
	}
	var schema []byte
	for range 20_000 { // quadratic: it is copied each time
		schema = field(28, schema) // not
	}
	// spec.versions[0].schema.openAPIV3Schema
	definition := field(2, field(7, field(4, field(1, schema))))
	rest := s.client(t).CoreV1().RESTClient()
	err := rest.Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").SetHeader("Content-Type", "application/vnd.kubernetes.protobuf").
		Body(inEnvelope(t, "apiextensions.k8s.io/v1", "CustomResourceDefinition", definition)).Do(ctx).Error()
	wantStatus(t, err, 400, "objects lie in each other more than 500 deep")
	deep := strings.Repeat(`{"not":`, 5000) + "{}" + strings.Repeat("}", 5000)
	err = rest.Post().AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions").SetHeader("Content-Type", "application/json").
		Body([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","spec":{"versions":[{"schema":{"openAPIV3Schema":` + deep + `}}]}}`)).Do(ctx).Error()
	wantStatus(t, err, 413, "lies in 256 others")
}
