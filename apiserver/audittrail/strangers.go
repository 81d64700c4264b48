package audittrail

import (
	"maps"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
)

// What is kept of requests by whom nobody knows: so many accounts a second, with URIs of so many bytes. Whoever reaches the port
// writes as many as he likes, and what he writes takes the place of what others did.
const (
	strangersPerSecond = 100
	maxStrangeURI      = 1 << 10
)

// LeftOut is the annotation of the last account of a second in which there were too many: how many requests of nobody known were left out.
const LeftOut = "audit.berth.dev/left-out"

// strangers bounds the accounts of requests by nobody who is known, and tells how many more there were.
type strangers struct {
	audit.Backend
	share  *rate.Limiter
	logger hclog.Logger

	telling sync.Mutex // held while the last one is told
	mu      sync.Mutex
	last    *auditinternal.Event // of those that were left out since it was told last; nil: none was
	left    int                  // how many were, but for the last
	tell    *time.Timer
}

func newStrangers(next audit.Backend, logger hclog.Logger) *strangers {
	return &strangers{Backend: next, share: rate.NewLimiter(strangersPerSecond, strangersPerSecond), logger: logger}
}

// isStrange: nobody known has asked.
func isStrange(e *auditinternal.Event) bool {
	if e.User.Username == user.Anonymous {
		return true
	}
	return e.User.Username == "" && e.ResponseStatus != nil && e.ResponseStatus.Code == http.StatusUnauthorized
}

// ProcessEvents implements audit.Sink.
func (s *strangers) ProcessEvents(events ...*auditinternal.Event) bool {
	kept := make([]*auditinternal.Event, 0, len(events))
	for _, e := range events {
		if isStrange(e) {
			c := *e // the account is gone on with elsewhere
			c.RequestURI = cut(c.RequestURI, maxStrangeURI)
			if e = &c; !s.share.Allow() {
				s.leaveOut(e)
				continue
			}
		}
		kept = append(kept, e)
	}
	return len(kept) == 0 || s.Backend.ProcessEvents(kept...)
}

// leaveOut counts one that is not kept, unless it is the last for a second.
func (s *strangers) leaveOut(e *auditinternal.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.last != nil {
		s.left++
	}
	s.last = e
	if s.tell == nil {
		s.tell = time.AfterFunc(time.Second, s.told)
	}
}

// told keeps the last of those that were left out, and tells with it how many others there were.
func (s *strangers) told() {
	s.telling.Lock()
	defer s.telling.Unlock()
	s.mu.Lock()
	last, left := s.last, s.left
	s.last, s.left = nil, 0
	if s.tell != nil {
		s.tell.Stop()
		s.tell = nil
	}
	s.mu.Unlock()
	if last == nil {
		return
	}
	last.Annotations = maps.Clone(last.Annotations)
	if last.Annotations == nil {
		last.Annotations = map[string]string{}
	}
	last.Annotations[LeftOut] = strconv.Itoa(left)
	s.Backend.ProcessEvents(last)
	s.logger.Warn("requests of nobody known are too many for the audit trail", "left out", left, "kept a second", strangersPerSecond, "last from", last.SourceIPs)
}

// Shutdown implements audit.Backend.
func (s *strangers) Shutdown() {
	s.told()
	s.Backend.Shutdown()
}
