package worker

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// sandboxState is how it stands with a pod's sandbox. It stays sandboxNone where the runtime has none.
type sandboxState uint8

const (
	sandboxNone     sandboxState = iota // not made yet, lost, or given back
	sandboxMaking                       // a call is under way
	sandboxReady                        // containers can be started in it
	sandboxStopping                     // a call is under way
)

// adoptSandbox takes over what a runtime kept of the pod's sandbox. owing says whether one of before may hold something.
func (p *podState) adoptSandbox(s *runtime.Sandbox, owing bool) {
	p.owing = owing
	if s != nil {
		p.sandbox = sandboxReady
		p.takeIPs(s)
	}
}

// recallIPs takes the addresses that the servers know, where the runtime could not say them: until it can they are what they were.
func (p *podState) recallIPs(known *corev1.PodStatus) {
	if !p.addressless() {
		return
	}
	for _, ip := range known.PodIPs {
		p.ips = append(p.ips, ip.IP)
	}
}

// addressless: nobody knows the pod's addresses. None of its containers is started without them, and the node's are not probed in their place.
func (p *podState) addressless() bool { return p.ipsUnknown && len(p.ips) == 0 }

// sandboxKnown takes the addresses of a sandbox that was taken over without them.
func (p *podState) sandboxKnown(s *runtime.Sandbox) {
	if p.sandbox == sandboxReady && p.ipsUnknown {
		p.takeIPs(s)
	}
}

// takeIPs keeps the addresses of a new sandbox, also when it is gone; one in the host's network has the host's.
func (p *podState) takeIPs(s *runtime.Sandbox) {
	p.ipsUnknown = s.Unknown && !p.pod.Spec.HostNetwork
	if p.ips = s.IPs; len(s.IPs) == 0 && !p.ipsUnknown {
		p.ips = p.hostIP()
	}
}

func (p *podState) hostIP() []string { return p.env.hostIPs[:min(len(p.env.hostIPs), 1)] }

// podIPs are the pod's addresses: those of its newest sandbox, and else those of the host that it shares.
func (p *podState) podIPs() []string {
	if !p.env.sandboxes {
		return p.hostIP()
	}
	return p.ips
}

// here says whether the container's newest run was in the sandbox that the pod has now.
func (p *podState) here(c *ctr) bool { return !p.env.sandboxes || c.here }

// anyAppBeganHere says whether initialization is over in the sandbox that the pod has now.
func (p *podState) anyAppBeganHere() bool {
	for i := p.inits; i < p.mains; i++ {
		if c := &p.ctrs[i]; c.attempt >= 0 && p.here(c) && !c.fresh {
			return true
		}
	}
	return false
}

// ensureSandbox says whether containers can be started. A sandbox that was lost is made again after everything that ran in
// it has ended: the containers would not share a network with those that come (IN5).
func (p *podState) ensureSandbox(now time.Time) bool {
	if !p.env.sandboxes || p.sandbox == sandboxReady {
		return !p.addressless()
	}
	if p.sandbox != sandboxNone || p.endOutside(now) || p.complete() {
		return false
	}
	if now.Before(p.sandboxRetryAt) {
		p.wakeAt(p.sandboxRetryAt)
		return false
	}
	p.sandbox = sandboxMaking
	p.act(Action{Kind: ActionSandbox})
	return false
}

// endOutside ends what runs without a sandbox, and says whether something still does.
func (p *podState) endOutside(now time.Time) bool {
	for i := range p.ctrs {
		c := &p.ctrs[i]
		if !c.alive() {
			continue
		}
		if c.condemned.IsZero() {
			c.condemned = now
		}
		p.stopContainer(c, now, c.condemned.Add(p.specGrace()))
	}
	return p.alive()
}

// sandboxLost takes the news that the sandbox is gone.
func (p *podState) sandboxLost() {
	if p.sandbox != sandboxReady {
		return
	}
	p.forgetSandbox()
	if p.stopAt.IsZero() {
		p.emit(corev1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
}

// forgetSandbox: what there was is not there any more, or may not be. Whoever makes one finds one that is good.
func (p *podState) forgetSandbox() {
	p.sandbox, p.owing = sandboxNone, true
	for i := range p.ctrs {
		p.ctrs[i].here = false
	}
}

// sandboxMade takes the outcome of making one.
func (p *podState) sandboxMade(o Outcome, now time.Time) {
	if o.Err == nil {
		p.sandbox, p.sandboxFailed, p.sandboxRetryAt, p.owing = sandboxReady, 0, time.Time{}, false
		p.takeIPs(&o.Sandbox)
		for i := range p.ctrs {
			p.ctrs[i].here = false
		}
		return
	}
	p.sandbox, p.sandboxRetryAt = sandboxNone, now.Add(retryInterval)
	p.owing = true // it may be there, for all that is known
	// What goes on failing is told less and less often.
	if p.sandboxFailed++; p.sandboxFailed&(p.sandboxFailed-1) == 0 {
		p.emit(corev1.EventTypeWarning, "FailedCreatePodSandBox", fmt.Sprintf("Failed to create pod sandbox: %v", o.Err))
	}
}

// releaseSandbox gives back what the sandbox of a pod holds that has ended, and whose object stays: also one that was lost, or of which nobody heard.
func (p *podState) releaseSandbox(now time.Time) {
	if p.sandbox != sandboxReady && !p.owes() {
		return
	}
	if now.Before(p.sandboxRetryAt) {
		p.wakeAt(p.sandboxRetryAt)
		return
	}
	p.sandbox = sandboxStopping
	p.act(Action{Kind: ActionSandboxStop})
}

func (p *podState) sandboxStopped(err error, now time.Time) {
	p.sandbox = sandboxNone
	switch {
	case err == nil:
		p.owing = false
	case p.owing: // there was none to begin with
		p.sandboxRetryAt = now.Add(retryInterval)
	default:
		p.sandbox, p.sandboxRetryAt = sandboxReady, now.Add(retryInterval)
	}
}

// owes says whether the pod has no sandbox and one of before may hold something: an address, a mount, or what runs in it.
func (p *podState) owes() bool { return p.sandbox == sandboxNone && p.owing }
