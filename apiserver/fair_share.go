package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// What one client, and all of them, may have under way at a time. What is beyond
// is refused before its body is read, so that a refusal costs less than the
// request, and the client comes again.
const (
	maxClientRequests = 512
	maxClientStreams  = 2048 // watches, logs and streams into pods
	maxClientBytes    = 64 << 20
	maxBytes          = 512 << 20
)

// fairShare keeps one client from taking what all need. A client is a user: who
// opens more connections gets no more.
type fairShare struct {
	next        http.Handler
	longRunning request.LongRunningRequestCheck
	bodyBytes   int64 // what a body of unknown length may have

	turns      *turns
	deliveries *deliveries

	mu      sync.Mutex
	clients map[string]*underway
	bytes   int64
	answers int64
}

// underway is what a client has asked and not been answered.
type underway struct {
	requests, streams int
	bytes             int64 // of requests, and of what their selectors hold
	answers           int64 // bytes that answers hold
}

// ServeHTTP implements http.Handler.
func (f *fairShare) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := ""
	if who, ok := request.UserFrom(req.Context()); ok {
		name = who.GetName()
	}
	info, ok := request.RequestInfoFrom(req.Context())
	one := underway{requests: 1}
	if ok && f.longRunning(req, info) {
		one = underway{streams: 1}
	} else if req.Body != nil && req.Body != http.NoBody {
		if one.bytes = req.ContentLength; one.bytes < 0 || one.bytes > f.bodyBytes {
			one.bytes = f.bodyBytes // no more of it is read
		}
		if one.bytes >= freeShapeBytes {
			one.bytes *= 2 // it is held by who looks at it (bodies), and by who makes an object of it
		}
	}
	writes := one.bytes > 0
	if ok {
		one.bytes += selectorHolds(info)
	}
	if why := f.begin(name, one); why != "" {
		metrics.RecordDroppedRequest(req, info, metrics.APIServerComponent, writes)
		err := apierrors.NewTooManyRequests(why, retryAfterSeconds)
		refuse(err, w, req)
		return
	}
	defer f.end(name, one)
	a := &answer{form: formOf(req), share: f, client: name, turn: f.turns.newTurn(req, info)}
	defer func() { f.letGo(name, a.held) }()
	if a.turn != nil && one.requests > 0 {
		defer a.turn.pause()
		w = turnWriter{w, req.Context(), a.turn}
	}
	ctx := context.WithValue(req.Context(), answerKey{}, a)
	if ok && info.Verb == "watch" && one.streams > 0 && f.deliveries != nil {
		var end func()
		ctx, w, end = f.deliveries.begin(ctx, w, name)
		defer end()
	}
	f.next.ServeHTTP(w, req.WithContext(ctx))
}

// begin takes a request into account, or says why not.
func (f *fairShare) begin(name string, one underway) (why string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clients[name]
	if c == nil {
		c = &underway{}
	}
	switch {
	case c.requests+one.requests > maxClientRequests:
		return fmt.Sprintf("user %q has %d requests under way, and may have no more", name, c.requests)
	case c.streams+one.streams > maxClientStreams:
		return fmt.Sprintf("user %q has %d watches, logs and streams open, and may have no more", name, c.streams)
	case c.bytes+one.bytes > maxClientBytes:
		return fmt.Sprintf("user %q has requests of %d bytes under way, and may have %d", name, c.bytes, maxClientBytes)
	case f.bytes+one.bytes > maxBytes:
		return fmt.Sprintf("requests of %d bytes are under way, and there may be %d", f.bytes, maxBytes)
	}
	c.requests, c.streams, c.bytes = c.requests+one.requests, c.streams+one.streams, c.bytes+one.bytes
	f.bytes += one.bytes
	f.clients[name] = c
	return ""
}

func (f *fairShare) end(name string, one underway) {
	f.mu.Lock()
	defer f.mu.Unlock()
	c := f.clients[name]
	c.requests, c.streams, c.bytes = c.requests-one.requests, c.streams-one.streams, c.bytes-one.bytes
	f.bytes -= one.bytes
	if *c == (underway{}) {
		delete(f.clients, name)
	}
}
