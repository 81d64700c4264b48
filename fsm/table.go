package fsm

import (
	"fmt"
	"strings"

	"github.com/tidwall/btree"
)

// degree of every B-tree. Nodes of up to 2*degree-1 items are copied on the
// first write after a view is published, so smaller nodes make writes cheaper
// and larger ones make scans faster.
const degree = 16

// Table is a copy-on-write ordered table from key to an immutable row. The
// tables of a View never change and need no lock.
type Table[T any] struct {
	def  *tableDef[T]
	rows *btree.Map[string, T]
}

// tableDef is what a table's file says of it: its name in the snapshot and in
// changes, its codec, and what else has to be kept in step with it.
type tableDef[T any] struct {
	name      string
	marshal   func(T) ([]byte, error)
	unmarshal func([]byte) (T, error)
	// revise stamps the revision of a change on the row before it is stored.
	// nil for bookkeeping tables, whose changes have no revision and are not
	// in the feed.
	revise func(T, int64)
	// restore is unmarshal for the rows of a snapshot, which may share what
	// they have in common. nil where unmarshal does.
	restore func(c *cache, b []byte) (T, error)
	// complete fills in, once a snapshot is read whole, what a row holds
	// beyond its own bytes. nil where there is no such thing.
	complete func(v *View, key string, row T) error
	// index keeps the derived indexes of the view in step. It runs with the
	// table already changed; old or new is the zero value where there is none.
	index func(v *View, key string, old, new T, hadOld, hasNew bool)
}

func newTable[T any](def *tableDef[T]) Table[T] {
	return Table[T]{def: def, rows: btree.NewMap[string, T](degree)}
}

// Name is the table's name in changes and snapshots.
func (t Table[T]) Name() string { return t.def.name }

// Get returns the row under a key. The row must not be changed.
func (t Table[T]) Get(key string) (T, bool) { return t.rows.Get(key) }

// Len is the number of rows.
func (t Table[T]) Len() int { return t.rows.Len() }

// Scan calls f for every row whose key starts with prefix, in key order,
// until f returns false.
func (t Table[T]) Scan(prefix string, f func(key string, row T) bool) {
	t.ScanFrom(prefix, prefix, f)
}

// ScanFrom is Scan that starts at the first key not below from.
func (t Table[T]) ScanFrom(prefix, from string, f func(key string, row T) bool) {
	scanFrom(t.rows, prefix, from, f)
}

func scanFrom[T any](rows *btree.Map[string, T], prefix, from string, f func(key string, row T) bool) {
	rows.Ascend(from, func(key string, row T) bool {
		if !strings.HasPrefix(key, prefix) {
			return false
		}
		return f(key, row)
	})
}

func (t Table[T]) fork() Table[T] { return Table[T]{def: t.def, rows: t.rows.Copy()} }

// put stores a row, stamps the revision on it and records the change. The row
// must be a new one: stored rows are shared by every view.
func put[T any](tx *Tx, t Table[T], key string, row T) {
	old, had := t.rows.Get(key)
	if t.def.revise != nil {
		tx.view.revision++
		t.def.revise(row, tx.view.revision)
	}
	t.rows.Set(key, row)
	if t.def.index != nil {
		t.def.index(tx.view, key, old, row, had, true)
	}
	if t.def.revise != nil {
		c := Change{Revision: tx.view.revision, Table: t.def.name, Key: key, New: row, TimeUnixNano: tx.view.timeUnixNano}
		if had {
			c.Old = old
		}
		tx.changes = append(tx.changes, c)
	}
}

// remove deletes the row under a key, which must be there, and records the
// change.
func remove[T any](tx *Tx, t Table[T], key string) {
	old, had := t.rows.Delete(key)
	if !had {
		return
	}
	var none T
	if t.def.index != nil {
		t.def.index(tx.view, key, old, none, true, false)
	}
	if t.def.revise != nil {
		tx.view.revision++
		tx.changes = append(tx.changes, Change{Revision: tx.view.revision, Table: t.def.name, Key: key, Old: old, TimeUnixNano: tx.view.timeUnixNano})
	}
}

// anyTable is what snapshot, restore and digest need of a table, whatever its
// rows are.
type anyTable interface {
	Name() string
	Len() int
	encodeRows(f func(key string, row []byte) error) error
	// restoreRow reads a row; reindex makes the table usable when all tables
	// have their rows.
	restoreRow(c *cache, key string, row []byte) error
	reindex(v *View) error
}

func (t Table[T]) encodeRows(f func(key string, row []byte) error) error {
	var err error
	t.rows.Scan(func(key string, row T) bool {
		var b []byte
		if b, err = t.def.marshal(row); err == nil {
			err = f(key, b)
		}
		return err == nil
	})
	return err
}

func (t Table[T]) restoreRow(c *cache, key string, b []byte) (err error) {
	var row T
	if t.def.restore != nil {
		row, err = t.def.restore(c, b)
	} else {
		row, err = t.def.unmarshal(b)
	}
	if err == nil {
		t.rows.Set(key, row)
	}
	return err
}

func (t Table[T]) reindex(v *View) error {
	var none T
	var err error
	t.rows.Scan(func(key string, row T) bool {
		if t.def.complete != nil {
			if err = t.def.complete(v, key, row); err != nil {
				err = fmt.Errorf("row %s: %w", key, err)
				return false
			}
		}
		if t.def.index != nil {
			t.def.index(v, key, none, row, false, true)
		}
		return true
	})
	return err
}
