package store

import (
	"fmt"

	"github.com/tidwall/btree"
)

// Table is a copy-on-write ordered table from key to an immutable row. It is
// read by its methods, by any number of goroutines once it is forked for them,
// and written by Put and Remove, for which one has to be in a transaction. S is
// the state that the table belongs to.
type Table[S, T any] struct {
	def  *Definition[S, T]
	rows Tree[T]
}

// Definition is what a table's owner says of it: its name in snapshots and
// changes, its codec, and what else has to be kept in step with it.
type Definition[S, T any] struct {
	Name      string
	Marshal   func(T) ([]byte, error)
	Unmarshal func([]byte) (T, error)
	// Revise stamps the revision of a change on the row before it is stored.
	// nil for bookkeeping tables, whose changes have no revision and are not
	// in the feed.
	Revise func(T, int64)
	// Canonical makes a row what is read back from its bytes, before it is
	// stored. nil where every row is.
	Canonical func(row, before T, had bool)
	// Size is about how many bytes of memory a row holds alone when it has been
	// replaced by now, or removed (gone): what the two share is not counted. It
	// may be too much and must not be far too little. nil for bookkeeping tables.
	Size func(before, now T, gone bool) int
	// Bytes is about how many bytes of memory a row takes, with what is sure to come to it. It goes by what is in
	// the row alone, so that servers agree (Position.Bytes). nil: the rows have a bound of their own, and do not
	// count.
	Bytes func(s S, row T) int
	// Restore is Unmarshal for the rows of a snapshot, which may share what
	// they have in common. nil where Unmarshal does.
	Restore func(s S, b []byte) (T, error)
	// Complete fills in, once a snapshot is read whole, what a row holds
	// beyond its own bytes. nil where there is no such thing.
	Complete func(s S, key string, row T) error
	// Index keeps in step what the state derives from the table. It runs with
	// the table already changed; before or now is the zero value where there is
	// none.
	Index func(s S, key string, before, now T, hadBefore, hasNow bool)
}

// New returns an empty table.
func (d *Definition[S, T]) New() Table[S, T] {
	return Table[S, T]{def: d, rows: Tree[T]{rows: btree.NewMap[string, T](degree)}}
}

// Name is the table's name in changes and snapshots.
func (t Table[S, T]) Name() string { return t.def.Name }

// Get returns the row under a key. The row must not be changed.
func (t Table[S, T]) Get(key string) (T, bool) { return t.rows.Get(key) }

// Len is the number of rows.
func (t Table[S, T]) Len() int { return t.rows.Len() }

// Scan calls f for every row whose key starts with prefix, in key order,
// until f returns false.
func (t Table[S, T]) Scan(prefix string, f func(key string, row T) bool) { t.rows.Scan(prefix, f) }

// ScanFrom is Scan that starts at the first key not below from.
func (t Table[S, T]) ScanFrom(prefix, from string, f func(key string, row T) bool) {
	t.rows.ScanFrom(prefix, from, f)
}

// Reverse calls f for every row, the greatest key first, until f returns false.
func (t Table[S, T]) Reverse(f func(key string, row T) bool) { t.rows.Reverse(f) }

// Min is the row of the least key, if there is one.
func (t Table[S, T]) Min() (key string, row T, ok bool) { return t.rows.Min() }

// First is the row of the least key not below from, if there is one.
func (t Table[S, T]) First(from string) (key string, row T, ok bool) { return t.rows.First(from) }

// Max is the row of the greatest key, if there is one.
func (t Table[S, T]) Max() (key string, row T, ok bool) { return t.rows.Max() }

// Put stores a row, stamps the revision on it and records the change. The row
// must be a new one: stored rows are shared by every fork.
func Put[S, T any](tx *Tx, s S, t Table[S, T], key string, row T) {
	before, had := t.rows.swap(key, row)
	if t.def.Revise != nil {
		tx.at.revision++
		t.def.Revise(row, tx.at.revision)
	}
	if t.def.Canonical != nil {
		t.def.Canonical(row, before, had)
	}
	if had {
		t.count(tx.at, s, key, before, -1)
	}
	t.count(tx.at, s, key, row, +1)
	if t.def.Index != nil {
		t.def.Index(s, key, before, row, had, true)
	}
	if t.def.Revise != nil {
		c := Change{Table: t.def.Name, Key: key, New: row}
		if had {
			c.Old, c.heldBytes = before, t.def.Size(before, row, false)
		}
		tx.record(c)
	}
}

// Remove deletes the row under a key, if it is there, and records the change.
func Remove[S, T any](tx *Tx, s S, t Table[S, T], key string) {
	before, had := t.rows.Delete(key)
	if !had {
		return
	}
	var none T
	t.count(tx.at, s, key, before, -1)
	if t.def.Index != nil {
		t.def.Index(s, key, before, none, true, false)
	}
	if t.def.Revise != nil {
		tx.at.revision++
		tx.record(Change{Table: t.def.Name, Key: key, Old: before, heldBytes: t.def.Size(before, none, true)})
	}
}

// rowBytes is about what a row takes in the table beside itself and its key.
const rowBytes = 64

// count keeps the state's bytes in step with a row that comes (sign +1) or goes (-1).
func (t Table[S, T]) count(at *Position, s S, key string, row T, sign int64) {
	if t.def.Bytes != nil {
		at.bytes += sign * int64(rowBytes+len(key)+t.def.Bytes(s, row))
	}
}

// AnyTable is a table of a state S, whatever its rows are: what lists of tables
// hold.
type AnyTable[S any] interface {
	Name() string
	Len() int
	// Isolate makes the table a fork of what it was.
	Isolate()
	// EncodeRow and DecodeRow encode rows for those who do not know their type.
	EncodeRow(row any) ([]byte, error)
	DecodeRow(b []byte) (any, error)

	encodeRows(f func(key string, row []byte) error) error
	// restoreRow reads a row; reindex makes the table usable when all tables
	// have their rows, and adds their bytes to those of the position.
	restoreRow(s S, key string, row []byte) error
	reindex(s S, at *Position) error
}

// Isolate makes the table a fork of what it was.
func (t *Table[S, T]) Isolate() { t.rows = t.rows.Fork() }

// EncodeRow gives the bytes of a row, which must be one of the table.
func (t *Table[S, T]) EncodeRow(row any) ([]byte, error) {
	r, ok := row.(T)
	if !ok {
		return nil, fmt.Errorf("a row of table %s can not be a %T", t.def.Name, row)
	}
	return t.def.Marshal(r)
}

// DecodeRow is the inverse of EncodeRow.
func (t *Table[S, T]) DecodeRow(b []byte) (any, error) { return t.def.Unmarshal(b) }

func (t *Table[S, T]) encodeRows(f func(key string, row []byte) error) error {
	var err error
	t.rows.Scan("", func(key string, row T) bool {
		var b []byte
		if b, err = t.def.Marshal(row); err == nil {
			err = f(key, b)
		}
		return err == nil
	})
	return err
}

func (t *Table[S, T]) restoreRow(s S, key string, b []byte) (err error) {
	var row T
	if t.def.Restore != nil {
		row, err = t.def.Restore(s, b)
	} else {
		row, err = t.def.Unmarshal(b)
	}
	if err == nil {
		t.rows.Set(key, row)
	}
	return err
}

func (t *Table[S, T]) reindex(s S, at *Position) error {
	var none T
	var err error
	t.rows.Scan("", func(key string, row T) bool {
		if t.def.Complete != nil {
			if err = t.def.Complete(s, key, row); err != nil {
				err = fmt.Errorf("row %s: %w", key, err)
				return false
			}
		}
		t.count(at, s, key, row, +1)
		if t.def.Index != nil {
			t.def.Index(s, key, none, row, false, true)
		}
		return true
	})
	return err
}
