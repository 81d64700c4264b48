package rpc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/berth-dev/berth/pki"
)

func TestAssignmentsReachTheWorker(t *testing.T) {
	c := newCluster()
	c.set("n1", "a", []byte("a=1"))
	c.set("n2", "b", []byte("b=1"))
	s := startServer(t, c, "s1", nil)
	a := &agent{}
	startWorker(t, "n1", nil, a, s)
	eventually(t, "the full set is there", func() bool { return a.has() == "a=1" })
	c.set("n1", "c", []byte("c=1"), s)
	c.set("n1", "a", []byte("a=2"), s)
	c.set("n2", "d", []byte("d=1"), s)
	eventually(t, "the delta is there", func() bool { return a.has() == "a=2 c=1" })
	c.set("n1", "a", nil, s)
	eventually(t, "the pod is gone", func() bool { return a.has() == "c=1" })
	if a.fulls != 1 {
		t.Errorf("%d full sets were sent", a.fulls)
	}
	// Nothing concerns n1, and it still learns the revision with a heartbeat.
	rev := c.set("n2", "d", []byte("d=2"), s)
	eventually(t, "the worker knows the revision", func() bool { return a.at() == rev })
	if got := s.Hub.Held(1 << 62); !slices.Equal(got, []string{"n1"}) || !s.Hub.Holds("n1") || s.Hub.Holds("n2") || s.Hub.Count() != 1 {
		t.Errorf("the server holds %v", got)
	}
	if got := s.Hub.Held(-1); len(got) != 0 {
		t.Errorf("heard in the future: %v", got)
	}
	if h := c.hellos[0]; h.Name != "n1" || string(h.Node) != "node" || h.Instance == "" {
		t.Errorf("hello %+v", h)
	}
}

// TestManyPodsComeInParts: a full set larger than a message is one set.
func TestManyPodsComeInParts(t *testing.T) {
	c := newCluster()
	var want []string
	for i := range 40 {
		pod := fmt.Sprintf("p%02d=%s", i, bytes.Repeat([]byte{'x'}, 200<<10))
		c.set("n1", fmt.Sprintf("p%02d", i), []byte(pod))
		want = append(want, pod)
	}
	s := startServer(t, c, "s1", nil)
	a := &agent{}
	startWorker(t, "n1", nil, a, s)
	eventually(t, "all pods are there", func() bool { return a.has() == strings.Join(want, " ") })
	if a.fulls != 1 {
		t.Errorf("%d full sets were seen", a.fulls)
	}
}

func TestStatusesAreCommittedOrSentAgain(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	a := &agent{}
	w := startWorker(t, "n1", nil, a, s)
	w.Report(PodReport{UID: "a", Status: []byte("1")})
	w.ReportNode([]byte("ready"))
	eventually(t, "both are committed", func() bool { return len(c.committed("a")) == 1 && len(c.committed("node")) == 1 })
	eventually(t, "both are acknowledged", func() bool { return w.reports.waiting() == 0 })
	c.mu.Lock()
	c.refuse = ErrNoLeader
	c.mu.Unlock()
	w.Report(PodReport{UID: "a", Status: []byte("2")})
	w.Report(PodReport{UID: "a", Status: []byte("3"), Number: 3})
	c.mu.Lock()
	c.refuse = nil
	c.mu.Unlock()
	eventually(t, "the newest is committed", func() bool { return slices.Contains(c.committed("a"), "3") })
	eventually(t, "all is acknowledged", func() bool { return w.reports.waiting() == 0 })
	eventually(t, "the worker is told", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.taken) > 1 && a.taken[len(a.taken)-1].Number == 3
	})
}

// The newest sample comes with a heartbeat, once a stream.
func TestSamplesComeWithHeartbeats(t *testing.T) {
	c := newCluster()
	servers := map[string]*testServer{"s1": startServer(t, c, "s1", nil), "s2": startServer(t, c, "s2", nil)}
	a := &agent{}
	w := startWorker(t, "n1", nil, a, servers["s1"], servers["s2"])
	samples := func() string {
		c.mu.Lock()
		defer c.mu.Unlock()
		return strings.Join(c.samples, ", ")
	}
	w.Sample([]byte("old"))
	w.Sample([]byte("new"))
	eventually(t, "the sample is there", func() bool { return samples() == "n1 new" })
	w.Sample([]byte("newer"))
	eventually(t, "the next one is, too", func() bool { return samples() == "n1 new, n1 newer" })
	a.mu.Lock()
	holder := a.server
	a.mu.Unlock()
	servers[holder].stop()
	eventually(t, "the next server has the newest", func() bool { return samples() == "n1 new, n1 newer, n1 newer" })
}

// TestWorkerGoesOn: the server stops, and the worker goes on with another one
// from the revision it has, with the statuses that were not acknowledged.
func TestWorkerGoesOn(t *testing.T) {
	c := newCluster()
	c.set("n1", "a", []byte("a=1"))
	s1, s2 := startServer(t, c, "s1", nil), startServer(t, c, "s2", nil)
	both := []*testServer{s1, s2}
	a := &agent{}
	w := startWorker(t, "n1", nil, a, both...)
	eventually(t, "the worker is connected", func() bool { return a.has() == "a=1" })
	first, second := s1, s2
	if a.on() == "s2" {
		first, second = s2, s1
	}
	c.mu.Lock()
	c.refuse = ErrNoLeader
	c.mu.Unlock()
	w.Report(PodReport{UID: "a", Status: []byte("running")})
	first.stop()
	c.mu.Lock()
	c.refuse = nil
	c.mu.Unlock()
	c.set("n1", "b", []byte("b=1"), both...)
	eventually(t, "the worker is with the other server", func() bool { return a.on() == second.config.Name })
	eventually(t, "it goes on", func() bool { return a.has() == "a=1 b=1" })
	eventually(t, "the status is committed", func() bool { return slices.Contains(c.committed("a"), "running") })
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fulls != 1 {
		t.Errorf("%d full sets: the worker did not resume", a.fulls)
	}
	if len(a.ended) == 0 {
		t.Error("the worker was not told that its stream ended")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !slices.Contains(c.gone, "n1") {
		t.Error("the server was not told that the worker went")
	}
}

// TestSlowWorkerHoldsUpNobody: pushes return while a worker takes nothing, and
// in the end it has the newest.
func TestSlowWorkerHoldsUpNobody(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	slow, quick := &agent{block: make(chan struct{})}, &agent{}
	startWorker(t, "slow", nil, slow, s)
	startWorker(t, "quick", nil, quick, s)
	eventually(t, "both are connected", func() bool { return s.Hub.Count() == 2 })
	pad := strings.Repeat("x", 1000)
	for i := range 3 * maxPendingUpdates {
		c.set("slow", fmt.Sprint("u", i%(maxPendingUpdates+100)), fmt.Appendf(nil, "u%d=%d%s", i%(maxPendingUpdates+100), i, pad), s)
	}
	c.set("quick", "a", []byte("a=1"), s)
	eventually(t, "the quick one has its pod", func() bool { return quick.has() == "a=1" })
	close(slow.block)
	rev := c.set("slow", "end", []byte("end=1"), s)
	eventually(t, "the slow one has everything", func() bool { return slow.at() >= rev })
	slow.mu.Lock()
	defer slow.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, u := range c.pods {
		node, uid, _ := strings.Cut(key, "/")
		if node == "slow" && uid+"="+slow.pods[uid] != string(u.Pod) {
			t.Fatalf("%s is %.20q, want %.20q", uid, slow.pods[uid], u.Pod)
		}
	}
}

func TestNodeNamedTwice(t *testing.T) {
	s := startServer(t, newCluster(), "s1", nil)
	a, b := &agent{}, &agent{}
	w := startWorker(t, "n1", nil, a, s)
	eventually(t, "the first one is connected", func() bool { return a.on() == "s1" })
	second, err := NewWorkerClient(WorkerConfig{Node: "n1", Agent: b, TLS: oneCA(t).source(pki.Worker, "n1"), Servers: func() []string { return []string{s.addr} }})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := second.stream(t.Context(), s.addr); !errors.Is(err, ErrNodeTaken) {
		t.Errorf("another process: %v", err)
	}
	// The same process comes back before its old stream was seen to end.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	third, err := NewWorkerClient(WorkerConfig{Node: "n1", Agent: &agent{pods: map[string]string{}}, TLS: second.config.TLS, Servers: second.config.Servers})
	if err != nil {
		t.Fatal(err)
	}
	third.instance = w.instance
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = third.stream(ctx, s.addr)
	}()
	eventually(t, "the old stream was replaced", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return slices.ContainsFunc(a.ended, func(err error) bool { return errors.Is(err, ErrReplaced) })
	})
	cancel()
	<-done
}

func TestStaleServerIsLeft(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	a := &agent{resume: 100, pods: map[string]string{"a": "1"}} // the server is at 0
	startWorker(t, "n1", nil, a, s)
	eventually(t, "the worker leaves", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.ended) > 0
	})
	if a.has() != "a=1" {
		t.Errorf("a server that is behind has stopped pods: %s", a.has())
	}
}

// TestStrangeStreams sends what no worker sends.
func TestStrangeStreams(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	cc := dialAs(t, s, pki.Server, "n1")
	hello := &WorkerMessage{Hello: &Hello{Name: "n1", Instance: "i"}}
	for name, msgs := range map[string][]any{
		"no hello":         {&WorkerMessage{Heartbeat: true}},
		"no name":          {&WorkerMessage{Hello: &Hello{}}},
		"nothing":          {hello, &WorkerMessage{}},
		"tunnel of nobody": {&Frame{Accept: &TunnelAccept{Node: "n1", ID: "x"}}},
		"tunnel of no ID":  {&Frame{Data: []byte("x")}},
	} {
		method := methodConnect
		if strings.HasPrefix(name, "tunnel") {
			method = methodWorkerTunnel
		}
		if err := strange(t, cc, method, msgs); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := strange(t, cc, methodServerTunnel, []any{&Frame{Data: []byte("x")}}); !errors.Is(err, ErrInvalid) {
		t.Errorf("server's tunnel without a request: %v", err)
	}
	eventually(t, "no stream is left", func() bool { return s.Hub.Count() == 0 })
}

// dialAs connects with a certificate, to call what the package's own callers do
// not.
func dialAs(t *testing.T, s *testServer, kind pki.Kind, name string) *grpc.ClientConn {
	t.Helper()
	creds, err := clientCredentials(oneCA(t).source(kind, name))
	if err != nil {
		t.Fatal(err)
	}
	cc, err := newConn(s.addr, creds, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() }) // the test is over
	return cc
}

// strange returns how the stream ended.
func strange(t *testing.T, cc *grpc.ClientConn, method string, msgs []any) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	desc := bothWays("x", nil)
	st, err := cc.NewStream(ctx, &desc, method)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range msgs {
		if err := st.SendMsg(m); err != nil {
			break
		}
	}
	for {
		var m ServerMessage
		if err := st.RecvMsg(&m); err != nil {
			err, _ = fromStatus(err)
			return err
		}
	}
}

func TestNoServerKnown(t *testing.T) {
	a := &agent{pods: map[string]string{}}
	startWorker(t, "n1", nil, a) // ends with the test, without a server
}

// TestDeafWorkerIsCut: a worker that speaks and does not read does not keep its stream.
func TestDeafWorkerIsCut(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	desc := bothWays("Connect", nil)
	st, err := dialAs(t, s, pki.Worker, "deaf").NewStream(t.Context(), &desc, methodConnect)
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SendMsg(&WorkerMessage{Hello: &Hello{Name: "deaf", Instance: "i"}}); err != nil {
		t.Fatal(err)
	}
	var welcome ServerMessage
	if err := st.RecvMsg(&welcome); err != nil {
		t.Fatal(err)
	}
	for i := range 12 { // more than a stream takes that is not read
		uid := fmt.Sprintf("p%d", i)
		c.set("deaf", uid, []byte(uid+"="+strings.Repeat("x", 1<<20)), s)
	}
	heard := 0
	eventually(t, "it is cut although it is heard", func() bool {
		if st.SendMsg(&WorkerMessage{Heartbeat: true}) == nil {
			heard++
		}
		return !s.Hub.Holds("deaf")
	})
	if heard == 0 {
		t.Error("it was not heard")
	}
	var m ServerMessage
	for err == nil {
		err = st.RecvMsg(&m)
	}
	if err, _ := fromStatus(err); !errors.Is(err, ErrDeaf) {
		t.Errorf("the worker is told %v", err)
	}
}
