package runtime

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Meter is a runtime that knows what its containers use.
type Meter interface {
	// Use is what each container that runs uses now, in any order. Those of which nothing is known are missing. ErrUnmeasured says that nothing can be
	// known of any.
	Use(ctx context.Context) ([]ContainerUse, error)
}

// ErrUnmeasured says that the runtime cannot know what its containers use, as it is set up.
var ErrUnmeasured = errors.New("the container runtime does not measure what its containers use")

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
	// Processes are how many there are, with their threads; 0: that is not known.
	Processes int64
}

// ProcessCounter is a runtime that counts the processes of its pods, and not those of each container.
type ProcessCounter interface {
	// Processes are how many each pod has now, with their threads. Those of which nothing is known are missing.
	Processes(ctx context.Context) (map[types.UID]int64, error)
}

// Reclaimer is a runtime that keeps what no pod needs.
type Reclaimer interface {
	// Reclaim removes, because a disk is full, what is left of runs of containers before their newest one, and images that
	// nobody uses. What can be removed is, whatever the error says of the rest.
	Reclaim(ctx context.Context) error
}

// ImageDisk is a runtime that knows where its images are.
type ImageDisk interface {
	// ImageDir is a directory of the file system that the images are on.
	ImageDir(ctx context.Context) (string, error)
}
