package codec_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/store"
)

// later is a field of a later version: number 9000, bytes.
func later(b []byte) []byte { return append(bytes.Clone(b), 0xc2, 0xb2, 0x04, 1, 'x') }

func marshalled(t testing.TB, o interface{ Marshal() ([]byte, error) }) []byte {
	t.Helper()
	b, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wrapped puts bytes as a field of a message, behind others: 2 is protobuf's type of bytes.
func wrapped(before []byte, number byte, value []byte) []byte {
	return append(append(bytes.Clone(before), number<<3|2, byte(len(value))), value...)
}

// TestUnknownFieldsOfObjects: a field of a Kubernetes object that this version
// does not know is never dropped.
func TestUnknownFieldsOfObjects(t *testing.T) {
	container := later(marshalled(t, &corev1.Container{Name: "c"}))
	meta := marshalled(t, &metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{"a": "b"}})
	spec := wrapped(nil, 2, container)
	for name, tt := range map[string]struct {
		object interface {
			Size() int
			Unmarshal([]byte) error
		}
		raw []byte
		at  string
	}{
		"of the object":    {new(corev1.Pod), later(marshalled(t, &corev1.Pod{})), "9000"},
		"of its metadata":  {new(corev1.Pod), wrapped(nil, 1, later(meta)), "ObjectMeta.9000"},
		"of a container":   {new(corev1.Pod), wrapped(wrapped(nil, 1, meta), 2, spec), "Spec.Containers.9000"},
		"of a map's value": {new(corev1.ConfigMap), wrapped(nil, 2, later(wrapped(wrapped(nil, 1, []byte("k")), 2, []byte("v")))), "Data.9000"},
		"of a condition":   {new(corev1.PodStatus), wrapped(nil, 2, later(marshalled(t, &corev1.PodCondition{Type: "Ready"}))), "Conditions.9000"},
	} {
		t.Run(name, func(t *testing.T) {
			err := codec.Unmarshal(tt.raw, tt.object)
			if !errors.Is(err, store.ErrUnknownCommand) || !strings.HasSuffix(err.Error(), "has the field "+tt.at) {
				t.Errorf("%v, want the field %s", err, tt.at)
			}
		})
	}
}

// TestOtherBytesAreKnown: what is written otherwise than by Kubernetes, and
// means nothing else, is read.
func TestOtherBytesAreKnown(t *testing.T) {
	b := wrapped(wrapped(nil, 1, wrapped(nil, 1, []byte("first"))), 1, wrapped(nil, 1, []byte("last")))
	pod := new(corev1.Pod)
	if err := codec.Unmarshal(b, pod); err != nil || pod.Name != "last" {
		t.Errorf("%q, %v", pod.Name, err)
	}
}
