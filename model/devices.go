package model

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
)

// DevicesClaimed are the names by which a pod speaks of its claims of devices; "" for most pods.
func DevicesClaimed(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) == 0 {
		return ""
	}
	names := make([]string, len(pod.Spec.ResourceClaims))
	for i := range pod.Spec.ResourceClaims {
		names[i] = pod.Spec.ResourceClaims[i].Name
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

// DeviceClaim is a claim of devices as a pod speaks of it.
type DeviceClaim struct {
	// Of is the pod's word for it, and Name the ResourceClaim's name; "" while that has still to be made.
	Of, Name string
	// Own: it has to have been made for the pod.
	Own bool
}

// DeviceClaimsOf are the claims of devices of a pod, in its order, but for those that it turned out not to need; nil for most pods.
func DeviceClaimsOf(pod *corev1.Pod) []DeviceClaim {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil
	}
	out := make([]DeviceClaim, 0, len(pod.Spec.ResourceClaims))
	for i := range pod.Spec.ResourceClaims {
		c := &pod.Spec.ResourceClaims[i]
		switch name, own, err := resourceclaim.Name(pod, c); {
		case err != nil:
			out = append(out, DeviceClaim{Of: c.Name})
		case name != nil:
			out = append(out, DeviceClaim{Of: c.Name, Name: *name, Own: own})
		}
	}
	return out
}

// HasDrivers says whether drivers of devices may run on the node: those of a kubelet, which says where it listens.
func HasDrivers(n *corev1.Node) bool { return n.Status.DaemonEndpoints.KubeletEndpoint.Port != 0 }

// Allocated says that a claim has devices, and from where they can be used.
func (b *VolumesBuilder) Allocated(a *resourcev1.AllocationResult) {
	b.claimsDevices()
	if a.NodeSelector == nil {
		return
	}
	s := compileWholeSelector(a.NodeSelector)
	b.v.allocated = append(b.v.allocated, s)
	b.add("allocated")
	b.message(a.NodeSelector)
	asks := 1 + s.asks()
	b.v.asks += asks
	b.v.bytes += 512 + 32*asks
}

// AwaitDevices says that no node can take the pod before something has become of its claims of devices.
func (b *VolumesBuilder) AwaitDevices(why string) {
	b.claimsDevices()
	b.Keep(DevicesAwaited, why)
}

func (b *VolumesBuilder) claimsDevices() {
	if !b.v.devices {
		b.v.devices = true
		b.add("devices")
	}
}

func (v *Volumes) deviceFailures(n *corev1.Node) (f Failures) {
	if !v.devices {
		return 0
	}
	if !HasDrivers(n) {
		f |= failDrivers
	}
	if slices.ContainsFunc(v.allocated, func(s *nodeSelector) bool { return !s.match(n) }) {
		f |= failDevices
	}
	return f
}

// AwaitsDevices says whether the class's pods get no node before something has become of their claims of devices.
func (c *Class) AwaitsDevices() bool {
	return c.volumes != nil && c.volumes.kept.Kind == DevicesAwaited
}
