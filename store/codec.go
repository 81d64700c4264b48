package store

import (
	"bytes"
	"fmt"
	"reflect"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/wire"
)

// Marshal encodes structs as msgpack maps, so that fields can be added, in the
// order of their fields, so that the bytes are always the same.
func Marshal(v any) ([]byte, error) { return marshal(v, usualBytes) }

// usualBytes is what most commands take: a buffer of so many need not grow.
const usualBytes = 512

// marshal is Marshal of what takes about so many bytes.
func marshal(v any, about int) ([]byte, error) {
	buf := bytes.NewBuffer(make([]byte, 0, about))
	enc := msgpack.GetEncoder()
	defer msgpack.PutEncoder(enc)
	enc.Reset(buf)
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

// Unmarshal decodes bytes that may come from anywhere.
func Unmarshal(b []byte, v any) error {
	if err := wire.Check(b, maxElements); err != nil {
		return err
	}
	return msgpack.Unmarshal(b, v)
}

// UnmarshalKnown is Unmarshal that fails with ErrUnknownCommand for a field that
// v does not have: whoever wrote it meant something by it.
func UnmarshalKnown(b []byte, v any) error {
	if err := wire.Check(b, maxElements); err != nil {
		return err
	}
	dec := msgpack.GetDecoder()
	defer msgpack.PutDecoder(dec)
	dec.Reset(wire.NewSource(b))
	dec.DisallowUnknownFields(true)
	err := dec.Decode(v)
	if err == nil {
		return nil
	}
	lenient := reflect.New(reflect.TypeOf(v).Elem()).Interface()
	if msgpack.Unmarshal(b, lenient) == nil {
		return fmt.Errorf("%w: %w", ErrUnknownCommand, err)
	}
	return err
}
