package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/responsewriter"
)

// Much of upstream's asks about rights beside a request's own, and takes it for a refusal when that cannot be told: whether one may give what he
// does not have, approve for a signer, act as another, or what a policy asks about. So what could not be told is noted with the request, and a
// refusal is answered with it: nobody knows whether it is one.

// untold is the first of a request's questions that could not be told.
type untold struct{ err atomic.Pointer[error] }

type untoldKey struct{}

func withUntold(ctx context.Context) context.Context {
	return context.WithValue(ctx, untoldKey{}, &untold{})
}

func untoldOf(ctx context.Context) *untold {
	u, _ := ctx.Value(untoldKey{}).(*untold)
	return u
}

// noteUntold notes with a request what could not be told of its rights.
func noteUntold(ctx context.Context, a authorizer.Attributes, why error) {
	if u := untoldOf(ctx); u != nil {
		err := cannotBeTold(a, why)
		u.err.CompareAndSwap(nil, &err)
	}
}

// cannotBeTold is what is answered where nobody knows whether somebody may do something.
func cannotBeTold(a authorizer.Attributes, why error) error {
	what := "path " + fmt.Sprintf("%q", a.GetPath())
	if a.IsResourceRequest() {
		resource := a.GetResource()
		if a.GetSubresource() != "" {
			resource += "/" + a.GetSubresource()
		}
		what = fmt.Sprintf("resource %q", resource)
	}
	name := ""
	if who := a.GetUser(); who != nil {
		name = who.GetName()
	}
	return apierrors.NewInternalError(fmt.Errorf("whether User %q may %s %s cannot be told now: %w", name, a.GetVerb(), what, why))
}

// tellUntold answers what next refuses of a request with what could not be told of it.
func tellUntold(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u := untoldOf(req.Context())
		if u == nil {
			next.ServeHTTP(w, req)
			return
		}
		next.ServeHTTP(responsewriter.WrapForHTTP1Or2(&untoldWriter{ResponseWriter: w, req: req, untold: u}), req)
	})
}

// untoldWriter is an answer that may be a refusal.
type untoldWriter struct {
	http.ResponseWriter
	req    *http.Request
	untold *untold
	told   bool // instead of what is written
}

var _ responsewriter.UserProvidedDecorator = (*untoldWriter)(nil)

// Unwrap implements responsewriter.UserProvidedDecorator.
func (w *untoldWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements http.ResponseWriter. What is invalid may be so because of a right, too.
func (w *untoldWriter) WriteHeader(code int) {
	err := w.untold.err.Load()
	if w.told || err == nil || code != http.StatusForbidden && code != http.StatusUnprocessableEntity {
		w.ResponseWriter.WriteHeader(code)
		return
	}
	w.told = true
	for _, of := range []string{"Content-Length", "Content-Encoding"} { // of what is not written
		w.Header().Del(of)
	}
	refuse(*err, w.ResponseWriter, w.req)
}

// Write implements http.ResponseWriter.
func (w *untoldWriter) Write(b []byte) (int, error) {
	if w.told {
		return len(b), nil
	}
	return w.ResponseWriter.Write(b)
}

// Flush implements http.Flusher, for writers that are no more than that: those of requests that are made inside of the process.
func (w *untoldWriter) Flush() {
	if f, ok := w.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}
