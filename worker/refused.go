package worker

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// notHonoured is the reason of the event about something that a pod asks for, does not get, and can do without.
const notHonoured = "NotHonoured"

// waitConfigError is why a container waits that cannot be started as it is configured.
const waitConfigError = "CreateContainerConfigError"

// refused says whether nothing of the pod can be started here. It waits then, as one whose configuration is wrong, and
// does not fail: whoever replaces failed pods would make one after the other.
func (p *podState) refused() bool {
	if !p.looked {
		p.looked = true
		p.look()
	}
	if p.refusal == nil {
		return false
	}
	for i := range p.ctrs {
		p.ctrs[i].wait, p.ctrs[i].waitMessage = waitConfigError, p.refusal.Message
	}
	return true
}

func (p *podState) look() {
	for i := range p.ctrs {
		if p.ctrs[i].attempt >= 0 || p.ctrs[i].alive() {
			return // an earlier agent has looked
		}
	}
	p.refusal = p.refuses(withoutEphemeral(p.pod))
}

// refuses says why nothing of a pod can be started here, with an event; where it can, events tell what it misses.
func (p *podState) refuses(pod *corev1.Pod) *runtime.Refusal {
	if p.env.refuse != nil {
		if x := p.env.refuse(pod); x != nil {
			p.emit(corev1.EventTypeWarning, x.Reason, "Error: "+x.Message)
			return x
		}
	}
	if p.env.told != nil {
		for _, text := range p.env.told(pod) {
			p.emit(corev1.EventTypeWarning, notHonoured, text)
		}
	}
	return nil
}

// refuseDevices: a pod that claims devices, and named its node past the scheduler, waits.
func refuseDevices(pod *corev1.Pod) *runtime.Refusal {
	claimed := model.DevicesClaimed(pod)
	if claimed == "" {
		return nil
	}
	return &runtime.Refusal{Reason: "FailedPrepareDynamicResources",
		Message: "spec.resourceClaims: this node has no drivers that prepare claimed devices (" + claimed + ")"}
}
