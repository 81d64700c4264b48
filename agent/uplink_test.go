package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/worker"
)

// The agent is registered once a server has welcomed it: until then nothing of
// what it says can be known.
func TestRegisterWaitsForTheFirstStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUplink(hclog.NewNullLogger())
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"disk": "ssd"}}}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := u.Register(ctx, node); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want the caller's end", err)
		}
		registered := make(chan error, 1)
		go func() { registered <- u.Register(t.Context(), node) }()
		synctest.Wait()
		select {
		case err := <-registered:
			t.Fatalf("registered without a stream: %v", err)
		default:
		}
		said := new(corev1.Node)
		if err := said.Unmarshal(u.Hello().Node); err != nil || said.Labels["disk"] != "ssd" {
			t.Errorf("the stream begins with %v, %v", said, err)
		}
		u.Connected("a", nil)
		if err := <-registered; err != nil {
			t.Error(err)
		}
		u.Disconnected(errors.New("gone"))
		u.Connected("b", nil)
		if err := u.Register(t.Context(), node); err != nil {
			t.Error(err)
		}
	})
}

// A revision counts as known once the agent has taken over what led to it.
func TestAssign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUplink(hclog.NewNullLogger())
		raw, err := (&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "u1"}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		node, err := (&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"disk": "ssd"}}}).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		a := &rpc.Assignments{Full: true, Revision: 7, Pods: [][]byte{raw}, Gone: []string{"u2"}, Node: node}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := u.Assign(ctx, a); !errors.Is(err, context.Canceled) || u.Hello().ResumeRevision != 0 {
			t.Errorf("nobody took the assignment: %v, and revision %d is known", err, u.Hello().ResumeRevision)
		}
		assigned := make(chan error, 1)
		go func() { assigned <- u.Assign(t.Context(), a) }()
		got := <-u.Assignments()
		if err := <-assigned; err != nil || u.Hello().ResumeRevision != 7 {
			t.Errorf("%v, and revision %d is known", err, u.Hello().ResumeRevision)
		}
		hello := u.Hello()
		if want := (rpc.Told{"u1": 0}); !bytes.Equal(hello.Told, want.Sum()) {
			t.Error("the servers are not told of the pod that this worker was told of")
		}
		if !got.Full || got.Revision != 7 || len(got.Pods) != 1 || got.Pods[0].UID != "u1" || len(got.Gone) != 1 || got.Gone[0] != types.UID("u2") {
			t.Errorf("the agent got %+v", got)
		}
		if got.Node == nil || got.Node.Labels["disk"] != "ssd" {
			t.Errorf("the agent admits pods by the node %v", got.Node)
		}
		if err := u.Assign(t.Context(), &rpc.Assignments{Revision: 8, Pods: [][]byte{{0xff}}}); err == nil || u.Hello().ResumeRevision != 7 {
			t.Errorf("garbage: %v, and revision %d is known", err, u.Hello().ResumeRevision)
		}
	})
}

func TestTunnelRefusals(t *testing.T) {
	u := newUplink(hclog.NewNullLogger())
	for _, tt := range []struct {
		name string
		err  error
		code int
	}{
		{"another kind", u.Tunnel(t.Context(), "exec", nil, nil), http.StatusNotImplemented},
		{"a garbled stream", u.Tunnel(t.Context(), rpc.KindStream, []byte{0xc1}, nil), http.StatusBadRequest},
		{"garbage", u.Tunnel(t.Context(), rpc.KindLogs, []byte{0xc1}, nil), http.StatusBadRequest},
		{"unknown pod", logsError(fmt.Errorf("%w: uid 1", worker.ErrUnknownPod)), http.StatusNotFound},
		{"no logs", logsError(fmt.Errorf("%w: it waits to start", worker.ErrNoLogs)), http.StatusBadRequest},
		{"a bug", logsError(errors.New("a bug")), http.StatusInternalServerError},
	} {
		var refused *rpc.TunnelError
		if !errors.As(tt.err, &refused) || refused.Code != tt.code {
			t.Errorf("%s: %v, want code %d", tt.name, tt.err, tt.code)
		}
	}
}

// References may be optional: what is not there is told from what could not be
// asked for.
func TestFetchError(t *testing.T) {
	if err := fetchError(fmt.Errorf("fetching: %w", rpc.ErrNotFound), "configmaps", "c"); !apierrors.IsNotFound(err) {
		t.Errorf("got %v, want not found", err)
	}
	for _, cause := range []error{rpc.ErrForbidden, rpc.ErrStopping, context.DeadlineExceeded} {
		if err := fetchError(cause, "configmaps", "c"); apierrors.IsNotFound(err) || !errors.Is(err, cause) {
			t.Errorf("%v became %v", cause, err)
		}
	}
}
