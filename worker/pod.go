package worker

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
)

// podState is the state machine of one pod. Inputs: assign, observe, done; step moves it on as far as the time allows and
// leaves actions in out and in wake the time at which it must be stepped again.
type podState struct {
	pod   *corev1.Pod
	class *model.Class
	env   *podEnv
	// wanted is the pod's object where it asks for other resources than the pod has been given, which are those of pod;
	// nil: it asks for these.
	wanted *corev1.Pod
	resize resize

	sandbox        sandboxState
	ips            []string // of the newest sandbox
	ipsUnknown     bool     // the runtime has not said them yet
	sandboxRetryAt time.Time
	owing          bool // one that was lost, or of which nobody heard, may hold something still
	sandboxFailed  int  // times in a row

	admission admission
	counted   bool // its request is part of the node's usage
	gone      bool // its object is no more (TM6)
	// verdict fails the whole pod whatever its containers did: refused by the node, deadline exceeded.
	verdict *verdict
	// static: the pod is the node's own; mirror is the servers' object that shows it, nil where there is none.
	static bool
	mirror *corev1.Pod

	// ctrs are init containers, then containers, in spec order, then ephemeral ones in the order in which they came.
	ctrs  []ctr
	inits int // where the containers begin
	mains int // where the ephemeral ones begin

	// anewAt is since when all containers are being ended for the pod to begin anew; zero: they are not.
	anewAt    time.Time
	startTime time.Time
	stopAt    time.Time // when the pod was first told to end; zero while it may run
	grace     time.Duration

	removal       removal
	removeRetryAt time.Time
	// unmount is the removal of its volumes while the rest is still needed.
	unmount        removal
	unmountRetryAt time.Time

	conditions [5]conditionMemory
	disrupted  time.Time // when the node had ended it for another
	// disruptedFor is why a pod goes for its node's sake; empty for one that goes for another pod.
	disruptedFor string

	looked  bool             // refusal is known, and what is not honoured was told
	refusal *runtime.Refusal // nothing of it is started

	measuring bool // of its volumes, for their limits
	measureAt time.Time
	// measureError is why what it holds of the disk is not known; empty: it is.
	measureError string

	refreshing   bool      // its volumes are written anew
	refreshAt    time.Time // when that is due; zero: it is not
	refreshedAt  time.Time
	refreshError string

	out  []Action
	wake time.Time

	// Bookkeeping of Core.
	heapIndex int
	sum       uint64 // of the newest status and removal
	number    uint64 // of the newest report; 0: there was none
	saidEnds  uint64 // of the ends in that report (endsDigest)
	heldEnds  uint64 // of those that the servers have
	dispute   dispute
	queued    bool // waits in Core's report queue
	inReport  bool // part of the report under way
	adopted   bool // found in the runtime, not assigned yet
	lost      bool // adopted, and nothing is known of its object but the UID
	unseen    bool // adopted, and it is not known yet what runs; lost until it is assigned

	quietUntil time.Time // its first start is not reported before
}

// podEnv is what all pods of a node share.
type podEnv struct {
	runtimeName string
	hostIPs     []string
	sandboxes   bool // the runtime's pods have some
	images      bool // the runtime's containers are made of some
	files       bool // volumes follow the objects that they show
	mostBackoff time.Duration
	event       func(pod *corev1.Pod, eventType, reason, message string)
	refuse      func(*corev1.Pod) *runtime.Refusal
	told        func(*corev1.Pod) []string
	// readOnlyBelow: a mount can be read-only with what is mounted below it; nil: it cannot.
	readOnlyBelow func() bool
}

type admission uint8

const (
	admissionOpen admission = iota // not decided yet, or held until others are gone
	admitted
	rejected
)

type removal uint8

const (
	removalNone removal = iota
	removalUnderWay
	removalDone
)

type verdict struct{ reason, message string }

type role uint8

const (
	roleInit role = iota
	roleSidecar
	roleApp
	roleEphemeral // runs once, and decides nothing of the pod's life (EC1)
)

type ctrState uint8

const (
	ctrIdle     ctrState = iota // never ran
	ctrPulling                  // its image is looked for; else as before
	ctrStarting                 // attempt+1 is being started
	ctrHooking                  // runs; its postStart hook does too
	ctrRunning
	ctrEnded
)

type stopStage uint8

const (
	stopNone stopStage = iota
	stopHook           // preStop runs
	stopTurn           // TERM may be sent, when the container's turn comes
	stopTerm           // TERM is sent
	stopKill           // KILL is sent
)

// ctr is one container of a pod through all its attempts.
type ctr struct {
	spec    *corev1.Container
	role    role
	state   ctrState
	attempt int32 // the newest that ran; -1: none

	// here: attempt ran in the sandbox that the pod has now.
	here bool
	// ref and lastRef are the runtime's own names of attempt and of the one before.
	ref, lastRef string
	imageID      string
	user         *corev1.ContainerUser // of attempt; nil: the runtime does not tell

	images       imageRefs // what the next attempt is to be started from, and what its volumes show; empty: not known
	pull         backoff   // of an image
	pulls        string    // the name of the image that could not be fetched
	pullFailedAt time.Time // zero: it did not fail, or is being tried again
	pullCut      bool      // nobody waits any more for what is being looked for

	madeOf        // what attempt was started from
	next   madeOf // what the attempt that is being started is started from
	// unsure: attempt may have something else of resources than actual.
	unsure bool

	startedAt time.Time
	exit      *runtime.Exit // of attempt, when it has ended
	ending    ending        // what was made of that
	last      *runtime.Exit // of the attempt before it

	wait, waitMessage string    // why it does not run, as the API shows it
	retryAt           time.Time // a failed start is not tried again before
	backoff           backoff
	backedOff         bool // backoff counts the restart that is being made

	hooking   bool // its postStart hook is a call that is under way
	stop      stopStage
	hookUntil time.Time
	termAt    time.Time
	// termRetryAt is when TERM is sent again, as it was lost; zero: it was not.
	termRetryAt time.Time
	killAt      time.Time
	killedAt    time.Time // first
	missing     int       // times that the runtime did not know it when it was to be killed
	condemned   time.Time
	fresh       bool // the next attempt is part of the pod's beginning anew, and the last one does not count
	turn        bool // it waits for its turn in that, as one of its containers demands it
	killingTold bool // why it is ended
	replacedBy  bool // its spec changed: it starts again whatever its restart policy says
	// condemnedGrace is that of the probe that condemned it; nil: the pod's.
	condemnedGrace *int64
	probing        *probing // nil: it has no probes

	// Of an ephemeral one: it is known whether it can be started here, and it cannot.
	looked, refused bool
}

func newPodState(pod *corev1.Pod, class *model.Class, env *podEnv, now time.Time) *podState {
	p := &podState{pod: pod, class: class, env: env, heapIndex: -1, static: isStatic(pod.UID), inits: len(pod.Spec.InitContainers)}
	p.resize.settled = true
	p.ctrs = make([]ctr, 0, p.inits+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		c := ctr{spec: &pod.Spec.InitContainers[i], attempt: -1, backoff: backoff{most: env.mostBackoff}, probing: newProbing(&pod.Spec.InitContainers[i])}
		if always(c.spec.RestartPolicy) {
			c.role = roleSidecar
		}
		p.ctrs = append(p.ctrs, c)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		p.ctrs = append(p.ctrs, ctr{spec: c, role: roleApp, attempt: -1, backoff: backoff{most: env.mostBackoff}, probing: newProbing(c)})
	}
	p.mains = len(p.ctrs)
	p.addEphemeral()
	p.startTime = now
	return p
}

func always(p *corev1.ContainerRestartPolicy) bool {
	return p != nil && *p == corev1.ContainerRestartPolicyAlways
}

// adopt takes over what a runtime kept of the pod from before (a restarted agent).
func (p *podState) adopt(containers []runtime.Container) {
	for i := range containers {
		rc := &containers[i]
		c := p.find(rc.Container)
		if c == nil {
			continue
		}
		switch {
		case rc.Attempt > c.attempt:
			if rc.Attempt == c.attempt+1 {
				c.last, c.lastRef = c.exit, c.ref
			} else {
				c.last, c.lastRef = nil, ""
			}
			c.attempt, c.startedAt, c.exit = rc.Attempt, rc.StartedAt, rc.Exit
			c.ref, c.imageID, c.user, c.here = rc.Ref, rc.ImageID, rc.User, !rc.Earlier
		case rc.Attempt == c.attempt-1:
			c.last, c.lastRef = rc.Exit, rc.Ref
		default:
			continue
		}
		c.state = ctrRunning
		if rc.Attempt == c.attempt {
			c.madeOf = p.made(c)
			c.image = cmp.Or(rc.Image, c.image) // the object may be newer than the run
		}
		if c.exit != nil {
			c.state = ctrEnded
		}
		if rc.StartedAt.Before(p.startTime) && !rc.StartedAt.IsZero() {
			p.startTime = rc.StartedAt
		}
	}
	p.admission = admitted
}

// replaceLost takes over the containers of a pod of which nothing else was known.
func (p *podState) replaceLost(old *podState) {
	for i := range old.ctrs {
		from := &old.ctrs[i]
		if c := p.find(from.spec.Name); c != nil {
			c.state, c.attempt, c.startedAt, c.exit, c.last = from.state, from.attempt, from.startedAt, from.exit, from.last
			c.ref, c.lastRef, c.imageID, c.user, c.here, c.madeOf = from.ref, from.lastRef, from.imageID, from.user, from.here, p.made(c)
			c.image = cmp.Or(from.image, c.image)
		}
	}
	p.sandbox, p.owing, p.ips, p.ipsUnknown = old.sandbox, old.owing, old.ips, old.ipsUnknown
	p.startTime, p.admission, p.adopted = old.startTime, admitted, true
	what := "no container of it was found"
	if slices.ContainsFunc(old.ctrs, func(c ctr) bool { return c.attempt >= 0 }) {
		what = "its containers were found and go on"
	}
	p.emit(corev1.EventTypeWarning, "PodRecordLost", "What the node had written down about this pod cannot be read; "+what)
}

// recall takes from the status that the servers keep what the agent cannot know otherwise: when the pod started, since
// when conditions hold, and containers that the runtime knows nothing of: what had ended is not run again (T7), what ran
// when it was lost counts as ended for an unknown reason, also where the servers went back to an older state of theirs in
// which it ran. An event says so, for the pod may be Failed by it.
func (p *podState) recall() {
	if t := p.pod.Status.StartTime; t != nil {
		p.startTime = t.Time
	}
	p.rememberConditions(p.pod.Status.Conditions)
	p.recallIPs(&p.pod.Status)
	defer p.recallResize()
	recall := func(statuses []corev1.ContainerStatus) {
		for i := range statuses {
			s := &statuses[i]
			c := p.find(s.Name)
			if c != nil {
				c.recallProbes(s)
				if c.user == nil && c.ref != "" && c.ref == refOf(s.ContainerID) {
					c.user = s.User // the runtime told it once
				}
			}
			if c == nil || c.alive() || c.attempt >= 0 && c.attempt >= s.RestartCount {
				continue
			}
			last := exitOf(s.LastTerminationState.Terminated)
			switch {
			case s.State.Terminated != nil && s.State.Terminated.ContainerID != "": // without one there was no container
				c.exit, c.last = exitOf(s.State.Terminated), last
			case s.State.Running != nil:
				c.exit, c.last = lostExit(s.State.Running.StartedAt.Time, s.State.Running.StartedAt.Time), last
				p.emit(corev1.EventTypeWarning, runtime.ReasonStatusUnknown, fmt.Sprintf("Container %s was running when the servers "+
					"last heard of it, and is not on this node any more: it counts as ended", s.Name))
			case last != nil:
				c.exit = last
			default:
				continue
			}
			c.attempt, c.state, c.here = s.RestartCount, ctrEnded, false
			c.ref, c.lastRef, c.image, c.imageID, c.user = refOf(s.ContainerID), "", s.Image, s.ImageID, s.User
			if last != nil {
				c.lastRef = refOf(s.LastTerminationState.Terminated.ContainerID)
			}
			p.admission = admitted
		}
	}
	recall(p.pod.Status.InitContainerStatuses)
	recall(p.pod.Status.ContainerStatuses)
	recall(p.pod.Status.EphemeralContainerStatuses)
}

// refOf is what a runtime calls a container itself.
func refOf(containerID string) string {
	_, ref, _ := strings.Cut(containerID, "://")
	return ref
}

func exitOf(t *corev1.ContainerStateTerminated) *runtime.Exit {
	if t == nil {
		return nil
	}
	return &runtime.Exit{Code: t.ExitCode, Signal: t.Signal, Reason: t.Reason, Message: t.Message,
		StartedAt: t.StartedAt.Time, FinishedAt: t.FinishedAt.Time}
}

func lostExit(started, finished time.Time) *runtime.Exit {
	return &runtime.Exit{Code: 137, Reason: runtime.ReasonStatusUnknown, StartedAt: started, FinishedAt: finished,
		Message: "The container could not be located when its state was read"}
}

func (p *podState) find(name string) *ctr {
	for i := range p.ctrs {
		if p.ctrs[i].spec.Name == name {
			return &p.ctrs[i]
		}
	}
	return nil
}

// observe takes what the runtime reports of a container, or of the pod's sandbox.
func (p *podState) observe(ev runtime.Event, now time.Time) {
	if ev.Container == "" {
		if ev.Sandbox != nil {
			p.sandboxKnown(ev.Sandbox)
		} else {
			p.sandboxLost()
		}
		return
	}
	c := p.find(ev.Container)
	if c == nil {
		return
	}
	if c.state == ctrStarting && ev.Attempt == c.attempt+1 {
		c.began(ev.StartedAt)
		c.ref, c.imageID, c.user = ev.Ref, ev.ImageID, ev.User
		p.emit(corev1.EventTypeNormal, "Started", "Started container "+c.spec.Name)
		if ev.Exit == nil {
			p.postStart(c, now)
			p.replaceOld(c, now)
		}
	}
	if ev.Exit != nil && ev.Attempt == c.attempt && (c.state == ctrRunning || c.state == ctrHooking) {
		p.endHook(c)
		c.ended(ev.Exit)
	}
}

func (c *ctr) began(at time.Time) {
	c.attempt++
	c.last, c.exit = c.exit, nil
	c.ref, c.lastRef, c.user = "", c.ref, nil
	c.here, c.images = true, imageRefs{}
	c.startedAt = at
	c.madeOf, c.next, c.unsure = c.next, madeOf{}, false
	c.state = ctrRunning
	c.wait, c.waitMessage = "", ""
	c.backedOff, c.replacedBy, c.hooking, c.fresh, c.turn, c.killingTold = false, false, false, false, false, false
	c.stop, c.missing, c.condemned, c.condemnedGrace = stopNone, 0, time.Time{}, nil
	c.probing = newProbing(c.spec)
}

func (c *ctr) ended(exit *runtime.Exit) {
	c.exit = exit
	c.state = ctrEnded
	c.condemned = time.Time{}
}

// alive says whether a process of the container may be there.
func (c *ctr) alive() bool { return c.state >= ctrStarting && c.state != ctrEnded }

// starting says whether the start of some container is under way.
func (p *podState) starting() bool {
	for i := range p.ctrs {
		if p.ctrs[i].state == ctrStarting {
			return true
		}
	}
	return false
}

func (p *podState) alive() bool {
	for i := range p.ctrs {
		if p.ctrs[i].alive() {
			return true
		}
	}
	return false
}

// done takes the outcome of an action.
func (p *podState) done(o Outcome, now time.Time) {
	if o.Kind == ActionRemove {
		p.removal = removalDone
		if o.Err != nil {
			p.removal, p.removeRetryAt = removalNone, now.Add(retryInterval)
		}
		return
	}
	switch o.Kind {
	case ActionRefresh:
		p.refreshed(o, now)
		return
	case ActionMeasure:
		p.measured(o.Err, now)
		return
	case ActionResize:
		p.resized(o, now)
		return
	case ActionSandbox:
		p.sandboxMade(o, now)
		return
	case ActionSandboxStop:
		p.sandboxStopped(o.Err, now)
		return
	case ActionUnmount:
		p.unmounted(o.Err, now)
		return
	}
	c := p.find(o.ID.Container)
	if c == nil {
		return
	}
	switch o.Kind {
	case ActionProbe:
		p.probed(c, o, now)
	case ActionPull:
		p.pulled(c, o, now)
	case ActionStart:
		p.refreshBy(o.RenewAt)
		if o.Err != nil && c.state == ctrStarting && o.ID.Attempt == c.attempt+1 {
			p.startFailed(c, o.Err, now)
		}
	case ActionSignal:
		if o.Err != nil && o.ID.Attempt == c.attempt && c.alive() {
			p.signalFailed(c, o, now)
		}
	case ActionPostStart:
		if c.state == ctrHooking && o.ID.Attempt == c.attempt {
			c.state, c.hooking = ctrRunning, false
			if o.Err != nil && c.stop == stopNone {
				p.emit(corev1.EventTypeWarning, "FailedPostStartHook", fmt.Sprintf("PostStartHook of container %s failed: %v", c.spec.Name, o.Err))
				c.condemned = now
			}
		}
	case ActionPreStop:
		if c.stop == stopHook && o.ID.Attempt == c.attempt {
			if o.Err != nil {
				p.emit(corev1.EventTypeWarning, "FailedPreStopHook", fmt.Sprintf("PreStopHook of container %s failed: %v", c.spec.Name, o.Err))
			}
			c.hookUntil = now
		}
	}
}

// signalFailed: what was to end a container did not reach it.
func (p *podState) signalFailed(c *ctr, o Outcome, now time.Time) {
	switch {
	case o.Signal == runtime.Kill && errors.Is(o.Err, runtime.ErrNotFound):
		// The end of a container that is not there any more is usually on its way as an event.
		if c.missing++; c.missing > 1 {
			p.endHook(c)
			c.ended(lostExit(c.startedAt, now))
		}
	case o.Signal == runtime.Terminate && !errors.Is(o.Err, runtime.ErrNotFound) && c.stop == stopTerm:
		// Whatever went wrong: it would be killed without ever having been told.
		c.termRetryAt = now.Add(time.Second)
	}
}

func (p *podState) startFailed(c *ctr, err error, now time.Time) {
	var se *runtime.StartError
	if errors.As(err, &se) {
		c.began(now)
		c.ended(&runtime.Exit{Code: 128, Reason: runtime.ReasonStartError, Message: err.Error(), StartedAt: now, FinishedAt: now})
		p.emit(corev1.EventTypeWarning, "Failed", "Error: "+err.Error())
		return
	}
	c.rest()
	c.images = imageRefs{} // one may have been removed
	c.wait, c.waitMessage = "CreateContainerError", err.Error()
	reason := "Failed"
	var pe *prepareError
	if errors.As(err, &pe) {
		c.wait, reason = pe.wait, pe.event
	}
	var ce *runtime.ConfigError
	if errors.As(err, &ce) {
		c.wait = waitConfigError
	}
	c.retryAt = now.Add(retryInterval)
	p.emit(corev1.EventTypeWarning, reason, "Error: "+err.Error())
}

// rest: the next attempt was not to be.
func (c *ctr) rest() {
	c.state = ctrIdle
	if c.exit != nil {
		c.state = ctrEnded
	}
}

// act asks for a call.
func (p *podState) act(a Action) {
	a.Pod, a.IPs = p.pod, p.podIPs()
	a.ID.Pod = p.pod.UID
	p.out = append(p.out, a)
}

// prepareError is a failure before the runtime is asked: something that the container refers to is not there.
type prepareError struct {
	wait  string // reason of the waiting state
	event string
	err   error
}

func (e *prepareError) Error() string { return e.err.Error() }
func (e *prepareError) Unwrap() error { return e.err }

func (p *podState) emit(eventType, reason, message string) {
	if p.env.event != nil && !p.lost {
		p.env.event(p.pod, eventType, reason, message)
	}
}

// wakeAt asks for a step at t; the zero time asks for none.
func (p *podState) wakeAt(t time.Time) {
	if t.IsZero() {
		return
	}
	if p.wake.IsZero() || t.Before(p.wake) {
		p.wake = t
	}
}
