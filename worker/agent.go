package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// CallsInline makes the agent's own goroutine do the calls to the runtime: for one that never blocks.
	CallsInline = -1

	defaultCalls   = 8
	reportsAtOnce  = 200
	probeInterval  = 10 * time.Second
	retryFirst     = 200 * time.Millisecond
	retryLast      = 10 * time.Second
	nodeReportIdle = 5 * time.Minute // the node's status is reported this often although nothing changed
)

// Options are what an Agent is made of.
type Options struct {
	// Node registers the node (see NewNode).
	Node *corev1.Node
	// Uplink and Runtime are required; the agent does not close them.
	Uplink  Uplink
	Runtime runtime.Runtime
	// Volumes is nil for runtimes that run nothing; pods get no volumes then.
	Volumes *Volumes
	// Getter reads config maps and secrets; without it, containers that refer to some cannot start.
	Getter Getter
	// Keeper tells which volumes are to go; nil: none does.
	Keeper VolumeKeeper
	// API is where a pod's containers find the API, host and port; nil, or an empty host: nowhere.
	API func(pod *corev1.Pod) (host, port string)
	// Mirrors shows static pods in the API; nil: nobody does.
	Mirrors Mirrors
	// Devices gives devices to containers; nil: there are none but those that the node's amounts name.
	Devices Devices
	// Pulls says which pods may use an image that is here; nil: all may.
	Pulls PullRecords
	// Recorder takes events; may be nil.
	Recorder Recorder
	// Observe measures every ten seconds what the machine may run short of, and Eviction says when it does; nil: the
	// conditions never change, and no pod has to go for them.
	Observe  func(ctx context.Context) (eviction.Observations, error)
	Eviction eviction.Config
	// Amounts are what the node has, and what pods may have of it, once the runtime has answered: it is asked then. nil: they are Node's.
	Amounts func() (capacity, allocatable corev1.ResourceList, err error)
	// MaxRestartBackoff is how long the restart of a container that goes on ending waits at most; 0: 5 min.
	MaxRestartBackoff time.Duration
	// Streams bound how long somebody stays in a pod.
	Streams StreamBounds
	// CallsAtOnce bounds the calls to the runtime under way; 0: 8; CallsInline: none beside the agent's goroutine.
	CallsAtOnce int
	// Clock defaults to the real one, Logger to none.
	Clock  clock.Clock
	Logger hclog.Logger
}

// Agent runs one node. It has one goroutine, and some more while calls and reports are under way.
type Agent struct {
	clock   clock.Clock
	log     hclog.Logger
	uplink  Uplink
	runtime runtime.Runtime
	caller  *caller
	opts    Options

	mu   sync.Mutex // guards core
	core *Core

	closing atomic.Bool // the machine ends
	inputs  mailbox
	calls   sync.WaitGroup
	streams streams
	dials   streams

	// What follows belongs to the goroutine of Run.
	node        *corev1.Node
	queue       []Action
	underWay    int
	reporting   retry
	registering retry
	mirroring   retry
	probing     bool
	outdated    bool // what probing tells is not what is
	relief      relief
	probeAt     time.Time
	reportedAt  time.Time // the node's status
}

// New makes an agent; Run starts it.
func New(o Options) (*Agent, error) {
	if o.Node == nil || o.Uplink == nil || o.Runtime == nil {
		return nil, errors.New("a node agent needs a node, an uplink and a runtime")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Logger == nil {
		o.Logger = hclog.NewNullLogger()
	}
	if o.CallsAtOnce == 0 {
		o.CallsAtOnce = defaultCalls
	}
	var ips []string
	for _, a := range o.Node.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			ips = append(ips, a.Address)
		}
	}
	a := &Agent{clock: o.Clock, log: o.Logger, uplink: o.Uplink, runtime: o.Runtime, opts: o, node: o.Node.DeepCopy()}
	a.relief.config = o.Eviction
	a.inputs.wake = make(chan struct{}, 1)
	co := CoreOptions{Node: o.Node, RuntimeName: o.Runtime.Name(), HostIPs: ips, Files: o.Volumes != nil, MaxRestartBackoff: o.MaxRestartBackoff}
	_, co.Sandboxes = o.Runtime.(runtime.Sandboxer)
	_, co.Images = o.Runtime.(runtime.ImageStore)
	if o.Recorder != nil {
		co.Event = o.Recorder.Event
	}
	rt, _ := o.Runtime.(runtime.Refuser)
	co.Refuse = func(pod *corev1.Pod) *runtime.Refusal {
		if x := refuseDevices(pod); x != nil {
			return x
		}
		if o.Volumes != nil {
			if x := o.Volumes.refuse(pod); x != nil {
				return x
			}
		}
		if rt != nil {
			return rt.Refuse(pod)
		}
		return nil
	}
	if rt != nil {
		co.Told = rt.Told
	}
	if m, ok := o.Runtime.(runtime.Mounter); ok {
		co.ReadOnlyBelow = m.ReadOnlyBelow
	}
	a.core = NewCore(co)
	a.caller = &caller{runtime: o.Runtime, volumes: o.Volumes, getter: o.Getter, alloc: o.Node.Status.Allocatable,
		hostIPs: ips, event: co.Event, api: o.API, refreshes: make(chan struct{}, refreshesAtOnce), measures: make(chan struct{}, measuresAtOnce),
		devices: o.Devices, pulls: o.Pulls, holds: a.holds, meters: newMeters(a.running)}
	return a, nil
}

// mailbox takes inputs for the agent's goroutine from anywhere, without blocking.
type mailbox struct {
	mu    sync.Mutex
	items []func(now time.Time)
	wake  chan struct{}
}

func (m *mailbox) put(f func(now time.Time)) {
	m.mu.Lock()
	m.items = append(m.items, f)
	m.mu.Unlock()
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mailbox) take() []func(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.items
	m.items = nil
	return out
}

// retry spaces out attempts at something that talks to the servers.
type retry struct {
	wanted   bool
	underWay bool
	at       time.Time // not before
	delay    time.Duration
}

func (r *retry) due(now time.Time) bool { return r.wanted && !r.underWay && !now.Before(r.at) }

func (r *retry) settle(err error, now time.Time) {
	if err == nil {
		r.delay, r.at = 0, time.Time{}
		return
	}
	r.delay = min(max(2*r.delay, retryFirst), retryLast)
	r.at = now.Add(r.delay)
}

// Run is the agent's life: it takes over what the runtime kept, then runs until ctx is cancelled. Pods go on running
// after it; the next agent over the same runtime finds them. The error is nil unless the runtime could not be opened.
func (a *Agent) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer a.calls.Wait()
	defer cancel()
	pods, early, err := a.open(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return nil
	case err != nil:
		return fmt.Errorf("opening the %s runtime: %w", a.runtime.Name(), err)
	}
	now := a.clock.Now()
	if len(pods) > 0 {
		a.log.Info("took over pods from before", "pods", len(pods))
	}
	a.locked(func() { a.core.Adopt(pods, now) })
	if a.opts.Keeper != nil {
		volumes := cmp.Or(a.opts.Volumes, &Volumes{}) // one who keeps none has none to remove, and says so
		a.spawn(func() { volumes.Reclaim(ctx, a.opts.Keeper, a.log) })
	}
	a.registering.wanted = true
	first := true
	var kept []types.UID // volumes from before
	if a.opts.Volumes != nil {
		kept = a.opts.Volumes.pods()
	}
	take := func(as Assignment) {
		if as.Full && !first {
			a.registering.wanted = true // a new connection, perhaps to servers that forgot the node
		}
		a.locked(func() { a.core.Assign(as, a.clock.Now()) })
		if first {
			a.dropVolumes(ctx, kept)
		}
		first = false
	}
	for _, as := range early {
		take(as)
	}
	for {
		a.act(ctx, a.clock.Now())
		timer := a.timer()
		var fired <-chan time.Time
		if timer != nil {
			fired = timer.C()
		}
		select {
		case <-ctx.Done():
			stopTimer(timer)
			return nil
		case as := <-a.uplink.Assignments():
			take(as)
		case <-a.inputs.wake:
		case <-fired:
		}
		stopTimer(timer)
		a.locked(func() { a.core.Tick(a.clock.Now()) })
	}
}

// drain gives the core what has come in, and says whether anything had.
func (a *Agent) drain(now time.Time) bool {
	items := a.inputs.take()
	a.locked(func() {
		for _, f := range items {
			f(now)
		}
	})
	return len(items) > 0
}

// Changed tells that objects are others now that pods may mount. It does not block.
func (a *Agent) Changed(refs []ObjectRef) {
	a.inputs.put(func(now time.Time) { a.core.Changed(refs, now) })
}

// Taken tells which reports the servers have. It does not block.
func (a *Agent) Taken(reports []Taken) {
	a.inputs.put(func(now time.Time) { a.core.Taken(reports, now) })
}

// Doubt tells that any object may be another one now. It does not block.
func (a *Agent) Doubt() {
	a.inputs.put(func(now time.Time) { a.core.Doubt(now) })
}

func stopTimer(t clock.Timer) {
	if t != nil {
		t.Stop()
	}
}

func (a *Agent) locked(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
}

// timer fires when the next thing is due by time; nil: nothing is.
func (a *Agent) timer() clock.Timer {
	var next time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	a.locked(func() {
		if t, ok := a.core.Next(); ok {
			earlier(t)
		}
		if len(a.core.reports) > 0 && !a.reporting.underWay {
			earlier(a.reporting.at)
		}
	})
	if a.registering.wanted && !a.registering.underWay {
		earlier(a.registering.at)
	}
	if a.mirroring.wanted && !a.mirroring.underWay {
		earlier(a.mirroring.at)
	}
	if a.opts.Observe != nil && !a.probing {
		earlier(a.probeAt)
	}
	if next.IsZero() {
		return nil
	}
	return a.clock.NewTimer(max(next.Sub(a.clock.Now()), 0))
}

// act starts everything that is to be done now. Reports come last, so that they tell what came of it where that is known
// at once.
func (a *Agent) act(ctx context.Context, now time.Time) {
	for {
		came := a.drain(now)
		a.makeCalls(ctx, now)
		if !came {
			break
		}
	}
	a.report(ctx, now)
	a.register(ctx, now)
	a.mirror(ctx, now)
	a.probe(ctx, now)
}

func (a *Agent) makeCalls(ctx context.Context, now time.Time) {
	a.locked(func() { a.queue = append(a.queue, a.core.TakeActions()...) })
	var held []Action // until others are over
	for len(a.queue) > 0 {
		next := a.queue[0]
		a.queue = a.queue[1:]
		hook := next.Kind == ActionPreStop || next.Kind == ActionPostStart
		switch {
		case next.Kind == ActionHookEnd, next.Kind == ActionPullEnd:
			a.caller.do(ctx, next)
		case a.opts.CallsAtOnce == CallsInline && !hook:
			o := a.caller.do(ctx, next)
			a.locked(func() {
				a.core.Done(o, now)
				a.queue = append(a.queue, a.core.TakeActions()...)
			})
		case !next.Kind.counts():
			a.call(ctx, next)
		case a.underWay < a.opts.CallsAtOnce:
			a.underWay++
			a.call(ctx, next)
		default:
			held = append(held, next)
		}
	}
	a.queue = held
}

func (a *Agent) call(ctx context.Context, action Action) {
	ctx, over := a.caller.cuttable.begin(ctx, action)
	counted := action.Kind.counts() // belongs to the goroutine of Run
	uncount := func(time.Time) {
		if counted {
			counted = false
			a.underWay--
		}
	}
	ctx = withAside(ctx, func() { a.inputs.put(uncount) })
	a.spawn(func() {
		o := Outcome{Action: action, Err: errBroke}
		a.guard(action.Kind.String()+" of "+action.Pod.Namespace+"/"+action.Pod.Name, func() {
			done := a.caller.do(ctx, action)
			if broke := new(guard.Panic); errors.As(done.Err, &broke) { // beside the call
				panic(broke)
			}
			o = done
		})
		over()
		if o.Err != nil && action.Kind != ActionProbe && action.Kind != ActionMeasure { // of those there are events
			a.log.Warn("runtime call failed", "call", action.Kind.String(), "pod", action.Pod.Namespace+"/"+action.Pod.Name,
				"container", action.ID.Container, "error", o.Err)
		}
		a.inputs.put(func(now time.Time) {
			uncount(now)
			a.core.Done(o, now)
		})
	})
}

// errBroke is what a call fails with that panicked. The log has more.
var errBroke = errors.New("it broke within the worker; the worker's log says where")

// guard is around what is done for one pod: what it breaks by costs that pod its call, and not the others theirs.
func (a *Agent) guard(what string, f func()) {
	guard.Telling(func(what string, broke *guard.Panic) {
		a.log.Error("something panicked; this is a mistake of Berth's. The pod's call failed", "call", what, "panic", broke)
	})(what, f)
}

func (a *Agent) spawn(f func()) {
	a.calls.Add(1)
	go func() {
		defer a.calls.Done()
		f()
	}()
}

// report sends what has changed, one batch at a time: while one is under way the next one fills.
func (a *Agent) report(ctx context.Context, now time.Time) {
	a.reporting.wanted = true
	if !a.reporting.due(now) {
		return
	}
	var batch []PodReport
	a.locked(func() { batch = a.core.TakeReports(reportsAtOnce, now) })
	if len(batch) == 0 {
		return
	}
	a.reporting.underWay = true
	a.spawn(func() {
		err := a.uplink.Report(ctx, batch)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("statuses could not be reported; they are kept", "pods", len(batch), "error", err)
		}
		a.inputs.put(func(now time.Time) {
			a.reporting.underWay = false
			a.core.Reported(err == nil)
			a.reporting.settle(err, now)
		})
	})
}

func (a *Agent) register(ctx context.Context, now time.Time) {
	if !a.registering.due(now) {
		return
	}
	a.registering.wanted, a.registering.underWay = false, true
	node := a.node.DeepCopy()
	a.spawn(func() {
		err := a.uplink.Register(ctx, node)
		if err != nil && ctx.Err() == nil {
			a.log.Warn("node could not be registered", "node", node.Name, "error", err)
		}
		a.inputs.put(func(now time.Time) {
			a.registering.underWay = false
			a.registering.wanted = a.registering.wanted || err != nil
			a.registering.settle(err, now)
		})
	})
}

// probe measures the machine and reports the node's status when a condition changed, and, less often, when the images
// have.
func (a *Agent) probe(ctx context.Context, now time.Time) {
	if a.opts.Observe == nil || a.probing || now.Before(a.probeAt) {
		return
	}
	if a.probeAt.IsZero() {
		a.probeAt, a.reportedAt = now.Add(probeInterval), now // Register has just told it all
		return
	}
	a.probing = true
	status := a.node.Status.DeepCopy()
	sinceTold := now.Sub(a.reportedAt)
	a.spawn(func() {
		seen, err := a.opts.Observe(ctx)
		looked := a.relief.state.Look(&a.relief.config, seen, a.clock.Now())
		p := Pressure{Memory: looked.Memory, Disk: looked.Disk, PID: looked.PID, Unready: a.unready(ctx)}
		a.locked(func() { a.core.SetPressure(p) })
		if err != nil { // what could be measured counts, what was before, and whether the runtime answers
			a.log.Warn("the machine's state could not be measured whole", "error", err)
		}
		told := a.reportNode(ctx, status, NodeConditions(p, status.Conditions, now), sinceTold)
		a.inputs.put(func(now time.Time) {
			a.probing = false
			if looked.Act != nil {
				a.relieveAside(ctx, looked.Act, seen)
			}
			a.probeAt = now.Add(probeInterval)
			if told {
				if a.reportedAt = now; !sameImages(a.node.Status.Images, status.Images) {
					a.registering.wanted = true // so that the next connection begins with them
				}
				a.node.Status.Conditions, a.node.Status.Images = status.Conditions, status.Images
			}
			if a.outdated {
				a.outdated, a.reportedAt, a.probeAt = false, time.Time{}, now
			}
		})
	})
}

// reportNode reports the node's status where that is due, and says whether it was told.
func (a *Agent) reportNode(ctx context.Context, status *corev1.NodeStatus, conditions []corev1.NodeCondition, sinceTold time.Duration) bool {
	before := status.Conditions
	status.Conditions = conditions
	other := a.listImages(status)
	if sinceTold < nodeReportIdle && !(other && sinceTold >= imagesReportIdle) && sameConditions(before, conditions) {
		return false
	}
	err := a.uplink.ReportNode(ctx, status)
	if err != nil && ctx.Err() == nil {
		a.log.Warn("the node's status could not be reported", "error", err)
	}
	return err == nil
}

// listImages brings the images up to date, and says whether they are others now. A runtime that does not answer has the
// ones that it had.
func (a *Agent) listImages(status *corev1.NodeStatus) bool {
	var listing uint64
	if a.opts.Pulls != nil {
		listing = a.opts.Pulls.Listing()
	}
	all, err := allImages(a.runtime)
	if err != nil {
		a.log.Warn("the images could not be listed", "error", err)
		return false
	}
	if a.opts.Pulls != nil {
		a.opts.Pulls.Listed(listing, all)
	}
	before := status.Images
	status.Images = largest(all)
	return !sameImages(before, status.Images)
}

func sameConditions(a, b []corev1.NodeCondition) bool {
	strip := func(in []corev1.NodeCondition) []corev1.NodeCondition {
		out := append([]corev1.NodeCondition(nil), in...)
		for i := range out {
			out[i].LastHeartbeatTime.Reset()
			out[i].LastTransitionTime.Reset()
		}
		return out
	}
	return apiequality.Semantic.DeepEqual(strip(a), strip(b))
}
