package main

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
)

const (
	// linesAtOnce and linesPerSecond bound how often one message is written, whoever brings it about: what is refused is
	// told, and whoever is refused may come again as often as he likes.
	linesAtOnce    = 100
	linesPerSecond = 1
	// maxMessages bounds how many messages are counted apart; those beyond share one count.
	maxMessages = 1024
	// tellHeldBack is how often it is said how many lines were held back.
	tellHeldBack = 10 * time.Second
)

// floods holds back lines of the log that come by the thousand. What somebody asked for by a level of debugging is all written.
type floods struct {
	now func() time.Time

	mu     sync.Mutex
	counts map[string]*lines
}

// lines are those of one message.
type lines struct {
	may  *rate.Limiter
	held int
}

func newFloods() *floods { return &floods{now: time.Now, counts: map[string]*lines{}} }

// exclude is hclog's: whether a line is not to be written.
func (f *floods) exclude(level hclog.Level, message string, _ ...any) bool {
	if level < hclog.Info {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	l := f.counts[message]
	if l == nil {
		if len(f.counts) >= maxMessages {
			message = ""
		}
		if l = f.counts[message]; l == nil {
			l = &lines{may: rate.NewLimiter(linesPerSecond, linesAtOnce)}
			f.counts[message] = l
		}
	}
	if l.may.AllowN(f.now(), 1) {
		return false
	}
	l.held++
	return true
}

// heldBack is a message of which lines were held back, and how many.
type heldBack struct {
	message string
	lines   int
}

// take gives what was held back since the last time, by message.
func (f *floods) take() []heldBack {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []heldBack
	for message, l := range f.counts {
		if l.held > 0 {
			out = append(out, heldBack{message, l.held})
			l.held = 0
		}
	}
	slices.SortFunc(out, func(a, b heldBack) int { return strings.Compare(a.message, b.message) })
	return out
}

// tell says from time to time what was held back, until ctx ends.
func (f *floods) tell(ctx context.Context, log hclog.Logger) {
	tick := time.NewTicker(tellHeldBack)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, held := range f.take() {
			log.Warn("lines of the log were held back", "message", held.message, "lines", held.lines)
		}
	}
}
