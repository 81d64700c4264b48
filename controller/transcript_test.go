package controller_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// TestTranscripts replays testdata/*.txt; -rewrite regenerates what the
// controllers answer. A controller's name runs it once: what it wants is shown
// and carried out, or only shown with "lost".
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := newWorld(t)
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.t = t
			switch d.Cmd {
			case "cluster":
				return w.lines(d.Input)
			case "scale-in":
				return w.scaleIn(d.CmdArgs, d.Input)
			case "pairs":
				return w.pairs()
			}
			return w.run(d.Cmd, d.CmdArgs)
		})
	})
}

type world struct {
	t     testing.TB
	state *fsm.State
	now   time.Time
	index uint64

	since      time.Time
	beats      beats
	lifecycle  *controller.NodeLifecycle
	taints     *controller.TaintEviction
	namespaces *controller.Namespaces
	gc         *controller.PodGC
	furnishing *controller.Furnishing
	workloads
}

// beats implements controller.Heartbeats.
type beats map[string]int64

func (b beats) LeaseSeenUnixNano(node string) (int64, bool) {
	at, ok := b["lease of "+node]
	return at, ok
}

func (b beats) LastSeenUnixNano(node string) (int64, bool) {
	at, ok := b[node]
	return at, ok
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, state: fsm.NewState(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.namespace("default")
	w.apply(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "high", UID: "uid-high"}, Value: 1000,
	}}})
	w.run("grace", args{{Key: "50"}})
	w.lead()
	return w
}

// upgrade lets the state go by the newest rules.
func (w *world) upgrade() {
	w.t.Helper()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: w.now.UnixNano()}, []fsm.Proposal{{Command: &fsm.Checkpoint{}}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	if _, err := w.state.Apply(w.index, 1, entry); err != nil {
		w.t.Fatal(err)
	}
}

// must applies a command that is not to be refused.
func (w *world) must(c fsm.Command) {
	w.t.Helper()
	if said := w.apply(c); said != "ok" {
		w.t.Fatal(said)
	}
}

// lead begins a leadership: nothing is remembered.
func (w *world) lead() {
	w.since, w.beats = w.now, beats{}
	w.lifecycle, w.taints, w.namespaces = &controller.NodeLifecycle{}, &controller.TaintEviction{}, &controller.Namespaces{}
	w.gc = &controller.PodGC{Threshold: 2}
	w.furnishing = &controller.Furnishing{RootCA: "PEM"}
	w.leadWorkloads()
}

func (w *world) namespace(name string, finalizers ...string) string {
	return w.apply(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Finalizers: finalizers},
	}}})
}

// apply carries commands out and says which were refused.
func (w *world) apply(commands ...fsm.Command) string {
	w.t.Helper()
	ps := make([]fsm.Proposal, len(commands))
	for i, c := range commands {
		ps[i] = fsm.Proposal{User: "system:berth", Groups: []string{access.Masters, access.ClassUsers("none")}, Command: c} // also before that class is there
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: w.now.UnixNano(), Server: "s1"}, ps)
	if err != nil {
		w.t.Fatal(err)
	}
	w.index++
	results, err := w.state.Apply(w.index, 1, entry)
	if err != nil {
		w.t.Fatal(err)
	}
	var out []string
	for i, r := range results {
		if r.Refused() {
			out = append(out, fmt.Sprintf("%T refused: %s", commands[i], r.Message))
		}
		if r.Plan != nil {
			for _, p := range r.Plan.Refused {
				out = append(out, "refused "+p.Key+": "+p.Reason)
			}
		}
	}
	if len(out) == 0 {
		return "ok"
	}
	return strings.Join(out, "\n")
}

func (w *world) lines(input string) string {
	var out []string
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		cmd, args, err := datadriven.ParseLine(line)
		if err != nil {
			w.t.Fatal(err)
		}
		if answer := w.run(cmd, args); answer != "ok" {
			out = append(out, line+": "+answer)
		}
	}
	if len(out) == 0 {
		return "ok"
	}
	return strings.Join(out, "\n")
}

// args are a directive's: names first, then key=value or flags.
type args []datadriven.CmdArg

func (a args) name(i int) string { return a[i].Key }

func (a args) has(flag string) bool {
	return slices.ContainsFunc(a, func(c datadriven.CmdArg) bool { return c.Key == flag })
}

func (a args) get(key string) (string, bool) {
	for _, c := range a {
		if c.Key == key && len(c.Vals) > 0 {
			return strings.Join(c.Vals, ","), true
		}
	}
	return "", false
}

func (a args) or(key, otherwise string) string {
	if v, ok := a.get(key); ok {
		return v
	}
	return otherwise
}

func (a args) list(key string) []string {
	v, ok := a.get(key)
	if !ok {
		return nil
	}
	return strings.Split(v, ",")
}

func (w *world) run(cmd string, a args) string {
	w.t.Helper()
	v, now := w.state.View(), w.now.UnixNano()
	switch cmd {
	case "advance": // advance 10s
		d, err := time.ParseDuration(a.name(0))
		if err != nil {
			w.t.Fatal(err)
		}
		w.now = w.now.Add(d)
		return "ok"
	case "lead": // another server leads from now on
		w.lead()
		return "ok"
	case "renewed": // renewed n1 n2 …: their leases were, and the log does not say so
		for i := range a {
			w.beats["lease of "+a.name(i)] = now
		}
		return "ok"
	case "heard": // heard n1 n2 …: of their workers
		for i := range a {
			w.beats[a.name(i)] = now
		}
		return "ok"
	case "lifecycle":
		return w.wanted(w.lifecycle.Reconcile(v, w.beats, w.since.UnixNano(), now), a)
	case "taints":
		return w.wanted(w.taints.Reconcile(v, w.lifecycle.Held(now), now), a)
	case "namespaces":
		return w.wanted(w.namespaces.Reconcile(v, now), a)
	case "gc":
		return w.wanted(w.gc.Reconcile(v, now), a)
	case "furnishing":
		return w.wanted(w.furnishing.Reconcile(v, now), a)
	case "drop": // drop serviceaccounts default
		return w.apply(&fsm.DeleteObject{Resource: a.name(0), Namespace: a.or("ns", "default"), Name: a.name(1)})
	case "nominations":
		return w.wanted(controller.Nominations(v, now), a)
	case "events":
		return w.wanted(controller.Events(v, now), a)
	case "replicasets":
		return w.works(w.sets, a)
	case "garbage":
		return w.works(w.garbage, a)
	case "show":
		return w.show(a.name(0))
	}
	return w.change(cmd, a)
}

// wanted shows commands, and carries them out unless they are lost.
func (w *world) wanted(commands []fsm.Command, a args) string {
	if len(commands) == 0 {
		return "nothing"
	}
	var out []string
	for _, c := range commands {
		out = append(out, describe(c)...)
	}
	if limit := 12; len(out) > limit {
		out = append(out[:3], fmt.Sprintf("… %d in all", len(out)))
	}
	if a.has("lost") {
		return strings.Join(out, "\n")
	}
	if answer := w.apply(commands...); answer != "ok" {
		out = append(out, answer)
	}
	return strings.Join(out, "\n")
}

func describe(c fsm.Command) []string {
	switch c := c.(type) {
	case *fsm.SetNodeHealth:
		var out []string
		for _, n := range c.Nodes {
			line := n.Name + " is " + n.Ready
			if n.Message != "" {
				line += ": " + n.Message
			}
			if n.LetGo {
				line += " (let go)"
			}
			out = append(out, line)
		}
		return out
	case *fsm.DeletePod:
		line := "delete pod " + c.Key
		if c.Fail {
			line = "fail and " + line
		}
		if c.GraceSeconds != nil {
			line += fmt.Sprintf(" grace=%d", *c.GraceSeconds)
		}
		if c.DisruptionReason != "" {
			line += " (" + c.DisruptionReason + ": " + c.DisruptionMessage + ")"
		}
		return []string{line}
	case *fsm.DeleteObject:
		return []string{fmt.Sprintf("delete %s %s/%s", c.Resource, c.Namespace, c.Name)}
	case *fsm.DeleteDisruptionBudget:
		return []string{fmt.Sprintf("delete budget %s/%s", c.Namespace, c.Name)}
	case *fsm.DeleteEvents:
		if c.Key != "" {
			return []string{"delete an event of " + c.Key[:strings.Index(c.Key, "/")]}
		}
		return []string{"delete events before " + time.Unix(0, c.BeforeUnixNano).UTC().Format(time.TimeOnly)}
	case *fsm.PutNamespace:
		if !c.Furnish {
			return []string{"tell what holds namespace " + c.Namespace.Object.Name}
		}
		return []string{"furnish namespace " + c.Namespace.Object.Name}
	case *fsm.DeleteNamespace:
		return []string{"delete namespace " + c.Name}
	case *fsm.ReleaseNominations:
		var out []string
		for _, p := range c.Pods {
			out = append(out, "release the nomination of "+p.Key)
		}
		return out
	}
	return []string{fmt.Sprintf("%T", c)}
}

// change runs the directives that change the state.
func (w *world) change(cmd string, a args) string {
	w.t.Helper()
	switch cmd {
	case "worker": // worker n1 zone=z: its worker has connected
		n := w.node(a)
		n.Status.NodeInfo.SystemUUID = "machine-" + a.name(0)
		if why, ok := a.get("unready"); ok { // it says that it can start no pods
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
				Reason: model.ReasonWorkerUnready, Message: why}}
		}
		return w.apply(&fsm.RegisterNode{Node: fsm.NodeWire{Object: n}})
	case "workers": // workers n 60 zone=z: n00 … n59
		count, _ := strconv.Atoi(a.name(1))
		for i := range count {
			one := append(args{{Key: fmt.Sprintf("%s%02d", a.name(0), i)}}, a[2:]...)
			w.change("worker", one)
		}
		return "ok"
	case "node": // node n1 [update] taints=key:effect: made through the API
		n := w.node(a)
		if old, ok := w.state.View().Nodes.Get(n.Name); ok {
			taints := n.Spec.Taints
			n = old.DeepCopy()
			n.Spec.Taints = taints
			return w.apply(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
		}
		return w.apply(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: n}})
	case "node-of-machine": // node-of-machine n1 kubelet=10250: made through the API, ready, with the identity of a machine
		n := w.node(a)
		n.Status.NodeInfo.SystemUUID = "machine-" + a.name(0)
		if text, ok := a.get("kubelet"); ok {
			port, _ := strconv.Atoi(text)
			n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		}
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		return w.apply(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: n}})
	case "post": // post n1 True heartbeat=-1h: whoever made the node posts its status, by a clock of its own
		return w.post(a)
	case "renew": // renew n1 at=-1h: and renews its lease; without a time: at=never
		return w.renew(a)
	case "delete-node":
		return w.apply(&fsm.DeleteNode{Name: a.name(0)})
	case "pod": // pod p node=n1 tolerate=key:seconds,key phase=Failed reason=Evicted finalizers=f
		return w.pod(a)
	case "tolerate": // tolerate p k:60: its toleration lasts so long now
		old, ok := w.state.View().Pods.Get("default/" + a.name(0))
		if !ok {
			return "no such pod"
		}
		pod := old.DeepCopy()
		key, after, _ := strings.Cut(a.name(1), ":")
		n, err := strconv.ParseInt(after, 10, 64)
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range pod.Spec.Tolerations {
			if t := &pod.Spec.Tolerations[i]; t.Key == key {
				t.TolerationSeconds = &n
			}
		}
		return w.apply(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
	case "pods": // pods p 600 node=n1 …
		count, _ := strconv.Atoi(a.name(1))
		for i := range count {
			w.pod(append(args{{Key: fmt.Sprintf("%s%04d", a.name(0), i)}}, a[2:]...))
		}
		return "ok"
	case "delete": // delete default/p propagation=Foreground
		ns, name, _ := strings.Cut(a.name(0), "/")
		return w.apply(&fsm.DeletePod{Key: fsm.PodKey(ns, name), Propagation: fsm.Propagation(a.or("propagation", ""))})
	case "removed": // removed default/p: its worker confirms that nothing is left
		key := a.name(0)
		pod, _ := w.state.View().Pods.Get(key)
		return w.apply(&fsm.ReportPods{Node: pod.Spec.NodeName, Reports: []fsm.PodReport{{Key: key, UID: string(pod.UID), Removed: true}}})
	case "namespace":
		return w.namespace(a.name(0), a.list("finalizers")...)
	case "delete-namespace":
		return w.apply(&fsm.DeleteNamespace{Name: a.name(0)})
	case "finalized": // finalized NAMESPACE: its finalizers are gone
		old, _ := w.state.View().Namespaces.Get(a.name(0))
		ns := old.DeepCopy()
		ns.Finalizers = nil
		return w.apply(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}})
	case "configmap":
		ns, name, _ := strings.Cut(a.name(0), "/")
		raw, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name)}}).Marshal()
		if err != nil {
			w.t.Fatal(err)
		}
		return w.apply(&fsm.PutObject{Resource: "configmaps", Raw: raw, Create: true})
	case "budget": // budget default/b finalizers=f
		ns, name, _ := strings.Cut(a.name(0), "/")
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name)}}
		b.Spec.Selector, b.Finalizers = &metav1.LabelSelector{}, a.list("finalizers")
		return w.apply(&fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: b}, Create: true})
	case "delete-budget":
		ns, name, _ := strings.Cut(a.name(0), "/")
		return w.apply(&fsm.DeleteDisruptionBudget{Namespace: ns, Name: name})
	case "nominate": // nominate PREEMPTOR victim=V node=n
		return w.nominate(a)
	case "grace": // grace 50: a node's
		seconds, _ := strconv.Atoi(a.name(0))
		grace := int32(seconds)
		raw, err := json.Marshal(&berthv1.SchedulerConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: berthv1.SchedulerConfigurationName},
			Spec:       berthv1.SchedulerConfigurationSpec{NodeGraceSeconds: &grace},
		})
		if err != nil {
			w.t.Fatal(err)
		}
		return w.apply(&fsm.ConfigureScheduler{JSON: raw})
	}
	if answer, ok := w.workload(cmd, a); ok {
		return answer
	}
	w.t.Fatalf("unknown directive %s", cmd)
	return ""
}
