package audittrail

import (
	"io"
	"sync/atomic"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
)

// file is a log that is begun anew when it is long.
func (t *Trail) file(c Log) io.Writer {
	return &lines{trail: t, next: &lumberjack.Logger{
		Filename: c.Path, MaxSize: c.MaxMebibytes, MaxBackups: c.MaxFiles, MaxAge: c.MaxAgeDays, Compress: c.Compress,
	}}
}

// lines are written or counted: that a disk is full is not the fault of who asks something of the API.
type lines struct {
	trail *Trail
	next  io.Writer
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	if _, err := l.next.Write(p); err != nil {
		l.trail.lose(1, "the log cannot be written", err)
	}
	return len(p), nil
}

// waiting lets accounts wait, in order and within bounds, until next has taken them.
func (t *Trail) waiting(next audit.Backend, c buffered.BatchConfig) audit.Backend {
	q := &queue{trail: t}
	c.BufferSize = maxWaitingEvents // no more come through the queue, so it never overflows
	q.Backend = buffered.NewBackend(&taken{next, q}, c)
	return q
}

// queue counts what waits.
type queue struct {
	audit.Backend
	trail         *Trail
	events, bytes atomic.Int64
}

// ProcessEvents implements audit.Sink.
func (q *queue) ProcessEvents(events ...*auditinternal.Event) bool {
	for _, e := range events {
		n, size := q.events.Add(1), q.bytes.Add(sizeOf(e))
		if n > maxWaitingEvents || size > maxWaitingBytes {
			q.took(e)
			q.trail.lose(1, "too many wait to be taken", nil)
			continue
		}
		q.Backend.ProcessEvents(e)
	}
	return true
}

func (q *queue) took(e *auditinternal.Event) {
	q.events.Add(-1)
	q.bytes.Add(-sizeOf(e))
}

// taken counts what waits no more.
type taken struct {
	audit.Backend
	queue *queue
}

// ProcessEvents implements audit.Sink.
func (t *taken) ProcessEvents(events ...*auditinternal.Event) bool {
	defer func() {
		for _, e := range events {
			t.queue.took(e)
		}
	}()
	return t.Backend.ProcessEvents(events...)
}

// sizeOf is about what an account holds: what is not counted here is bounded by shorten.
func sizeOf(e *auditinternal.Event) int64 {
	n := int64(2<<10) + int64(len(e.RequestURI)) + int64(len(e.UserAgent))
	if e.RequestObject != nil {
		n += int64(len(e.RequestObject.Raw))
	}
	if e.ResponseObject != nil {
		n += int64(len(e.ResponseObject.Raw))
	}
	return n
}

// Bounds of what a client writes into an account beside bodies.
const (
	maxText, maxURI = 1 << 10, 8 << 10
	maxEntries      = 64
)

// shorten cuts what clients write into accounts beside bodies: nobody makes his own so long that
// there is no room for it.
type shorten struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (s shorten) ProcessEvents(events ...*auditinternal.Event) bool {
	short := make([]*auditinternal.Event, len(events))
	for i, e := range events {
		c := *e // the account is gone on with elsewhere
		c.RequestURI, c.UserAgent = cut(c.RequestURI, maxURI), cut(c.UserAgent, maxText)
		c.AuditID = types.UID(cut(string(c.AuditID), maxText)) // a client may name it
		c.SourceIPs = first(c.SourceIPs)
		c.User.Username, c.User.Groups = cut(c.User.Username, maxText), texts(c.User.Groups)
		if len(c.User.Extra) > maxEntries {
			c.User.Extra = nil
		}
		if u := c.ImpersonatedUser; u != nil {
			other := *u
			other.Username, other.UID, other.Groups = cut(u.Username, maxText), cut(u.UID, maxText), texts(u.Groups)
			other.Extra = nil
			c.ImpersonatedUser = &other
		}
		if o := c.ObjectRef; o != nil {
			other := *o
			other.Name, other.Namespace, other.Resource = cut(o.Name, maxText), cut(o.Namespace, maxText), cut(o.Resource, maxText)
			other.Subresource, other.APIGroup, other.APIVersion = cut(o.Subresource, maxText), cut(o.APIGroup, maxText), cut(o.APIVersion, maxText)
			c.ObjectRef = &other
		}
		if r := c.ResponseStatus; r != nil {
			other := *r
			other.Message, other.Details = cut(r.Message, maxText), nil
			c.ResponseStatus = &other
		}
		short[i] = &c
	}
	return s.Backend.ProcessEvents(short...)
}

func cut(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

func first(all []string) []string { return all[:min(len(all), maxEntries)] }

func texts(all []string) []string {
	var out []string
	for _, s := range first(all) {
		out = append(out, cut(s, maxText))
	}
	return out
}
