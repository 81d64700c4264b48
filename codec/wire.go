// Package codec is how Kubernetes' objects, and what stands beside them in the
// state, are written into commands and rows, and what is asked of them when they
// are read back: every field is known, and a row is in memory what its bytes give.
package codec

import (
	"github.com/vmihailenco/msgpack/v5"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/wire"
)

// Object is a Kubernetes object that encodes itself as protobuf.
type Object interface {
	metav1.Object
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// Pointer is how a message of protobuf is held.
type Pointer[T any] interface {
	*T
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// Wire carries a Kubernetes object inside a command as its own protobuf bytes.
// A nil object is allowed.
type Wire[T any, P Pointer[T]] struct{ Object P }

// EncodeMsgpack implements msgpack.CustomEncoder.
func (w Wire[T, P]) EncodeMsgpack(e *msgpack.Encoder) error {
	if w.Object == nil {
		return e.EncodeNil()
	}
	b, err := w.Object.Marshal()
	if err != nil {
		return err
	}
	return e.EncodeBytes(b)
}

// DecodeMsgpack implements msgpack.CustomDecoder.
func (w *Wire[T, P]) DecodeMsgpack(d *msgpack.Decoder) error {
	b, err := wire.Bytes(d) // which Unmarshal copies
	if err != nil || b == nil {
		return err
	}
	w.Object = new(T)
	return Unmarshal(b, w.Object)
}
