package rpc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/berth-dev/berth/guard"
)

// holdsTimeout bounds the search for the server that holds a worker's stream.
const holdsTimeout = 3 * time.Second

// Tunneler opens tunnels to workers, whichever server holds their streams.
type Tunneler struct {
	Hub  *Hub
	Pool *Pool
	// Peers are the RPC addresses of the other servers.
	Peers func() []string
}

// Open opens a tunnel to the worker of node; it ends with ctx. If no server that
// answers holds the worker's stream, the error is ErrNotHeld, which names the
// servers that did not answer.
func (t *Tunneler) Open(ctx context.Context, node, kind string, body []byte) (*Tunnel, error) {
	if t.Hub.Holds(node) {
		tun, err := t.Hub.OpenTunnel(ctx, node, kind, body)
		if !errors.Is(err, ErrNotHeld) {
			return tun, err
		}
	}
	addr, err := t.find(ctx, node)
	if err != nil {
		return nil, fmt.Errorf("looking for the server of worker %s: %w", node, err)
	}
	return t.Pool.Tunnel(ctx, addr, node, kind, body)
}

// find asks all peers at once.
func (t *Tunneler) find(ctx context.Context, node string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, holdsTimeout)
	defer cancel()
	type answer struct {
		addr  string
		holds bool
		err   error
	}
	peers := t.Peers()
	answers := make(chan answer, len(peers))
	for _, addr := range peers {
		go func() {
			a := answer{addr: addr}
			a.err = guard.Caught(func() (err error) {
				a.holds, err = t.Pool.Holds(ctx, addr, node)
				return err
			})
			answers <- a
		}()
	}
	var silent []string
	for range peers {
		a := <-answers
		if a.holds {
			return a.addr, nil
		}
		if a.err != nil {
			silent = append(silent, a.addr)
		}
	}
	if len(silent) == 0 {
		return "", ErrNotHeld
	}
	slices.Sort(silent)
	return "", fmt.Errorf("%w; no answer from %s", ErrNotHeld, strings.Join(silent, ", "))
}
