package store

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
)

type fragile struct{ N int }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (f *fragile) DecodeMsgpack(d *msgpack.Decoder) (err error) {
	if f.N, err = d.DecodeInt(); f.N == 13 {
		panic("thirteen")
	}
	return err
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (f *fragile) EncodeMsgpack(e *msgpack.Encoder) error { return e.EncodeInt(int64(f.N)) }

// TestRescue: a command that can not be read, or whose decoder panics, takes none of the others with it,
// and is one for which there is another to stand.
func TestRescue(t *testing.T) {
	r := NewRegistry(1, []Registration[any]{{Number: 7, Since: 1, New: func() any { return new(fragile) }}})
	var ps []Proposal[any]
	for _, n := range []int{12, 13, 14} {
		ps = append(ps, Proposal[any]{User: "bob", Command: &fragile{n}})
	}
	entry, err := r.EncodeEntry(Header{Server: "s1"}, ps)
	if err != nil {
		t.Fatal(err)
	}
	how := Decoding[any]{
		Finish: func(any) error { return nil },
		Rescue: func(number uint16, value any) any { return [2]any{number, value} },
	}
	h, got, err := r.DecodeEntry(entry, how)
	if err != nil || h.Server != "s1" || len(got) != 3 {
		t.Fatalf("%+v, %d commands, %v", h, len(got), err)
	}
	if got[0].Command.(*fragile).N != 12 || got[2].Command.(*fragile).N != 14 {
		t.Errorf("the others: %+v, %+v", got[0].Command, got[2].Command)
	}
	if got[1].Command != any([2]any{uint16(7), "thirteen"}) || got[1].User != "bob" {
		t.Errorf("the one that panicked: %+v", got[1])
	}
	how.Finish = func(any) error { return errors.New("wrong") }
	_, got, err = r.DecodeEntry(entry, how)
	if err != nil || len(got) != 3 || !strings.Contains(fmt.Sprint(got[0].Command), "wrong") {
		t.Errorf("what does not finish: %+v, %v", got, err)
	}
	how.Finish = func(any) error { return ErrUnknownCommand }
	if _, _, err := r.DecodeEntry(entry, how); !errors.Is(err, ErrUnknownCommand) {
		t.Errorf("what a later version may be able to read: %v", err)
	}
}
