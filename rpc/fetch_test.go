package rpc

import (
	"errors"
	"slices"
	"testing"

	"github.com/berth-dev/berth/pki"
)

func TestFetchIsForTheNodeItself(t *testing.T) {
	ca := newCerts(t)
	s := startServer(t, newCluster(), "s1", ca.source(pki.Server, "s1"))
	a := &agent{}
	w := startWorker(t, "n1", ca.source(pki.Worker, "n1"), a, s)
	eventually(t, "the worker is connected", func() bool { return a.on() == "s1" })
	secret := FetchRequest{Resource: "secrets", Namespace: "default", Name: "token", Follow: true}
	got, err := w.Fetch(t.Context(), secret)
	if err != nil || string(got.Object) != "secrets/default/token" {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := w.Token(t.Context(), TokenRequest{Pod: "p"}); err != nil || got.Token != "n1 p" {
		t.Errorf("got %+v, %v", got, err)
	}
	if err := w.Mirror(t.Context(), MirrorRequest{Pod: []byte("a pod of n1")}); err != nil {
		t.Error(err)
	}
	// It is told once, until it has asked again.
	ref := ObjectRef{"secrets", "default", "token"}
	s.Hub.ObjectChanged(ref)
	s.Hub.ObjectChanged(ref)
	s.Hub.ObjectChanged(ObjectRef{"secrets", "default", "other"})
	eventually(t, "the worker is told", func() bool { return len(a.told()) > 0 })
	if _, err := w.Fetch(t.Context(), secret); err != nil {
		t.Error(err)
	}
	s.Hub.ObjectChanged(ref)
	eventually(t, "the worker is told again", func() bool { return slices.Equal(a.told(), []ObjectRef{ref, ref}) })
	// The same connection, in another node's name.
	err = w.current.Load().Invoke(t.Context(), methodFetch, &FetchRequest{Node: "n2"}, new(FetchResponse))
	if err, _ = fromStatus(err); !errors.Is(err, ErrForbidden) {
		t.Errorf("another node: %v", err)
	}
	err = w.current.Load().Invoke(t.Context(), methodToken, &TokenRequest{Node: "n2", Pod: "p"}, new(TokenResponse))
	if err, _ = fromStatus(err); !errors.Is(err, ErrForbidden) {
		t.Errorf("a token of another node's pod: %v", err)
	}
	err = w.current.Load().Invoke(t.Context(), methodMirror, &MirrorRequest{Node: "n2", Pod: []byte("a pod of n2")}, new(MirrorResponse))
	if err, _ = fromStatus(err); !errors.Is(err, ErrForbidden) {
		t.Errorf("a mirror on another node: %v", err)
	}
	alone, err := NewWorkerClient(WorkerConfig{Node: "n1", Agent: a, TLS: ca.source(pki.Worker, "n1")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := alone.Fetch(t.Context(), secret); !errors.Is(err, errNotConnected) {
		t.Errorf("without a server: %v", err)
	}
}

// TestEventsAreBounded: the oldest events make room, and an event goes in one
// batch only.
func TestEventsAreBounded(t *testing.T) {
	r := newReports()
	for i := range maxPendingEvents + 2 {
		r.putEvent([]byte{byte(i), byte(i >> 8)})
	}
	b, _ := r.next(r.hold)
	if len(b.Events) != maxPendingEvents || !slices.Equal(b.Events[0], []byte{2, 0}) {
		t.Errorf("%d events, from %v", len(b.Events), b.Events[0])
	}
	r.ack(Ack{BatchID: b.ID}, r.hold)
	if b, _ = r.next(r.hold); b != nil {
		t.Errorf("told again: %+v", b)
	}
}

func TestResyncReadsTheStateAnew(t *testing.T) {
	c := newCluster()
	c.set("n1", "a", []byte("a=1"))
	s := startServer(t, c, "s1", nil)
	a := &agent{}
	startWorker(t, "n1", nil, a, s)
	eventually(t, "the worker is connected", func() bool { return a.has() == "a=1" })
	rev := c.set("n1", "a", []byte("a=2")) // nobody pushes it
	s.Hub.Resync(rev)
	eventually(t, "the worker has it all the same", func() bool { return a.has() == "a=2" })
}
