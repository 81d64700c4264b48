package worker

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// addEphemeral takes up the ephemeral containers that the pod's object has and that are not known yet. They are added and
// never taken away (EC3).
func (p *podState) addEphemeral() {
	for i := range p.pod.Spec.EphemeralContainers {
		spec := runtime.Ephemeral(&p.pod.Spec.EphemeralContainers[i])
		if p.find(spec.Name) == nil {
			p.ctrs = append(p.ctrs, ctr{spec: spec, role: roleEphemeral, attempt: -1})
		}
	}
}

// stepEphemeral starts what was added to look into the pod, once each, whether the others run or not (EC1).
func (p *podState) stepEphemeral(now time.Time) {
	for i := p.mains; i < len(p.ctrs); i++ {
		if c := &p.ctrs[i]; p.canStart(c) {
			p.ensure(c, now)
		}
	}
}

// canStart says whether an ephemeral container is one that this node can run. One that it cannot waits, and the others of
// the pod go on.
func (p *podState) canStart(c *ctr) bool {
	if c.attempt >= 0 || c.alive() {
		return true
	}
	if !c.looked {
		c.looked = true
		if x := p.refuses(onlyEphemeral(p.pod, c.spec.Name)); x != nil {
			c.wait, c.waitMessage, c.refused = waitConfigError, x.Message, true
		}
	}
	if c.refused {
		return false
	}
	name := p.targetName(c)
	if name == "" {
		return true
	}
	missing := fmt.Sprintf("unable to find target container %v", name)
	if t := p.find(name); t == nil || t.state != ctrRunning && t.state != ctrHooking {
		c.wait, c.waitMessage = waitConfigError, missing
		return false
	}
	if c.waitMessage == missing {
		c.wait, c.waitMessage = "", ""
	}
	return true
}

// targetName is the container whose processes an ephemeral one is to see; empty: none is named.
func (p *podState) targetName(c *ctr) string {
	for i := range p.pod.Spec.EphemeralContainers {
		if e := &p.pod.Spec.EphemeralContainers[i]; e.Name == c.spec.Name {
			return e.TargetContainerName
		}
	}
	return ""
}

// target is the run of that container.
func (p *podState) target(c *ctr) runtime.ID {
	if c.role != roleEphemeral {
		return runtime.ID{}
	}
	t := p.find(p.targetName(c))
	if t == nil {
		return runtime.ID{}
	}
	return p.id(t)
}

func withoutEphemeral(pod *corev1.Pod) *corev1.Pod {
	if len(pod.Spec.EphemeralContainers) == 0 {
		return pod
	}
	out := *pod
	out.Spec.EphemeralContainers = nil
	return &out
}

// onlyEphemeral is the pod with one of its ephemeral containers, in its place, and no other container.
func onlyEphemeral(pod *corev1.Pod, name string) *corev1.Pod {
	out := *pod
	out.Spec.InitContainers, out.Spec.Containers = nil, nil
	out.Spec.EphemeralContainers = make([]corev1.EphemeralContainer, len(pod.Spec.EphemeralContainers))
	for i := range pod.Spec.EphemeralContainers {
		if e := &pod.Spec.EphemeralContainers[i]; e.Name == name {
			out.Spec.EphemeralContainers[i] = *e
		}
	}
	return &out
}
