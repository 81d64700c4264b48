package server

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// What may be read is asked once a namespace, and not at all once it cannot be told: what is made of it is no answer.
func TestReadable(t *testing.T) {
	var asked []string
	away := errors.New("no leader answers")
	ctx, end := context.WithCancel(t.Context())
	defer end()
	r := readable{ctx: ctx, end: end, mayRead: func(_ context.Context, namespace string) (bool, error) {
		asked = append(asked, namespace)
		if namespace == "unknown" {
			return false, away
		}
		return namespace == "mine", nil
	}}
	for _, namespace := range []string{"mine", "theirs", "mine", "theirs"} {
		if r.in(namespace) != (namespace == "mine") || r.unknown != nil || ctx.Err() != nil {
			t.Errorf("%s: %v", namespace, r.unknown)
		}
	}
	if r.in("unknown") || r.in("mine") || r.in("more") || !errors.Is(r.unknown, away) {
		t.Errorf("when it cannot be told: %v", r.unknown)
	}
	if ctx.Err() == nil {
		t.Error("what is made of it goes on")
	}
	if want := []string{"mine", "theirs", "unknown"}; !slices.Equal(asked, want) {
		t.Errorf("asked about %q", asked)
	}
}
