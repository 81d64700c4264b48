package server

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/fsm"
)

// TestWhatOperatorsAskForIsTheirs: the log says who it was, and there is room for it where there is for Berth's own.
func TestWhatOperatorsAskForIsTheirs(t *testing.T) {
	ann := apirequest.WithUser(t.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{"operators"}})
	for _, tt := range []struct {
		ctx    context.Context
		user   string
		groups []string
	}{
		{ann, "ann", []string{operators, "system:masters"}},
		{t.Context(), systemUser, []string{"system:masters"}},
	} {
		p := askedFor(tt.ctx, &fsm.Checkpoint{})
		if p.User != tt.user || !slices.Equal(p.Groups, tt.groups) || whoIs(p, false) != berth {
			t.Errorf("%s of %v counts as %d", p.User, p.Groups, whoIs(p, false))
		}
	}
}
