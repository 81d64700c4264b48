package fsm

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/wire"
)

// EntryFormat is the format of the entries that this version writes. A server
// reads every format up to it.
const EntryFormat = 1

// ErrUnknownCommand means that an entry holds a command or a format that this
// version does not know. The server must stop: to skip it would let this
// server's state drift away from the others'.
var ErrUnknownCommand = errors.New("the log holds a command that this version does not know; upgrade this server")

// Command is one change that is proposed to the log: a struct of its own file
// (cmd_<name>.go) that says what it needs, does and refuses. It is encoded as
// a msgpack map under its permanent number in the registry.
type Command interface {
	// Apply carries the command out, or refuses it and changes nothing. It
	// may use the Tx until it returns and must not keep it.
	Apply(tx *Tx) Result
}

// Proposal is a command with who proposes it.
type Proposal struct {
	User    string
	Groups  []string
	Command Command
}

// Header is what the leader stamps on an entry.
type Header struct {
	// TimeUnixNano is the leader's clock. The state's time never goes back.
	TimeUnixNano int64
	// Server is the name of the server that proposes the entry to the log.
	Server string
}

type wireEntry struct {
	Format       uint8          `msgpack:"format"`
	TimeUnixNano int64          `msgpack:"time_unix_nano"`
	Server       string         `msgpack:"server,omitempty"`
	Commands     []wireProposal `msgpack:"commands"`
}

type wireProposal struct {
	Number  uint16             `msgpack:"n"`
	User    string             `msgpack:"user,omitempty"`
	Groups  []string           `msgpack:"groups,omitempty"`
	Payload msgpack.RawMessage `msgpack:"command"`
}

// EncodeEntry gives the bytes of a log entry.
func EncodeEntry(h Header, ps []Proposal) ([]byte, error) {
	wire, err := toWire(ps)
	if err != nil {
		return nil, err
	}
	return marshal(wireEntry{Format: EntryFormat, TimeUnixNano: h.TimeUnixNano, Server: h.Server, Commands: wire})
}

// DecodeEntry is the inverse of EncodeEntry.
func DecodeEntry(b []byte) (Header, []Proposal, error) {
	return decodeEntry(b, func(w []wireProposal) ([]Proposal, error) { return fromWire(w, nil) })
}

// decodeForApply is DecodeEntry helped by the cache of the state that the entry
// is for. A command whose decoder panics is one that panics when it is applied.
func decodeForApply(b []byte, c *cache) (Header, []Proposal, error) {
	return decodeEntry(b, func(wire []wireProposal) ([]Proposal, error) {
		ps := make([]Proposal, len(wire))
		for i, w := range wire {
			p, err := guardedCommand(w, c)
			if err != nil {
				return nil, err
			}
			ps[i] = p
		}
		return ps, nil
	})
}

func guardedCommand(w wireProposal, cached *cache) (p Proposal, err error) {
	defer func() {
		if value := recover(); value != nil {
			p, err = Proposal{User: w.User, Groups: w.Groups, Command: &unreadable{w.Number, value}}, nil
		}
	}()
	return w.proposal(cached)
}

func decodeEntry(b []byte, commands func([]wireProposal) ([]Proposal, error)) (Header, []Proposal, error) {
	var e wireEntry
	if err := unmarshal(b, &e); err != nil {
		return Header{}, nil, fmt.Errorf("decode entry: %w", err)
	}
	if e.Format == 0 || e.Format > EntryFormat {
		return Header{}, nil, fmt.Errorf("entry format %d: %w", e.Format, ErrUnknownCommand)
	}
	ps, err := commands(e.Commands)
	return Header{TimeUnixNano: e.TimeUnixNano, Server: e.Server}, ps, err
}

// EncodeProposals gives the bytes in which proposals are forwarded to the
// leader.
func EncodeProposals(ps []Proposal) ([]byte, error) {
	wire, err := toWire(ps)
	if err != nil {
		return nil, err
	}
	return marshal(wire)
}

// DecodeProposals is the inverse of EncodeProposals.
func DecodeProposals(b []byte) ([]Proposal, error) {
	var wire []wireProposal
	if err := unmarshal(b, &wire); err != nil {
		return nil, fmt.Errorf("decode proposals: %w", err)
	}
	return fromWire(wire, nil)
}

func toWire(ps []Proposal) ([]wireProposal, error) {
	wire := make([]wireProposal, len(ps))
	for i, p := range ps {
		n, err := numberOf(p.Command)
		if err != nil {
			return nil, err
		}
		payload, err := marshal(p.Command)
		if err != nil {
			return nil, fmt.Errorf("encode command %T: %w", p.Command, err)
		}
		wire[i] = wireProposal{Number: n, User: p.User, Groups: p.Groups, Payload: payload}
	}
	return wire, nil
}

func fromWire(wire []wireProposal, cached *cache) ([]Proposal, error) {
	ps := make([]Proposal, len(wire))
	for i, w := range wire {
		p, err := w.proposal(cached)
		if err != nil {
			return nil, err
		}
		ps[i] = p
	}
	return ps, nil
}

func (w *wireProposal) proposal(cached *cache) (Proposal, error) {
	c, err := newCommand(w.Number)
	if err != nil {
		return Proposal{}, err
	}
	if err := unmarshal(w.Payload, c); err != nil {
		return Proposal{}, fmt.Errorf("decode command %T: %w", c, err)
	}
	if carrier, ok := c.(podCarrier); ok {
		if err := carrier.unpack(cached); err != nil {
			return Proposal{}, fmt.Errorf("decode command %T: %w", c, err)
		}
	}
	return Proposal{User: w.User, Groups: w.Groups, Command: c}, nil
}

// marshal encodes structs as maps, so that fields can be added, in the order
// of their fields, so that the bytes are always the same.
func marshal(v any) ([]byte, error) {
	var buf bytes.Buffer
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(&buf)
	enc.UseCompactInts(true)
	enc.UseCompactFloats(true)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}

// maxElements bounds the values inside of one entry; it is far above what an
// entry of the largest size holds.
const maxElements = 1 << 24

// unmarshal decodes bytes that may come from anywhere.
func unmarshal(b []byte, v any) error {
	if err := wire.Check(b, maxElements); err != nil {
		return err
	}
	return msgpack.Unmarshal(b, v)
}
