package store

import (
	"encoding/binary"
	"strings"

	"github.com/tidwall/btree"
)

// degree of every B-tree. Nodes of up to 2*degree-1 items are copied on the
// first write after a fork, so smaller nodes make writes cheaper and larger
// ones make scans faster.
const degree = 16

// Tree is an ordered map that is forked in constant time. Its zero value is
// empty and ready. A copy by assignment is the same tree; Fork gives another.
// A tree that is written to is for one goroutine; one that is no longer written
// to can be read and forked by any number of them.
type Tree[V any] struct{ rows *btree.Map[string, V] }

// Fork returns a tree that starts as a copy. From then on the tree itself must
// not be written to, only the fork.
func (t Tree[V]) Fork() Tree[V] {
	if t.rows == nil {
		return Tree[V]{}
	}
	// The library's Copy writes to its receiver, so that both can go on; here
	// it is a copy of its own, and the tree itself is only read.
	frozen := *t.rows
	return Tree[V]{rows: frozen.Copy()}
}

// Get returns the value under a key.
func (t Tree[V]) Get(key string) (V, bool) {
	if t.rows == nil {
		var none V
		return none, false
	}
	return t.rows.Get(key)
}

// Set puts a value under a key.
func (t *Tree[V]) Set(key string, value V) { t.swap(key, value) }

// swap is Set that returns what was under the key.
func (t *Tree[V]) swap(key string, value V) (before V, had bool) {
	if t.rows == nil {
		t.rows = btree.NewMap[string, V](degree)
	}
	return t.rows.Set(key, value)
}

// Delete takes a key away and returns what was under it.
func (t *Tree[V]) Delete(key string) (V, bool) {
	if t.rows == nil {
		var none V
		return none, false
	}
	return t.rows.Delete(key)
}

// Clear takes everything away.
func (t *Tree[V]) Clear() { t.rows = nil }

// Len is the number of keys.
func (t Tree[V]) Len() int {
	if t.rows == nil {
		return 0
	}
	return t.rows.Len()
}

// Min is the least key with its value, if there is one.
func (t Tree[V]) Min() (key string, value V, ok bool) {
	if t.rows == nil {
		return "", value, false
	}
	return t.rows.Min()
}

// Max is the greatest key with its value, if there is one.
func (t Tree[V]) Max() (key string, value V, ok bool) {
	if t.rows == nil {
		return "", value, false
	}
	return t.rows.Max()
}

// First is the least key not below from, with its value, if there is one.
func (t Tree[V]) First(from string) (key string, value V, ok bool) {
	t.ScanFrom("", from, func(k string, v V) bool {
		key, value, ok = k, v, true
		return false
	})
	return key, value, ok
}

// Scan calls f for every key that starts with prefix, in order, until f returns
// false. f must not change the tree.
func (t Tree[V]) Scan(prefix string, f func(key string, value V) bool) { t.ScanFrom(prefix, prefix, f) }

// ScanFrom is Scan that starts at the first key not below from.
func (t Tree[V]) ScanFrom(prefix, from string, f func(key string, value V) bool) {
	if t.rows == nil {
		return
	}
	t.rows.Ascend(from, func(key string, value V) bool {
		return strings.HasPrefix(key, prefix) && f(key, value)
	})
}

// Reverse calls f for every key from the greatest on, until f returns false. f
// must not change the tree.
func (t Tree[V]) Reverse(f func(key string, value V) bool) {
	if t.rows != nil {
		t.rows.Reverse(f)
	}
}

// After is the least string above all that start with the prefix. There is none
// for a prefix of nothing but \xff, and then it is one longer than the prefix.
func After(prefix string) string {
	b := []byte(prefix)
	for i := len(b) - 1; i >= 0; i-- {
		if b[i]++; b[i] != 0 {
			return string(b[:i+1])
		}
	}
	return strings.Repeat("\xff", len(b)+1)
}

// RevisionKey is a key that sorts by revision.
func RevisionKey(revision int64) string {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(revision))
	return string(b[:])
}

// RevisionOf is the inverse of RevisionKey.
func RevisionOf(key string) int64 { return int64(binary.BigEndian.Uint64([]byte(key))) }
