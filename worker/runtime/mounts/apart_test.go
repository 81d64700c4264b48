package mounts

import (
	"context"
	"errors"
	"testing"

	"github.com/berth-dev/berth/guard"
)

// What panics apart is told to who waits, and nobody ends by it.
func TestApartBreaks(t *testing.T) {
	p := new(guard.Panic)
	if err := Apart(t.Context(), func() error { panic("a mistake") }); !errors.As(err, &p) || p.Value != "a mistake" {
		t.Errorf("it is told %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ended := make(chan struct{})
	_ = Apart(gone, func() error {
		defer close(ended)
		panic("a mistake that nobody waits for")
	})
	<-ended
}
