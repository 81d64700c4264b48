package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

const (
	promisesFile = "promises"
	// slotBytes is the size of one of the file's two slots. They are in blocks
	// of their own, so that a write of one does not touch the other.
	slotBytes = 4096
	// syncInterval bounds how old what was acknowledged may be in the file
	// after a loss of power.
	syncInterval = time.Second
)

// position is a place in the log. What is later has the higher term or, in one
// term, the higher index.
type position struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
}

func (p position) before(o position) bool {
	return p.Term < o.Term || p.Term == o.Term && p.Index < o.Index
}

func (p position) String() string { return fmt.Sprintf("entry %d of term %d", p.Index, p.Term) }

// promises are what a server has told others and must never go back on, kept
// beside the log: its term, its vote, and up to where it has acknowledged the
// log. A log that does not reach as far has lost something.
//
// Term and vote are on the disk, twice, before they are told. What is acknowledged
// is given to the operating system before, and synced once a second: a log that is
// lost, emptied or replaced by an older one is always recognised; after a loss of
// power it is for all but the last second's entries.
//
// It implements raft.StableStore for the three values that Raft keeps.
type promises struct {
	self   string    // the server's name
	file   disk.File // nil: in memory
	noSync bool
	terms  terms

	mu   sync.Mutex
	kept promisesRecord
	// have is how far the log, or the newest snapshot, reaches.
	have    position
	synced  time.Time      // when the file was last synced
	syncing sync.WaitGroup // syncs beside the writes, one at a time
	busy    bool           // there is one
	err     error          // of the last one that failed
	closed  bool
	closing chan struct{}
}

type promisesRecord struct {
	Format int `json:"format"`
	// Sequence counts the writes. The slot with the higher one counts.
	Sequence uint64 `json:"sequence"`
	Term     uint64 `json:"term"`
	VoteTerm uint64 `json:"voteTerm,omitempty"`
	Vote     []byte `json:"vote,omitempty"` // the candidate, as Raft's transport writes its address
	// Acknowledged is the last entry that others may rely on.
	Acknowledged position `json:"acknowledged"`
	// Replacing: entries are written where some had been acknowledged before: those of a new leader, those behind a snapshot that reaches
	// less far, or the same ones again, of a log that was lost. Up to Whole the log has been stored since, if not up to what was
	// acknowledged: a write behind it may be cut off.
	Replacing bool   `json:"replacing,omitempty"`
	Whole     uint64 `json:"whole,omitempty"`
	// GivenUp is the last entry that was acknowledged and need not be held any more: an operator has gone on without it, or a leader of a later term
	// has replaced what reached further.
	GivenUp position `json:"givenUp"`
	// Alone: in the last configuration that was stored no other server has a vote, so that none
	// would lead and give back what is lost.
	Alone bool `json:"alone,omitempty"`
}

// stored is the last entry that the log has for certain, unless it was damaged.
func (r *promisesRecord) stored() uint64 {
	if r.Replacing {
		return min(r.Whole, r.Acknowledged.Index)
	}
	return r.Acknowledged.Index
}

// openPromises opens the promises in a data directory. Only that of a new server
// has none.
func openPromises(files atomicfile.Files, dir, self string, fresh, noSync bool) (*promises, error) {
	p := &promises{self: self, noSync: noSync, kept: promisesRecord{Format: 1}, closing: make(chan struct{})}
	if dir == "" {
		return p, nil
	}
	path := filepath.Join(dir, promisesFile)
	damaged := func(what string) error {
		return &DamagedFileError{path, what + ", and what this server promised the others is not known without it", startOver(dir)}
	}
	if fresh {
		if err := files.Write(path, make([]byte, 2*slotBytes), 0o600); err != nil {
			return nil, fmt.Errorf("keep the server's promises: %w", err)
		}
	}
	f, err := files.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, damaged("is missing")
	}
	if err != nil {
		return nil, damaged(fmt.Sprintf("can not be opened (%v)", err))
	}
	p.file = f
	if fresh {
		err = p.write(p.kept, true)
	} else if err = p.read(); err == nil && !noSync {
		err = p.file.Sync() // the one before may have been killed before it did that
	}
	if errors.Is(err, errRecord) {
		err = damaged("is damaged")
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return p, nil
}

// read takes the newer of the slots.
func (p *promises) read() error {
	b := make([]byte, 2*slotBytes)
	if _, err := p.file.ReadAt(b, 0); err != nil {
		return errRecord // it is shorter, or can not be read
	}
	found := false
	for slot := range 2 {
		var r promisesRecord
		if openRecord(b[slot*slotBytes:(slot+1)*slotBytes], &r) != nil || r.Format != 1 || r.Sequence%2 != uint64(slot) {
			continue
		}
		if !found || r.Sequence > p.kept.Sequence {
			p.kept, found = r, true
		}
	}
	if !found {
		return errRecord
	}
	return nil
}

// change writes what f makes of the record. If synced, it is on the disk when
// change returns.
func (p *promises) change(synced bool, f func(*promisesRecord)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return os.ErrClosed
	}
	next := p.kept
	f(&next)
	if p.file == nil {
		p.kept = next
		return nil
	}
	return p.write(next, synced)
}

// write is called with mu held.
func (p *promises) write(next promisesRecord, synced bool) error {
	if p.err != nil {
		return p.err
	}
	if err := p.writeSlot(&next); err != nil {
		return err
	}
	if synced {
		// Again, in the other slot: a single one that the disk damages later
		// must not take a term or a vote back.
		if err := errors.Join(p.sync(), p.writeSlot(&next)); err != nil {
			return err
		}
		p.synced = time.Now()
	}
	p.kept = next
	if !p.busy && !p.noSync {
		p.busy = true
		wait := time.Until(p.synced.Add(syncInterval))
		p.syncing.Go(func() { p.syncSoon(wait) })
	}
	return nil
}

func (p *promises) writeSlot(next *promisesRecord) error {
	next.Sequence++
	b, err := sealRecord(next)
	if err != nil {
		return err
	}
	if len(b) > slotBytes {
		return fmt.Errorf("the server's promises take %d bytes, more than %d", len(b), slotBytes)
	}
	slot := make([]byte, slotBytes)
	copy(slot, b)
	_, err = p.file.WriteAt(slot, int64(next.Sequence%2)*slotBytes)
	return err
}

func (p *promises) sync() error {
	if p.noSync {
		return nil
	}
	return p.file.Sync()
}

// syncSoon syncs beside the writes, after a while.
func (p *promises) syncSoon(wait time.Duration) {
	select {
	case <-time.After(wait):
	case <-p.closing:
		return // which syncs
	}
	p.mu.Lock()
	p.busy, p.synced = false, time.Now() // what is written from here on needs another
	p.mu.Unlock()
	err := p.sync()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil && err != nil {
		p.err = fmt.Errorf("keep the server's promises: %w", err)
	}
}

func (p *promises) close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	close(p.closing)
	p.mu.Unlock()
	p.syncing.Wait()
	if p.file == nil {
		return nil
	}
	return errors.Join(p.sync(), p.file.Close())
}

func (p *promises) record() promisesRecord {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept
}

// acknowledge notes that entries up to a position are stored, before anybody is
// told. It never goes back: entries that a new leader replaces are replaced by
// those of a higher term.
func (p *promises) acknowledge(logs []*raft.Log) error {
	last := logs[len(logs)-1]
	at := position{last.Term, last.Index}
	alone, servers := false, false
	for _, l := range logs {
		if l.Type == raft.LogConfiguration {
			alone, servers = votesAlone(raft.DecodeConfiguration(l.Data), p.self), true
		}
	}
	return p.change(servers, func(r *promisesRecord) {
		p.have = at // at once with the other: in between something would seem to be lost
		if r.Acknowledged.before(at) {
			if at.Index < r.Acknowledged.Index {
				r.GivenUp = r.Acknowledged
			}
			r.Replacing, r.Whole = false, 0
		} else if r.Replacing {
			r.Whole = at.Index
		}
		if r.Acknowledged.before(at) {
			r.Acknowledged = at
		}
		if servers && !at.before(r.Acknowledged) { // what comes back of a log that was lost is of an earlier time
			r.Alone = alone
		}
	})
}

// replace notes, on the disk, that entries from the first one on are about to be written, if some had been there before: a crash within that
// write leaves one that was cut off, and nothing that was acknowledged and is damaged.
func (p *promises) replace(first uint64) error {
	if r := p.record(); first > r.stored() {
		return nil
	}
	return p.change(true, func(r *promisesRecord) { r.Replacing, r.Whole = true, first-1 })
}

// found is what the log reaches up to at the start. It may have been acknowledged, though after a loss of power the promises may be of the second before.
func (p *promises) found(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.have = at
	if p.kept.Acknowledged.before(at) {
		p.kept.Acknowledged, p.kept.Replacing, p.kept.Whole = at, false, 0
	}
}

// holds notes that a snapshot or the log reaches up to a position.
func (p *promises) holds(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.have.before(at) {
		p.have = at
	}
}

// holdsOnly notes that a snapshot which was received has taken the place of the log, and of any other snapshot.
func (p *promises) holdsOnly(at position) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.have = at
}

// position is how far the log, or the newest snapshot, reaches.
func (p *promises) position() position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.have
}

// lost is how far this server has told others that its log reaches, if it does
// not any more.
func (p *promises) lost() (acknowledged, have position, yes bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.kept.Acknowledged, p.have, p.have.before(p.kept.Acknowledged)
}

// admit makes this server one that may have acknowledged the log up to a
// position: it has no vote until it holds that. others: another server has a vote.
func (p *promises) admit(at position, others bool) error {
	return p.change(true, func(r *promisesRecord) {
		if r.Acknowledged.before(at) {
			if !r.Replacing { // of all that this adds nothing is stored, and a write of it may be under way
				r.Replacing, r.Whole = true, r.Acknowledged.Index
			}
			r.Acknowledged = at
		}
		r.Alone = r.Alone && !others
	})
}

// follows is told the configuration that a server begins with. What one begins with that lacks something is of an earlier time.
func (p *promises) follows(c raft.Configuration) error {
	alone := votesAlone(c, p.self)
	if _, _, lost := p.lost(); lost || p.record().Alone == alone {
		return nil
	}
	return p.change(true, func(r *promisesRecord) { r.Alone = alone && !p.have.before(r.Acknowledged) })
}

// resign gives up what is lost: an operator has decided to go on without it.
func (p *promises) resign(alone bool) error {
	return p.change(true, func(r *promisesRecord) {
		if r.GivenUp.before(r.Acknowledged) {
			r.GivenUp = r.Acknowledged
		}
		r.Acknowledged, r.Alone = p.have, alone
		r.Replacing, r.Whole = false, 0
	})
}

const (
	keyCurrentTerm  = "CurrentTerm" // Raft panics when this one can not be kept
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

func unknownKey(key []byte) error { return fmt.Errorf("the server's promises have no value %q", key) }

// Set implements raft.StableStore.
func (p *promises) Set(key, val []byte) error {
	switch string(key) {
	case keyLastVoteCand:
		// Whoever it is for: what was let through by the gate may have been on its way when this server was told what it lacks.
		if err := p.mayVote(); err != nil {
			return err
		}
		return p.change(true, func(r *promisesRecord) { r.Vote = append([]byte(nil), val...) })
	case keyCurrentTerm, keyLastVoteTerm:
		if len(val) == 8 {
			return p.SetUint64(key, binary.BigEndian.Uint64(val))
		}
	}
	return unknownKey(key)
}

// Get implements raft.StableStore.
func (p *promises) Get(key []byte) ([]byte, error) {
	if string(key) == keyLastVoteCand {
		return p.record().Vote, nil
	}
	return nil, unknownKey(key)
}

// SetUint64 implements raft.StableStore.
func (p *promises) SetUint64(key []byte, val uint64) error {
	switch string(key) {
	case keyCurrentTerm:
		p.terms.begin(val)
		if now := p.record().Term; val < now {
			return fmt.Errorf("term %d was promised, and %d is before it", now, val)
		} else if val == now {
			return nil
		}
		return p.change(true, func(r *promisesRecord) { r.Term = val })
	case keyLastVoteTerm:
		// The candidate follows at once, and is synced with it. Until then there
		// is no vote: what is kept of the last one was of a lower term.
		return p.change(false, func(r *promisesRecord) { r.VoteTerm, r.Vote = val, nil })
	}
	return unknownKey(key)
}

// GetUint64 implements raft.StableStore.
func (p *promises) GetUint64(key []byte) (uint64, error) {
	switch string(key) {
	case keyCurrentTerm:
		return p.record().Term, nil
	case keyLastVoteTerm:
		return p.record().VoteTerm, nil
	}
	return 0, unknownKey(key)
}
