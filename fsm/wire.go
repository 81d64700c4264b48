package fsm

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
)

// The objects that commands carry.
type (
	PodStatusWire     = codec.Wire[corev1.PodStatus, *corev1.PodStatus]
	NodeWire          = codec.Wire[corev1.Node, *corev1.Node]
	NamespaceWire     = codec.Wire[corev1.Namespace, *corev1.Namespace]
	EventWire         = codec.Wire[corev1.Event, *corev1.Event]
	BudgetWire        = codec.Wire[policyv1.PodDisruptionBudget, *policyv1.PodDisruptionBudget]
	PriorityClassWire = codec.Wire[schedulingv1.PriorityClass, *schedulingv1.PriorityClass]
)

// protoTable defines a table whose rows are Kubernetes objects.
func protoTable[T any, P interface {
	codec.Pointer[T]
	metav1.Object
}](name string, index func(v *live, key string, old, now P, hadOld, hasNow bool)) *tableDef[P] {
	size := func(before, _ P, _ bool) int { return structBytes + before.Size() }
	return &tableDef[P]{
		Name:    name,
		Marshal: func(o P) ([]byte, error) { return o.Marshal() },
		Unmarshal: func(b []byte) (P, error) {
			o := P(new(T))
			return o, codec.Unmarshal(b, o)
		},
		Revise:    reviseObject[P],
		Canonical: codec.Canonical[P](codec.Protobuf),
		Size:      size,
		Bytes:     whole(size),
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
