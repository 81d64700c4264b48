package fsm

import (
	"fmt"

	"github.com/vmihailenco/msgpack/v5"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ProtoObject is a Kubernetes object that encodes itself as protobuf.
type ProtoObject interface {
	metav1.Object
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

type protoPtr[T any] interface {
	*T
	Size() int
	Marshal() ([]byte, error)
	Unmarshal([]byte) error
}

// Wire carries a Kubernetes object inside a command as its own protobuf bytes.
// A nil object is allowed.
type Wire[T any, P protoPtr[T]] struct{ Object P }

// The objects that commands carry.
type (
	PodStatusWire     = Wire[corev1.PodStatus, *corev1.PodStatus]
	NodeWire          = Wire[corev1.Node, *corev1.Node]
	NamespaceWire     = Wire[corev1.Namespace, *corev1.Namespace]
	EventWire         = Wire[corev1.Event, *corev1.Event]
	BudgetWire        = Wire[policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]
	PriorityClassWire = Wire[schedulingv1.PriorityClass, *schedulingv1.PriorityClass]
)

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
	b, err := d.DecodeBytes()
	if err != nil || b == nil {
		return err
	}
	w.Object = new(T)
	return unmarshalKnown(b, w.Object)
}

// protoTable defines a table whose rows are Kubernetes objects.
func protoTable[T any, P interface {
	protoPtr[T]
	metav1.Object
}](name string, index func(v *live, key string, old, new P, hadOld, hasNew bool)) *tableDef[P] {
	return &tableDef[P]{
		Name:    name,
		Marshal: func(o P) ([]byte, error) { return o.Marshal() },
		Unmarshal: func(b []byte) (P, error) {
			o := P(new(T))
			return o, unmarshalKnown(b, o)
		},
		Revise:    reviseObject[P],
		Canonical: canonicalRow[P](asProtobuf),
		Size:      func(before, _ P, _ bool) int { return structBytes + before.Size() },
		Index:     index,
	}
}

func reviseObject[P metav1.Object](o P, revision int64) {
	o.SetResourceVersion(formatRevision(revision))
}

// rowCodecs encode rows without knowing their type: results travel so.
var rowCodecs = func() map[string]anyTable {
	m := map[string]anyTable{}
	t := newTableSet()
	for _, t := range t.tables() {
		m[t.Name()] = t
	}
	return m
}()

func encodeRow(table string, row any) ([]byte, error) {
	c, ok := rowCodecs[table]
	if !ok {
		return nil, fmt.Errorf("there is no table %q", table)
	}
	return c.EncodeRow(row)
}

func decodeRow(table string, b []byte) (any, error) {
	c, ok := rowCodecs[table]
	if !ok {
		return nil, fmt.Errorf("there is no table %q", table)
	}
	return c.DecodeRow(b)
}
