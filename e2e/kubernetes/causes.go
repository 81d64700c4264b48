package main

import "strings"

// cause is why some specs do not pass. It has to be about specs that fail: an entry for one that passes is an error.
type cause struct {
	specs  string // the beginning of their names
	reason string
}

// causes are known and told; a failure that none explains makes the run fail.
var causes = []cause{
	{"[sig-api-machinery] AggregatedDiscovery should support aggregated discovery interface [Conformance]", noIngress},
	{"[sig-api-machinery] AggregatedDiscovery should support raw aggregated discovery endpoint Accept headers", noIngress},
	{"[sig-api-machinery] Discovery should locate the groupVersion", noIngress},
	{"[sig-api-machinery] Servers with support for API chunking should support continue listing from the last key",
		"A list that is read in parts stays of one state for as long as the changes go back to it, which is longer than the spec waits for its end."},
	{"[sig-network] API Server should have Endpoints", "The API's servers are in endpoint slices, and not in Endpoints."},
	{"[sig-network] EndpointSliceMirroring", "Endpoints that somebody writes are not copied into endpoint slices."},
	{"[sig-network] Ingress", noIngress},
	{"[sig-node] ImageVolume", "Volumes of images are refused."},
	{"[sig-node] Pod InPlace Resize Container", "Pods are not resized in place: the subresource `resize` is not served."},
	{"[sig-node] [DRA]", "resource.k8s.io is not served."},
	{"[sig-storage] CSIInlineVolumes should run through", noCSI},
	{"[sig-storage] CSINodes", noCSI},
	{"[sig-storage] CSIStorageCapacity", noCSI},
	{"[sig-storage] VolumeAttachment", noCSI},
	{"[sig-storage] VolumeAttributesClass", noCSI},
}

const (
	noIngress = "networking.k8s.io has neither Ingresses nor their classes."
	noCSI     = "Of storage.k8s.io StorageClasses alone are served."
)

func causeOf(causes []cause, name string) string {
	for _, c := range causes {
		if strings.HasPrefix(name, c.specs) {
			return c.reason
		}
	}
	return ""
}
