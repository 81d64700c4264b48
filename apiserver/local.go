package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// localUser is the key of a request's context that says who makes it: a part of this
// process, which nobody else can claim to be.
type localUser struct{}

// byProcess believes the context of a request that was made in this process.
func byProcess(r *http.Request) (*authenticator.Response, bool, error) {
	who, ok := r.Context().Value(localUser{}).(user.Info)
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: who}, true, nil
}

// Local is how a part of this process is a client of the API: by the same handlers that
// answer everybody, without a connection. Requests are answered once the API is served.
func (s *Server) Local(name string, groups ...string) http.RoundTripper {
	return &local{s, &user.DefaultInfo{Name: name, Groups: groups}}
}

type local struct {
	server *Server
	who    user.Info
}

// RoundTrip implements http.RoundTripper.
func (l *local) RoundTrip(r *http.Request) (answer *http.Response, err error) {
	ctx := r.Context()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-l.server.prepared:
	}
	in := r.Clone(context.WithValue(ctx, localUser{}, l.who))
	in.RequestURI, in.RemoteAddr = r.URL.RequestURI(), l.server.Addr().String()
	if in.Body == nil {
		in.Body = http.NoBody
	}
	defer func() { _ = in.Body.Close() }() // as every transport does
	defer func() {
		if p := recover(); p != nil { // how handlers break a connection off
			answer, err = nil, fmt.Errorf("%s %s was broken off: %v", r.Method, r.URL.Path, p)
		}
	}()
	w := &localAnswer{header: http.Header{}, most: math.MaxInt}
	if _, others := l.server.others.serves(r.URL.Path); others {
		w.most = maxLocalAnswer
	}
	l.server.generic.Handler.ServeHTTP(w, in)
	if w.long {
		return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, errLongDocument)
	}
	return w.response(r), nil
}

// localAnswer keeps what a handler answers.
type localAnswer struct {
	header http.Header
	code   int
	body   bytes.Buffer
	most   int  // bytes of it
	long   bool // it was longer
}

// maxLocalAnswer is how much somebody else may answer to a part of this process, such as the metrics of an autoscaler's pods.
const maxLocalAnswer = 16 << 20

var _ http.Flusher = (*localAnswer)(nil)

// Header implements http.ResponseWriter.
func (w *localAnswer) Header() http.Header { return w.header }

// WriteHeader implements http.ResponseWriter.
func (w *localAnswer) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

// Write implements http.ResponseWriter.
func (w *localAnswer) Write(b []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	if len(b) > w.most-w.body.Len() {
		w.long = true
		return 0, errLongDocument
	}
	return w.body.Write(b)
}

// Flush implements http.Flusher: the answer is read when it is whole.
func (w *localAnswer) Flush() {}

// CloseNotify implements http.CloseNotifier, without which upstream takes it for one that has no Flush, and breaks off what comes in pieces.
func (w *localAnswer) CloseNotify() <-chan bool { return nil }

func (w *localAnswer) response(r *http.Request) *http.Response {
	w.WriteHeader(http.StatusOK)
	return &http.Response{
		Status: http.StatusText(w.code), StatusCode: w.code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: w.header, Body: io.NopCloser(&w.body), ContentLength: int64(w.body.Len()), Request: r,
	}
}
