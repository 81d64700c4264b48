package worker

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// status builds the pod's status as the servers are to store it. It is made anew each time: a node with a hundred idle
// pods keeps none.
func (p *podState) status(now time.Time) corev1.PodStatus {
	s := corev1.PodStatus{
		ObservedGeneration: p.generation(),
		QOSClass:           model.QOS(p.pod),
		StartTime:          metaTime(p.startTime),
	}
	s.Phase, s.Reason, s.Message = p.phase()
	for _, ip := range p.env.hostIPs {
		s.HostIPs = append(s.HostIPs, corev1.HostIP{IP: ip})
	}
	if len(p.env.hostIPs) > 0 {
		s.HostIP = p.env.hostIPs[0]
	}
	if p.admission != rejected {
		p.containerStatuses(&s)
	}
	if p.admission == admitted {
		ips := p.podIPs()
		s.PodIP = first(ips)
		for _, ip := range ips {
			s.PodIPs = append(s.PodIPs, corev1.PodIP{IP: ip})
		}
	}
	if p.admission == admitted {
		s.AllocatedResources, s.Resources = p.resourcesOfAll()
	}
	p.setConditions(&s, now)
	fitStatus(&s)
	return s
}

func metaTime(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	m := metav1.NewTime(t.Truncate(time.Second)) // the API knows whole seconds
	return &m
}

func plainTime(t time.Time) metav1.Time {
	if m := metaTime(t); m != nil {
		return *m
	}
	return metav1.Time{}
}

func (p *podState) containerStatuses(s *corev1.PodStatus) {
	for i := range p.ctrs {
		cs := p.containerStatus(&p.ctrs[i])
		switch {
		case i < p.inits:
			s.InitContainerStatuses = append(s.InitContainerStatuses, cs)
		case i < p.mains:
			s.ContainerStatuses = append(s.ContainerStatuses, cs)
		default:
			s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, cs)
		}
	}
	if !p.ended() {
		return
	}
	neverBegan(s.InitContainerStatuses[:lastTried(s.InitContainerStatuses)])
	if p.initialized() {
		neverBegan(s.ContainerStatuses)
	}
}

// neverBegan makes what was never started, or waited, when its pod was ended count as failed, as a kubelet does.
func neverBegan(statuses []corev1.ContainerStatus) {
	for i := range statuses {
		if s := &statuses[i]; s.State.Terminated == nil {
			s.State = corev1.ContainerState{Terminated: terminated(&runtime.Exit{Code: 137, Reason: runtime.ReasonStatusUnknown,
				Message: "The container could not be located when the pod was terminated"}, "")}
		}
	}
}

// lastTried is how many init containers had their turn: all up to the last one that ever ran, and the first one in any case.
func lastTried(inits []corev1.ContainerStatus) int {
	for i := len(inits) - 1; i > 0; i-- {
		if inits[i].State.Waiting == nil || inits[i].LastTerminationState.Terminated != nil {
			return i + 1
		}
	}
	return min(len(inits), 1)
}

// ended says whether the pod has come to its end and nothing of it runs any more, whoever asked for that.
func (p *podState) ended() bool {
	return p.final() || !p.stopAt.IsZero() && (p.verdict != nil || model.Terminal(p.pod)) && !p.alive()
}

// final says whether the pod was asked to go and nothing of it runs any more.
func (p *podState) final() bool {
	return !p.stopAt.IsZero() && (p.gone || p.pod.DeletionTimestamp != nil) && !p.alive()
}

func (p *podState) containerStatus(c *ctr) corev1.ContainerStatus {
	running, started := c.state == ctrRunning, c.started()
	s := corev1.ContainerStatus{Name: c.spec.Name, Image: cmp.Or(c.image, c.spec.Image), ImageID: c.imageID, RestartCount: max(c.attempt, 0), Started: &started, User: c.user}
	if c.role != roleEphemeral {
		s.AllocatedResources, s.Resources = p.resourcesOf(c)
	}
	s.VolumeMounts = p.volumeMounts(c.spec)
	switch c.role {
	case roleInit: // by what is shown of it, below
	case roleEphemeral:
		s.Started = nil
	default:
		// LC6: without a readiness probe, what runs is ready. That it ends, its pod's object says; its services send nothing new there
		// (LC8), unless there is nobody else (KEP-1669).
		s.Ready = c.ready()
	}
	id := ""
	if c.attempt >= 0 {
		id = p.containerID(c, c.attempt)
		s.ContainerID = id
		if l := c.spec.Lifecycle; l != nil {
			s.StopSignal = l.StopSignal
		}
	}
	last, lastAttempt := c.last, c.attempt-1
	switch {
	case running:
		s.State.Running = &corev1.ContainerStateRunning{StartedAt: plainTime(c.startedAt)}
	case c.exit != nil && (c.wait == "" && !p.waitsAnew(c) || !p.stopAt.IsZero()):
		s.State.Terminated = terminated(c.exit, id)
		if c.role == roleInit {
			s.Ready = c.exit.Code == 0
		}
	default:
		s.State.Waiting = p.waiting(c)
		if c.exit != nil {
			last, lastAttempt = c.exit, c.attempt
		}
	}
	if last != nil {
		s.LastTerminationState.Terminated = terminated(last, p.containerID(c, lastAttempt))
	}
	return s
}

// volumeMounts says how a container has its volumes. Of what is read-only it says whether that goes for what is mounted below, too.
func (p *podState) volumeMounts(c *corev1.Container) []corev1.VolumeMountStatus {
	var out []corev1.VolumeMountStatus
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		s := corev1.VolumeMountStatus{Name: m.Name, MountPath: m.MountPath, ReadOnly: m.ReadOnly}
		if m.ReadOnly {
			below := corev1.RecursiveReadOnlyDisabled
			if recursive(m) && p.env.readOnlyBelow != nil && p.env.readOnlyBelow() {
				below = corev1.RecursiveReadOnlyEnabled
			}
			s.RecursiveReadOnly = &below
		}
		out = append(out, s)
	}
	return out
}

// recursive: what is mounted below the volume is to be read-only with it, where the runtime can.
func recursive(m *corev1.VolumeMount) bool {
	return m.RecursiveReadOnly != nil && *m.RecursiveReadOnly != corev1.RecursiveReadOnlyDisabled
}

// containerID is how the API calls the container's newest run, or the one before.
func (p *podState) containerID(c *ctr, attempt int32) string {
	ref := c.ref
	if attempt != c.attempt {
		ref = c.lastRef
	}
	if ref == "" {
		ref = runtime.ID{Pod: p.pod.UID, Container: c.spec.Name, Attempt: attempt}.String()
	}
	return p.env.runtimeName + "://" + ref
}

func (p *podState) waiting(c *ctr) *corev1.ContainerStateWaiting {
	switch {
	case c.wait != "":
		return &corev1.ContainerStateWaiting{Reason: c.wait, Message: c.waitMessage}
	case p.inits > 0 && c.role != roleEphemeral:
		return &corev1.ContainerStateWaiting{Reason: "PodInitializing"}
	}
	return &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}
}

func terminated(e *runtime.Exit, id string) *corev1.ContainerStateTerminated {
	return &corev1.ContainerStateTerminated{ExitCode: e.Code, Signal: e.Signal, Reason: e.Reason, Message: e.Message,
		StartedAt: plainTime(e.StartedAt), FinishedAt: plainTime(e.FinishedAt), ContainerID: id}
}

// phase is LC1–LC3, with what overrules them.
func (p *podState) phase() (phase corev1.PodPhase, reason, message string) {
	if model.Terminal(p.pod) {
		return p.pod.Status.Phase, p.pod.Status.Reason, p.pod.Status.Message // a terminal phase is for good
	}
	alive := p.alive()
	if p.verdict != nil && !alive {
		return corev1.PodFailed, p.verdict.reason, p.verdict.message
	}
	phase = p.phaseOfContainers()
	terminal := phase == corev1.PodSucceeded || phase == corev1.PodFailed
	switch {
	case terminal && alive:
		// Nothing of a pod that has ended runs: until then it is what it was.
		phase = corev1.PodPending
		if p.anyAppBegan() {
			phase = corev1.PodRunning
		}
	case !terminal && p.final():
		phase = corev1.PodFailed
	}
	return phase, "", ""
}

// phaseOfContainers derives the phase as Kubernetes' node agent does.
func (p *podState) phaseOfContainers() corev1.PodPhase {
	if p.initFailed() {
		return corev1.PodFailed
	}
	begun := p.anyAppBegan()
	pending := false
	running, waiting, stopped, restarting, succeeded := 0, 0, 0, 0, 0
	for i := range p.ctrs {
		c := &p.ctrs[i]
		ended := c.exit != nil // stopped, or waiting after a stop
		switch c.role {
		case roleInit:
			if begun {
				continue // T7
			}
			pending = pending || !ended
		case roleSidecar:
			if c.started() {
				running++
			} else if !ended && !begun {
				pending = true
			}
		case roleApp:
			switch {
			case c.state == ctrRunning, c.state == ctrHooking && c.attempt > 0:
				running++ // LC2: a restart does not bring the pod back to Pending
			case ended:
				stopped++
				if c.exit.Code == 0 {
					succeeded++
				}
				if p.restarts(c) && p.stopAt.IsZero() {
					restarting++
				}
			default:
				waiting++
			}
		}
	}
	switch {
	case pending || waiting > 0:
		return corev1.PodPending
	case running > 0 || restarting > 0:
		return corev1.PodRunning
	case stopped == 0:
		return corev1.PodPending
	case stopped == succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

// digest is of everything that a report says; equal digests need no new report.
func digest(s *corev1.PodStatus, removed bool) uint64 {
	sum := model.WorkerStatusDigest(s)
	if removed {
		sum = ^sum
	}
	return sum
}

// endsDigest is of how the pod and its containers have ended, which no server knows otherwise, and of nothing else: a status that becomes
// another one for other reasons has the same.
func endsDigest(s *corev1.PodStatus) uint64 {
	h := fnv.New64a()
	if s.Phase == corev1.PodSucceeded || s.Phase == corev1.PodFailed {
		fmt.Fprintln(h, s.Phase)
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			c := &list[i]
			for which, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t == nil {
					continue
				}
				b, _ := t.Marshal() // it fails for none
				fmt.Fprintf(h, "%s %d %d %d\n", c.Name, c.RestartCount, which, len(b))
				h.Write(b)
			}
		}
	}
	return h.Sum64()
}
