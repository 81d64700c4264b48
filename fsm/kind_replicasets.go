package fsm

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
)

// ReplicaSets is the resource of ReplicaSets in the table of plain objects.
const ReplicaSets = "replicasets"

func replicaSetKind() ObjectKind {
	return ObjectKind{
		Group: appsv1.GroupName, Resource: ReplicaSets, Kind: "ReplicaSet",
		New: func() codec.Object { return new(appsv1.ReplicaSet) },
		Workload: &Workload{
			Replicas: func(o codec.Object) int32 { return ReplicasOf(o.(*appsv1.ReplicaSet)) },
			Selector: func(o codec.Object) *metav1.LabelSelector { return o.(*appsv1.ReplicaSet).Spec.Selector },
			Template: func(o codec.Object) *corev1.PodTemplateSpec { return &o.(*appsv1.ReplicaSet).Spec.Template },
			WithStatus: func(o codec.Object, status []byte) (codec.Object, error) {
				rs := *o.(*appsv1.ReplicaSet)
				rs.Status = appsv1.ReplicaSetStatus{}
				if err := codec.Unmarshal(status, &rs.Status); err != nil {
					return nil, fmt.Errorf("status of a ReplicaSet: %w", err)
				}
				return &rs, nil
			},
		},
	}
}

// ReplicasOf is how many pods a ReplicaSet wants; one, unless it says
// otherwise.
func ReplicasOf(rs *appsv1.ReplicaSet) int32 { return replicasOr1(rs.Spec.Replicas) }

// ReplicaSet returns a ReplicaSet. It must not be changed.
func (v *View) ReplicaSet(namespace, name string) (*appsv1.ReplicaSet, bool) {
	o, ok := v.Objects.Get(ObjectKey(ReplicaSets, namespace, name))
	if !ok {
		return nil, false
	}
	rs, ok := o.Value.(*appsv1.ReplicaSet)
	return rs, ok
}

// ScanReplicaSets calls f for the ReplicaSets of a namespace, or of all for
// "", in key order.
func (v *View) ScanReplicaSets(namespace string, f func(rs *appsv1.ReplicaSet) bool) {
	prefix := ReplicaSets + "/"
	if namespace != "" {
		prefix += namespace + "/"
	}
	v.Objects.Scan(prefix, func(_ string, o *Object) bool { return f(o.Value.(*appsv1.ReplicaSet)) })
}
