package mounts

import (
	"context"

	"github.com/berth-dev/berth/guard"
)

// Apart calls f in a goroutine of its own, and gives it up when ctx ends. A file system of another machine that does not answer
// holds whoever looks into it in the kernel, for as long as it likes: no context, signal or deadline reaches it there. What f
// holds it keeps until it is over, which may be never. It is called in any case, and has to see itself whether ctx has ended. Where it panics that is
// its error, a *guard.Panic: the goroutine has no caller who could catch it.
func Apart(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	go func() { done <- guard.Caught(f) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
