package worker

import (
	"cmp"
	"container/heap"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// quietStart is how long a pod may take to start before it is reported as being about to.
const quietStart = 500 * time.Millisecond

// CoreOptions are what a Core needs to know of its surroundings.
type CoreOptions struct {
	// Node is the node as it registers itself.
	Node *corev1.Node
	// RuntimeName is the scheme of container ids.
	RuntimeName string
	// HostIPs are the node's addresses, the first one first.
	HostIPs []string
	// Sandboxes: the runtime is a runtime.Sandboxer. Images: it is a runtime.ImageStore.
	Sandboxes, Images bool
	// Files: pods have volumes whose files follow the objects that they show.
	Files bool
	// MaxRestartBackoff is how long the restart of a container waits at most (RB2); 0: 5 min.
	MaxRestartBackoff time.Duration
	// Refuse says why nothing of a pod can be started here; nil, as the function or as its answer: it can. Told lists what
	// a pod asks for and does not get; nil: nothing is told.
	Refuse func(*corev1.Pod) *runtime.Refusal
	Told   func(*corev1.Pod) []string
	// ReadOnlyBelow says whether a mount can be read-only with what is mounted below it; nil: it cannot.
	ReadOnlyBelow func() bool
	// Event takes events; nil: none are made. It must not block.
	Event func(pod *corev1.Pod, eventType, reason, message string)
}

// Core is the life of all pods of one node: inputs and the time in, actions and reports out. It is not safe for
// concurrent use. After every input, TakeActions, TakeReports and Next tell what is to be done.
type Core struct {
	env     podEnv
	node    *corev1.Node
	alloc   model.Resources
	classes model.Classes
	usage   model.Usage

	pods    map[types.UID]*podState
	timers  podHeap
	statics statics
	held    []*podState // wait for others to be gone before they are admitted
	// resizing are pods whose resize waits for room.
	resizing map[types.UID]*podState
	// preempted are to be told to end.
	preempted []*podState
	reports   []*podState // have news, oldest first
	inReport  []*podState
	numbered  uint64 // reports that were made
	actions   []Action
	synced    bool
	pressure  Pressure
	closing   bool // the machine ends: no pod is taken
	// labelsKnown: node has the labels that the servers have for it; users may have set some.
	labelsKnown bool
	revision    int64
}

// NewCore returns a Core without pods.
func NewCore(o CoreOptions) *Core {
	c := &Core{pods: map[types.UID]*podState{}, resizing: map[types.UID]*podState{}}
	c.env = podEnv{runtimeName: o.RuntimeName, hostIPs: o.HostIPs, event: o.Event,
		refuse: o.Refuse, told: o.Told, sandboxes: o.Sandboxes, images: o.Images, files: o.Files,
		mostBackoff: o.MaxRestartBackoff, readOnlyBelow: o.ReadOnlyBelow}
	c.setNode(o.Node)
	return c
}

func (c *Core) setNode(n *corev1.Node) {
	c.node = n
	c.alloc = model.Allocatable(n)
}

// Adopt takes over the pods that the runtime kept from before. It must come before any other input. Nothing is done about
// them until the first assignment tells what became of them meanwhile.
func (c *Core) Adopt(pods []runtime.Pod, now time.Time) {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b runtime.Pod) int { return cmp.Compare(a.Pod.UID, b.Pod.UID) })
	for i := range pods {
		c.adopt(&pods[i], now)
	}
}

func (c *Core) adopt(rp *runtime.Pod, now time.Time) *podState {
	p := newPodState(rp.Pod, c.classes.Of(rp.Pod), &c.env, now)
	p.adopt(rp.Containers)
	p.adoptSandbox(rp.Sandbox, rp.Owing)
	p.adopted, p.lost, p.unseen = true, rp.Lost, rp.Unseen
	c.pods[p.pod.UID] = p
	c.count(p)
	return p
}

// Assign takes what the node is to run.
func (c *Core) Assign(a Assignment, now time.Time) {
	if a.Node != nil {
		// What the machine is and offers is for this node to say; labels are the servers'.
		n := c.node.DeepCopy()
		n.Labels = a.Node.Labels
		c.setNode(n)
		c.labelsKnown = true
	}
	first := !c.synced
	c.synced = true
	c.revision = max(c.revision, a.Revision)
	a.Pods = c.takeMirrors(a, now)
	gone := a.Gone
	if a.Full {
		keep := make(map[types.UID]bool, len(a.Pods))
		for _, p := range a.Pods {
			keep[p.UID] = true
		}
		gone = nil
		for uid, p := range c.pods {
			if !keep[uid] && !p.static {
				gone = append(gone, uid)
			}
		}
		slices.Sort(gone)
	}
	for _, uid := range gone {
		if p := c.pods[uid]; p != nil {
			p.gone = true
			c.step(p, now)
		}
	}
	pods := slices.Clone(a.Pods)
	slices.SortStableFunc(pods, func(x, y *corev1.Pod) int {
		return x.CreationTimestamp.Time.Compare(y.CreationTimestamp.Time)
	})
	taken := make([]*podState, 0, len(pods))
	for _, pod := range pods {
		taken = append(taken, c.take(pod, a.Full, now))
	}
	for _, p := range taken { // no resize gets the room of a pod that has come with it
		c.goOn(p, now)
	}
	if first {
		for _, uid := range c.uids() {
			if p := c.pods[uid]; p != nil {
				c.step(p, now)
			}
		}
	}
}

func (c *Core) uids() []types.UID {
	out := make([]types.UID, 0, len(c.pods))
	for uid := range c.pods {
		out = append(out, uid)
	}
	slices.Sort(out)
	return out
}

// take takes in what the servers tell of a pod, alone or with all others; nil: nothing is to be done about it yet.
func (c *Core) take(pod *corev1.Pod, full bool, now time.Time) *podState {
	p := c.pods[pod.UID]
	if p != nil && p.unseen {
		c.await(p, pod, now)
		return nil
	}
	if p != nil && p.lost {
		p = c.replaceLost(p, pod, now)
	}
	if p == nil {
		p = c.newPod(pod, now)
		c.pods[pod.UID] = p
		p.recall()
		p.heldBy(&pod.Status)
		switch ends := pod.DeletionTimestamp != nil || model.Terminal(pod); {
		case p.admission == admitted && (ends || p.complete() || c.hasRoom(p)):
			c.count(p)
		case !ends:
			p.admission = admissionOpen
			c.admit(p)
		}
	} else {
		p.gone = false
		old := p.pod
		p.assign(pod, now)
		if p.admission == admissionOpen {
			p.class = c.classes.Of(p.pod)
		}
		p.relabeled(old, now)
		if p.adopted {
			p.adopted = false
			p.outdated(now) // what changed while no agent ran
			p.recall()
			p.heldBy(&pod.Status)
		} else {
			same := digest(&pod.Status, false) == p.sum || p.removal == removalDone
			if p.dispute.compare(same, now); full && !same {
				p.dispute.at = now // an older state may be back: what is told of one pod may not be without what is told of another
			}
		}
	}
	return p
}

// goOn does about a pod what it was told; nil: about none.
func (c *Core) goOn(p *podState, now time.Time) {
	if p == nil || c.pods[p.pod.UID] != p {
		return
	}
	c.takeResize(p, now)
	c.step(p, now)
	c.retryResizes(now)
	c.stopPreempted(now)
}

// newPod begins with a pod that the servers tell of.
func (c *Core) newPod(pod *corev1.Pod, now time.Time) *podState {
	given := setAside(pod)
	p := newPodState(given, c.classes.Of(given), &c.env, now)
	if given != pod {
		p.wanted = pod
	}
	return p
}

// replaceLost begins anew with a pod of which the runtime had kept its containers and nothing else.
func (c *Core) replaceLost(old *podState, pod *corev1.Pod, now time.Time) *podState {
	c.usage = c.usage.Without(old.class)
	p := c.newPod(pod, now)
	p.replaceLost(old)
	c.pods[pod.UID] = p
	c.count(p)
	return p
}

// await keeps what the servers tell of a pod of which it is not known yet what runs. Nothing is done about it, and nothing reported, until that is
// found: whatever was said of it before may be so still.
func (c *Core) await(old *podState, pod *corev1.Pod, now time.Time) {
	c.usage = c.usage.Without(old.class)
	p := c.newPod(pod, now)
	p.adopted, p.unseen, p.admission = true, true, admitted
	c.pods[pod.UID] = p
	c.count(p)
	if old.lost { // it was not told before
		p.emit(corev1.EventTypeWarning, "PodUnseen", "What runs of this pod cannot be found out on its node; nothing is done about the pod until it can be")
	}
}

// found goes on with a pod of which it is known now what runs.
func (c *Core) found(old *podState, rp *runtime.Pod, now time.Time) {
	if !old.unseen {
		return
	}
	c.usage = c.usage.Without(old.class)
	p := c.adopt(rp, now)
	p.gone = old.gone
	switch {
	case p.static:
		c.foundStatic(p, now)
	case old.gone, old.lost: // it is no more, or was not assigned
		c.step(p, now)
	default:
		c.goOn(c.take(cmp.Or(old.wanted, old.pod), false, now), now)
	}
}

// Observe takes an event of the runtime.
func (c *Core) Observe(ev runtime.Event, now time.Time) {
	p := c.pods[ev.Pod]
	switch {
	case p == nil:
	case ev.Found != nil:
		c.found(p, ev.Found, now)
	default:
		p.observe(ev, now)
		c.step(p, now)
	}
}

// Done takes the outcome of an action.
func (c *Core) Done(o Outcome, now time.Time) {
	if p := c.pods[o.ID.Pod]; p != nil {
		p.done(o, now)
		c.step(p, now)
	}
}

// Tick moves on every pod whose time has come.
func (c *Core) Tick(now time.Time) {
	for len(c.timers) > 0 && !c.timers[0].wake.After(now) {
		c.step(c.timers[0], now)
	}
}

// Next returns when Tick has something to do; false when nothing waits for time to pass.
func (c *Core) Next() (time.Time, bool) {
	if len(c.timers) == 0 {
		return time.Time{}, false
	}
	return c.timers[0].wake, true
}

// TakeActions returns the calls that are to be made, in order.
func (c *Core) TakeActions() []Action {
	out := c.actions
	c.actions = nil
	return out
}

// step moves one pod on and takes note of what that brought.
func (c *Core) step(p *podState, now time.Time) {
	if p.unseen || !c.synced && !p.static {
		return
	}
	if p.takenBack() {
		c.resume(p)
	}
	p.step(now)
	c.actions = append(c.actions, p.out...)
	p.out = nil
	c.note(p, now)
	c.setTimer(p, now)
	if p.counted && (p.removal == removalDone || !p.alive() && !p.stopAt.IsZero() && !p.givingBack()) { // its end is in the queue before whoever takes its room
		c.usage = c.usage.Without(p.class)
		p.counted = false
		c.retryHeld(now)
		c.retryResizes(now)
	} else if p.resize.recount && c.recharge(p) {
		c.retryHeld(now)
		c.retryResizes(now)
	}
	// A pod whose object is no more has nobody to report to.
	if p.gone && p.removal == removalDone {
		c.forget(p)
		if p.static {
			c.runStatic(fullName(p.pod), now)
		}
	}
}

func (c *Core) setTimer(p *podState, now time.Time) {
	if !p.wake.IsZero() && !p.wake.After(now) {
		p.wake = now.Add(time.Millisecond) // a timer that is due already would spin
	}
	switch {
	case p.wake.IsZero() && p.heapIndex >= 0:
		heap.Remove(&c.timers, p.heapIndex)
	case p.wake.IsZero():
	case p.heapIndex >= 0:
		heap.Fix(&c.timers, p.heapIndex)
	default:
		heap.Push(&c.timers, p)
	}
}

func (c *Core) forget(p *podState) {
	if p.heapIndex >= 0 {
		heap.Remove(&c.timers, p.heapIndex)
	}
	delete(c.pods, p.pod.UID)
	delete(c.resizing, p.pod.UID)
	if p.queued {
		c.reports = slices.DeleteFunc(c.reports, func(q *podState) bool { return q == p })
		p.queued = false
	}
}

// note queues a report when the pod's status is not what was noted last. Before the first assignment nothing is
// reported: what an earlier agent knew may be old.
func (c *Core) note(p *podState, now time.Time) {
	if !c.synced || p.object() == nil || p.gone && !p.static {
		return
	}
	if p.givingBack() {
		return
	}
	s := p.status(now)
	if s.Phase == corev1.PodPending && p.starting() {
		// A quick start is one report and not two.
		if p.quietUntil.IsZero() {
			p.quietUntil = now.Add(quietStart)
		}
		if now.Before(p.quietUntil) {
			p.wakeAt(p.quietUntil)
			return
		}
	}
	sum := digest(&s, p.removal == removalDone)
	if sum == p.sum && !p.dispute.due(now) {
		p.wakeAt(p.dispute.at) // the zero time: for no reason
		return
	}
	p.sum = sum
	p.dispute.at = time.Time{}
	if !p.queued {
		p.queued = true
		c.reports = append(c.reports, p)
	}
}

// TakeReports returns up to limit reports, the longest waiting first. They stay the Core's until Reported; until then
// it returns nothing more.
func (c *Core) TakeReports(limit int, now time.Time) []PodReport {
	if len(c.inReport) > 0 || len(c.reports) == 0 {
		return nil
	}
	out := make([]PodReport, 0, min(limit, len(c.reports)))
	var later []*podState
	for _, p := range c.reports {
		if len(out) == limit || p.givingBack() {
			later = append(later, p)
			continue
		}
		p.queued = false
		o := p.object()
		if o == nil {
			continue // its mirror went meanwhile
		}
		p.inReport = true
		c.numbered++
		s := p.status(now)
		p.number, p.saidEnds = c.numbered, endsDigest(&s)
		out = append(out, PodReport{Namespace: o.Namespace, Name: o.Name, UID: o.UID, Number: p.number,
			Status: s, Removed: p.removal == removalDone && !p.static, Seen: c.revision})
		c.inReport = append(c.inReport, p)
	}
	c.reports = later
	return out
}

// Reported tells whether the last reports have arrived. What has not is queued again, before all else.
func (c *Core) Reported(ok bool) {
	batch := c.inReport
	c.inReport = nil
	var again []*podState
	for _, p := range batch {
		p.inReport = false
		if c.pods[p.pod.UID] != p || p.gone {
			continue
		}
		switch {
		case !ok && !p.queued:
			p.queued = true
			again = append(again, p)
		case ok && p.removal == removalDone && !p.queued:
			c.forget(p) // TM4: the object may go now
		}
	}
	c.reports = append(again, c.reports...)
}

// Taken tells which reports the servers have; one that was late is made again. One after which there was another says nothing.
func (c *Core) Taken(reports []Taken, now time.Time) {
	for _, t := range reports {
		p := c.pods[c.local(t.UID)]
		if p == nil || p.number != t.Number {
			continue
		}
		if t.Late {
			p.sum = 0 // nothing was said
			c.step(p, now)
			continue
		}
		if p.heldEnds = p.saidEnds; p.final() {
			c.step(p, now)
		}
	}
}

// Pod returns the object and status of a pod of this node.
func (c *Core) Pod(uid types.UID, now time.Time) (*corev1.Pod, corev1.PodStatus, bool) {
	p := c.pods[c.local(uid)]
	if p == nil {
		return nil, corev1.PodStatus{}, false
	}
	return p.pod, p.status(now), true
}

// Run returns which run of a container of the pod the API calls so; false: none that is known.
func (c *Core) Run(uid types.UID, containerID string) (runtime.ID, bool) {
	p := c.pods[c.local(uid)]
	if p == nil {
		return runtime.ID{}, false
	}
	for i := range p.ctrs {
		c := &p.ctrs[i]
		for attempt := c.attempt; attempt >= max(c.attempt-1, 0); attempt-- {
			if p.containerID(c, attempt) == containerID {
				return runtime.ID{Pod: p.pod.UID, Container: c.spec.Name, Attempt: attempt}, true
			}
		}
	}
	return runtime.ID{}, false
}

// Running returns the run of a container of the pod that its runtime runs. As with a kubelet that is so while its postStart hook is under way,
// too, although the API shows it waiting until then (LC5).
func (c *Core) Running(uid types.UID, container string) (runtime.ID, bool) {
	p := c.pods[c.local(uid)]
	if p == nil {
		return runtime.ID{}, false
	}
	x := p.find(container)
	if x == nil || x.state != ctrRunning && x.state != ctrHooking {
		return runtime.ID{}, false
	}
	return p.id(x), true
}

// Len returns how many pods the node has.
func (c *Core) Len() int { return len(c.pods) }

// podHeap orders pods by the time of their next step.
type podHeap []*podState

func (h podHeap) Len() int { return len(h) }
func (h podHeap) Less(i, j int) bool {
	if !h[i].wake.Equal(h[j].wake) {
		return h[i].wake.Before(h[j].wake)
	}
	return h[i].pod.UID < h[j].pod.UID
}
func (h podHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].heapIndex, h[j].heapIndex = i, j
}
func (h *podHeap) Push(x any) {
	p := x.(*podState)
	p.heapIndex = len(*h)
	*h = append(*h, p)
}
func (h *podHeap) Pop() any {
	old := *h
	p := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	p.heapIndex = -1
	return p
}
