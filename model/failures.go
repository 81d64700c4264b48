package model

// Failures is the set of filters that one node failed, as bits. It means something only together with the class that
// was checked.
type Failures uint64

const (
	failUnschedulable Failures = 1 << iota
	_
	failTaint
	failAffinity
	failPorts
	// By the pods of others; see Judge.
	failSpread
	failSpreadMissing
	failPodAffinity
	failPodAntiAffinity
	failExistingAntiAffinity
	failEnforcedAffinity
	firstResourceBit = 11
)

// By the pod's claims; see Volumes. They share bits with the last resources, of which a class with claims does without as
// many: so of a class without claims is said what was said before there were any, and servers of both kinds agree.
const (
	failClaimInUse Failures = 1 << (firstClaimBit + iota)
	failVolumes
	_ // that of a resource that is short, which preemption ends
	failClaimElsewhere
	_
	failVolumeNode
	_
	failVolumeBind
	failVolumeZone
	firstClaimBit = firstResourceBit + 2*maxResourcesOfClaims
)

// By the pod's claims of devices, for which a class does without two resources more.
const (
	_ Failures = 1 << (firstDeviceBit + iota)
	failDrivers
	_
	failDevices
	firstDeviceBit = firstResourceBit + 2*maxResourcesOfDevices
)

// ClaimsInUse is that of a node on which pods use claims that the class wants for itself.
const ClaimsInUse = failClaimInUse

// TopologyFailures are those that a Judge finds.
const TopologyFailures = failSpread | failSpreadMissing | failPodAffinity | failPodAntiAffinity | failExistingAntiAffinity

// Resources by their bit, two bits each: short now, and more than the node could ever give.
const (
	resourcePods = iota
	resourceCPU
	resourceMemory
	resourceStorage
	resourceScalars // the first of Request.Scalars
	maxResources    = (64 - firstResourceBit) / 2

	maxResourcesOfClaims  = maxResources - 4         // of a class with claims
	maxResourcesOfDevices = maxResourcesOfClaims - 2 // of one with claims of devices
)

// namedResources is how many resources have bits of their own.
func (c *Class) namedResources() int {
	switch {
	case c.volumes == nil:
		return maxResources
	case c.volumes.devices:
		return maxResourcesOfDevices
	}
	return maxResourcesOfClaims
}

func (c *Class) short(resource int, exceeds bool) Failures {
	// A pod with more than 22 extended resources, or 18 and claims, or 16 and claims of devices, gets the rest of them named after the last of these.
	bit := firstResourceBit + 2*min(resource, c.namedResources()-1)
	if exceeds {
		bit++
	}
	return 1 << bit
}

const (
	unresolvableNode Failures = failUnschedulable | failTaint | failEnforcedAffinity | failAffinity | failSpreadMissing | failPodAffinity |
		failVolumeZone // the others of claims are among exceedsCapacity
	// Every second bit, from the first resource's on.
	exceedsCapacity Failures = 0x5555555555555555 &^ (1<<(firstResourceBit+1) - 1)
)

// Resolvable says whether removing pods from the node could help (PR4): no failure is one that preemption leaves as it
// is.
func (f Failures) Resolvable() bool { return f&(unresolvableNode|exceedsCapacity) == 0 }

// Reasons names the failures, in kube-scheduler's order, without details.
func (f Failures) Reasons(c *Class) []Reason {
	if f == 0 {
		return nil
	}
	var out []Reason
	add := func(bit Failures, kind ReasonKind) {
		if f&bit != 0 {
			out = append(out, Reason{Kind: kind})
		}
	}
	add(failUnschedulable, NodeUnschedulable)
	add(failTaint, Taint)
	add(failEnforcedAffinity, EnforcedAffinity)
	add(failAffinity, NodeAffinity)
	add(failPorts, Ports)
	for i := range min(resourceScalars+len(c.Request.Scalars), c.namedResources()) {
		switch {
		case f&c.short(i, true) != 0:
			out = append(out, Reason{Kind: ExceedsCapacity, Resource: resourceName(c, i)})
		case f&c.short(i, false) != 0:
			out = append(out, Reason{Kind: InsufficientResource, Resource: resourceName(c, i)})
		}
	}
	if c.volumes != nil {
		if f&failVolumes != 0 {
			out = append(out, c.volumes.kept)
		}
		add(failClaimInUse, ClaimInUse)
		add(failClaimElsewhere, ClaimInUseElsewhere)
		add(failVolumeNode, VolumeNode)
		add(failVolumeBind, VolumeBind)
		add(failVolumeZone, VolumeZone)
		if c.volumes.devices {
			add(failDrivers, DeviceDrivers)
			add(failDevices, DeviceNode)
		}
	}
	add(failSpread, TopologySpread)
	add(failSpreadMissing, TopologyMissing)
	add(failPodAffinity, PodAffinity)
	add(failPodAntiAffinity, PodAntiAffinity)
	add(failExistingAntiAffinity, ExistingAntiAffinity)
	return out
}

func resourceName(c *Class, i int) string {
	switch i {
	case resourcePods:
		return "pods"
	case resourceCPU:
		return "cpu"
	case resourceMemory:
		return "memory"
	case resourceStorage:
		return "ephemeral-storage"
	}
	return c.Request.Scalars[i-resourceScalars].Name
}
