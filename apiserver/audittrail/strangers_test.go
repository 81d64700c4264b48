package audittrail

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/authentication/user"
)

// kept is a backend that keeps.
type kept struct {
	mu     sync.Mutex
	events []*auditinternal.Event
}

func (k *kept) ProcessEvents(events ...*auditinternal.Event) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.events = append(k.events, events...)
	return true
}
func (k *kept) all() []*auditinternal.Event {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.events)
}

func (*kept) Run(<-chan struct{}) error { return nil }
func (*kept) Shutdown()                 {}
func (*kept) String() string            { return "kept" }

func strange(id string) *auditinternal.Event {
	e := event(id, 1)
	e.RequestURI = "/" + strings.Repeat("x", 8<<10)
	e.ResponseStatus = &metav1.Status{Code: 401}
	return e
}

// Who shows nothing that is believed writes no more than his share, and of what is left out the number is told.
func TestAccountsOfStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := &kept{}
		s := newStrangers(k, hclog.NewNullLogger())
		anonymous := strange("anonymous")
		anonymous.User.Username, anonymous.ResponseStatus.Code = user.Anonymous, 403
		anonymous.Annotations = map[string]string{"a": "b"}
		for i := range 2000 {
			s.ProcessEvents(strange(fmt.Sprint(i)))
		}
		known := event("known", 1)
		known.User.Username = "ann"
		s.ProcessEvents(known, anonymous)
		if len(k.all()) != strangersPerSecond+1 || k.all()[strangersPerSecond].AuditID != "known" {
			t.Fatalf("%d accounts are kept", len(k.all()))
		}
		for _, e := range k.all()[:strangersPerSecond] {
			if len(e.RequestURI) > maxStrangeURI+len("…") {
				t.Fatalf("a URI of %d bytes is kept", len(e.RequestURI))
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		last := k.all()[len(k.all())-1]
		if len(k.all()) != strangersPerSecond+2 || last.AuditID != "anonymous" || last.Annotations[LeftOut] != "1900" || last.Annotations["a"] != "b" {
			t.Errorf("after a second %d are kept, the last is %s with %v", len(k.all()), last.AuditID, last.Annotations)
		}
		if anonymous.Annotations[LeftOut] != "" {
			t.Error("the account of the request was changed")
		}
		s.ProcessEvents(strange("later"))
		if last := k.all()[len(k.all())-1]; last.AuditID != "later" || last.Annotations[LeftOut] != "" {
			t.Errorf("a second later %s is kept, with %v", last.AuditID, last.Annotations)
		}
		for range strangersPerSecond + 5 {
			s.ProcessEvents(strange("more"))
		}
		s.Shutdown()
		if last := k.all()[len(k.all())-1]; last.Annotations[LeftOut] == "" {
			t.Error("what is left out when the server ends is not told")
		}
	})
}

// It is so of the trail.
func TestStrangersOfTheTrail(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.log")
	trail := open(t, Config{Log: Log{Path: file, MaxMebibytes: 100}})
	const asked = 3000
	for i := range asked {
		trail.Backend().ProcessEvents(strange(fmt.Sprint(i)))
	}
	trail.End()
	lines, left := linesOf(t, file), 0
	for i := range lines {
		n := 0
		if text := lines[i].Annotations[LeftOut]; text != "" {
			if _, err := fmt.Sscan(text, &n); err != nil {
				t.Fatal(err)
			}
		}
		left += n
	}
	if len(lines) >= asked || len(lines)+left != asked {
		t.Errorf("%d are kept, %d left out, of %d", len(lines), left, asked)
	}
}
