package vault

import (
	"container/list"
	"sync"

	"github.com/berth-dev/berth/fsm"
)

// maxOpenedBytes bounds what is kept of opened objects, so that who lists or watches them does not have
// each opened again.
const maxOpenedBytes = 32 << 20

// cache keeps the objects that were opened last, by their rows, which never change.
type cache struct {
	mu    sync.Mutex
	most  int
	bytes int
	rows  map[*fsm.Object]*list.Element
	last  *list.List // of *opened, the one that was used last in front
}

type opened struct {
	row, object *fsm.Object
	bytes       int
}

func newCache() *cache {
	return &cache{most: maxOpenedBytes, rows: map[*fsm.Object]*list.Element{}, last: list.New()}
}

func (c *cache) get(row *fsm.Object) (*fsm.Object, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.rows[row]
	if !ok {
		return nil, false
	}
	c.last.MoveToFront(e)
	return e.Value.(*opened).object, true
}

// put keeps an object that takes so many bytes with its row: a row that the state has left behind is held
// by nobody else.
func (c *cache) put(row, object *fsm.Object, bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.rows[row]; ok || bytes > c.most/4 {
		return
	}
	c.rows[row] = c.last.PushFront(&opened{row, object, bytes})
	for c.bytes += bytes; c.bytes > c.most; {
		e := c.last.Back()
		gone := c.last.Remove(e).(*opened)
		delete(c.rows, gone.row)
		c.bytes -= gone.bytes
	}
}
