package codec

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestValues: what bytes become is known before they are decoded, wherever in them it is.
func TestValues(t *testing.T) {
	const many = 1000
	for what, o := range map[string]interface{ Marshal() ([]byte, error) }{
		"empty structs":  &corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, many)}},
		"in one another": &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Env: make([]corev1.EnvVar, many)}}}},
		"a map":          &corev1.ConfigMap{BinaryData: numberedData(many)},
		"texts":          &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Args: make([]string, many)}}}},
	} {
		b, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		of := reflect.TypeOf(o)
		if n, err := Values(b, of, 100*many); n < many || n > 20*many || err != nil {
			t.Errorf("%s: %d bytes become %d values: %v", what, len(b), n, err)
		}
		if n, err := Values(b, of, many/2); n != many/2+1 || err != nil {
			t.Errorf("%s: of %d values are counted %d: %v", what, many/2, n, err)
		}
	}
	for what, b := range map[string][]byte{
		"no protobuf": {0xff, 0xff},
		"a group":     {3<<3 | startsGroup, 3<<3 | endsGroup, 0x12, 0},
		"a map whose entry has no bytes, as it says": aField(3, []byte{2<<3 | wireVarint, 2, 0x0a, 0}),
	} {
		if n, err := Values(b, reflect.TypeFor[corev1.ConfigMap](), 10); err == nil {
			t.Errorf("%s has %d values", what, n)
		}
	}
}

func numberedData(n int) map[string][]byte {
	out := map[string][]byte{}
	for i := range n {
		out[string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))] = nil
	}
	return out
}
