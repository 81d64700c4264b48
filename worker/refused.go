package worker

import (
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

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

const (
	measureInterval = 10 * time.Second
	// evictGrace is what a pod gets that has used more than it may.
	evictGrace = time.Second
)

// overLimit says that a volume holds more than it may.
type overLimit struct {
	volume string
	limit  resource.Quantity
}

func (e *overLimit) Error() string {
	return fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q.", e.volume, e.limit.String())
}

// stepMeasure has the pod's limited volumes measured every now and then.
func (p *podState) stepMeasure(now time.Time) {
	if p.measuring || !limitedVolumes(p.pod) {
		return
	}
	if p.measureAt.IsZero() {
		p.measureAt = now.Add(measureInterval)
	}
	if now.Before(p.measureAt) {
		p.wakeAt(p.measureAt)
		return
	}
	p.measuring = true
	p.act(Action{Kind: ActionMeasure, Timeout: measureInterval})
}

func limitedVolumes(pod *corev1.Pod) bool {
	for i := range pod.Spec.Volumes {
		if diskLimit(&pod.Spec.Volumes[i]) != nil {
			return true
		}
	}
	return false
}

// diskLimit is how much an emptyDir on disk may hold; nil: any amount. One in memory is bounded by its file system.
func diskLimit(v *corev1.Volume) *resource.Quantity {
	if e := v.EmptyDir; e != nil && e.Medium == corev1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
		return e.SizeLimit
	}
	return nil
}

// measured takes the outcome of a measurement.
func (p *podState) measured(err error, now time.Time) {
	p.measuring, p.measureAt = false, now.Add(measureInterval)
	var over *overLimit
	if !errors.As(err, &over) || p.verdict != nil || !p.stopAt.IsZero() {
		return
	}
	p.verdict = &verdict{"Evicted", over.Error()}
	p.emit(corev1.EventTypeWarning, p.verdict.reason, p.verdict.message)
	p.beginStop(now, evictGrace)
}
