package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/rpc"
)

// packed is how servers and workers write their messages.
type packed struct{}

func (packed) Name() string                       { return "berth-msgpack" }
func (packed) Marshal(v any) ([]byte, error)      { return msgpack.Marshal(v) }
func (packed) Unmarshal(data []byte, v any) error { return msgpack.Unmarshal(data, v) }

// dial is a way to a server's RPC.
func (a *attacked) dial(t *testing.T, s *fleet.Process, config *tls.Config) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///"+portOf(s, s.Ports.RPC),
		grpc.WithTransportCredentials(credentials.NewTLS(config)), grpc.WithDefaultCallOptions(grpc.ForceCodec(packed{})))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the test is over
	return conn
}

// invoke calls a method, and says as what it is refused.
func invoke(t *testing.T, conn *grpc.ClientConn, method string, request, answer any) codes.Code {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return status.Code(conn.Invoke(ctx, method, request, answer))
}

// thief speaks with the certificate of w3 as a worker that no agent is.
type thief struct {
	t    *testing.T
	conn *grpc.ClientConn
}

func (a *attacked) thief(t *testing.T) *thief {
	t.Helper()
	config := a.tls(t, a.issued(t, pki.Request{Kind: pki.Worker, Name: "w3"}))
	return &thief{t: t, conn: a.dial(t, a.waitLeader(t), config)}
}

// connect opens a worker's stream with what Hello it likes. The stream ends with ctx.
func (f *thief) connect(ctx context.Context, h *rpc.Hello) (grpc.ClientStream, error) {
	desc := &grpc.StreamDesc{StreamName: "Connect", ServerStreams: true, ClientStreams: true}
	stream, err := f.conn.NewStream(ctx, desc, "/berth.rpc.Worker/Connect")
	if err != nil {
		return nil, err
	}
	_ = stream.SendMsg(&rpc.WorkerMessage{Hello: h}) // how it ends is told by what is received
	welcome := new(rpc.ServerMessage)
	if err := stream.RecvMsg(welcome); err != nil {
		return nil, err
	}
	if welcome.Welcome == nil {
		return nil, fmt.Errorf("the first message is %+v", welcome)
	}
	return stream, nil
}

// nodeOf is what a worker registers.
func nodeOf(t *testing.T, name string, change ...func(*corev1.Node)) []byte {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	for _, f := range change {
		f(n)
	}
	raw, err := n.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// A worker sees what its own pods need.
func (a *attacked) workerAsksForOthers(t *testing.T) {
	f := a.thief(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, name := range []string{"w1", "s1", ""} {
		if _, err := f.connect(ctx, &rpc.Hello{Name: name, Instance: "thief", Node: nodeOf(t, name)}); status.Code(err) != codes.PermissionDenied && status.Code(err) != codes.InvalidArgument {
			t.Errorf("it is let in as %q: %v", name, err)
		}
	}
	if _, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: "thief", Node: nodeOf(t, "w1")}); err == nil {
		t.Error("it registers another node under its own name")
	}
	stream, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: "thief", Node: nodeOf(t, "w3")})
	if err != nil {
		t.Fatal(err)
	}
	for _, node := range []string{"w1", "w3"} {
		for _, what := range []rpc.FetchRequest{
			{Resource: "secrets", Namespace: a.ns, Name: "secret"}, {Resource: "configmaps", Namespace: a.ns, Name: "kube-root-ca.crt"},
			{Resource: "serviceaccounts", Namespace: a.ns, Name: "default"}, {Resource: "secrets", Namespace: "kube-system", Name: ""},
			{Resource: "secrets", Namespace: a.ns + "/secrets", Name: "secret"}, {Resource: "pods", Namespace: a.ns, Name: "bystander"},
		} {
			what.Node = node
			answer := new(rpc.FetchResponse)
			if code := invoke(t, f.conn, "/berth.rpc.Worker/Fetch", &what, answer); code == codes.OK || len(answer.Object) > 0 {
				t.Errorf("it fetches %+v", what)
			}
		}
		token := &rpc.TokenRequest{Node: node, Namespace: a.ns, Pod: "bystander", PodUID: string(a.bystander.UID), ExpirationSeconds: 3607}
		if code := invoke(t, f.conn, "/berth.rpc.Worker/Token", token, new(rpc.TokenResponse)); code != codes.PermissionDenied {
			t.Errorf("it is given a token of the bystander's pod: %v", code)
		}
	}
	// What is sent to it is its own: nothing.
	assigned := new(rpc.ServerMessage)
	for assigned.Assignments == nil {
		if err := stream.RecvMsg(assigned); err != nil {
			t.Fatal(err)
		}
	}
	if len(assigned.Assignments.Pods) > 0 {
		t.Errorf("it is told of %d pods", len(assigned.Assignments.Pods))
	}
	tunnel, err := f.conn.NewStream(ctx, &grpc.StreamDesc{StreamName: "Tunnel", ServerStreams: true, ClientStreams: true}, "/berth.rpc.Worker/Tunnel")
	if err != nil {
		t.Fatal(err)
	}
	_ = tunnel.SendMsg(&rpc.Frame{Accept: &rpc.TunnelAccept{Node: "w1", ID: "1"}}) // how it ends is told below
	if err := tunnel.RecvMsg(new(rpc.Frame)); err == nil {
		t.Error("it takes a tunnel of w1's")
	}
}

// A worker speaks of its own pods and its own node.
func (a *attacked) workerReportsForOthers(t *testing.T) {
	f := a.thief(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for what, change := range map[string]func(*corev1.Node){
		"a label that is trusted": func(n *corev1.Node) { n.Labels["node-restriction.kubernetes.io/trusted"] = "yes" },
		"the label of a role":     func(n *corev1.Node) { n.Labels["node-role.kubernetes.io/control-plane"] = "" },
		"a finalizer":             func(n *corev1.Node) { n.Finalizers = []string{"thief.example/stays"} },
		"an owner": func(n *corev1.Node) {
			n.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "x", UID: "x"}}
		},
		"a pod network of its choice": func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/8" },
	} {
		if _, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: "thief", Node: nodeOf(t, "w3", change)}); status.Code(err) != codes.InvalidArgument {
			t.Errorf("it registers with %s: %v", what, err)
		}
	}
	stream, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: "thief", Node: nodeOf(t, "w3")})
	if err != nil {
		t.Fatal(err)
	}
	failed, err := (&corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	event, err := (&corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: "kube-system", Name: "forged"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: a.ns, Name: "bystander", UID: a.bystander.UID},
		Reason:         "Forged", Message: "by a thief", Type: "Normal",
	}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	of := rpc.PodReport{Namespace: a.ns, Name: "bystander", UID: string(a.bystander.UID)}
	lie, removal := of, of
	lie.Status, removal.Removed = failed, true
	batch := &rpc.StatusBatch{ID: 1, Pods: []rpc.PodReport{lie, removal}, Events: [][]byte{event}}
	if err := stream.SendMsg(&rpc.WorkerMessage{Status: batch}); err != nil {
		t.Fatal(err)
	}
	for acked := false; !acked; {
		m := new(rpc.ServerMessage)
		if err := stream.RecvMsg(m); err != nil {
			break // it may be cut off for it
		}
		acked = len(m.Acks) > 0
	}
	kube := a.Reader().Kube
	now, err := kube.CoreV1().Pods(a.ns).Get(t.Context(), "bystander", metav1.GetOptions{})
	if err != nil || now.Status.Phase != corev1.PodRunning || now.UID != a.bystander.UID {
		t.Errorf("the bystander's pod: %v, %v", now, err)
	}
	for _, ns := range []string{"kube-system", a.ns} {
		events, err := kube.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events.Items {
			if e.Reason == "Forged" {
				t.Errorf("there is an event in %s: %+v", ns, e)
			}
		}
	}
	n, err := kube.CoreV1().Nodes().Get(t.Context(), "w3", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for key := range n.Labels {
		if strings.HasPrefix(key, "node-restriction") || strings.HasPrefix(key, "node-role") {
			t.Errorf("it labels itself %s", key)
		}
	}
	if len(n.Finalizers) > 0 {
		t.Errorf("it has finalizers: %v", n.Finalizers)
	}
}

const (
	// flood is how long a worker floods, and mostOfAFlood how many entries of the log may be made meanwhile: a worker's share
	// is a few a second, and everybody else hardly makes any.
	flood        = 10 * time.Second
	mostOfAFlood = 1000
)

// A worker that floods waits, and nobody else: what it makes of the log is bounded.
func (a *attacked) workerFloods(t *testing.T) {
	f := a.thief(t)
	before, err := a.waitLeader(t).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), flood)
	defer cancel()
	event, err := (&corev1.Event{InvolvedObject: corev1.ObjectReference{Kind: "Node", Name: "w3"}, Reason: "Flood", Message: strings.Repeat("x", 10<<10), Type: "Normal"}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	lies := &rpc.StatusBatch{ID: 8, Pods: make([]rpc.PodReport, 3000)} // of pods that are nobody's: they go into the log, where each is passed over
	for i := range lies.Pods {
		lies.Pods[i] = rpc.PodReport{Namespace: a.ns, Name: "bystander", UID: fmt.Sprint(i), Removed: true}
	}
	var all sync.WaitGroup
	for i := range 40 {
		all.Go(func() {
			for ctx.Err() == nil {
				stream, err := f.connect(ctx, &rpc.Hello{Name: "w3", Instance: fmt.Sprint("flood-", i), Node: nodeOf(t, "w3")})
				if err != nil {
					continue // it waits, or a newer one has its place
				}
				_ = stream.SendMsg(&rpc.WorkerMessage{Status: lies})
				for id := range uint64(8) {
					// Those before are not waited for.
					_ = stream.SendMsg(&rpc.WorkerMessage{Status: &rpc.StatusBatch{ID: id, Events: [][]byte{event, event, event}}})
				}
				_ = stream.SendMsg(&rpc.WorkerMessage{Status: &rpc.StatusBatch{ID: 9, NodeStatus: make([]byte, 2*rpc.MaxWorkerMessageBytes)}})
			}
		})
	}
	a.unharmed(t) // under the flood
	all.Wait()
	after, err := a.waitLeader(t).Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if wrote := after.AppliedIndex - before.AppliedIndex; wrote > mostOfAFlood {
		t.Errorf("it made %d entries of the log", wrote)
	}
	if err := a.Reader().Kube.CoreV1().Nodes().Delete(t.Context(), "w3", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}
