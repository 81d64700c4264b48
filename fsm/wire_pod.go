package fsm

import (
	"encoding/binary"

	"github.com/vmihailenco/msgpack/v5"
	corev1 "k8s.io/api/core/v1"
)

// PodWire is Wire for a pod. Most pods come from few templates, so a spec whose
// bytes were seen before is not decoded again.
type PodWire struct {
	Object *corev1.Pod

	raw    []byte       // until unpack
	origin *decodedSpec // of the object's spec, when the cache has it
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (w PodWire) EncodeMsgpack(e *msgpack.Encoder) error {
	return Wire[corev1.Pod, *corev1.Pod]{Object: w.Object}.EncodeMsgpack(e)
}

// DecodeMsgpack implements msgpack.CustomDecoder; unpack completes it.
func (w *PodWire) DecodeMsgpack(d *msgpack.Decoder) (err error) {
	w.raw, err = d.DecodeBytes()
	return err
}

// carrier is a command that carries an object in bytes of its own. unpack
// completes its decoding.
type carrier interface{ unpack(c *cache) error }

func (c *AdmitPod) unpack(cached *cache) error  { return c.Pod.unpack(cached) }
func (c *AdmitPods) unpack(cached *cache) error { return c.Template.unpack(cached) }
func (c *UpdatePod) unpack(cached *cache) error { return c.Pod.unpack(cached) }

// unpack decodes the object, with the help of a cache where there is one.
func (w *PodWire) unpack(c *cache) error {
	if w.raw == nil {
		return nil
	}
	raw := w.raw
	w.raw, w.Object = nil, new(corev1.Pod)
	parts, ok := splitPod(raw)
	if c == nil || !ok {
		return unmarshalKnown(raw, w.Object)
	}
	spec, node, ok := cutNode(parts[1])
	if !ok {
		return unmarshalKnown(raw, w.Object)
	}
	origin, err := c.decodeSpec(spec)
	if err != nil {
		return err
	}
	if err := unmarshalKnown(parts[0], &w.Object.ObjectMeta); err != nil {
		return err
	}
	w.origin, w.Object.Spec = origin, origin.spec
	w.Object.Spec.NodeName = node
	return unmarshalKnown(parts[2], &w.Object.Status)
}

// Wire types of protobuf, and the fields of a pod that are told apart here.
const (
	wireVarint, wireFixed64, wireBytes, wireFixed32 = 0, 1, 2, 5

	specNodeName = 10
)

// splitPod finds metadata, spec and status in a pod's protobuf bytes. It does
// so only for bytes as Kubernetes writes them: each field at most once and in
// order.
func splitPod(b []byte) (parts [3][]byte, ok bool) {
	for last := 0; len(b) > 0; {
		field, value, rest, ok := nextField(b)
		if !ok || value == nil || field <= last || field > len(parts) {
			return parts, false
		}
		parts[field-1], b, last = value, rest, field
	}
	return parts, true
}

// cutNode gives the bytes of a pod's spec without its node, and the node: all
// else is the same in all pods of a template.
func cutNode(spec []byte) (rest []byte, node string, ok bool) {
	for b := spec; len(b) > 0; {
		field, value, after, ok := nextField(b)
		if !ok {
			return nil, "", false
		}
		if field == specNodeName {
			if value == nil || rest != nil {
				return nil, "", false
			}
			node = string(value)
			at := len(spec) - len(b)
			rest = append(append(make([]byte, 0, len(spec)), spec[:at]...), after...)
		}
		b = after
	}
	if rest == nil {
		rest = spec
	}
	return rest, node, true
}

// nextField takes one field off protobuf bytes. value is nil unless the field
// is length-delimited.
func nextField(b []byte) (field int, value, rest []byte, ok bool) {
	tag, n := binary.Uvarint(b)
	if n <= 0 || tag>>3 == 0 || tag>>3 > 1<<28 {
		return 0, nil, nil, false
	}
	b = b[n:]
	size := 0
	switch tag & 7 {
	case wireVarint:
		if _, size = binary.Uvarint(b); size <= 0 {
			return 0, nil, nil, false
		}
	case wireFixed64:
		size = 8
	case wireFixed32:
		size = 4
	case wireBytes:
		length, n := binary.Uvarint(b)
		if n <= 0 || length > uint64(len(b)-n) {
			return 0, nil, nil, false
		}
		size = n + int(length)
		value = b[n:size:size]
	default:
		return 0, nil, nil, false
	}
	if size > len(b) {
		return 0, nil, nil, false
	}
	return int(tag >> 3), value, b[size:], true
}
