package apiserver

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TestWhoCannotBeAskedAbout: what lasts goes on while nobody can say whether it may, and ends when it is known that it may not.
func TestWhoCannotBeAskedAbout(t *testing.T) {
	asked, away := 0, true
	s := &standing{open: map[string]map[*lasting]struct{}{}, rights: authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		if asked++; away {
			return authorizer.DecisionNoOpinion, "", errors.New("no leader answers")
		}
		return authorizer.DecisionNoOpinion, "no role allows it", nil
	})}
	var open []*lasting
	for range 3 {
		l := &lasting{}
		l.ctx, l.end = context.WithCancel(t.Context())
		s.add(l)
		open = append(open, l)
	}
	unknown := s.askAgain(t.Context(), concern{all: true}, nil)
	if len(unknown) != 3 || asked != 1 {
		t.Errorf("%d are unknown, %d asked about", len(unknown), asked)
	}
	s.remove(open[2]) // by itself
	unknown = s.askAgain(t.Context(), concern{}, unknown)
	if len(unknown) != 2 || open[0].ctx.Err() != nil || open[1].ctx.Err() != nil {
		t.Errorf("%d are unknown", len(unknown))
	}
	away = false
	if unknown = s.askAgain(t.Context(), concern{}, unknown); len(unknown) != 0 || open[0].ctx.Err() == nil || open[1].ctx.Err() == nil {
		t.Errorf("%d are unknown, and what may not go on does", len(unknown))
	}
}
