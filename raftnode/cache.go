package raftnode

import (
	"sync"

	"github.com/hashicorp/raft"
)

// cachedBytes bounds the newest entries that are kept in memory for followers
// and for the state machine. raft.LogCache counts entries, of up to 32 MiB each.
const cachedBytes = 32 << 20

// entryOverheadBytes is what an entry takes beside its data.
const entryOverheadBytes = 256

// cache keeps the newest entries of a log, as many as fit a number of bytes. They
// follow one another without a gap.
type cache struct {
	raft.LogStore
	limit int

	mu      sync.RWMutex
	entries []*raft.Log
	bytes   int
}

func newCache(log raft.LogStore, limit int) *cache { return &cache{LogStore: log, limit: limit} }

func cost(l *raft.Log) int { return entryOverheadBytes + len(l.Data) + len(l.Extensions) }

// IsMonotonic implements raft.MonotonicLogStore.
func (c *cache) IsMonotonic() bool {
	m, ok := c.LogStore.(raft.MonotonicLogStore)
	return ok && m.IsMonotonic()
}

// GetLog implements raft.LogStore.
func (c *cache) GetLog(index uint64, l *raft.Log) error {
	if kept := c.find(index); kept != nil {
		*l = *kept
		return nil
	}
	return c.LogStore.GetLog(index, l)
}

func (c *cache) find(index uint64) *raft.Log {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if len(c.entries) == 0 || index < c.entries[0].Index || index-c.entries[0].Index >= uint64(len(c.entries)) {
		return nil
	}
	return c.entries[index-c.entries[0].Index]
}

// newest is the term and the index of the log's last entry, if it is in memory.
func (c *cache) newest() (term, index uint64, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	n := len(c.entries)
	if n == 0 {
		return 0, 0, false
	}
	return c.entries[n-1].Term, c.entries[n-1].Index, true
}

// StoreLog implements raft.LogStore.
func (c *cache) StoreLog(l *raft.Log) error { return c.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (c *cache) StoreLogs(logs []*raft.Log) error {
	if err := c.LogStore.StoreLogs(logs); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range logs {
		if n := len(c.entries); n > 0 && c.entries[n-1].Index+1 != l.Index {
			c.clear()
		}
		c.entries = append(c.entries, l)
		c.bytes += cost(l)
	}
	drop := 0
	for ; c.bytes > c.limit && drop < len(c.entries); drop++ {
		c.bytes -= cost(c.entries[drop])
		c.entries[drop] = nil
	}
	c.entries = c.entries[drop:]
	return nil
}

// DeleteRange implements raft.LogStore.
func (c *cache) DeleteRange(from, to uint64) error {
	c.mu.Lock()
	c.clear()
	c.mu.Unlock()
	return c.LogStore.DeleteRange(from, to)
}

// clear is called with mu held.
func (c *cache) clear() { c.entries, c.bytes = nil, 0 }
