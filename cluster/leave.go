package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/memberlist"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/wire"
)

// intent is the goodbye of one process. memberlist tells its delegate of a
// departure and of a failure in the same way, so the goodbye is gossiped on its
// own; it may come before or after memberlist's message, and counts in either
// order. Instance keeps a late one from harming the process that came next.
type intent struct {
	Name     string `msgpack:"n"`
	Instance string `msgpack:"i"`
}

const (
	// maxIntentBytes bounds what is decoded: a name has at most 253 bytes.
	maxIntentBytes = 512
	// maxIntents and maxIntentsBytes bound what a full exchange carries.
	maxIntents      = 512
	maxIntentsBytes = maxIntents * maxIntentBytes
)

func decodeIntent(raw []byte) (intent, error) {
	var in intent
	if len(raw) > maxIntentBytes {
		return in, fmt.Errorf("decoding a goodbye: %d bytes are more than %d", len(raw), maxIntentBytes)
	}
	if err := decode(raw, &in); err != nil {
		return in, fmt.Errorf("decoding a goodbye: %w", err)
	}
	if in.Name == "" || in.Instance == "" {
		return in, errors.New("decoding a goodbye: it names nobody")
	}
	return in, nil
}

// goodbye is an intent on its way, in memberlist's queue.
type goodbye struct {
	name string
	raw  []byte
	sent chan struct{} // closed once it was sent often enough; may be nil
}

var _ memberlist.NamedBroadcast = (*goodbye)(nil)

func (g *goodbye) Name() string                            { return g.name }
func (g *goodbye) Message() []byte                         { return g.raw }
func (g *goodbye) Invalidates(o memberlist.Broadcast) bool { return false }
func (g *goodbye) Finished() {
	if g.sent != nil {
		close(g.sent)
	}
}

func (d delegate) NotifyMsg(raw []byte) {
	in, err := decodeIntent(raw)
	if err != nil {
		d.p.log.Warn("ignoring a gossip message", "error", err)
		return
	}
	if d.p.leaving(in) {
		// Our copy: memberlist reuses its buffer.
		d.p.queue.QueueBroadcast(&goodbye{name: in.Name, raw: append([]byte(nil), raw...)})
	}
}

func (d delegate) GetBroadcasts(overhead, limit int) [][]byte {
	return d.p.queue.GetBroadcasts(overhead, limit)
}

// LocalState adds the goodbyes to a full exchange: gossip alone may miss one.
func (d delegate) LocalState(bool) []byte {
	p := d.p
	p.mu.Lock()
	var known []intent
	for _, m := range p.members {
		if m.Leaving && len(known) < maxIntents {
			known = append(known, intent{Name: m.Name, Instance: m.Instance})
		}
	}
	p.mu.Unlock()
	if len(known) == 0 {
		return nil
	}
	raw, err := msgpack.Marshal(known)
	if err != nil {
		p.log.Error("cannot tell who left", "error", err)
		return nil
	}
	return raw
}

func (d delegate) MergeRemoteState(raw []byte, _ bool) {
	known, err := decodeIntents(raw)
	if err != nil {
		d.p.log.Warn("ignoring who left", "error", err)
		return
	}
	for _, in := range known {
		d.p.leaving(in)
	}
}

// decode decodes what a member has sent. Who has the key of gossip may send anything, and of bytes that claim to be long msgpack keeps
// room in decoders that it uses again, a quarter more each time.
func decode(raw []byte, into any) error {
	if err := wire.Check(raw, uint64(len(raw))); err != nil {
		return err
	}
	return msgpack.Unmarshal(raw, into)
}

func decodeIntents(raw []byte) ([]intent, error) {
	if len(raw) > maxIntentsBytes {
		return nil, fmt.Errorf("decoding goodbyes: %d bytes are more than %d", len(raw), maxIntentsBytes)
	}
	if err := wire.Check(raw, uint64(len(raw))); err != nil {
		return nil, fmt.Errorf("decoding goodbyes: %w", err)
	}
	// One by one: msgpack would make room for as many as there may be.
	dec := msgpack.NewDecoder(bytes.NewReader(raw))
	n, err := dec.DecodeArrayLen()
	if err != nil {
		return nil, fmt.Errorf("decoding goodbyes: %w", err)
	}
	if n > maxIntents {
		return nil, fmt.Errorf("decoding goodbyes: %d are more than %d", n, maxIntents)
	}
	var known []intent
	for range n {
		var in intent
		if err := dec.Decode(&in); err != nil {
			return nil, fmt.Errorf("decoding goodbyes: %w", err)
		}
		known = append(known, in)
	}
	return known, nil
}

// leaving takes a goodbye over and says whether it is news.
func (p *Pool) leaving(in intent) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	m, ok := p.members[in.Name]
	if !ok || m.Leaving || m.Instance != in.Instance {
		return false
	}
	m.Leaving = true
	if m.Status == StatusFailed {
		m.Status, m.Since = StatusLeft, time.Now()
		defer p.emit(Event{Kind: EventLeave, Member: m})
	}
	p.put(in.Name, &m)
	return true
}

// Leave says goodbye, so that others take the silence for a departure. The pool
// goes on gossiping until Shutdown.
func (p *Pool) Leave(ctx context.Context) error {
	p.endMu.Lock()
	defer p.endMu.Unlock()
	if p.ended {
		return nil
	}
	in := intent{Name: p.name, Instance: p.Meta().Instance}
	var err error
	if p.leaving(in) && p.ml.NumMembers() > 1 {
		err = p.sendGoodbye(ctx, in)
	}
	if lerr := p.ml.Leave(waitOf(ctx)); lerr != nil {
		err = errors.Join(err, lerr)
	}
	if err != nil {
		return fmt.Errorf("leaving the gossip pool: %w", err)
	}
	return nil
}

func (p *Pool) sendGoodbye(ctx context.Context, in intent) error {
	raw, err := msgpack.Marshal(&in)
	if err != nil {
		return fmt.Errorf("encoding a goodbye: %w", err)
	}
	g := &goodbye{name: in.Name, raw: raw, sent: make(chan struct{})}
	p.queue.QueueBroadcast(g)
	ctx, cancel := context.WithTimeout(ctx, waitOf(ctx))
	defer cancel()
	select {
	case <-g.sent:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("spreading the goodbye: %w", ctx.Err())
	}
}
