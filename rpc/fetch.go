package rpc

import (
	"context"
	"errors"
	"fmt"
)

// FetchRequest asks for an object that a pod of the node refers to: a config
// map or a secret.
type FetchRequest struct {
	Node      string `msgpack:"node"`
	Resource  string `msgpack:"resource"`
	Namespace string `msgpack:"namespace"`
	Name      string `msgpack:"name"`
}

// FetchResponse carries the object's protobuf bytes.
type FetchResponse struct {
	Object []byte `msgpack:"object"`
}

// fetch answers a worker that speaks for its own node.
func (s *Server) fetch(ctx context.Context, r *FetchRequest) (*FetchResponse, error) {
	if err := mayBeNode(ctx, r.Node); err != nil {
		return nil, err
	}
	return s.config.Workers.WorkerFetch(ctx, r)
}

// errNotConnected: there is no stream to fetch beside.
var errNotConnected = errors.New("the worker is not connected to a server")

// Fetch reads an object from the server that the worker is connected to. The
// error is ErrNotFound if there is none, ErrForbidden if no pod of the node
// refers to it.
func (c *WorkerClient) Fetch(ctx context.Context, resource, namespace, name string) ([]byte, error) {
	cc := c.current.Load()
	if cc == nil {
		return nil, errNotConnected
	}
	resp := new(FetchResponse)
	r := &FetchRequest{Node: c.config.Node, Resource: resource, Namespace: namespace, Name: name}
	if err := cc.Invoke(ctx, methodFetch, r, resp); err != nil {
		err, _ = fromStatus(err)
		return nil, fmt.Errorf("fetching %s %s/%s: %w", resource, namespace, name, err)
	}
	return resp.Object, nil
}

// maxPendingEvents bounds the events that wait; the oldest are dropped.
const maxPendingEvents = 256

// ReportEvent queues an event (corev1.Event, protobuf). Events are told at most
// once: one that the connection loses is lost.
func (c *WorkerClient) ReportEvent(event []byte) { c.reports.putEvent(event) }

func (r *reports) putEvent(event []byte) {
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
