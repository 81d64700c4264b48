package model

import "fmt"

// ReasonKind says which rule kept a pod off a node: one kind for each filter, two where preemption must tell apart what
// removing pods can mend and what it cannot. The numbers are stored and must not change.
type ReasonKind uint8

const (
	ReasonNone ReasonKind = iota
	// NodeUnschedulable: spec.unschedulable, and no toleration for it.
	NodeUnschedulable
	_ // nobody gives it any more
	// Taint: a NoSchedule or NoExecute taint that the pod does not tolerate.
	Taint
	// NodeAffinity: nodeSelector or required node affinity does not match.
	NodeAffinity
	// Ports: a host port is taken.
	Ports
	// InsufficientResource: the resource is used up; it would fit on the empty node.
	InsufficientResource
	// ExceedsCapacity: the pod asks for more than the node could give when empty.
	ExceedsCapacity
	// The kinds from here on come from filters that judge a node by the pods of others.
	TopologySpread
	TopologyMissing
	PodAffinity
	PodAntiAffinity
	ExistingAntiAffinity
	// DisruptionBudget: not a filter; a budget forbids the evictions that would help (PD13).
	DisruptionBudget
	// EnforcedAffinity: the profile's added affinity does not match.
	EnforcedAffinity
	// The kinds from here on come from the pod's claims. Those that keep it off every node name a claim (Resource).
	ClaimMissing
	ClaimNotMade // of an ephemeral volume
	ClaimForeign // of an ephemeral volume, but not the pod's
	ClaimDeleted
	ClaimLost
	ClaimUnbound // and it does not wait for a pod
	ClaimRefused // nobody makes such a volume: Resource says why
	VolumeMissing
	// ClaimInUse, ClaimInUseElsewhere: another pod uses a claim that one at a time may use, on this node or on another.
	ClaimInUse
	ClaimInUseElsewhere
	// VolumeNode: a volume that a claim has cannot be reached from the node. VolumeZone: it is in another zone.
	VolumeNode
	VolumeZone
	// VolumeBind: there is no volume for a claim on the node, and none is made.
	VolumeBind
	// DeviceClaims: the pod claims devices (resourceClaims), which nobody allocates here. Resource names the claims.
	DeviceClaims
	// DevicesAwaited: a claim of devices is not there yet, or has not been given any. Resource says which.
	DevicesAwaited
	// DeviceDrivers: the node runs no drivers of devices. DeviceNode: those of a claim cannot be used from it.
	DeviceDrivers
	DeviceNode
)

// Resolvable says whether removing pods from the node can make this filter pass (PR4).
func (k ReasonKind) Resolvable() bool {
	switch k {
	case Ports, InsufficientResource, TopologySpread, PodAntiAffinity, ExistingAntiAffinity, ClaimInUse:
		return true
	}
	return false
}

// String returns the name of the kube-scheduler plugin whose verdict the kind is.
func (k ReasonKind) String() string {
	switch k {
	case NodeUnschedulable:
		return "NodeUnschedulable"
	case Taint:
		return "TaintToleration"
	case NodeAffinity, EnforcedAffinity:
		return "NodeAffinity"
	case Ports:
		return "NodePorts"
	case InsufficientResource, ExceedsCapacity:
		return "NodeResourcesFit"
	case TopologySpread, TopologyMissing:
		return "PodTopologySpread"
	case PodAffinity, PodAntiAffinity, ExistingAntiAffinity:
		return "InterPodAffinity"
	case DisruptionBudget:
		return "DefaultPreemption"
	case ClaimInUse, ClaimInUseElsewhere:
		return "VolumeRestrictions"
	case VolumeZone:
		return "VolumeZone"
	case ClaimMissing, ClaimNotMade, ClaimForeign, ClaimDeleted, ClaimLost, ClaimUnbound, ClaimRefused, VolumeMissing, VolumeNode, VolumeBind:
		return "VolumeBinding"
	case DeviceClaims, DevicesAwaited, DeviceDrivers, DeviceNode:
		return "DynamicResources"
	}
	return "None"
}

// Reason is one failed filter of one node.
type Reason struct {
	Kind ReasonKind
	// Resource names what is short, for InsufficientResource and ExceedsCapacity.
	Resource string
	// ShortBy is how much of Resource is missing, cpu in thousandths.
	ShortBy int64
	// Detail tells a reader more than the wording that Kubernetes counts nodes by: the taints, the ports in the way.
	Detail string
}

// Text returns kube-scheduler's wording, by which nodes are counted in the PodScheduled condition.
func (r Reason) Text() string {
	switch r.Kind {
	case NodeUnschedulable:
		return "node(s) were unschedulable"
	case Taint:
		return "node(s) had untolerated taint(s)"
	case NodeAffinity:
		return "node(s) didn't match Pod's node affinity/selector"
	case EnforcedAffinity:
		return "node(s) didn't match scheduler-enforced node affinity"
	case Ports:
		return "node(s) didn't have free ports for the requested pod ports"
	case InsufficientResource, ExceedsCapacity:
		if r.Resource == "pods" {
			return "Too many pods"
		}
		return "Insufficient " + r.Resource
	case TopologySpread:
		return "node(s) didn't match pod topology spread constraints"
	case TopologyMissing:
		return "node(s) didn't match pod topology spread constraints (missing required label)"
	case PodAffinity:
		return "node(s) didn't match pod affinity rules"
	case PodAntiAffinity:
		return "node(s) didn't match pod anti-affinity rules"
	case ExistingAntiAffinity:
		return "node(s) didn't satisfy existing pods anti-affinity rules"
	case ClaimMissing:
		return fmt.Sprintf("persistentvolumeclaim %q not found", r.Resource)
	case ClaimNotMade:
		return fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", r.Resource)
	case ClaimForeign:
		return fmt.Sprintf("persistentvolumeclaim %q was not created for the pod", r.Resource)
	case ClaimDeleted:
		return fmt.Sprintf("persistentvolumeclaim %q is being deleted", r.Resource)
	case ClaimLost:
		return fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume", r.Resource)
	case ClaimUnbound:
		return "pod has unbound immediate PersistentVolumeClaims"
	case ClaimRefused:
		return r.Resource
	case VolumeMissing:
		return "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)"
	case ClaimInUse, ClaimInUseElsewhere:
		return "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by another pod"
	case VolumeNode:
		return "node(s) didn't match PersistentVolume's node affinity"
	case VolumeZone:
		return "node(s) had no available volume zone"
	case VolumeBind:
		return "node(s) didn't find available persistent volumes to bind"
	case DeviceClaims:
		return fmt.Sprintf("pod claims devices (%s), which nobody allocates here", r.Resource)
	case DevicesAwaited:
		return r.Resource
	case DeviceDrivers:
		return "node(s) run no drivers of devices"
	case DeviceNode:
		return "resourceclaim not available on the node"
	}
	return "node(s) are available"
}

// Explain returns Text with what Detail and ShortBy add to it.
func (r Reason) Explain() string {
	switch {
	case r.Detail != "":
		return r.Text() + ": " + r.Detail
	case r.ShortBy > 0:
		return fmt.Sprintf("%s (short %s)", r.Text(), FormatAmount(r.Resource, r.ShortBy))
	}
	return r.Text()
}
