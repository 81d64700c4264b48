package apiserver

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/berth-dev/berth/access"
)

// Who writes events without end is told to wait, and nobody else.
func TestEventsOfOneUser(t *testing.T) {
	s := start(t, newDouble(t), nil)
	rule := rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}}
	for _, name := range []string{"ann", "joe"} {
		grantTo(t, s.client(t), name, rule)
	}
	event := func(i int) *corev1.Event {
		return &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("e%d", i)}, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
			Reason: "R", Type: "Normal", ReportingController: "c", ReportingInstance: "i", Action: "A"}
	}
	share := s.admission.events
	for range eventsAtOnce {
		share.take(`user "ann"`)
	}
	stopped := time.Now()
	share.now = func() time.Time { return stopped }
	for share.take(`user "ann"`) {
		continue
	}
	err := s.clientOf(t, "ann").CoreV1().RESTClient().Post().Namespace("default").Resource("events").Body(event(1)).MaxRetries(0).Do(t.Context()).Error()
	wantStatus(t, err, 429, `user "ann" has written 1000 events, and may write 50 more a second`)
	if seconds, ok := apierrors.SuggestsClientDelay(err); !ok || seconds < 1 {
		t.Errorf("it is told to come back after %d s", seconds)
	}
	if _, err := s.clientOf(t, "joe").CoreV1().Events("default").Create(t.Context(), event(2), metav1.CreateOptions{}); err != nil {
		t.Errorf("another user: %v", err)
	}
	if _, err := s.clientOf(t, "ann", access.Masters).CoreV1().Events("default").Create(t.Context(), event(3), metav1.CreateOptions{}); err != nil {
		t.Errorf("an administrator: %v", err)
	}
}

// Shares fill again, and what is known of them is bounded.
func TestSharesOfEvents(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	e := newEventShare(func() time.Time { return now })
	taken := func(who string) (n int) {
		for e.take(who) {
			n++
		}
		return n
	}
	if n := taken("a"); n != eventsAtOnce {
		t.Errorf("%d at once", n)
	}
	now = now.Add(2 * time.Second)
	if n := taken("a"); n != 2*eventsPerSecond {
		t.Errorf("%d after two seconds", n)
	}
	for i := range 2 * maxEventShares {
		e.take(fmt.Sprint(i))
	}
	if len(e.users) > maxEventShares {
		t.Errorf("%d are known", len(e.users))
	}
	if taken("a") > 0 {
		t.Error("who has nothing left is forgotten before others")
	}
	now = now.Add(time.Hour)
	e.take("one more")
	if len(e.users) > 1 {
		t.Errorf("%d are known who have all they may have", len(e.users))
	}
}

// Whoever may make service accounts has no more shares by that.
func TestWhoseEventsShare(t *testing.T) {
	for name, c := range map[string]struct {
		who  user.Info
		want string
	}{
		"a user":           {&user.DefaultInfo{Name: "ann", Groups: []string{"people"}}, `user "ann"`},
		"a node":           {&user.DefaultInfo{Name: "system:node:n1", Groups: []string{access.Nodes}}, `user "system:node:n1"`},
		"an account":       {&user.DefaultInfo{Name: "system:serviceaccount:ns:a"}, `namespace "ns", of all its service accounts,`},
		"an administrator": {&user.DefaultInfo{Name: "root", Groups: []string{access.Masters}}, ""},
		"a controller":     {&user.DefaultInfo{Name: "system:controller:x", Groups: []string{access.Controllers}}, ""},
		"nobody":           {nil, ""},
	} {
		if got := sharer(c.who); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
