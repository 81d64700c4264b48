package connect

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// failover sends each request to the first server that can be reached, beginning
// with the one that answered last.
type failover struct {
	next    http.RoundTripper
	targets []*url.URL
	trust   trust

	// patience bounds how long servers without a leader are asked again, 0: for ever;
	// notice is told at once what they say.
	patience time.Duration
	notice   func(text string)
	*answers
}

// answers is what all clients of a command have learnt of the servers: one that
// is silent is waited for once and not by each of them.
type answers struct {
	// current is the target that answered last.
	current atomic.Int64
	// leaderless is since when they say that nobody leads; nil if somebody does.
	leaderless atomic.Pointer[time.Time]
	// insists: servers of which none can be reached are tried again until one can.
	insists bool
	// unreached: it was said that none can be.
	unreached atomic.Bool
	// lost is the reason why the last request reached no server; nil if it did.
	lost atomic.Pointer[NoServerError]
}

// hurry bounds the handshake as well as the dialling: a process that is stopped
// accepts connections, by its kernel, and says nothing.
func hurry(rt http.RoundTripper) {
	if t := transportOf(rt); t != nil {
		t.TLSHandshakeTimeout = dialTimeout
	}
}

// transportOf is what makes the connections; nil if that is something else.
func transportOf(rt http.RoundTripper) *http.Transport {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			return t
		case interface{ WrappedRoundTripper() http.RoundTripper }:
			rt = t.WrappedRoundTripper()
		default:
			return nil
		}
	}
}

// retryAfter is how long the answer "no server" stands. Discovery asks again and
// again, and would wait for every address each time.
const retryAfter = 2 * time.Second

func (f *failover) RoundTrip(req *http.Request) (*http.Response, error) {
	if lost := f.lost.Load(); lost != nil && !f.insists && time.Since(lost.at) < retryAfter {
		if req.Body != nil {
			_ = req.Body.Close() // nothing was read of it
		}
		return nil, lost
	}
	began, body := time.Now(), newReplayBody(req)
	first := int(f.current.Load())
	var attempts []Attempt
	for i := 0; ; i++ {
		if i > 0 && i%len(f.targets) == 0 {
			if !f.insists || !f.waitForAny(req.Context(), attempts) {
				break
			}
			attempts = nil
		}
		n := (first + i) % len(f.targets)
		target := f.targets[n]
		resp, sent, err := f.try(req, body, target)
		if err == nil {
			body.settle()
			f.current.Store(int64(n))
			f.lost.Store(nil)
			f.unreached.Store(false)
			return f.mind(resp, req.URL.Path, began), nil
		}
		if req.Context().Err() != nil && (!sent || onlyReads(req)) {
			body.settle()
			return nil, err
		}
		if sent && !onlyReads(req) {
			body.settle()
			if isConnectionError(err) || isGivenUp(req.Context()) {
				return nil, &UnknownOutcomeError{Server: target.String(), Err: err}
			}
			return nil, err
		}
		if !isConnectionError(err) && !isTLSError(err) {
			body.settle()
			return nil, err
		}
		attempts = append(attempts, Attempt{Server: target.String(), Err: err})
		if !body.rewind() {
			break
		}
	}
	body.settle()
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	lost := &NoServerError{Attempts: attempts, trust: f.trust, at: time.Now()}
	f.lost.Store(lost)
	return nil, lost
}

// anyAfter is how long it is until servers of which none could be reached are tried again.
const anyAfter = time.Second

// waitForAny waits until the servers may be tried again, and says so at once. Where one was reached, and does not trust or is not trusted,
// waiting helps nobody.
func (f *failover) waitForAny(ctx context.Context, attempts []Attempt) bool {
	if slices.ContainsFunc(attempts, func(a Attempt) bool { return isTLSError(a.Err) }) {
		return false
	}
	if !f.unreached.Swap(true) && f.notice != nil {
		f.notice((&NoServerError{Attempts: attempts, trust: f.trust}).Error())
	}
	select {
	case <-ctx.Done():
		return false
	case <-time.After(anyAfter):
		return true
	}
}

// mind looks for the answer that nobody leads. client-go would ask again in
// silence for minutes: here that is said at once, and ends when patience does.
// And it looks for a discovery that is refused, of which client-go would say
// "unknown": what the server says becomes plain text, which it shows.
func (f *failover) mind(resp *http.Response, path string, began time.Time) *http.Response {
	if resp.StatusCode == http.StatusForbidden && isDiscovery(path) {
		text := statusText(resp)
		_ = resp.Body.Close() // all that matters of it was read
		resp.Header.Set("Content-Type", "text/plain")
		resp.ContentLength, resp.Body = int64(len(text)), io.NopCloser(strings.NewReader(text))
	}
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") == "" {
		f.leaderless.Store(nil)
		return resp
	}
	since := f.leaderless.Load()
	if since == nil {
		since = &began
		f.leaderless.Store(since)
		if f.notice != nil {
			f.notice(statusText(resp))
		}
	}
	if f.patience > 0 && time.Since(*since) >= f.patience {
		resp.Header.Del("Retry-After") // the last answer
	}
	return resp
}

// maxNotice bounds what is read of an answer to be told.
const maxNotice = 4096

// isDiscovery: the path is one at which a server says what it serves.
func isDiscovery(path string) bool {
	return path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") && strings.Count(path, "/") == 2 ||
		strings.HasPrefix(path, "/apis/") && strings.Count(path, "/") <= 3
}

// statusText is what a server says of why it can not or will not; the answer can be
// read again.
func statusText(resp *http.Response) string {
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxNotice))
	resp.Body = &reread{Reader: io.MultiReader(bytes.NewReader(body), resp.Body), Closer: resp.Body}
	if err != nil {
		return resp.Status
	}
	// Some of kubectl's verbs ask for protobuf.
	if obj, err := runtime.Decode(scheme.Codecs.UniversalDeserializer(), body); err == nil {
		if status, ok := obj.(*metav1.Status); ok && status.Message != "" {
			return status.Message
		}
	}
	return resp.Status
}

// reread is a body of which the beginning was read before.
type reread struct {
	io.Reader
	io.Closer
}

// WrappedRoundTripper lets client-go find the transport below.
func (f *failover) WrappedRoundTripper() http.RoundTripper { return f.next }

// try sends the request to one server; sent tells whether the server may have
// got it.
func (f *failover) try(req *http.Request, body *replayBody, target *url.URL) (resp *http.Response, sent bool, err error) {
	var asked, connected, accepted, written atomic.Bool
	trace := &httptrace.ClientTrace{
		GetConn: func(string) { asked.Store(true) },
		GotConn: func(info httptrace.GotConnInfo) {
			connected.Store(true)
			accepted.Store(info.Reused) // others were answered on it
		},
		WroteHeaders: func() { written.Store(true) },
	}
	out := req.Clone(httptrace.WithClientTrace(req.Context(), trace))
	out.URL.Scheme, out.URL.Host, out.Host = target.Scheme, target.Host, ""
	body.attach(out)
	resp, err = f.next.RoundTrip(out)
	if err == nil {
		if err = wrongDoor(resp, target, req.URL.Path); err != nil {
			return nil, false, err
		}
	}
	if refusal(err) != nil {
		return nil, false, err
	}
	// A transport that does not report its connections (an upgrade to a stream)
	// has sent nothing only if the error is one of dialling.
	sent = connected.Load() || (!asked.Load() && !isDialError(err))
	if err != nil && connected.Load() && !written.Load() {
		sent, err = false, &unwrittenError{err}
	}
	if err != nil && connected.Load() && !accepted.Load() && f.trust.certFile != "" && isConnectionError(err) {
		if refused := f.refused(req.Context(), target); refused != nil {
			return nil, false, refused
		}
	}
	return resp, sent, err
}

func onlyReads(req *http.Request) bool {
	return req.Method == http.MethodGet || req.Method == http.MethodHead || req.Method == http.MethodOptions
}

func isDialError(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}

// isGivenUp: nobody waits for the answer any longer. A client's timeout ends a request a moment before its context.
func isGivenUp(ctx context.Context) bool {
	until, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(until)
}

// unwrittenError is that of a connection that ended before the head of a request was written.
type unwrittenError struct{ error }

// Unwrap gives how it ended.
func (e *unwrittenError) Unwrap() error { return e.error }

// isConnectionError: the network failed, not what was said over it.
func isConnectionError(err error) bool {
	var ne net.Error
	var unwritten *unwrittenError
	return errors.As(err, &unwritten) || errors.As(err, &ne) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, http.ErrServerClosed) || errors.Is(err, context.DeadlineExceeded)
}

// replayBody keeps a request's body usable until it is certain that the request
// is not sent a second time. A transport closes the body even when it could not
// connect.
type replayBody struct {
	req *http.Request

	mu      sync.Mutex
	read    bool
	closed  bool
	settled bool
}

func newReplayBody(req *http.Request) *replayBody { return &replayBody{req: req} }

func (b *replayBody) stream() bool {
	return b.req.Body != nil && b.req.Body != http.NoBody && b.req.GetBody == nil
}

// attach gives out a body for one attempt.
func (b *replayBody) attach(out *http.Request) {
	switch {
	case b.req.Body == nil || b.req.Body == http.NoBody:
	case b.req.GetBody != nil:
		if again, err := b.req.GetBody(); err == nil {
			out.Body = again
		}
	default:
		out.Body = b
	}
}

// rewind tells whether another attempt can have the whole body.
func (b *replayBody) rewind() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = false
	return !b.stream() || !b.read
}

// settle ends the possibility of another attempt: closing is passed on from now.
func (b *replayBody) settle() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.settled = true
	if b.req.Body != nil && (b.closed || b.req.GetBody != nil) {
		_ = b.req.Body.Close() // the transport that read it has its error
	}
}

// Read implements io.Reader for a body that can be read only once.
func (b *replayBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	b.read = true
	b.mu.Unlock()
	return b.req.Body.Read(p)
}

// Close implements io.Closer.
func (b *replayBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if b.settled {
		return b.req.Body.Close()
	}
	return nil
}
