package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestWhoCannotBeAskedAbout: what lasts goes on while nobody can say whether it may, and ends when it is known that it may not.
func TestWhoCannotBeAskedAbout(t *testing.T) {
	asked, away := 0, true
	s := &standing{rights: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		if asked++; away {
			return authorizer.DecisionNoOpinion, "", errors.New("no leader answers")
		}
		return authorizer.DecisionNoOpinion, "no role allows it", nil
	})}
	var open []*lastingRequest
	for range 3 {
		l := &lastingRequest{}
		l.ctx, l.end = context.WithCancel(t.Context())
		s.open.Add("", l)
		open = append(open, l)
	}
	s.askAgain(t.Context(), concern{all: true})
	if len(s.unsure) != 3 || asked != 1 {
		t.Errorf("%d are unknown, %d asked about", len(s.unsure), asked)
	}
	open[2].end() // by itself
	s.askAgain(t.Context(), concern{})
	if len(s.unsure) != 2 || open[0].ctx.Err() != nil || open[1].ctx.Err() != nil {
		t.Errorf("%d are unknown", len(s.unsure))
	}
	away = false
	s.askAgain(t.Context(), concern{})
	if len(s.unsure) != 0 || open[0].ctx.Err() == nil || open[1].ctx.Err() == nil {
		t.Errorf("%d are unknown, and what may not go on does", len(s.unsure))
	}
}

// TestWhoCannotBeAskedAboutAtFirst: a request that nobody could say anything of when it began is asked about again, and whoever
// waits for changes is woken for it.
func TestWhoCannotBeAskedAboutAtFirst(t *testing.T) {
	for _, waiting := range []bool{false, true} {
		woken := false
		s := &standing{
			longRunning: func(*http.Request, *request.RequestInfo) bool { return true },
			rights: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return authorizer.DecisionNoOpinion, "", errors.New("no leader answers")
			}),
			credentials: &credentials{},
		}
		if waiting {
			s.wake = func() { woken = true }
		}
		s.next = http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if len(s.unsure) != 1 || s.unsure[0].ctx.Err() != nil || r.Context().Err() != nil {
				t.Errorf("%d are asked about later", len(s.unsure))
			}
		})
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?watch=true", nil)
		ctx := request.WithUser(request.WithRequestInfo(r.Context(), &request.RequestInfo{IsResourceRequest: true, Verb: "watch", Resource: "pods"}), &user.DefaultInfo{Name: "ann"})
		s.ServeHTTP(httptest.NewRecorder(), r.WithContext(ctx))
		if woken != waiting {
			t.Errorf("woken: %t, waiting: %t", woken, waiting)
		}
		if s.askAgain(t.Context(), concern{}); len(s.unsure) != 0 {
			t.Error("it is asked about after its end")
		}
	}
}
