// Package replies bounds what is read of the answers of others: of webhooks, of issuers, of whoever is asked over
// HTTP and is not a part of Berth.
//
// It must never keep an answer, nor let one through without an end.
package replies

import (
	"errors"
	"fmt"
	"io"
	"net/http"
)

// ErrTooLong is what reading an answer ends with that is longer than it may be.
var ErrTooLong = errors.New("the answer is too long")

// AtMost wraps a transport so that each answer has n bytes at most.
func AtMost(n int64) func(http.RoundTripper) http.RoundTripper { return AtMostFor(n, 0) }

// AtMostFor is AtMost for answers that are the longer the more was asked: n bytes, and each of the request's as many
// times.
func AtMostFor(n, times int64) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &transport{next, n, times} }
}

type transport struct {
	next     http.RoundTripper
	n, times int64
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		most := t.n + t.times*max(r.ContentLength, 0)
		answer.Body = &body{answer.Body, most, most}
	}
	return answer, err
}

type body struct {
	io.ReadCloser
	left, most int64
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	if int64(len(p)) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		b.left = -1 // so that it stays an error
		return 0, fmt.Errorf("%w: it has more than %d bytes", ErrTooLong, b.most)
	}
	return n, err
}
