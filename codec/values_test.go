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
		if n := Values(b, of, 100*many); n < many || n > 20*many {
			t.Errorf("%s: %d bytes become %d values", what, len(b), n)
		}
		if n := Values(b, of, many/2); n != many/2+1 {
			t.Errorf("%s: of %d values are counted %d", what, many/2, n)
		}
	}
	if n := Values([]byte{0xff, 0xff}, reflect.TypeFor[corev1.Pod](), 10); n != 0 {
		t.Errorf("what is no protobuf has %d", n)
	}
}

func numberedData(n int) map[string][]byte {
	out := map[string][]byte{}
	for i := range n {
		out[string(rune('a'+i%26))+string(rune('a'+i/26%26))+string(rune('a'+i/676))] = nil
	}
	return out
}
