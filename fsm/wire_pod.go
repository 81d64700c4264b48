package fsm

import (
	"github.com/vmihailenco/msgpack/v5"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
)

// PodWire is codec.Wire for a pod. Most pods come from few templates, so a spec whose
// bytes were seen before is not decoded again.
type PodWire struct {
	Object *corev1.Pod

	raw    []byte       // until unpack
	origin *decodedSpec // of the object's spec, when the cache has it
}

// EncodeMsgpack implements msgpack.CustomEncoder.
func (w PodWire) EncodeMsgpack(e *msgpack.Encoder) error {
	return codec.Wire[corev1.Pod, *corev1.Pod]{Object: w.Object}.EncodeMsgpack(e)
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
	parts, ok := codec.SplitPod(raw)
	if c == nil || !ok {
		return codec.Unmarshal(raw, w.Object)
	}
	spec, node, hostname, ok := codec.CutOwn(parts[1])
	if !ok {
		return codec.Unmarshal(raw, w.Object)
	}
	origin, err := c.decodeSpec(spec)
	if err != nil {
		return err
	}
	if err := codec.Unmarshal(parts[0], &w.Object.ObjectMeta); err != nil {
		return err
	}
	w.origin, w.Object.Spec = origin, origin.spec
	w.Object.Spec.NodeName, w.Object.Spec.Hostname = node, hostname
	return codec.Unmarshal(parts[2], &w.Object.Status)
}
