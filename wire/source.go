package wire

import (
	"bytes"
	"io"

	"github.com/vmihailenco/msgpack/v5"
)

// Source is bytes that a decoder of msgpack reads. Values that are bytes themselves can be taken out of it as they stand (Bytes, Raw),
// where the decoder would copy them: an entry of the log, its commands, and the objects in those are bytes in bytes in bytes.
type Source struct {
	bytes.Reader
	all []byte
}

// NewSource reads b, which nobody may write while something that was taken out of it is used.
func NewSource(b []byte) *Source {
	s := &Source{all: b}
	s.Reset(b)
	return s
}

// take gives the next n bytes, and goes on behind them.
func (s *Source) take(n int) ([]byte, error) {
	at := len(s.all) - s.Len()
	if n > s.Len() {
		return nil, io.ErrUnexpectedEOF
	}
	if _, err := s.Seek(int64(n), io.SeekCurrent); err != nil {
		return nil, err
	}
	return s.all[at : at+n : at+n], nil
}

// Bytes is d.DecodeBytes. Where d reads from a Source they share its memory; nil for none.
func Bytes(d *msgpack.Decoder) ([]byte, error) {
	s, ok := d.Buffered().(*Source)
	if !ok {
		return d.DecodeBytes()
	}
	n, err := d.DecodeBytesLen()
	if err != nil || n < 0 {
		return nil, err
	}
	return s.take(n)
}

// Raw is one value of msgpack in its own bytes. Decoded from a Source they share its memory.
type Raw []byte

// EncodeMsgpack implements msgpack.CustomEncoder.
func (r Raw) EncodeMsgpack(e *msgpack.Encoder) error { return msgpack.RawMessage(r).EncodeMsgpack(e) }

// DecodeMsgpack implements msgpack.CustomDecoder.
func (r *Raw) DecodeMsgpack(d *msgpack.Decoder) error {
	s, ok := d.Buffered().(*Source)
	if !ok {
		return (*msgpack.RawMessage)(r).DecodeMsgpack(d)
	}
	rest := s.all[len(s.all)-s.Len():]
	size, err := first(rest, uint64(len(rest)))
	if err != nil {
		return err
	}
	*r, err = s.take(size)
	return err
}
