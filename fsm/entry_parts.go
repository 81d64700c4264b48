package fsm

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
)

// Encoded is a proposal in the bytes that it has inside an entry. It lets the
// callers of a batching proposer do the encoding, each its own part, and
// leaves only the joining to the one that makes the entry.
type Encoded []byte

// EncodeProposal gives a proposal's bytes for JoinEntry.
func EncodeProposal(p Proposal) (Encoded, error) {
	wire, err := toWire([]Proposal{p})
	if err != nil {
		return nil, err
	}
	return marshal(wire[0])
}

// EntryOverheadBytes bounds what an entry holds beyond its proposals, given a
// header's server name of up to 255 bytes.
const EntryOverheadBytes = 512

type wireParts struct {
	Format       uint8                `msgpack:"format"`
	TimeUnixNano int64                `msgpack:"time_unix_nano"`
	Server       string               `msgpack:"server,omitempty"`
	Commands     []msgpack.RawMessage `msgpack:"commands"`
}

// JoinEntry is EncodeEntry for proposals that are encoded already, and gives
// the same bytes.
func JoinEntry(h Header, ps []Encoded) ([]byte, error) {
	commands := make([]msgpack.RawMessage, len(ps))
	for i, p := range ps {
		commands[i] = msgpack.RawMessage(p)
	}
	b, err := marshal(wireParts{Format: EntryFormat, TimeUnixNano: h.TimeUnixNano, Server: h.Server, Commands: commands})
	if err != nil {
		return nil, fmt.Errorf("join %d proposals to an entry: %w", len(ps), err)
	}
	return b, nil
}

// PlansOf decodes the plans in an entry, and nothing else of it.
func PlansOf(entry []byte) ([]*ApplyPlan, error) {
	var e wireEntry
	if err := unmarshal(entry, &e); err != nil {
		return nil, fmt.Errorf("decode entry: %w", err)
	}
	number, err := numberOf((*ApplyPlan)(nil))
	if err != nil {
		return nil, err
	}
	var out []*ApplyPlan
	for _, w := range e.Commands {
		if w.Number != number {
			continue
		}
		c := new(ApplyPlan)
		if err := unmarshal(w.Payload, c); err != nil {
			return nil, fmt.Errorf("decode a plan: %w", err)
		}
		out = append(out, c)
	}
	return out, nil
}
