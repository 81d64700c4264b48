package fsm

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// wrapped puts bytes as a field of a message, behind others.
func wrapped(before []byte, number byte, value []byte) []byte {
	return append(append(bytes.Clone(before), number<<3|wireBytes, byte(len(value))), value...)
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
			err := unmarshalKnown(tt.raw, tt.object)
			if !errors.Is(err, store.ErrUnknownCommand) || !strings.HasSuffix(err.Error(), "has the field "+tt.at) {
				t.Errorf("%v, want the field %s", err, tt.at)
			}
			if pod, ok := tt.object.(*corev1.Pod); ok {
				w := PodWire{raw: tt.raw}
				if err := w.unpack(newCache()); !errors.Is(err, store.ErrUnknownCommand) {
					t.Errorf("with the cache: %v (%v)", err, pod)
				}
			}
		})
	}
}

// TestOtherBytesAreKnown: what is written otherwise than by Kubernetes, and
// means nothing else, is read.
func TestOtherBytesAreKnown(t *testing.T) {
	b := wrapped(wrapped(nil, 1, wrapped(nil, 1, []byte("first"))), 1, wrapped(nil, 1, []byte("last")))
	pod := new(corev1.Pod)
	if err := unmarshalKnown(b, pod); err != nil || pod.Name != "last" {
		t.Errorf("%q, %v", pod.Name, err)
	}
}

// TestUnknownFieldsStopTheServer: they are refused when they are forwarded, and
// stop the server when they are applied, or stand in a snapshot.
func TestUnknownFieldsStopTheServer(t *testing.T) {
	object := later(marshalled(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}))
	for name, c := range map[string]Command{
		"object":        &PutObject{Resource: "configmaps", Raw: object, Create: true},
		"status":        &SetStatus{Owner: ObjectRef{Resource: ReplicaSets, Namespace: "default", Name: "w"}, Status: later(nil)},
		"configuration": &ConfigureScheduler{JSON: []byte(`{"metadata":{"name":"cluster"},"spec":{"later":{}}}`)},
	} {
		forwarded, err := EncodeProposals([]Proposal{{Command: c}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeProposals(forwarded); !errors.Is(err, store.ErrUnknownCommand) {
			t.Errorf("%s: forwarded: %v", name, err)
		}
		entry, err := EncodeEntry(Header{Version: LogVersion}, []Proposal{{Command: c}})
		if err != nil {
			t.Fatal(err)
		}
		s := inhabited(t)
		before := s.View().Digest()
		if _, err := s.Apply(s.View().Index()+1, 1, entry); !errors.Is(err, store.ErrUnknownCommand) || s.View().Digest() != before {
			t.Errorf("%s: applied: %v", name, err)
		}
	}
	// order does not matter: every table by itself.
	for table, row := range map[string][]byte{
		"objects": append([]byte("configmaps\x00"), object...), "pods": later(nil), "nodes": later(nil),
		"nominations": {0x81, 0xa5, 'l', 'a', 't', 'e', 'r', 1}, "decisions": {0x81, 0xa5, 'l', 'a', 't', 'e', 'r', 1},
		"preemptions": []byte(`{"later":1}`),
	} {
		if _, err := decodeRow(table, row); !errors.Is(err, store.ErrUnknownCommand) {
			t.Errorf("a row of %s: %v", table, err)
		}
	}
}

// TestUnreadablePayload: a command whose object no version can read is refused
// by every server alike, and what stands beside it is done.
func TestUnreadablePayload(t *testing.T) {
	payload, err := store.Marshal(map[string]any{"n": 4, "command": map[string]any{"pod": []byte{0xff, 0xff}}})
	if err != nil {
		t.Fatal(err)
	}
	good, err := EncodeProposal(Proposal{Command: new(Checkpoint)})
	if err != nil {
		t.Fatal(err)
	}
	entry, err := store.JoinEntry(Header{Version: LogVersion, TimeUnixNano: worldStart.UnixNano()}, []store.Encoded{payload, good})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	results := w.applyEntry(entry)
	if results[0].Code != 500 || results[1].Refused() || w.view().ApplyFailures.Len() != 1 {
		t.Errorf("%+v, %d recorded", results, w.view().ApplyFailures.Len())
	}
	if _, ok := w.state.Checkpoint(1); !ok {
		t.Error("the command beside it was not carried out")
	}
}
