package yamlfile

import (
	"context"
	"time"

	"github.com/berth-dev/berth/guard"
)

// Recheck is how often it is looked whether a file that is followed has changed.
const Recheck = time.Second

// Watch knows what a file was like when it was last looked at. It belongs to one goroutine at a time.
type Watch struct {
	file  string
	stamp Stamp
}

// NewWatch is to be made before the file is read: what changes meanwhile is a change.
func NewWatch(file string) Watch { return Watch{file: file, stamp: StampOf(file)} }

// Changed says whether the file is another one than it was at the last look.
func (w *Watch) Changed() bool {
	before := w.stamp
	w.stamp = StampOf(w.file)
	return w.stamp != before
}

// Follow calls look every Recheck until ctx ends.
func Follow(ctx context.Context, look func()) {
	guard.Every(ctx, Recheck, func(time.Time) { look() })
}
