package fsm

import (
	"fmt"

	"github.com/berth-dev/berth/store"
)

// Command is one change that is proposed to the log: a struct of its own file
// (cmd_<name>.go) that says what it needs, does and refuses. It is encoded as
// a msgpack map under its permanent number in the registry.
type Command interface {
	// Apply carries the command out, or refuses it and changes nothing. It
	// may use the Tx until it returns and must not keep it.
	Apply(tx *Tx) Result
}

// Proposal is a command with who proposes it.
type Proposal = store.Proposal[Command]

// Header is what the leader stamps on an entry.
type Header = store.Header

// EncodeEntry gives the bytes of a log entry.
func EncodeEntry(h Header, ps []Proposal) ([]byte, error) { return registry.EncodeEntry(h, ps) }

// DecodeEntry is the inverse of EncodeEntry.
func DecodeEntry(b []byte) (Header, []Proposal, error) {
	return registry.DecodeEntry(b, decoding(nil))
}

// decodeForApply is DecodeEntry helped by the cache of the state that the entry
// is for. A command that can not be decoded is one that panics when it is applied.
// An entry over which its decoder panics can not be read.
func decodeForApply(b []byte, cached *cache) (h Header, ps []Proposal, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("to decode it panicked: %v", p)
		}
	}()
	d := decoding(cached)
	d.Rescue = func(number uint16, value any) Command { return &unreadable{number, value} }
	return registry.DecodeEntry(b, d)
}

// decoding completes the decoding of commands, with the help of a cache where
// there is one.
func decoding(cached *cache) store.Decoding[Command] {
	return store.Decoding[Command]{Finish: func(c Command) error {
		if c, ok := c.(carrier); ok {
			return c.unpack(cached)
		}
		return nil
	}}
}

// EncodeProposals gives the bytes in which proposals are forwarded to the
// leader.
func EncodeProposals(ps []Proposal) ([]byte, error) { return registry.EncodeProposals(ps) }

// DecodeProposals is the inverse of EncodeProposals.
func DecodeProposals(b []byte) ([]Proposal, error) {
	return registry.DecodeProposals(b, decoding(nil))
}

// EncodeProposal gives a proposal's bytes for store.JoinEntry.
func EncodeProposal(p Proposal) (store.Encoded, error) { return registry.EncodeProposal(p) }

// PlansOf decodes the plans in an entry, and nothing else of it.
func PlansOf(entry []byte) ([]*ApplyPlan, error) {
	number, err := registry.NumberOf((*ApplyPlan)(nil))
	if err != nil {
		return nil, err
	}
	payloads, err := store.PayloadsOf(entry, number)
	if err != nil {
		return nil, err
	}
	var out []*ApplyPlan
	for _, b := range payloads {
		c := new(ApplyPlan)
		if err := store.Unmarshal(b, c); err != nil {
			return nil, fmt.Errorf("decode a plan: %w", err)
		}
		out = append(out, c)
	}
	return out, nil
}
