package fsm

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/codec"
)

// LimitRanges is the resource of what containers and pods of a namespace are given
// that say nothing of it, and of what they may ask for.
const LimitRanges = "limitranges"

// SinceLimits is the version of the rules that brought limit ranges and resource
// quotas. By those before there are none, so nothing is refused for them.
const SinceLimits = 5

// maxLimitRanges bounds those of a namespace: all of them are read for every new pod.
const maxLimitRanges = 64

func limitRangeKind() ObjectKind {
	return ObjectKind{
		Resource: LimitRanges, Kind: "LimitRange", Since: SinceLimits, MostInNamespace: maxLimitRanges,
		New: func() codec.Object { return new(corev1.LimitRange) },
	}
}

// LimitRangesOf are the limit ranges of a namespace, by name. They must not be changed.
func (v *View) LimitRangesOf(namespace string) (out []*corev1.LimitRange) {
	v.Objects.Scan(ObjectKey(LimitRanges, namespace, ""), func(_ string, o *Object) bool {
		out = append(out, o.Value.(*corev1.LimitRange))
		return true
	})
	return out
}
