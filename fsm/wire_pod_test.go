package fsm

import (
	"bytes"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/store"
)

// later is a field of a later version: number 9000, bytes.
func later(b []byte) []byte { return append(bytes.Clone(b), 0xc2, 0xb2, 0x04, 1, 'x') }

// TestUnknownFieldsOfPods: they are found whether a spec's bytes were seen before
// or not.
func TestUnknownFieldsOfPods(t *testing.T) {
	b, err := (&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	cached := newCache()
	for range 2 {
		w := PodWire{raw: later(b)}
		if err := w.unpack(cached); !errors.Is(err, store.ErrUnknownCommand) {
			t.Errorf("%v", err)
		}
	}
}

// TestUnknownFieldsStopTheServer: they are refused when they are forwarded, and
// stop the server when they are applied, or stand in a snapshot.
func TestUnknownFieldsStopTheServer(t *testing.T) {
	known, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	object := later(known)
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
