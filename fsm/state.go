package fsm

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/store"
)

// What the feed of a state keeps: a quarter of a million changes, as long as
// their old rows hold no more than so many bytes, and no more than the state
// itself unless that is small; and a few minutes, as etcd
// does, when they hold much. A reader that is later starts again from a view.
func feedBounds() store.FeedBounds {
	return store.FeedBounds{Changes: 1 << 18, Bytes: 256 << 20, LeastBytes: 64 << 20, QuietBytes: 32 << 20, Age: 5 * time.Minute}
}

// State is the state machine. Apply and Restore must be called by one
// goroutine at a time; View and Feed may be used by anybody.
type State struct {
	live      *live // written by Apply only
	published atomic.Pointer[View]
	feed      *store.Feed
	// checkpoints are the newest views that a Checkpoint command kept, so that
	// servers can be asked for their digest at the same index.
	checkpoints atomic.Pointer[[]*View]
	// faults are those of the last entry.
	faults []Fault
	// spare is the memory of the last entry's changes, for the next.
	spare []store.Change
}

// maxSpare bounds how much memory an exceptional entry leaves behind.
const maxSpare = 1 << 14

// NewState returns an empty state.
func NewState() *State {
	s := &State{live: newLive(), feed: store.NewFeed(feedBounds(), 0)}
	s.publish()
	return s
}

// View is the latest state. It costs nothing and never changes afterwards.
func (s *State) View() *View { return s.published.Load() }

// Feed is the state's change feed.
func (s *State) Feed() *store.Feed { return s.feed }

// Apply carries out one log entry and returns one result a command. The error
// means that this server must stop: the entry can not be read, or holds a
// command that this version does not know (store.ErrUnknownCommand).
func (s *State) Apply(index, term uint64, entry []byte) ([]Result, error) {
	h, ps, err := decodeForApply(entry, s.live.cache)
	if err != nil {
		return nil, fmt.Errorf("apply entry %d: %w", index, err)
	}
	return s.apply(index, term, h, ps, func() []Proposal {
		// What panicked may have changed the commands themselves.
		_, ps, err := decodeForApply(entry, s.live.cache)
		if err != nil {
			panic(err) // the same bytes were read a moment ago
		}
		return ps
	}), nil
}

// apply carries out the commands of one entry. again gives the same commands
// as they were at first.
func (s *State) apply(index, term uint64, h Header, ps []Proposal, again func() []Proposal) []Result {
	open := func() *Tx { return s.open(index, term, h) }
	out, broke := s.attempt(open, func(tx *Tx) []Result { return tx.carryOut(ps) })
	if first := broke; first != nil { // it is looked at when it comes again
		out, broke = s.attempt(open, func(tx *Tx) []Result { tx.guarded = true; return tx.carryOut(again()) })
		if broke == nil && len(out.tx.faults) == 0 {
			first.Index, first.Command, first.Once = index, commandName(nil), true
			out.tx.faults = append(out.tx.faults, *first)
		}
	}
	if broke != nil { // it came of no part alone
		why := *broke
		out, broke = s.attempt(open, func(tx *Tx) []Result { tx.guarded = true; tx.blame("", why); return tx.refuseAll(ps) })
	}
	if broke != nil {
		out = s.standStill(open(), ps, *broke)
	}
	s.show(out)
	return out.results
}

// open begins an entry, by the rules of the one before.
func (s *State) open(index, term uint64, h Header) *Tx {
	v := s.live
	v.bill = new(bill)
	return &Tx{
		Tx: store.Begin(&v.Position, index, term, h, s.spare), view: v, version: h.Version,
		began: v.work(), beganBudgets: v.budgets.Work() + v.quotas.Work(), bill: v.bill,
	}
}

// rulesPart names what rules that begin do, in the records of failures.
const rulesPart = "rules that begin"

// goBy has the state go by the rules of a version, unless it does so already. Where what they ask of the whole state panics,
// they do not begin: the state stays with those that it goes by, on every server and in every snapshot, and they are tried
// again a minute later.
func (tx *Tx) goBy(version int) {
	before := tx.view.Version()
	if version <= before || tx.view.ApplyFailures.Len() > 0 && tx.view.failedLately(rulesPart) {
		return
	}
	tx.part(rulesPart, func() {
		tx.view.GoBy(version)
		tx.view.effective = new(effectiveClasses) // what it remembers is by the rules of before
		tx.view.beginRules(before)
		if before < SinceItems && tx.view.countsItems() {
			tx.flushQuotas()
		}
		if before < SinceDevices && version >= SinceDevices && tx.view.devices.waiting.Len() > 0 { // they wait under other names now
			tx.sweep(&queue.Scope{Volumes: true})
		}
	})
}

// beginRules does what rules that begin ask of the whole state, which went by an earlier version until now.
func (v *live) beginRules(before int) {
	if before < SinceResize && v.resizes() {
		v.beginResizing()
	}
	if before < SinceItems && v.countsItems() {
		v.beginItems()
	}
}

// carryOut applies commands one after the other.
func (tx *Tx) carryOut(ps []Proposal) []Result {
	tx.goBy(tx.version)
	results := make([]Result, len(ps))
	for i, p := range ps {
		tx.User, tx.Groups, tx.command = p.User, p.Groups, p.Command
		before := tx.spent()
		if !tx.part("", func() { results[i] = tx.applyCommand(p) }) {
			results[i] = tx.refuseFailed()
		}
		results[i].Work = tx.spent() - before
		results[i].Revision, results[i].Index = tx.view.Revision(), tx.view.Index()
	}
	return results
}

func (tx *Tx) applyCommand(p Proposal) Result {
	tx.goOn()
	before := tx.view.Revision()
	tx.billedBefore = tx.billed()
	r, late := tx.refuseLate(p.Seen)
	if !late {
		r = p.Command.Apply(tx)
	}
	if r.Refused() && tx.view.Revision() != before {
		panic(fmt.Sprintf("%T changed the state and refused: %s", p.Command, r.Message))
	}
	tx.goOn()
	tx.flushAddresses()
	tx.flushBudgets()
	tx.flushQuotas()
	tx.flushWakes()
	return r
}

// show shows what an entry has done. The tables are what they are by now, on every server: what panics here is this server's
// alone, and costs those who follow the feed their place in it, and no more.
func (s *State) show(out outcome) {
	tx, changes := out.tx, out.tx.Changes()
	publish := func() { s.published.Store(out.view) }
	s.faults = tx.faults
	s.contain("feed", func() {
		s.feed.SizeTo(out.view.Bytes())
		if tx.replaced > 0 {
			s.feed.Reset(tx.replaced, changes, publish)
			return
		}
		s.feed.Append(changes, publish)
	}, func() { s.feed.Reset(out.view.Revision(), nil, publish) })
	s.live.cache.counters.settle()
	clear(changes)
	if s.spare = changes[:0]; cap(s.spare) > maxSpare {
		s.spare = nil
	}
	if tx.checkpoint {
		s.contain("checkpoint", s.keepCheckpoint, func() {})
	}
}

// Faults are the panics of the last entry applied; all of them were undone, but
// for those that say otherwise. It belongs to the goroutine that applies.
func (s *State) Faults() []Fault { return s.faults }

func (s *State) publish() { s.published.Store(s.live.freeze()) }

// Fork returns a state of its own that starts as a copy of the view: for
// dry-runs and what-ifs. It costs the same whatever the size of the view, and
// nothing done to it reaches the original.
func (v *View) Fork() *State {
	live := v.thaw()
	live.effective = new(effectiveClasses) // revisions of one of them are other states in the other
	s := &State{live: live, feed: store.NewFeed(store.FeedBounds{Changes: 1 << 12, Bytes: 32 << 20, LeastBytes: 32 << 20, QuietBytes: 32 << 20}, v.Revision())}
	s.publish()
	return s
}

// Try carries out commands directly on a fork, without an entry, and returns
// their results. The objects in the commands become the fork's: they must not
// be used for anything else afterwards.
//
// If one of them panics, all are refused with 500 and nothing is done.
func (s *State) Try(timeUnixNano int64, ps ...Proposal) []Result {
	s.live.trying = true
	return s.apply(s.live.Index()+1, s.live.Term(), Header{TimeUnixNano: timeUnixNano}, ps, func() []Proposal {
		failed := make([]Proposal, len(ps))
		for i := range failed {
			failed[i].Command = &unreadable{value: "one of the commands tried with it panicked"}
		}
		return failed
	})
}

const keptCheckpoints = 4

// ForgetCheckpoint lets go of a view that a Checkpoint command kept, and with it
// of what was replaced since then.
func (s *State) ForgetCheckpoint(index uint64) {
	for {
		old := s.checkpoints.Load()
		if old == nil {
			return
		}
		left := slices.DeleteFunc(slices.Clone(*old), func(v *View) bool { return v.Index() == index })
		if len(left) == len(*old) || s.checkpoints.CompareAndSwap(old, &left) {
			return
		}
	}
}

func (s *State) keepCheckpoint() {
	for {
		var kept []*View
		old := s.checkpoints.Load()
		if old != nil {
			kept = append(kept, *old...)
		}
		kept = append(kept, s.View())
		kept = kept[max(0, len(kept)-keptCheckpoints):]
		if s.checkpoints.CompareAndSwap(old, &kept) {
			return
		}
	}
}

// Checkpoint returns the view kept by the Checkpoint command at a log index,
// while it is still kept.
func (s *State) Checkpoint(index uint64) (*View, bool) {
	if kept := s.checkpoints.Load(); kept != nil {
		for _, v := range *kept {
			if v.Index() == index {
				return v, true
			}
		}
	}
	return nil, false
}
