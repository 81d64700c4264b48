package clock

import "time"

// Reading is what a machine's clocks show at one moment.
type Reading struct {
	// WallUnixNano is the time of day, which somebody may set at any time.
	WallUnixNano int64
	// Elapsed is real time since a moment that the source knows. It never goes
	// back, and nobody can set it.
	Elapsed time.Duration
}

// Source reads a machine's clocks.
type Source func() Reading

// Process reads the clocks of the Go runtime, and so those of testing/synctest
// where a test fakes them. Its Elapsed may stand still while the machine is
// suspended.
func Process() Source {
	began := time.Now()
	return func() Reading {
		now := time.Now()
		return Reading{WallUnixNano: now.UnixNano(), Elapsed: now.Sub(began)}
	}
}

// System reads the machine's clocks. Its Elapsed goes on while the machine is
// suspended, where the kernel can tell.
func System() Source {
	process := Process()
	began, ok := sinceBoot()
	if !ok {
		return process
	}
	return func() Reading {
		r := process()
		if now, ok := sinceBoot(); ok {
			r.Elapsed = now - began
		}
		return r
	}
}
