package rpc

import (
	"context"

	"github.com/berth-dev/berth/access/lasting"
	"github.com/berth-dev/berth/pki"
)

// callers are who has a stream open here as a worker: its own, or a tunnel. What lasts is asked about again, whatever was said when
// it began (ServerConfig.Refuse).
type callers struct {
	refuse func(id *pki.Identity) error // nil: nobody is refused
	open   lasting.Open[*caller]
}

type caller struct {
	id  *pki.Identity
	end context.CancelCauseFunc
}

// enter takes note of a stream that node's worker has opened, which ends with the context that it gives; leave is called when it has. An
// error says why the caller is refused by now: what has changed since its header was looked at was asked of others only.
func (c *callers) enter(ctx context.Context, node string) (of context.Context, leave func(), err error) {
	id, _ := ctx.Value(identityKey{}).(*pki.Identity) // mayBeNode has seen it
	ctx, end := context.WithCancelCause(ctx)
	one := &caller{id, end}
	forget := c.open.Add(node, one)
	leave = func() {
		forget()
		end(nil)
	}
	if err := c.refused(one); err != nil {
		leave()
		return nil, nil, err
	}
	return ctx, leave, nil
}

func (c *callers) refused(one *caller) error {
	if c.refuse == nil || one.id == nil {
		return nil
	}
	return c.refuse(one.id)
}

// askAgain ends what is open of node's worker, if it would be refused by now; of an empty name that of all.
func (c *callers) askAgain(node string) {
	for _, one := range c.open.Of(node) {
		if err := c.refused(one); err != nil {
			one.end(err)
		}
	}
}

// AskAgain ends the streams and tunnels of node's worker that are open here, if Refuse says no to who opened them; of an empty name those
// of all workers. A worker that has another certificate comes back.
func (s *Server) AskAgain(node string) { s.callers.askAgain(node) }
