package worker

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// A pod's resources are three things: what its object asks for (podState.wanted), what the node has set aside for it (the
// resources in podState.pod, by which everything of the pod is run), and what its containers really have (ctr.actual). A
// resize is the way from the first to the last. It is decided by Core, in an order of its own where the node is short, and
// carried out by the pod's state machine.

// resize is where a pod's resize is.
type resize struct {
	pending  *verdict // why what is wanted is not given; nil: it is, or nothing is wanted
	judged   int64    // the generation of the object that pending is about
	since    time.Time
	progress int64 // the generation that is being carried out; 0: none is
	began    time.Time
	failure  string                       // of the newest try to carry it out
	had      *corev1.ResourceRequirements // what the pod as a whole still has; nil: what is set aside for it

	underWay bool
	retryAt  time.Time
	raised   bool // the pod as a whole may take what is set aside for it, and what its containers still have
	settled  bool // and no more than is set aside for it
	recount  bool // what the pod takes of the node may be something else now
}

// sameResources says whether two objects of a pod ask for the same.
func sameResources(a, b *corev1.PodSpec) bool {
	same := func(x, y []corev1.Container) bool {
		return slices.EqualFunc(x, y, func(c, d corev1.Container) bool {
			return equality.Semantic.DeepEqual(c.Resources, d.Resources)
		})
	}
	return same(a.Containers, b.Containers) && same(a.InitContainers, b.InitContainers) && equality.Semantic.DeepEqual(a.Resources, b.Resources)
}

// withResources is a pod that asks for what another object of it does.
func withResources(pod, from *corev1.Pod) *corev1.Pod {
	out := *pod
	take := func(list []corev1.Container) []corev1.Container {
		list = slices.Clone(list)
		for i := range list {
			if c := containerByName(from, list[i].Name); c != nil {
				list[i].Resources = c.Resources
			}
		}
		return list
	}
	out.Spec.Containers, out.Spec.InitContainers = take(pod.Spec.Containers), take(pod.Spec.InitContainers)
	out.Spec.Resources = from.Spec.Resources
	return &out
}

// setAside is a pod as its status says that a node had set resources aside for it: what a worker goes by that knows no
// better.
func setAside(pod *corev1.Pod) *corev1.Pod {
	from := *pod
	take := func(list []corev1.Container, statuses []corev1.ContainerStatus) []corev1.Container {
		list = slices.Clone(list)
		for i := range list {
			for j := range statuses {
				if s := &statuses[j]; s.Name == list[i].Name && s.Resources != nil {
					list[i].Resources.Requests, list[i].Resources.Limits = s.AllocatedResources, s.Resources.Limits
				}
			}
		}
		return list
	}
	from.Spec.Containers = take(pod.Spec.Containers, pod.Status.ContainerStatuses)
	from.Spec.InitContainers = take(pod.Spec.InitContainers, pod.Status.InitContainerStatuses)
	if s := pod.Status.Resources; s != nil && pod.Spec.Resources != nil {
		from.Spec.Resources = &corev1.ResourceRequirements{Requests: pod.Status.AllocatedResources, Limits: s.Limits}
	}
	if sameResources(&from.Spec, &pod.Spec) {
		return pod
	}
	return &from
}

// given is a newer object of the pod with the resources that it has been given. What else it wants is remembered.
func (p *podState) given(pod *corev1.Pod) *corev1.Pod {
	p.wanted = nil
	if p.static || p.admission != admitted || sameResources(&p.pod.Spec, &pod.Spec) {
		return pod
	}
	p.wanted = pod
	return withResources(pod, p.pod)
}

// respecAll lets the containers go by the pod's object as it is now.
func (p *podState) respecAll() {
	for i := range p.ctrs {
		if spec := containerByName(p.pod, p.ctrs[i].spec.Name); spec != nil {
			p.respec(&p.ctrs[i], spec)
		}
	}
}

// charged is the pod with what it takes of the node: for as long as a container has more than is set aside for it, that.
func (p *podState) charged() *corev1.Pod { return p.having(model.Charged) }

// having is the pod with the most of what is set aside for it and what it has, by a rule of model's.
func (p *podState) having(most func(*corev1.Pod) *corev1.Pod) *corev1.Pod {
	if p.resize.progress == 0 {
		return p.pod
	}
	pod := *p.pod
	pod.Status = corev1.PodStatus{}
	pod.Status.AllocatedResources, pod.Status.Resources = p.resourcesOfAll()
	for i := range p.ctrs[:p.mains] {
		s := corev1.ContainerStatus{Name: p.ctrs[i].spec.Name}
		s.AllocatedResources, s.Resources = p.resourcesOf(&p.ctrs[i])
		if i < p.inits {
			pod.Status.InitContainerStatuses = append(pod.Status.InitContainerStatuses, s)
		} else {
			pod.Status.ContainerStatuses = append(pod.Status.ContainerStatuses, s)
		}
	}
	return most(&pod)
}

// resourcesOfAll is the same for the pod as a whole, where it asks for something as that.
func (p *podState) resourcesOfAll() (corev1.ResourceList, *corev1.ResourceRequirements) {
	own := p.pod.Spec.Resources
	switch {
	case own == nil:
		return nil, nil
	case p.resize.had != nil:
		return own.Requests, p.resize.had
	}
	return own.Requests, own
}

// hasOfAll is what the pod as a whole has, or may have by now: what a change of it begins with. It is never nil.
func (p *podState) hasOfAll() *corev1.ResourceRequirements {
	r, own := &p.resize, p.pod.Spec.Resources
	switch {
	case own == nil && (r.settled || r.had == nil):
		return &corev1.ResourceRequirements{}
	case r.settled || r.had == nil:
		return own
	case own != nil && (r.raised || r.underWay) && !r.had.Limits.Memory().IsZero(): // else it may have no limit still
		return p.charged().Spec.Resources
	}
	return r.had
}

// resourcesOf is what is set aside for a container, and what it has.
func (p *podState) resourcesOf(c *ctr) (corev1.ResourceList, *corev1.ResourceRequirements) {
	actual := &c.spec.Resources
	if c.actual != nil && (c.state == ctrRunning || c.state == ctrHooking) {
		actual = c.actual
	}
	return c.spec.Resources.Requests, actual
}

// recallResize takes from the status that the servers keep what became of a resize before this agent ran. What was carried
// out last is not known: it is carried out again.
func (p *podState) recallResize() {
	r := &p.resize
	for i := range p.pod.Status.Conditions {
		if c := &p.pod.Status.Conditions[i]; c.Type == corev1.PodResizePending && c.ObservedGeneration == p.pod.Generation {
			r.pending, r.judged, r.since = &verdict{c.Reason, c.Message}, c.ObservedGeneration, c.LastTransitionTime.Time
		}
	}
	if p.pod.Generation <= 1 || p.static {
		return // its spec has never changed
	}
	again := false
	recall := func(statuses []corev1.ContainerStatus) {
		for i := range statuses {
			c := p.find(statuses[i].Name)
			if c == nil || c.state != ctrRunning {
				continue
			}
			c.unsure, r.settled = true, false
			if statuses[i].Resources != nil && statuses[i].State.Running != nil {
				c.actual = statuses[i].Resources
				again = again || !equality.Semantic.DeepEqual(c.actual, &c.spec.Resources)
			}
		}
	}
	recall(p.pod.Status.ContainerStatuses)
	recall(p.pod.Status.InitContainerStatuses)
	for i := range p.ctrs {
		if has := p.pod.Status.Resources; has != nil {
			p.ctrs[i].whole = has
		}
	}
	if own, has := p.pod.Spec.Resources, p.pod.Status.Resources; own != nil && has != nil && !r.settled && !equality.Semantic.DeepEqual(own, has) {
		r.had, again = has, true
	}
	if again {
		r.progress, r.recount = p.pod.Generation, true
	}
}

// takeResize judges a pod that wants other resources than it has been given.
func (c *Core) takeResize(p *podState, now time.Time) {
	r := &p.resize
	if p.wanted == nil || !p.counted || !p.stopAt.IsZero() || p.leaving() {
		if p.wanted == nil {
			r.pending = nil
		}
		delete(c.resizing, p.pod.UID)
		return
	}
	if r.pending != nil && r.pending.reason == corev1.PodReasonInfeasible && r.judged == p.wanted.Generation {
		return // until it wants something else
	}
	v := c.refuseResize(p)
	if v == nil {
		c.give(p, now)
		return
	}
	if r.pending == nil {
		r.since = now
	}
	if r.pending == nil || r.pending.reason != v.reason || r.judged != p.wanted.Generation {
		reason := resizeDeferred
		if v.reason == corev1.PodReasonInfeasible {
			reason = resizeInfeasible
		}
		p.emit(corev1.EventTypeWarning, reason, resizeMessage(v.reason, p.wanted, p.wanted.Generation, v.message))
	}
	r.pending, r.judged = v, p.wanted.Generation
	delete(c.resizing, p.pod.UID)
	if v.reason == corev1.PodReasonDeferred {
		c.resizing[p.pod.UID] = p
	}
}

// refuseResize says why the node does not give the pod what it wants; nil: it does. Only of what it wants more of there
// must be room, beside all that others have, and those that wait for room to begin with.
func (c *Core) refuseResize(p *podState) *verdict {
	is, wants := c.classes.Of(p.pod).Request, c.classes.Of(p.wanted).Request
	used := c.usage.Without(p.class).Plus(c.heldBefore(p)).Requested
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, capacity := wants.Get(string(name)), c.alloc.Get(string(name))
		if want > is.Get(string(name)) && want > capacity {
			return &verdict{corev1.PodReasonInfeasible, fmt.Sprintf("Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, want, capacity)}
		}
	}
	for _, name := range [...]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
		want, capacity, taken := wants.Get(string(name)), c.alloc.Get(string(name)), used.Get(string(name))
		if want > is.Get(string(name)) && want > capacity-taken {
			return &verdict{corev1.PodReasonDeferred, fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
				name, want, taken, capacity)}
		}
	}
	return nil
}

// give sets aside for the pod what it wants.
func (c *Core) give(p *podState, now time.Time) {
	had := p.hasOfAll()
	p.pod, p.wanted = p.wanted, nil
	p.respecAll()
	p.resize = resize{progress: p.pod.Generation, began: now, had: had, underWay: p.resize.underWay}
	c.recharge(p)
	delete(c.resizing, p.pod.UID)
	p.outdated(now) // volumes may show amounts
	p.emit(corev1.EventTypeNormal, resizeStarted, resizeMessage("started", p.pod, p.pod.Generation, ""))
}

// recharge counts the pod by what it takes now; it says whether that is another amount.
func (c *Core) recharge(p *podState) bool {
	class := c.classes.Of(p.charged())
	p.resize.recount = false
	if !p.counted || class == p.class {
		return false
	}
	c.usage = c.usage.Without(p.class).With(class)
	p.class = class
	return true
}

// retryResizes looks again at the resizes that wait for room, in the kubelet's order.
func (c *Core) retryResizes(now time.Time) {
	if len(c.resizing) == 0 {
		return
	}
	waiting := make([]*podState, 0, len(c.resizing))
	// order does not matter: sorted below.
	for _, p := range c.resizing {
		waiting = append(waiting, p)
	}
	slices.SortFunc(waiting, func(a, b *podState) int {
		return cmp.Or(cmp.Compare(b.class.Priority, a.class.Priority), cmp.Compare(qosRank(a.pod), qosRank(b.pod)),
			a.resize.since.Compare(b.resize.since), cmp.Compare(a.pod.UID, b.pod.UID))
	})
	for _, p := range waiting {
		if c.pods[p.pod.UID] != p {
			delete(c.resizing, p.pod.UID)
			continue
		}
		if c.takeResize(p, now); p.wanted == nil {
			c.step(p, now)
		}
	}
}

func qosRank(pod *corev1.Pod) int {
	if model.QOS(pod) == corev1.PodQOSGuaranteed {
		return 0
	}
	return 1
}

// stepResize gives the containers that run what is set aside for them: the pod as a whole may take more first, and less
// at last.
func (p *podState) stepResize(now time.Time) {
	r := &p.resize
	if r.settled || r.underWay {
		return
	}
	if now.Before(r.retryAt) {
		p.wakeAt(r.retryAt)
		return
	}
	var changes []runtime.ContainerResize
	var again []*ctr
	last := true
	for i := range p.ctrs[:p.mains] {
		c := &p.ctrs[i]
		switch {
		case c.state == ctrStarting:
			last = false // it may have been begun with what was set aside before
		case c.state != ctrRunning && c.state != ctrHooking:
			last = last && !c.replacedBy // it is being started again
		case p.restartsFor(c):
			again, last = append(again, c), false
		case c.unsure || !equality.Semantic.DeepEqual(c.actual, &c.spec.Resources):
			changes = append(changes, runtime.ContainerResize{ID: p.id(c), From: c.actual})
		}
	}
	if !r.raised || last || len(changes) > 0 {
		r.underWay = true
		p.act(Action{Kind: ActionResize, Resize: &runtime.Resize{Pod: p.pod, Most: p.having(model.Most), Had: p.hasOfAll(), Containers: changes, Last: last}})
		return
	}
	for _, c := range again {
		if c.condemned.IsZero() {
			c.replacedBy, c.condemned = true, now
			p.tellKilling(c, fmt.Sprintf("Container %s resize requires restart", c.spec.Name))
		}
	}
}

// restartsFor says whether a container has to be started again to have what is set aside for it. As with a kubelet its limit is the pod's
// where it has none of its own.
func (p *podState) restartsFor(c *ctr) bool {
	for _, policy := range c.spec.ResizePolicy {
		name := policy.ResourceName
		was, is := c.actual.Requests[name], c.spec.Resources.Requests[name]
		wasMost, isMost := limitOf(name, c.actual, c.whole), limitOf(name, &c.spec.Resources, p.pod.Spec.Resources)
		if policy.RestartPolicy == corev1.RestartContainer && (was.Cmp(is) != 0 || wasMost.Cmp(isMost) != 0) {
			return true
		}
	}
	return false
}

// limitOf is what bounds a container: its own limit, and else that of its pod as a whole, which may have none either.
func limitOf(name corev1.ResourceName, own, whole *corev1.ResourceRequirements) resource.Quantity {
	if limit := own.Limits[name]; !limit.IsZero() || whole == nil {
		return limit
	}
	return whole.Limits[name]
}

// resized takes the outcome of carrying a resize out.
func (p *podState) resized(o Outcome, now time.Time) {
	r := &p.resize
	r.underWay, r.recount = false, true
	if !sameResources(&o.Action.Resize.Pod.Spec, &p.pod.Spec) { // something else is wanted by now
		p.took(o.Action.Resize, o.Err != nil)
		return
	}
	if o.Err != nil {
		r.retryAt = now.Add(retryInterval)
		if r.progress != 0 && r.failure != o.Err.Error() {
			r.failure = o.Err.Error()
			p.emit(corev1.EventTypeWarning, resizeError, resizeMessage("error", p.pod, r.progress, r.failure))
		}
		return
	}
	p.took(o.Action.Resize, false)
	r.raised, r.retryAt = true, time.Time{}
	r.settled = o.Action.Resize.Last
	if r.settled && r.progress != 0 {
		p.emit(corev1.EventTypeNormal, resizeCompleted, resizeMessage("completed", p.pod, r.progress, ""))
		r.progress, r.failure, r.had = 0, "", nil
	}
}

// took notes what containers have since a resize was carried out, or was tried to be.
func (p *podState) took(z *runtime.Resize, unsure bool) {
	for _, change := range z.Containers {
		if c := p.find(change.ID.Container); c != nil && c.attempt == change.ID.Attempt {
			if c.unsure = unsure; !unsure {
				c.actual = &containerByName(z.Pod, c.spec.Name).Resources
			}
		}
	}
}

// resizeConditions are what the pod's status says of its resize.
func (p *podState) resizeConditions() []corev1.PodCondition {
	r := &p.resize
	if p.static || !p.stopAt.IsZero() || model.Terminal(p.pod) {
		return nil
	}
	var out []corev1.PodCondition
	if r.pending != nil && p.wanted != nil {
		out = append(out, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, ObservedGeneration: r.judged,
			Reason: r.pending.reason, Message: r.pending.message, LastTransitionTime: plainTime(r.since)})
	}
	if r.progress != 0 {
		c := corev1.PodCondition{Type: corev1.PodResizeInProgress, Status: corev1.ConditionTrue, ObservedGeneration: r.progress,
			LastTransitionTime: plainTime(r.began)}
		if r.failure != "" {
			c.Reason, c.Message = corev1.PodReasonError, r.failure
		}
		out = append(out, c)
	}
	return out
}
