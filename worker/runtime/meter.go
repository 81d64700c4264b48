package runtime

import (
	"context"
	"time"
)

// Meter is a runtime that knows what its containers use.
type Meter interface {
	// Use is what each container that runs uses now, in any order. Those of which nothing is known are missing.
	Use(ctx context.Context) ([]ContainerUse, error)
}

// ContainerUse is what one run of a container uses.
type ContainerUse struct {
	ID
	StartedAt time.Time
	// At is when it was measured.
	At time.Time
	Counted
}

// Counted is what the kernel counts of some processes.
type Counted struct {
	// CPU is the processor time that they have had since they began.
	CPU time.Duration
	// MemoryBytes is what they hold, with the files that the kernel keeps in memory for them; WorkingSetBytes is that
	// without the files that nobody has looked at for a while, and AnonymousBytes what is of no file.
	MemoryBytes, WorkingSetBytes, AnonymousBytes int64
}
