package server

import (
	"net/http"
	"sync"

	"golang.org/x/time/rate"
)

const (
	// rewritesAtOnce is how often a controller may change one object before it has to wait, and rewritesPerSecond how often from then on. None
	// that works as it should comes near; but two that undo what the other does, or one that undoes its own, would go on as fast as they are
	// answered, at the cost of all servers. kube-controller-manager bounds what it asks for altogether, by 20 requests a second.
	rewritesAtOnce    = 100
	rewritesPerSecond = 10
	// pacedAtOnce is of how many objects it is known how often they have been changed before those are forgotten that rest.
	pacedAtOnce = 4096
)

// pacedRequests are requests of a controller that wait while they change one object too often. Those that make and delete objects, and that
// read, do not.
type pacedRequests struct {
	next http.RoundTripper

	mu    sync.Mutex
	paces map[string]*rate.Limiter // by path
	tidy  int                      // with how many of them those are forgotten that rest
}

// RoundTrip implements http.RoundTripper.
func (p *pacedRequests) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodPut || r.Method == http.MethodPatch {
		if err := p.of(r.URL.Path).Wait(r.Context()); err != nil {
			return nil, err
		}
	}
	return p.next.RoundTrip(r)
}

// of is the pace of an object.
func (p *pacedRequests) of(path string) *rate.Limiter {
	p.mu.Lock()
	defer p.mu.Unlock()
	if l := p.paces[path]; l != nil {
		return l
	}
	if p.paces == nil {
		p.paces, p.tidy = map[string]*rate.Limiter{}, pacedAtOnce
	}
	if len(p.paces) >= p.tidy {
		for path, l := range p.paces {
			if l.Tokens() >= rewritesAtOnce { // it is as if it had never been changed
				delete(p.paces, path)
			}
		}
		p.tidy = max(pacedAtOnce, 2*len(p.paces))
	}
	l := rate.NewLimiter(rewritesPerSecond, rewritesAtOnce)
	p.paces[path] = l
	return l
}
