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

// podCarrier is a command that carries a pod. unpack completes its decoding.
type podCarrier interface{ unpack(c *cache) error }

func (c *AdmitPod) unpack(cached *cache) error  { return c.Pod.unpack(cached) }
func (c *AdmitPods) unpack(cached *cache) error { return c.Template.unpack(cached) }

// The spec of an update names its node: few are alike.
func (c *UpdatePod) unpack(*cache) error { return c.Pod.unpack(nil) }

// unpack decodes the object, with the help of a cache where there is one.
func (w *PodWire) unpack(c *cache) error {
	if w.raw == nil {
		return nil
	}
	raw := w.raw
	w.raw, w.Object = nil, new(corev1.Pod)
	parts, ok := splitPod(raw)
	if c == nil || !ok {
		return w.Object.Unmarshal(raw)
	}
	origin, err := c.decodeSpec(parts[1])
	if err != nil {
		return err
	}
	if err := w.Object.ObjectMeta.Unmarshal(parts[0]); err != nil {
		return err
	}
	w.origin, w.Object.Spec = origin, origin.spec
	return w.Object.Status.Unmarshal(parts[2])
}

// splitPod finds metadata, spec and status in a pod's protobuf bytes. It does
// so only for bytes as Kubernetes writes them: each field at most once and in
// order.
func splitPod(b []byte) (parts [3][]byte, ok bool) {
	const lengthDelimited = 2
	for field := 1; len(b) > 0; field++ {
		for field <= len(parts) && b[0] != byte(field<<3|lengthDelimited) {
			field++
		}
		if field > len(parts) {
			return parts, false
		}
		size, n := binary.Uvarint(b[1:])
		if n <= 0 || size > uint64(len(b)-1-n) {
			return parts, false
		}
		parts[field-1], b = b[1+n:1+n+int(size)], b[1+n+int(size):]
	}
	return parts, true
}
