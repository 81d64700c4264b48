package store

import "time"

// Position says which state something is.
type Position struct {
	index        uint64
	term         uint64
	revision     int64
	timeUnixNano int64
	version      int
	bytes        int64 // derived from the rows, and in no snapshot or digest
}

// Index is the log index of the last entry applied.
func (p *Position) Index() uint64 { return p.index }

// Term is the Raft term of that entry.
func (p *Position) Term() uint64 { return p.term }

// Revision is the number of object changes so far: the API's resourceVersion.
func (p *Position) Revision() int64 { return p.revision }

// TimeUnixNano is the state's time: the leader's clock at the last entry, never
// going back.
func (p *Position) TimeUnixNano() int64 { return p.timeUnixNano }

// Version is that of the rules by which the state changes, never going back.
// Whatever becomes another rule asks it.
func (p *Position) Version() int { return p.version }

// Bytes is about how many bytes of memory the state's rows take, but for those that
// have a bound of their own (Definition.Bytes). It is the same on all servers at an index.
func (p *Position) Bytes() int64 { return p.bytes }

// WithRowsOf is the position of a log that goes on with the rows of another state.
func (p Position) WithRowsOf(other Position) Position {
	p.bytes = other.bytes
	return p
}

// GoBy has the state change by the rules of a version from now on, if it is a later one.
func (p *Position) GoBy(version int) { p.version = max(p.version, version) }

// SkipTo makes the revision a later one: those between are never handed out.
func (p *Position) SkipTo(revision int64) { p.revision = max(p.revision, revision) }

// Now is the state's time, in UTC.
func (p *Position) Now() time.Time { return time.Unix(0, p.timeUnixNano).UTC() }

// Tx records what one entry does to the rows of tables. Nothing else writes to
// them.
type Tx struct {
	at      *Position
	changes []Change
}

// Begin starts with the entry of an index. at is the position of the state that
// is written to; it follows from here on, and goes on with the rules that it has
// (Position.GoBy). spare is memory for the changes.
func Begin(at *Position, index, term uint64, h Header, spare []Change) Tx {
	at.index, at.term = index, term
	at.timeUnixNano = max(at.timeUnixNano, h.TimeUnixNano)
	return Tx{at: at, changes: spare[:0]}
}

// Changes are those recorded so far. They are the transaction's own.
func (tx *Tx) Changes() []Change { return tx.changes }

// Undo forgets all changes but so many of the first. The tables and the position
// are the caller's to set back.
func (tx *Tx) Undo(to int) {
	clear(tx.changes[to:])
	tx.changes = tx.changes[:to]
}

func (tx *Tx) record(c Change) {
	c.Revision, c.TimeUnixNano = tx.at.revision, tx.at.timeUnixNano
	tx.changes = append(tx.changes, c)
}
