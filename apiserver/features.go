package apiserver

import utilfeature "k8s.io/apiserver/pkg/util/feature"

// enableFeatures turns on what the version of Kubernetes that Berth is made of has, and leaves off: pods' own stop signals, which
// workers send, and how many pods of a StatefulSet may be away while it is updated. It is for the whole process, and may be
// called again.
func enableFeatures() error {
	return utilfeature.DefaultMutableFeatureGate.SetFromMap(map[string]bool{
		"ContainerStopSignals":      true,
		"MaxUnavailableStatefulSet": true,
	})
}
