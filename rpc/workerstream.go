package rpc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"google.golang.org/grpc"
)

// workerStream is one worker's stream at the server, after its Hello.
type workerStream struct {
	server  *Server
	session *session
	st      grpc.ServerStream
	in      *incoming
	silence time.Duration
	acked   chan Ack // capacity 1: one batch is in flight
	busy    bool     // a batch is being committed
	told    []byte   // Hello.Told, until the first resync

	services *servicesPlace // nil: the worker wants none
	topology map[string]string
	rested   <-chan time.Time // when the worker is sent services again; nil: at once
}

// serve runs the stream, and returns when it ends. A send that is held up by a
// worker that does not read ends with the stream, which the return brings about.
func (w *workerStream) serve(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() {
		ended <- w.server.config.Guard.Call("worker stream", errBroke, func() error { return w.run(ctx) })
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	timer := time.NewTimer(heldUp)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
		return context.Cause(ctx)
	}
}

// heldUp is how long a stream that is over is waited for before its send counts
// as held up.
const heldUp = 500 * time.Millisecond

// run serves the stream until it ends. A worker that reads slowly holds up only
// this goroutine, and for as long as it may be silent at most.
func (w *workerStream) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	timer := time.NewTimer(w.silence)
	defer func() {
		cancel()
		timer.Stop()
		if w.busy {
			<-w.acked // the handler must not outlive its stream
		}
	}()
	w.session.box.signal() // the first resync is due
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-timer.C:
			// A send that was held up has kept us from listening, perhaps.
			rest := w.silence - w.session.heard.silence()
			if rest <= 0 {
				return fmt.Errorf("nothing was heard of worker %s for %s", w.session.node, w.silence)
			}
			timer.Reset(rest)
		case m := <-w.in.messages:
			if err := w.receive(ctx, m); err != nil {
				return err
			}
		case a := <-w.acked:
			w.busy = false
			w.session.box.ack(a)
		case <-w.session.box.wake:
			if err := w.send(ctx); err != nil {
				return err
			}
		case <-w.rested:
			w.rested = nil
			if err := w.send(ctx); err != nil {
				return err
			}
		}
	}
}

func (w *workerStream) receive(ctx context.Context, m *WorkerMessage) error {
	switch {
	case m.Heartbeat:
		if m.Sample != nil {
			w.server.config.Workers.WorkerSample(w.session.node, m.Sample)
		}
		w.session.box.advance(w.server.Hub.revision.Load())
	case m.Status != nil:
		if w.busy {
			return errEarlyBatch
		}
		w.busy = true
		w.in.batch.Store(false)
		// Heartbeats must be heard while the commit takes its time.
		go func() {
			a := Ack{BatchID: m.Status.ID}
			err := w.server.config.Guard.Call("worker status", errBroke, func() error {
				return w.server.config.Workers.WorkerStatus(ctx, w.session.node, m.Status)
			})
			var some *NotTaken
			if errors.As(err, &some) {
				a.Failed, a.Late, a.NodeFailed = some.Pods, some.Late, some.Node
			} else if err != nil {
				a.Error = err.Error()
			}
			w.acked <- a
		}()
	default:
		return fmt.Errorf("%w: worker %s sends an unknown message", ErrInvalid, w.session.node)
	}
	return nil
}

// send empties the outbox.
func (w *workerStream) send(ctx context.Context) error {
	box := w.session.box
	for {
		if since, due := box.beginResync(); due {
			if err := w.resync(ctx, since); err != nil {
				return err
			}
		}
		m := box.next()
		// A revision that is told comes with the answer to a heartbeat, so that the next stream
		// goes on from there although nothing has changed.
		if services := w.nextServices(m != nil && m.Assignments != nil); services != nil {
			if m == nil {
				m = &ServerMessage{}
			}
			m.Services = services
		}
		if m == nil {
			return nil
		}
		if err := w.sendMsg(m); err != nil {
			return err
		}
	}
}

// nextServices is what the worker is to be sent of services now. Between two parts of
// everything it does not rest.
func (w *workerStream) nextServices(tell bool) *Services {
	if w.services == nil || w.rested != nil {
		return nil
	}
	m := w.server.Hub.services.next(w.services, w.session.box.limits.chunk, tell)
	if labels := w.server.Hub.services.source.Topology(w.session.node); !maps.Equal(labels, w.topology) && (m != nil || tell) {
		if m == nil {
			m = &Services{Revision: w.services.said}
		}
		w.topology, m.Topology = labels, labels
	}
	if m != nil && !m.More {
		w.rested = time.After(servicesPause)
	}
	return m
}

// sendMsg sends a message that the worker takes in time. One that speaks and
// does not read would otherwise count as alive, hear nothing, and hold what it
// was to be sent.
func (w *workerStream) sendMsg(m *ServerMessage) error {
	late := time.AfterFunc(w.silence, func() { w.session.cancel(ErrDeaf) })
	defer late.Stop()
	return w.st.SendMsg(m)
}

// resync sends what the state says.
func (w *workerStream) resync(ctx context.Context, since int64) error {
	a, err := w.server.config.Workers.WorkerAssignments(ctx, w.session.node, since, w.told)
	w.told = nil // it is told of more from now on
	if err != nil {
		return fmt.Errorf("reading the assignments of %s: %w", w.session.node, err)
	}
	if a.Revision < since {
		// A worker must never go back in time: it would stop pods that
		// this server has not heard of yet.
		return fmt.Errorf("this server is at revision %d, behind worker %s at %d", a.Revision, w.session.node, since)
	}
	for _, part := range split(a, since, w.session.box.limits.chunk) {
		if err := w.sendMsg(&ServerMessage{Assignments: part}); err != nil {
			return err
		}
	}
	w.session.box.endResync(a.Revision)
	return nil
}

// split cuts assignments into messages. Only the last one carries the revision.
func split(a *Assignments, since int64, chunk int) []*Assignments {
	var out []*Assignments
	pods := a.Pods
	for {
		n, size := 0, 0
		for n < len(pods) && (n == 0 || size+len(pods[n]) <= chunk) {
			size += len(pods[n])
			n++
		}
		part := &Assignments{Full: a.Full, Pods: pods[:n], More: n < len(pods), Revision: since}
		if len(out) == 0 {
			part.Node = a.Node
		}
		out = append(out, part)
		if pods = pods[n:]; len(pods) == 0 {
			part.Gone, part.Revision = a.Gone, a.Revision
			return out
		}
	}
}
