package worker

import (
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// ProbeKind is one of a container's probes.
type ProbeKind uint8

const (
	ProbeStartup ProbeKind = iota
	ProbeReadiness
	ProbeLiveness
	probeKinds
)

func (k ProbeKind) String() string {
	return [...]string{"Startup", "Readiness", "Liveness"}[k]
}

// probing is what is known of a container's probes while one attempt runs.
// Containers without any have none.
type probing [probeKinds]prober

// prober is one probe: when it is next, and what came of it (PB2).
type prober struct {
	at       time.Time // zero: not planned yet
	underWay bool
	passed   bool // the verdict that holds
	last     bool // the newest outcome, and how many there were in a row like it
	inARow   int32
	unmade   int32 // times in a row that it could not be made
	warned   int32 // times in a row that it passed with a warning
}

// newProbing is how probes stand before the first outcome (PB3): not started,
// not ready, alive. Nil for a container without any.
func newProbing(spec *corev1.Container) *probing {
	if spec.StartupProbe == nil && spec.ReadinessProbe == nil && spec.LivenessProbe == nil {
		return nil
	}
	return &probing{ProbeLiveness: {passed: true}}
}

func (c *ctr) probe(k ProbeKind) *corev1.Probe {
	switch k {
	case ProbeStartup:
		return c.spec.StartupProbe
	case ProbeReadiness:
		return c.spec.ReadinessProbe
	}
	return c.spec.LivenessProbe
}

// passes says whether the verdict on a probe is a good one; a probe that there
// is not always passes.
func (c *ctr) passes(k ProbeKind) bool {
	return c.probing == nil || c.probe(k) == nil || c.probing[k].passed
}

// started: the container runs, and its startup probe has passed (PB3).
func (c *ctr) started() bool { return c.state == ctrRunning && c.passes(ProbeStartup) }

// ready is what the readiness probe says of a started container.
func (c *ctr) ready() bool { return c.started() && c.passes(ProbeReadiness) }

// stepProbes starts the probes whose time has come. While its pod ends, only that of readiness goes on: a service that has nobody else
// sends to who is ending as long as that says that it still serves.
func (p *podState) stepProbes(now time.Time) {
	if p.addressless() {
		return
	}
	for i := range p.ctrs {
		c := &p.ctrs[i]
		if c.probing == nil || c.state != ctrRunning || !c.condemned.IsZero() {
			continue
		}
		for k := range probeKinds {
			// PB4: no other probe runs until the startup probe has passed, and
			// that one never runs again.
			spec := c.probe(k)
			if spec == nil || k != ProbeReadiness && !p.stopAt.IsZero() {
				continue
			}
			if (k == ProbeStartup) != c.started() {
				p.stepProbe(c, k, spec, now)
			}
		}
	}
}

func (p *podState) stepProbe(c *ctr, k ProbeKind, spec *corev1.Probe, now time.Time) {
	pr := &c.probing[k]
	if pr.underWay {
		return
	}
	if pr.at.IsZero() {
		pr.at = sinceBy(c.startedAt, now).Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	}
	if now.Before(pr.at) {
		p.wakeAt(pr.at)
		return
	}
	pr.underWay = true
	pr.at = now.Add(time.Duration(orDefault(spec.PeriodSeconds, 10)) * time.Second)
	p.act(Action{Kind: ActionProbe, Container: c.spec, Probe: spec, ProbeKind: k,
		Timeout: time.Duration(orDefault(spec.TimeoutSeconds, 1)) * time.Second, ID: p.id(c)})
}

// orDefault is a probe's number, or what it is where none is said.
func orDefault(n, otherwise int32) int32 {
	if n <= 0 {
		return otherwise
	}
	return n
}

// probed takes the outcome of a probe.
func (p *podState) probed(c *ctr, o Outcome, now time.Time) {
	if c.probing == nil || o.ID.Attempt != c.attempt {
		return
	}
	pr := &c.probing[o.ProbeKind]
	pr.underWay = false
	if c.state != ctrRunning || !c.condemned.IsZero() || !p.stopAt.IsZero() && o.ProbeKind != ProbeReadiness {
		return
	}
	if unknown(o.Err) { // PB2: nothing follows from it
		if errors.Is(o.Err, runtime.ErrUnavailable) {
			return // that is told of the node
		}
		if pr.unmade++; pr.unmade&(pr.unmade-1) == 0 {
			p.emit(corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe errored and resulted in unknown state: %v", o.ProbeKind, o.Err))
		}
		return
	}
	pr.unmade = 0
	ok := o.Err == nil
	if o.Warning == "" {
		pr.warned = 0
	} else if pr.warned++; pr.warned&(pr.warned-1) == 0 {
		p.emit(corev1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", o.ProbeKind, o.Warning))
	}
	if ok != pr.last {
		pr.last, pr.inARow = ok, 0
	}
	pr.inARow++
	// What goes on failing is told less and less often: an event is an entry of
	// the servers' log.
	if n := pr.inARow; !ok && n&(n-1) == 0 {
		p.emit(corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %v", o.ProbeKind, o.Err))
	}
	needed := orDefault(o.Probe.SuccessThreshold, 1)
	if !ok {
		needed = orDefault(o.Probe.FailureThreshold, 3)
	}
	if pr.inARow < needed {
		return
	}
	pr.passed = ok
	if ok || o.ProbeKind == ProbeReadiness {
		return
	}
	// PB3: ended, and started again if the restart policy says so.
	c.condemned, c.condemnedGrace = now, o.Probe.TerminationGracePeriodSeconds
	again := ""
	if c.role == roleSidecar || restartsAfter(c, p.pod.Spec.RestartPolicy, 137) {
		again = ", will be restarted"
	}
	p.tellKilling(c, fmt.Sprintf("Container %s failed %s probe%s", c.spec.Name, lower(o.ProbeKind), again))
}

// unknown says of the error of a probe that it does not say how the container is.
func unknown(err error) bool {
	var unmade *runtime.ProbeError
	return errors.Is(err, runtime.ErrUnavailable) || errors.As(err, &unmade)
}

func lower(k ProbeKind) string { return strings.ToLower(k.String()) }

// recallProbes takes from a status that was reported before the agent was
// restarted what its probes had said (PB3): a ready container stays it.
func (c *ctr) recallProbes(s *corev1.ContainerStatus) {
	if c.probing == nil || c.state != ctrRunning || c.attempt != s.RestartCount {
		return
	}
	c.probing[ProbeReadiness].passed = s.Ready
	c.probing[ProbeStartup].passed = s.Started != nil && *s.Started
}
