package fsm

import (
	"fmt"
	"sync/atomic"
)

// feedCapacity is how many changes are kept for readers of the feed.
const feedCapacity = 1 << 18

// State is the state machine. Apply and Restore must be called by one
// goroutine at a time; View and Feed may be used by anybody.
type State struct {
	live      *View // written by Apply only
	published atomic.Pointer[View]
	feed      *Feed
	// checkpoints are the newest views that a Checkpoint command kept, so that
	// servers can be asked for their digest at the same index.
	checkpoints atomic.Pointer[[]*View]
	// spare is the memory of the last entry's changes, for the next.
	spare []Change
}

// maxSpare bounds how much memory an exceptional entry leaves behind.
const maxSpare = 1 << 14

// NewState returns an empty state.
func NewState() *State {
	s := &State{live: newView(), feed: newFeed(feedCapacity, 0)}
	s.live.cache = newCache()
	s.published.Store(s.live.fork())
	return s
}

// View is the latest state. It costs nothing and never changes afterwards.
func (s *State) View() *View { return s.published.Load() }

// Feed is the state's change feed.
func (s *State) Feed() *Feed { return s.feed }

// Apply carries out one log entry and returns one result a command. The error
// means that this server must stop: the entry can not be read, or holds a
// command that this version does not know (ErrUnknownCommand).
func (s *State) Apply(index, term uint64, entry []byte) ([]Result, error) {
	h, ps, err := decodeEntry(entry, s.live.cache)
	if err != nil {
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	return s.apply(index, term, h, ps), nil
}

func (s *State) apply(index, term uint64, h Header, ps []Proposal) []Result {
	v := s.live
	v.index, v.term = index, term
	v.timeUnixNano = max(v.timeUnixNano, h.TimeUnixNano)
	tx := &Tx{view: v, changes: s.spare[:0]}
	results := make([]Result, len(ps))
	for i, p := range ps {
		tx.User, tx.Groups = p.User, p.Groups
		before := v.revision
		results[i] = p.Command.Apply(tx)
		if results[i].Refused() && v.revision != before {
			panic(fmt.Sprintf("fsm: %T changed the state and refused: %s", p.Command, results[i].Message))
		}
		tx.flushBudgets()
		results[i].Revision, results[i].Index = v.revision, index
	}
	s.feed.append(tx.changes, s.publish)
	clear(tx.changes)
	if s.spare = tx.changes[:0]; cap(s.spare) > maxSpare {
		s.spare = nil
	}
	if tx.checkpoint {
		s.keepCheckpoint()
	}
	return results
}

func (s *State) publish() { s.published.Store(s.live.fork()) }

// Fork returns a state of its own that starts as a copy of the view: for
// dry-runs and what-ifs. It costs the same whatever the size of the view, and
// nothing done to it reaches the original.
func (v *View) Fork() *State {
	s := &State{live: v.fork(), feed: newFeed(forkFeedCapacity, v.revision)}
	s.live.cache = newCache()
	s.published.Store(s.live.fork())
	return s
}

const forkFeedCapacity = 1 << 12

// Try carries out commands directly on a fork, without an entry, and returns
// their results. The objects in the commands become the fork's: they must not
// be used for anything else afterwards.
func (s *State) Try(timeUnixNano int64, ps ...Proposal) []Result {
	return s.apply(s.live.index+1, s.live.term, Header{TimeUnixNano: timeUnixNano}, ps)
}

const keptCheckpoints = 4

func (s *State) keepCheckpoint() {
	var kept []*View
	if old := s.checkpoints.Load(); old != nil {
		kept = append(kept, *old...)
	}
	kept = append(kept, s.View())
	kept = kept[max(0, len(kept)-keptCheckpoints):]
	s.checkpoints.Store(&kept)
}

// Checkpoint returns the view kept by the Checkpoint command at a log index,
// while it is still kept.
func (s *State) Checkpoint(index uint64) (*View, bool) {
	if kept := s.checkpoints.Load(); kept != nil {
		for _, v := range *kept {
			if v.index == index {
				return v, true
			}
		}
	}
	return nil, false
}
