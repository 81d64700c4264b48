package cgroup

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

// A cgroup of which it cannot be seen what is in it is not empty.
func TestWhatCannotBeListedIsNotEmpty(t *testing.T) {
	answers := []struct {
		n   int
		err error
	}{{0, syscall.EMFILE}, {2, nil}, {0, syscall.EIO}, {0, nil}}
	asked := 0
	if err := untilNone(t.Context(), func() (int, error) {
		a := answers[asked]
		asked++
		return a.n, a.err
	}); err != nil || asked != len(answers) {
		t.Errorf("asked %d times: %v", asked, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := untilNone(ctx, func() (int, error) { return 0, syscall.EIO }); !errors.Is(err, syscall.EIO) || !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits any more: %v", err)
	}
}
