package rpc

import (
	"cmp"
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"

	"github.com/berth-dev/berth/wire"
)

const (
	// MaxMessageBytes is the largest message that is sent, or accepted from a
	// server.
	MaxMessageBytes = 64 << 20

	// MaxWorkerMessageBytes is the largest message that a worker sends: twice
	// what goes into one batch of statuses.
	MaxWorkerMessageBytes = 2 * batchBytes

	// maxElements bounds what a message may make its reader allocate: one byte
	// of a message can become a whole struct.
	maxElements = 1 << 20

	// maxWorkerElements is that for what a worker sends: twice what a batch of the smallest reports has.
	maxWorkerElements = 64 << 10
)

// codec is given to each client and server explicitly: nothing is registered.
type codec struct {
	elements uint64 // how many a message may have; 0: maxElements
}

var _ encoding.CodecV2 = codec{}

func (codec) Name() string { return "berth-msgpack" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	b, err := encode(v)
	if err != nil {
		return nil, err
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

func (c codec) Unmarshal(data mem.BufferSlice, v any) (err error) {
	defer func() {
		if p := recover(); p != nil { // it is before any handler that could be guarded
			err = fmt.Errorf("decoding a %T: it broke the decoder: %v", v, p)
		}
	}()
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free() // decoding copies
	return decodeWithin(cmp.Or(c.elements, maxElements), buf.ReadOnlyData(), v)
}

func encode(v any) ([]byte, error) {
	b, err := msgpack.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encoding a %T: %w", v, err)
	}
	return b, nil
}

func decode(b []byte, v any) error { return decodeWithin(maxElements, b, v) }

func decodeWithin(elements uint64, b []byte, v any) error {
	if err := wire.Check(b, elements); err != nil {
		return fmt.Errorf("decoding a %T: %w", v, err)
	}
	if err := msgpack.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decoding a %T: %w", v, err)
	}
	return nil
}
