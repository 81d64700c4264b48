package rpc

import (
	"context"
	"errors"
	"fmt"
)

// FetchRequest asks for an object that a pod of the node refers to: a config
// map or a secret. A volume with no name is the list of those of which nothing is
// to be left on the node, whose name is the namespace.
type FetchRequest struct {
	Node      string `msgpack:"node"`
	Resource  string `msgpack:"resource"`
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
	// Follow: the worker is to be told, once, when the object is another one than
	// the answer says, also when there is none now.
	Follow bool `msgpack:"follow,omitempty"`
	// Have is the revision of the object that the worker has already.
	Have int64 `msgpack:"have,omitempty"`
	// Carried: this node carries what is sent to services' addresses.
	Carried bool `msgpack:"carried,omitempty"`
	// Gone says of a volume that is being deleted that nothing of it is on the worker's
	// node any more; nothing is fetched.
	Gone bool `msgpack:"gone,omitempty"`
}

// FetchResponse carries the object's protobuf bytes.
type FetchResponse struct {
	Object []byte `msgpack:"object"`
	// Revision is the object's own; Unchanged: it is the one that the worker has.
	Revision  int64 `msgpack:"revision,omitempty"`
	Unchanged bool  `msgpack:"unchanged,omitempty"`
	// Followed: the server will tell of a change.
	Followed bool `msgpack:"followed,omitempty"`
}

// TokenRequest asks for a token of a pod's service account that is bound to the
// pod. It never goes through the log.
type TokenRequest struct {
	Node      string `msgpack:"node"`
	Namespace string `msgpack:"namespace"`
	Pod       string `msgpack:"pod"`
	PodUID    string `msgpack:"pod_uid"`
	// Audience and ExpirationSeconds are those of a volume of the pod's spec.
	Audience          string `msgpack:"audience,omitempty"`
	ExpirationSeconds int64  `msgpack:"expiration_seconds"`
}

// TokenResponse carries it. LifeSeconds is how long it is good from now on, so
// that the worker's clock does not have to be the server's.
type TokenResponse struct {
	Token       string `msgpack:"token"`
	LifeSeconds int64  `msgpack:"life_seconds"`
}

// MirrorRequest asks for the object in the API that shows a pod which a worker has of its
// own, or for its end.
type MirrorRequest struct {
	Node string `msgpack:"node"`
	// Pod is to be made (corev1.Pod, protobuf). Without it, what the rest names is to go.
	Pod       []byte `msgpack:"pod,omitempty"`
	Namespace string `msgpack:"namespace,omitempty"`
	Name      string `msgpack:"name,omitempty"`
	UID       string `msgpack:"uid,omitempty"`
}

// MirrorResponse says that it is so.
type MirrorResponse struct{}

// fetch answers a worker that speaks for its own node.
func (s *Server) fetch(ctx context.Context, r *FetchRequest) (*FetchResponse, error) {
	if err := mayBeNode(ctx, r.Node); err != nil {
		return nil, err
	}
	return s.config.Workers.WorkerFetch(ctx, r)
}

// errNotConnected: there is no stream to fetch beside.
var errNotConnected = errors.New("the worker is not connected to a server")

// token answers a worker that speaks for its own node.
func (s *Server) token(ctx context.Context, r *TokenRequest) (*TokenResponse, error) {
	if err := mayBeNode(ctx, r.Node); err != nil {
		return nil, err
	}
	return s.config.Workers.WorkerToken(ctx, r)
}

// mirror answers a worker that speaks for its own node.
func (s *Server) mirror(ctx context.Context, r *MirrorRequest) (*MirrorResponse, error) {
	if err := mayBeNode(ctx, r.Node); err != nil {
		return nil, err
	}
	return s.config.Workers.WorkerMirror(ctx, r)
}

// Fetch reads an object from the server that the worker is connected to. The
// error is ErrNotFound if there is none, ErrForbidden if no pod of the node
// refers to it.
func (c *WorkerClient) Fetch(ctx context.Context, r FetchRequest) (*FetchResponse, error) {
	resp := new(FetchResponse)
	r.Node = c.config.Node
	if err := c.ask(ctx, methodFetch, &r, resp); err != nil {
		return nil, fmt.Errorf("fetching %s %s/%s: %w", r.Resource, r.Namespace, r.Name, err)
	}
	return resp, nil
}

// Token asks the server that the worker is connected to for a pod's token. The
// error is ErrForbidden if the pod is not the node's, or has no such volume.
func (c *WorkerClient) Token(ctx context.Context, r TokenRequest) (*TokenResponse, error) {
	resp := new(TokenResponse)
	r.Node = c.config.Node
	if err := c.ask(ctx, methodToken, &r, resp); err != nil {
		return nil, fmt.Errorf("asking for a token of pod %s/%s: %w", r.Namespace, r.Pod, err)
	}
	return resp, nil
}

// Mirror has the object made, or removed, that shows a pod of the worker's own.
func (c *WorkerClient) Mirror(ctx context.Context, r MirrorRequest) error {
	r.Node = c.config.Node
	return c.ask(ctx, methodMirror, &r, new(MirrorResponse))
}

// Told says whether a server has committed all that was reported of pods and node.
func (c *WorkerClient) Told() bool {
	c.reports.mu.Lock()
	defer c.reports.mu.Unlock()
	return len(c.reports.pods) == 0 && c.reports.nodeSeq == 0
}

func (c *WorkerClient) ask(ctx context.Context, method string, req, resp any) error {
	cc := c.current.Load()
	if cc == nil {
		return errNotConnected
	}
	err := cc.Invoke(ctx, method, req, resp)
	if err != nil {
		err, _ = fromStatus(err)
	}
	return err
}

// maxPendingEvents bounds the events that wait; the oldest are dropped.
const maxPendingEvents = 256

// ReportEvent queues an event (corev1.Event, protobuf). Events are told at most
// once: one that the connection loses is lost.
func (c *WorkerClient) ReportEvent(event []byte) { c.reports.putEvent(event) }

func (r *reports) putEvent(event []byte) {
	if len(event) > batchBytes {
		return // no server takes it, and a message has no room for it
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.events) >= maxPendingEvents {
		r.events = r.events[1:]
	}
	r.events = append(r.events, event)
	r.signal()
}

// takeEvents takes what fits into a batch.
func (r *reports) takeEvents(b *StatusBatch, size int) {
	n := 0
	for n < len(r.events) && (n == 0 && size == 0 || size+len(r.events[n]) <= batchBytes) {
		size += len(r.events[n])
		n++
	}
	b.Events, r.events = r.events[:n:n], r.events[n:]
}
