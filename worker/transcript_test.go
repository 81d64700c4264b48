package worker

import (
	"context"
	"crypto/md5"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// TestTranscripts replays testdata/*.txt: a node's Core over the fake runtime, with time moved by hand. The verbs are
// the methods of bench below.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		b := &bench{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			b.t, b.out = t, strings.Builder{}
			b.run(d)
			if b.out.Len() == 0 {
				return "ok\n"
			}
			return b.out.String()
		})
	})
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

type bench struct {
	t        *testing.T
	out      strings.Builder
	clock    *clocktesting.FakeClock
	timeline *fake.Timeline
	runtime  *fake.Runtime
	node     *corev1.Node
	core     *Core
	caller   caller
	events   []runtime.Event
	pods     map[string]*corev1.Pod
	hang     bool   // postStart hooks do not end by themselves
	deaf     bool   // the servers do not answer
	full     string // the pod whose volume holds too much
	boxes    *boxes // nil: a runtime without sandboxes
	past     past
	late     []Action      // to stop sandboxes, while that takes its time
	away     bool          // the runtime does not answer
	damaged  bool          // what the runtime kept of pods cannot be read
	made     int           // mirrors so far
	stubborn bool          // the servers answer, and take nothing over
	held     []PodReport   // newest ones of pods that were handed over and no server can commit
	holding  bool          // nothing can be committed
	mute     bool          // what is committed is not told
	untold   []Taken       // was committed and not told
	files    bool          // volumes follow their objects
	tokens   time.Duration // after which tokens are due; 0: no pod has one
	missing  string        // what cannot be had for volumes
}

func (b *bench) run(d *datadriven.TestData) {
	switch d.Cmd {
	case "node":
		b.newNode(d)
	case "pod":
		b.assign(d)
	case "delete":
		pod := b.change(d)
		var grace int64
		d.ScanArgs(b.t, "grace", &grace)
		now := metav1.NewTime(b.clock.Now())
		if pod.DeletionTimestamp == nil {
			pod.Generation++ // as the servers do
		}
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
		b.assignPods(pod)
	case "undelete": // the servers went back to a state in which it was not to go
		pod := b.change(d)
		pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = nil, nil
		pod.Generation--
		b.assignPods(pod)
	case "snapshot", "back", "late":
		b.past.goBack(b, d.Cmd)
	case "gone":
		delete(b.pods, d.CmdArgs[0].Key)
		b.core.Assign(Assignment{Gone: []types.UID{types.UID(d.CmdArgs[0].Key)}}, b.clock.Now())
	case "full":
		var pods []*corev1.Pod
		for _, a := range d.CmdArgs {
			pods = append(pods, b.pods[a.Key])
		}
		b.core.Assign(Assignment{Full: true, Pods: pods, Node: b.node}, b.clock.Now())
	case "static": // static [broken=FILE]: the pods of the node's own
		m := Manifests{Pods: b.parse(d.Input)}
		for _, pod := range m.Pods {
			raw, _ := yaml.Marshal(pod)
			pod.UID = types.UID(fmt.Sprintf("%x", md5.Sum(raw)))
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[ConfigHashAnnotation], pod.Annotations[ManifestAnnotation] = string(pod.UID), pod.Name+".yaml"
		}
		for _, a := range d.CmdArgs {
			m.Broken = append(m.Broken, a.Vals...)
		}
		b.core.SetStatic(m, b.clock.Now())
	case "mirrors": // the servers make what is asked for
		for _, change := range b.core.MirrorChanges() {
			b.mirror(change)
		}
	case "told":
		// The servers send the pod again, as they hold it.
		b.assignPods(b.change(d))
	case "unready":
		// What the servers make of the pods of a node that they lost sight of.
		pod := b.change(d)
		for i := range pod.Status.Conditions {
			if c := &pod.Status.Conditions[i]; c.Type == corev1.PodReady {
				c.Status, c.Reason, c.Message = corev1.ConditionFalse, "NodeNotReady", "Node is not ready"
				c.LastTransitionTime = metav1.NewTime(b.clock.Now())
			}
		}
		b.assignPods(pod)
	case "fill":
		b.full = d.CmdArgs[0].Key
	case "lose":
		delete(b.boxes.made, types.UID(d.CmdArgs[0].Key))
		if !d.HasArg("quietly") {
			b.events = append(b.events, runtime.Event{ID: runtime.ID{Pod: types.UID(d.CmdArgs[0].Key)}})
		}
	case "changed": // changed configmaps/settings…, or everything
		var refs []ObjectRef
		for _, a := range d.CmdArgs {
			resource, name, _ := strings.Cut(a.Key, "/")
			refs = append(refs, ObjectRef{resource, "default", name})
		}
		if b.core.Changed(refs, b.clock.Now()); len(refs) == 0 {
			b.core.Doubt(b.clock.Now())
		}
	case "label":
		pod := b.change(d)
		pod.Labels = map[string]string{"is": d.CmdArgs[1].Key}
		b.assignPods(pod)
	case "tokens":
		b.tokens, _ = time.ParseDuration(d.CmdArgs[0].Key)
	case "missing":
		b.missing = ""
		if len(d.CmdArgs) > 0 {
			b.missing = d.CmdArgs[0].Key
		}
	case "hooks": // hooks hang: postStart hooks run until they are cut
		b.hang = d.CmdArgs[0].Key == "hang"
	case "network":
		b.network(d.CmdArgs[0].Key)
	case "runtime":
		b.away = d.CmdArgs[0].Key == "away"
	case "push":
		b.boxes.registry[d.CmdArgs[0].Key] = true
	case "stubborn":
		b.stubborn = d.CmdArgs[0].Key == "on"
	case "condition":
		pod := b.change(d)
		var kind, status string
		d.ScanArgs(b.t, "type", &kind)
		d.ScanArgs(b.t, "status", &status)
		pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(kind), Status: corev1.ConditionStatus(status)})
		b.assignPods(pod)
	case "ephemeral": // ephemeral POD NAME [target=NAME]
		pod := b.change(d)
		e := corev1.EphemeralContainer{}
		e.Name = d.CmdArgs[1].Key
		d.MaybeScanArgs(b.t, "target", &e.TargetContainerName)
		pod.Spec.EphemeralContainers = append(pod.Spec.EphemeralContainers, e)
		b.assignPods(pod)
	case "image":
		pod := b.change(d)
		d.ScanArgs(b.t, "image", &containerByName(pod, d.CmdArgs[1].Key).Image)
		b.assignPods(pod)
	case "resize":
		b.resize(d)
	case "resources":
		b.resources(d.CmdArgs[0].Key)
	case "deadline":
		pod := b.change(d)
		var s int64
		d.ScanArgs(b.t, "seconds", &s)
		pod.Spec.ActiveDeadlineSeconds = &s
		b.assignPods(pod)
	case "crash":
		var attempt, code int
		d.ScanArgs(b.t, "attempt", &attempt)
		d.ScanArgs(b.t, "code", &code)
		id := runtime.ID{Pod: b.uid(d.CmdArgs[0].Key), Container: d.CmdArgs[1].Key, Attempt: int32(attempt)}
		if err := b.runtime.Crash(id, int32(code)); err != nil {
			fmt.Fprintln(&b.out, err)
		}
	case "servers":
		b.deaf = d.CmdArgs[0].Key == "down"
		if !b.deaf {
			b.core.Reported(false)
		}
	case "commits": // commits wait: the node's reports are kept until commits on, and are lost with its agent
		b.holding = d.CmdArgs[0].Key == "wait"
	case "acks": // acks wait: the agent does not hear what was committed until acks on
		b.mute = d.CmdArgs[0].Key == "wait"
	case "restart":
		b.held, b.untold = nil, nil
		b.damaged = d.HasArg("damaged")
		b.restart(d.HasArg("lost"))
	case "advance":
		by, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			b.t.Fatal(err)
		}
		b.advance(by)
		return
	case "status":
		b.status(d.CmdArgs[0].Key)
		return
	case "enter": // enter POD CONTAINER: which run a client is let into
		id, ok := b.core.Running(b.uid(d.CmdArgs[0].Key), d.CmdArgs[1].Key)
		fmt.Fprintln(&b.out, id, ok)
		return
	case "timers":
		next, ok := b.core.Next()
		fmt.Fprintln(&b.out, next.Sub(epoch), ok)
		return
	default:
		b.t.Fatalf("unknown command %s", d.Cmd)
	}
	b.settle()
}

func (b *bench) newNode(d *datadriven.TestData) {
	b.clock = clocktesting.NewFakeClock(epoch)
	b.timeline = fake.NewTimeline(b.clock)
	b.pods = map[string]*corev1.Pod{}
	b.node = &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}}
	list := corev1.ResourceList{"pods": resource.MustParse("10")}
	b.boxes = nil
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "files":
			b.files = true
			continue
		case "sandboxes":
			b.boxes = &boxes{made: map[types.UID]string{}, shown: map[string]string{}}
			continue
		case "images":
			b.boxes.registry, b.boxes.here = map[string]bool{}, map[string]bool{}
			for _, name := range a.Vals {
				b.boxes.registry[name] = true
			}
			continue
		}
		list[corev1.ResourceName(a.Key)] = resource.MustParse(a.Vals[0])
	}
	b.node.Status.Allocatable = list
	b.runtime = fake.New(b.timeline)
	b.restart(false)
}

// restart is a new agent over the same runtime, or over an empty one.
func (b *bench) restart(lost bool) {
	if lost {
		b.runtime = fake.New(b.timeline)
	}
	b.core = NewCore(CoreOptions{Node: b.node, RuntimeName: "fake", HostIPs: []string{"10.0.0.1"},
		Files: b.files, Sandboxes: b.boxes != nil, Images: b.boxes != nil && b.boxes.registry != nil,
		Refuse: func(pod *corev1.Pod) *runtime.Refusal {
			for i := range pod.Spec.EphemeralContainers {
				if pod.Spec.EphemeralContainers[i].Name == "never" {
					return runtime.Refuse(fmt.Sprintf("spec.ephemeralContainers[%d]", i), "it is never there")
				}
			}
			if why, ok := pod.Annotations["refuse"]; ok {
				return &runtime.Refusal{Reason: runtime.ReasonUnsupported, Message: why}
			}
			return nil
		},
		Told: func(pod *corev1.Pod) []string {
			if what, ok := pod.Annotations["told"]; ok {
				return []string{what}
			}
			return nil
		},
		Event: func(pod *corev1.Pod, _, reason, message string) {
			b.trace("event %s %s: %s", pod.Name, reason, message)
		}})
	var rt runtime.Runtime = b.runtime
	if b.boxes != nil {
		rt = b.boxes
		b.boxes.Runtime = b.runtime
	}
	b.caller = caller{runtime: rt, hostIPs: []string{"10.0.0.1"}, event: func(pod *corev1.Pod, _, reason, message string) {
		b.trace("event %s %s: %s", pod.Name, reason, message)
	}}
	b.events = nil
	pods, err := rt.Open(func(ev runtime.Event) { b.events = append(b.events, ev) })
	if err != nil {
		b.t.Fatal(err)
	}
	for i := range pods {
		if p := &pods[i]; b.damaged {
			p.Pod, p.Lost = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: p.Pod.UID}}, true
			for _, c := range p.Containers {
				p.Pod.Spec.Containers = append(p.Pod.Spec.Containers, corev1.Container{Name: c.Container})
			}
		}
	}
	b.core.Adopt(pods, b.clock.Now())
}

// uid is that of a pod, of the servers or of the node's own.
func (b *bench) uid(name string) types.UID {
	for uid, p := range b.core.pods {
		if p.static && p.pod.Name == name {
			return uid
		}
	}
	return types.UID(name)
}

func (b *bench) mirror(change MirrorChange) {
	if m := change.Delete; m != nil {
		b.trace("mirror of %s removed", m.Name)
		delete(b.pods, m.Name)
		b.core.Assign(Assignment{Gone: []types.UID{m.UID}}, b.clock.Now())
		return
	}
	m := change.Create.DeepCopy()
	b.made++
	b.trace("mirror of %s made", m.Name)
	m.Annotations[corev1.MirrorPodAnnotationKey] = string(m.UID)
	m.UID, m.Generation = types.UID(fmt.Sprintf("mirror-%d", b.made)), 1
	b.assignPods(m)
}

func (b *bench) assign(d *datadriven.TestData) { b.assignPods(b.parse(d.Input)...) }

func (b *bench) parse(input string) []*corev1.Pod {
	var pods []*corev1.Pod
	for _, doc := range strings.Split(input, "---\n") {
		if doc == "" {
			continue
		}
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict([]byte(doc), pod); err != nil {
			b.t.Fatal(err)
		}
		pod.Namespace, pod.UID = "default", types.UID(pod.Name)
		if pod.Spec.NodeName == "" {
			pod.Spec.NodeName = "n1"
		}
		if pod.Status.Phase == "" {
			pod.Status.Phase = corev1.PodPending
		}
		pods = append(pods, pod)
	}
	return pods
}

func (b *bench) change(d *datadriven.TestData) *corev1.Pod {
	pod := b.pods[d.CmdArgs[0].Key]
	if pod == nil {
		b.t.Fatalf("no pod %s", d.CmdArgs[0].Key)
	}
	return pod.DeepCopy()
}

func (b *bench) assignPods(pods ...*corev1.Pod) {
	for _, p := range pods {
		b.pods[p.Name] = p
	}
	b.core.Assign(Assignment{Pods: pods, Node: b.node}, b.clock.Now())
}

// settle lets everything happen that happens at this moment.
func (b *bench) settle() {
	for {
		now := b.clock.Now()
		b.core.Tick(now)
		actions := b.core.TakeActions()
		events := b.events
		b.events = nil
		for _, ev := range events {
			b.core.Observe(ev, now)
		}
		for _, a := range actions {
			b.traceAction(a)
			switch {
			case b.hang && a.Kind == ActionPostStart:
				continue
			case a.Kind == ActionSandboxStop && b.boxes.slow:
				b.late = append(b.late, a)
				continue
			case a.Kind == ActionPullEnd:
				continue // all pulls are over at once
			case a.Kind == ActionHookEnd:
				a.Kind = ActionPostStart
				b.core.Done(Outcome{Action: a, Err: context.Canceled}, now)
				continue
			}
			o := Outcome{Action: a, Err: runtime.ErrUnavailable}
			if !b.away {
				o = b.caller.do(context.Background(), a)
			}
			if a.Kind == ActionMeasure && b.full == a.Pod.Name {
				o.Err = &overLimit{`Usage of EmptyDir volume "scratch" exceeds the limit "1Mi".`}
			}
			if b.tokens > 0 && (a.Kind == ActionStart || a.Kind == ActionRefresh) {
				o.RenewAt = now.Add(b.tokens)
			}
			if a.Kind == ActionRefresh && b.missing != "" {
				o.Err = fmt.Errorf("%s is not there", b.missing)
			}
			b.core.Done(o, now)
		}
		if len(actions) == 0 && len(events) == 0 && !b.report() {
			return
		}
	}
}

func (b *bench) advance(by time.Duration) {
	end := b.clock.Now().Add(by)
	for {
		next := end
		if t, ok := b.core.Next(); ok && t.Before(next) {
			next = t
		}
		if t, ok := b.timeline.Next(); ok && t.Before(next) {
			next = t
		}
		if next.After(b.clock.Now()) {
			b.clock.SetTime(next)
		}
		b.timeline.Advance(b.clock.Now())
		b.settle()
		if !next.Before(end) {
			return
		}
	}
}

func (b *bench) trace(format string, args ...any) {
	fmt.Fprintf(&b.out, "%s "+format+"\n", append([]any{b.clock.Now().Sub(epoch)}, args...)...)
}

func (b *bench) traceAction(a Action) {
	name := a.Pod.Name + "/" + a.ID.Container
	switch a.Kind {
	case ActionSignal:
		b.trace("%s %s#%d", a.Signal, name, a.ID.Attempt)
	case ActionRemove, ActionMeasure, ActionRefresh, ActionSandbox, ActionSandboxStop, ActionUnmount:
		b.trace("%s %s", a.Kind, a.Pod.Name)
	case ActionResize:
		what := ""
		for _, c := range a.Resize.Containers {
			what += fmt.Sprintf(" %s#%d", c.ID.Container, c.ID.Attempt)
		}
		if limit, lower := a.Resize.LowersMemoryOfAll(); lower {
			what += fmt.Sprintf(" all down to %d", limit)
		}
		if a.Resize.Last {
			what += " last"
		}
		b.trace("resize %s%s", a.Pod.Name, what)
	case ActionPreStop:
		b.trace("preStop %s#%d within %s", name, a.ID.Attempt, a.Timeout)
	case ActionProbe:
		b.trace("%s probe %s#%d within %s", lower(a.ProbeKind), name, a.ID.Attempt, a.Timeout)
	default:
		if a.Target.Container != "" {
			b.trace("%s %s#%d over %s#%d", a.Kind, name, a.ID.Attempt, a.Target.Container, a.Target.Attempt)
			return
		}
		b.trace("%s %s#%d", a.Kind, name, a.ID.Attempt)
	}
}

// report plays the servers, and says whether the agent heard of them: it stores what is reported, and drops what was removed.
func (b *bench) report() (heard bool) {
	reports := b.core.TakeReports(100, b.clock.Now())
	if b.deaf {
		return false
	}
	b.core.Reported(true)
	for _, r := range reports {
		b.held = slices.DeleteFunc(b.held, func(old PodReport) bool { return old.UID == r.UID })
		b.held = append(b.held, r)
	}
	if !b.holding {
		for _, r := range b.held {
			b.untold = append(b.untold, b.take(r))
		}
		b.held = nil
	}
	if b.mute || len(b.untold) == 0 {
		return false
	}
	b.core.Taken(b.untold, b.clock.Now())
	b.untold = nil
	return true
}

func (b *bench) commit(r PodReport) {
	b.trace("report %s", summary(r.Name, &r.Status, r.Removed))
	if b.stubborn || b.pods[r.Name] == nil { // nobody has to be told of what is gone
		return
	}
	pod := b.pods[r.Name].DeepCopy()
	foreign := pod.Status.Conditions
	pod.Status = r.Status
	for _, c := range foreign {
		if !owned(c.Type) {
			pod.Status.Conditions = append(pod.Status.Conditions, c)
		}
	}
	b.pods[r.Name] = pod
	if r.Removed {
		delete(b.pods, r.Name)
	}
}

func owned(t corev1.PodConditionType) bool {
	return slices.Contains(model.WorkerConditions(), t)
}

func summary(name string, s *corev1.PodStatus, removed bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", name, s.Phase)
	if s.Reason != "" {
		fmt.Fprintf(&b, "(%s)", s.Reason)
	}
	for _, c := range s.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			b.WriteString(" ready")
		}
		if c.Type == corev1.AllContainersRestarting && c.Status == corev1.ConditionTrue {
			b.WriteString(" restarting-all")
		}
		if model.IsResizeCondition(c.Type) {
			fmt.Fprintf(&b, " %s(%s)@%d", c.Type, c.Reason, c.ObservedGeneration)
		}
	}
	for _, list := range [][]corev1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			fmt.Fprintf(&b, " %s=%s", list[i].Name, stateText(list[i].State))
			if list[i].RestartCount > 0 {
				fmt.Fprintf(&b, "#%d", list[i].RestartCount)
			}
		}
	}
	if removed {
		b.WriteString(" REMOVED")
	}
	return b.String()
}

func stateText(s corev1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return fmt.Sprintf("%s(%d)", s.Terminated.Reason, s.Terminated.ExitCode)
	case s.Waiting != nil:
		return s.Waiting.Reason
	}
	return "-"
}

func (b *bench) status(name string) {
	_, s, ok := b.core.Pod(types.UID(name), b.clock.Now())
	if !ok {
		fmt.Fprintln(&b.out, "not here")
		return
	}
	text, err := yaml.Marshal(s)
	if err != nil {
		b.t.Fatal(err)
	}
	b.out.Write(text)
}
