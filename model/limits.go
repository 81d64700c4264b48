package model

import "k8s.io/apimachinery/pkg/util/validation/field"

// What an object may have, at the API and in what a worker says of its node.
const (
	MaxLabels        = 128 // and annotations that a worker writes
	MaxConditions    = 64  // of a node
	MaxNodeResources = 256
	// MaxPodStatusBytes bounds the status of a pod, as protobuf, whoever says it. The statuses of a hundred containers that
	// all ended with the longest message fit in.
	MaxPodStatusBytes = 256 << 10
)

// CheckPodStatusBytes refuses the status of a pod that takes so many bytes as protobuf; nil: it may be so large.
func CheckPodStatusBytes(n int) *field.Error {
	if n <= MaxPodStatusBytes {
		return nil
	}
	return field.TooLong(field.NewPath("status"), "", MaxPodStatusBytes)
}
