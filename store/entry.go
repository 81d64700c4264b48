package store

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/berth-dev/berth/wire"
)

// EntryFormat is the format of the entries that this version writes. A server
// reads every format up to it.
const EntryFormat = 1

// ErrUnknownCommand means that an entry holds a command or a format that this
// version does not know. The server must stop: to skip it would let this
// server's state drift away from the others'.
var ErrUnknownCommand = errors.New("the log holds a command, or a field of one, that this version does not know; upgrade this server")

// ErrNewerVersion means that an entry or a snapshot goes by rules that this
// version does not know. The server must stop, as at an unknown command.
var ErrNewerVersion = errors.New("it goes by rules that this version does not know; upgrade this server")

// Header is what the leader stamps on an entry.
type Header struct {
	// Version is that of the rules by which the commands are carried out: the
	// lowest that all voting servers know. A state's version never goes back;
	// 0 leaves it as it is.
	Version int
	// TimeUnixNano is the leader's clock. The state's time never goes back.
	TimeUnixNano int64
	// Server is the name of the server that proposes the entry to the log.
	Server string
}

// Proposal is a command with who proposes it. C is what all commands of a log
// have in common.
type Proposal[C any] struct {
	User    string
	Groups  []string
	Command C
	// Seen is the revision of the state by which this was decided, where it is not to be carried out if the state was replaced
	// since. 0: whatever became of it.
	Seen int64
}

// Registration gives a command its permanent number. Numbers are never used
// again; Since is the version of the log's vocabulary from which on a server
// knows the command.
type Registration[C any] struct {
	Number uint16
	Since  int
	New    func() C
}

// Registry knows the commands of a log, and encodes and decodes its entries.
type Registry[C any] struct {
	version  int
	byNumber map[uint16]Registration[C]
	byType   map[reflect.Type]Registration[C]
}

// NewRegistry makes a registry of these commands, which knows the rules up to a
// version. It panics when two of them have one number.
func NewRegistry[C any](version int, commands []Registration[C]) *Registry[C] {
	r := &Registry[C]{version: version, byNumber: map[uint16]Registration[C]{}, byType: map[reflect.Type]Registration[C]{}}
	for _, c := range commands {
		if _, twice := r.byNumber[c.Number]; twice {
			panic(fmt.Sprintf("store: two commands have the number %d", c.Number))
		}
		r.byNumber[c.Number], r.byType[reflect.TypeOf(c.New())] = c, c
	}
	return r
}

// NumberOf is the number of a command's type.
func (r *Registry[C]) NumberOf(c C) (uint16, error) {
	known, ok := r.byType[reflect.TypeOf(c)]
	if !ok {
		return 0, fmt.Errorf("command %T is not registered", c)
	}
	return known.Number, nil
}

// Since is the version of the vocabulary from which on servers know a command.
func (r *Registry[C]) Since(c C) int { return r.byType[reflect.TypeOf(c)].Since }

// New is an empty command of a number, or ErrUnknownCommand.
func (r *Registry[C]) New(number uint16) (C, error) {
	known, ok := r.byNumber[number]
	if !ok {
		var none C
		return none, fmt.Errorf("command %d: %w", number, ErrUnknownCommand)
	}
	return known.New(), nil
}

type wireEntry struct {
	Format       uint8          `msgpack:"format"`
	TimeUnixNano int64          `msgpack:"time_unix_nano"`
	Server       string         `msgpack:"server,omitempty"`
	Version      int            `msgpack:"version,omitempty"`
	Commands     []wireProposal `msgpack:"commands"`
}

func (e *wireEntry) header() Header {
	return Header{Version: e.Version, TimeUnixNano: e.TimeUnixNano, Server: e.Server}
}

type wireProposal struct {
	Number  uint16   `msgpack:"n"`
	User    string   `msgpack:"user,omitempty"`
	Groups  []string `msgpack:"groups,omitempty"`
	Seen    int64    `msgpack:"seen,omitempty"`
	Payload wire.Raw `msgpack:"command"`
}

// proposalOverheadBytes is about what a proposal takes beyond its texts and its payload.
const proposalOverheadBytes = 48

// bytes is about how many bytes it takes.
func (w *wireProposal) bytes() int {
	n := proposalOverheadBytes + len(w.User) + len(w.Payload)
	for _, g := range w.Groups {
		n += len(g) + 3
	}
	return n
}

// EncodeEntry gives the bytes of a log entry.
func (r *Registry[C]) EncodeEntry(h Header, ps []Proposal[C]) ([]byte, error) {
	parts, err := r.toWire(ps)
	if err != nil {
		return nil, err
	}
	return Marshal(wireEntry{Format: EntryFormat, TimeUnixNano: h.TimeUnixNano, Server: h.Server, Version: h.Version, Commands: parts})
}

// Decoding says how commands are decoded.
type Decoding[C any] struct {
	// Finish completes the decoding of each command.
	Finish func(C) error
	// Rescue, where there is one, gives a command that stands for the one of
	// this number whose bytes can not be read, or made their decoder panic. Those
	// that a later version may be able to read (ErrUnknownCommand) are not among
	// them.
	Rescue func(number uint16, value any) C
}

// DecodeEntry is the inverse of EncodeEntry.
func (r *Registry[C]) DecodeEntry(b []byte, how Decoding[C]) (Header, []Proposal[C], error) {
	e, err := openEntry(b)
	if err != nil {
		return Header{}, nil, err
	}
	if e.Version > r.version {
		return Header{}, nil, fmt.Errorf("entry of version %d, where version %d is known: %w", e.Version, r.version, ErrNewerVersion)
	}
	ps, err := r.fromWire(e.Commands, how)
	return e.header(), ps, err
}

func openEntry(b []byte) (wireEntry, error) {
	var e wireEntry
	if err := UnmarshalKnown(b, &e); err != nil {
		return e, fmt.Errorf("decode entry: %w", err)
	}
	if e.Format == 0 || e.Format > EntryFormat {
		return e, fmt.Errorf("entry format %d: %w", e.Format, ErrUnknownCommand)
	}
	return e, nil
}

// PayloadsOf gives the bytes of an entry's commands of one number, in their
// order, and decodes nothing else. They share the entry's memory.
func PayloadsOf(entry []byte, number uint16) ([][]byte, error) {
	e, err := openEntry(entry)
	if err != nil {
		return nil, err
	}
	var out [][]byte
	for _, w := range e.Commands {
		if w.Number == number {
			out = append(out, w.Payload)
		}
	}
	return out, nil
}

// EncodeProposals gives the bytes in which proposals are forwarded to the
// leader.
func (r *Registry[C]) EncodeProposals(ps []Proposal[C]) ([]byte, error) {
	parts, err := r.toWire(ps)
	if err != nil {
		return nil, err
	}
	bytes := proposalOverheadBytes
	for i := range parts {
		bytes += parts[i].bytes()
	}
	return marshal(parts, bytes)
}

// DecodeProposals is the inverse of EncodeProposals.
func (r *Registry[C]) DecodeProposals(b []byte, how Decoding[C]) ([]Proposal[C], error) {
	var parts []wireProposal
	if err := UnmarshalKnown(b, &parts); err != nil {
		return nil, fmt.Errorf("decode proposals: %w", err)
	}
	return r.fromWire(parts, how)
}

func (r *Registry[C]) toWire(ps []Proposal[C]) ([]wireProposal, error) {
	parts := make([]wireProposal, len(ps))
	for i, p := range ps {
		n, err := r.NumberOf(p.Command)
		if err != nil {
			return nil, err
		}
		payload, err := Marshal(p.Command)
		if err != nil {
			return nil, fmt.Errorf("encode command %T: %w", p.Command, err)
		}
		parts[i] = wireProposal{Number: n, User: p.User, Groups: p.Groups, Seen: p.Seen, Payload: payload}
	}
	return parts, nil
}

func (r *Registry[C]) fromWire(parts []wireProposal, how Decoding[C]) ([]Proposal[C], error) {
	ps := make([]Proposal[C], len(parts))
	for i, w := range parts {
		c, err := r.command(&w, how)
		if err != nil {
			return nil, err
		}
		ps[i] = Proposal[C]{User: w.User, Groups: w.Groups, Seen: w.Seen, Command: c}
	}
	return ps, nil
}

func (r *Registry[C]) command(w *wireProposal, how Decoding[C]) (c C, err error) {
	if how.Rescue != nil {
		defer func() {
			if value := recover(); value != nil {
				c, err = how.Rescue(w.Number, value), nil
			} else if err != nil && !errors.Is(err, ErrUnknownCommand) {
				c, err = how.Rescue(w.Number, err), nil
			}
		}()
	}
	if c, err = r.New(w.Number); err != nil {
		return c, err
	}
	if err := UnmarshalKnown(w.Payload, c); err != nil {
		return c, fmt.Errorf("decode command %T: %w", c, err)
	}
	if err := how.Finish(c); err != nil {
		return c, fmt.Errorf("decode command %T: %w", c, err)
	}
	return c, nil
}

// Encoded is a proposal in the bytes that it has inside an entry. It lets the
// callers of a batching proposer do the encoding, each its own part, and
// leaves only the joining to the one that makes the entry.
type Encoded []byte

// EncodeProposal gives a proposal's bytes for JoinEntry.
func (r *Registry[C]) EncodeProposal(p Proposal[C]) (Encoded, error) {
	parts, err := r.toWire([]Proposal[C]{p})
	if err != nil {
		return nil, err
	}
	return marshal(parts[0], parts[0].bytes())
}

// EntryOverheadBytes bounds what an entry holds beyond its proposals, given a
// header's server name of up to 255 bytes.
const EntryOverheadBytes = 512

type wireParts struct {
	Format       uint8      `msgpack:"format"`
	TimeUnixNano int64      `msgpack:"time_unix_nano"`
	Server       string     `msgpack:"server,omitempty"`
	Version      int        `msgpack:"version,omitempty"`
	Commands     []wire.Raw `msgpack:"commands"`
}

// JoinEntry is EncodeEntry for proposals that are encoded already, and gives
// the same bytes.
func JoinEntry(h Header, ps []Encoded) ([]byte, error) {
	commands, bytes := make([]wire.Raw, len(ps)), EntryOverheadBytes
	for i, p := range ps {
		commands[i], bytes = wire.Raw(p), bytes+len(p)
	}
	b, err := marshal(wireParts{Format: EntryFormat, TimeUnixNano: h.TimeUnixNano, Server: h.Server, Version: h.Version, Commands: commands}, bytes)
	if err != nil {
		return nil, fmt.Errorf("join %d proposals to an entry: %w", len(ps), err)
	}
	return b, nil
}
