package sched

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
	"github.com/berth-dev/berth/sched/clustertest"
)

// event is something that can happen to a world, and how often in comparison to others.
type event struct {
	name  string
	often int
	do    func(w *world)
}

// sleepEvents are all kinds of events that a decision about a pod can hang on: every command that changes what
// decisions read, and what becomes of plans and leaders.
func sleepEvents() []event {
	return []event{
		{"pods come", 8, func(w *world) {
			for range rapid.IntRange(1, 3).Draw(w.t, "pods") {
				w.AdmitPod(w.sleeper(false))
			}
		}},
		{"a pod comes to a node", 2, func(w *world) { w.AdmitPod(w.sleeper(true)) }},
		{"pods of a template come", 1, (*world).admitsTemplate},
		{"victims go", 2, func(w *world) { w.Confirm() }},
		{"budgets", 2, (*world).randomBudgets},
		{"a budget counts replicas", 1, (*world).replicaBudget},
		{"budgets go", 2, (*world).dropBudgets},
		{"a disruption is announced", 1, (*world).announces},
		{"readiness", 4, (*world).changesReadiness},
		{"a pod changes", 6, (*world).changesPod},
		{"a pod grows or shrinks", 1, (*world).resizes},
		{"a pod is resized where it runs", 3, (*world).resizesInPlace},
		{"a node carries a resize out", 3, (*world).carriesOut},
		{"a pod is made to match its own terms", 2, (*world).matchesItself},
		{"a pod is evicted", 1, (*world).evicts},
		{"a pod is bound by hand", 1, (*world).bindsByHand},
		{"a pod has a finalizer", 1, (*world).finalizer},
		{"a leader is lost", 2, func(w *world) { w.sched = New(w.State) }},
		{"a server is restored", 1, func(w *world) { w.State = restored(w.State); w.sched = New(w.State) }},
		{"a snapshot is restored", 1, (*world).restoresSnapshot},
		{"plans are overtaken", 4, (*world).overtakesPlans},
		{"a decision is wrong", 1, (*world).decidesWrongly},
		{"decisions panic", 1, (*world).panics},
		{"preemption is configured", 2, (*world).configuresPreemption},
		{"the queue is configured", 2, (*world).configuresQueue},
		{"a profile comes or goes", 1, (*world).changesProfile},
		{"plugins are configured", 2, func(w *world) { w.configuresPlugins(w.pick("profile", "odd", "default-scheduler")) }},
		{"a node changes", 4, (*world).changesNode},
		{"a node's health", 2, (*world).changesHealth},
		{"services and workloads", 2, (*world).changesSelectors},
		{"volumes", 4, (*world).changesVolumes}, {"devices", 2, (*world).changesDevices},
		{"pods are claimed", 1, (*world).claims},
		{"a workload shrinks", 1, (*world).scalesIn},
		{"a namespace goes", 1, (*world).emptiesNamespace},
		{"marks are forgotten", 1, (*world).overflowsMarks},
		{"nominations expire", 1, func(w *world) { w.NowUnixNano += 400 * second; w.expire() }},
		{"around", 6, func(w *world) { w.happenAround(4) }},
	}
}

// drawEvents draws which kinds of events happen in the world. Few kinds that happen often find what many kinds that
// happen once do not.
func (w *world) drawEvents() {
	all := sleepEvents()
	few := rapid.IntRange(0, 2).Draw(w.t, "few kinds") > 0
	for i, e := range all {
		if i == 0 || !few || rapid.IntRange(0, 2).Draw(w.t, "has "+e.name) == 0 {
			w.events = slices.Concat(w.events, slices.Repeat([]event{e}, e.often))
		}
	}
}

// anythingHappens lets one thing happen to the cluster.
func (w *world) anythingHappens() {
	e := w.events[rapid.IntRange(0, len(w.events)-1).Draw(w.t, "event")]
	w.t.Logf("second %d: %s", w.NowUnixNano/second, e.name)
	e.do(w)
	w.NowUnixNano += rapid.Int64Range(0, 20).Draw(w.t, "seconds") * second
}

// changesReadiness has a pod that runs say whether it is ready.
func (w *world) changesReadiness() {
	if key, ok := w.someBoundPod(); ok {
		w.Report(key, rapid.Bool().Draw(w.t, "ready"))
	}
}

func (w *world) someBoundPod() (string, bool) {
	return w.somePodThat("bound", func(p *corev1.Pod) bool { return p.Spec.NodeName != "" && !model.Terminal(p) })
}

func (w *world) somePodThat(label string, is func(p *corev1.Pod) bool) (string, bool) {
	var keys []string
	w.State.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if is(p) && !inCrowd(key) {
			keys = append(keys, key)
		}
		return true
	})
	if len(keys) == 0 {
		return "", false
	}
	return w.pick(label, keys...), true
}

// crowd lets so many pods be there, bound and waiting for a scheduler that may go, that what a change means for all pods
// is more than one entry does: budgets are counted in parts, and profiles bring and take pods in parts. Nothing else
// happens to them.
func (w *world) crowd() {
	admit := func(count int32, words string) {
		p := clustertest.Pod(words)
		p.Name, p.GenerateName, p.Namespace = "", "crowd-", "default"
		w.Must(&fsm.AdmitPods{Template: fsm.PodWire{Object: p}, Count: count})
	}
	for range 5 {
		admit(1000, "crowd node=crowded label=app:crowd")
	}
	admit(300, "crowd cpu=99 scheduler=odd")
}

func inCrowd(key string) bool { return strings.HasPrefix(key, "default/crowd-") }

// update changes a pod as the API does.
func (w *world) update(key string, change func(p *corev1.Pod)) {
	old, _ := w.State.View().Pods.Get(key)
	p := old.DeepCopy()
	change(p)
	w.Apply(&fsm.UpdatePod{Pod: fsm.PodWire{Object: p}}) // a node may have no room for more
}

// changesPod changes what an update of a pod may change.
func (w *world) changesPod() {
	key, ok := w.somePod()
	if !ok {
		return
	}
	w.update(key, func(p *corev1.Pod) {
		switch w.pick("what", "labels", "labels", "toleration", "gate", "strict", "image", "deadline", "owner", "selector") {
		case "labels":
			p.Labels = map[string]string{"app": w.pick("app", "web", "db", "none"), "rev": w.pick("rev", "1", "2")}
		case "toleration":
			p.Spec.Tolerations = append(p.Spec.Tolerations,
				corev1.Toleration{Key: w.pick("tolerated", "team", "old"), Operator: corev1.TolerationOpExists})
		case "gate":
			p.Spec.SchedulingGates = nil
		case "strict":
			p.Annotations = map[string]string{model.DisruptionPolicyAnnotation: w.pick("policy", "Strict", "")}
		case "image":
			p.Spec.Containers[0].Image = w.pick("image", "web:1", "db")
		case "deadline":
			seconds := rapid.Int64Range(1, 60).Draw(w.t, "deadline")
			p.Spec.ActiveDeadlineSeconds = &seconds
		case "owner":
			p.OwnerReferences = nil
			if owner := w.pick("owner", "", "web", "other"); owner != "" {
				_ = clustertest.AddWord(p, "owner="+owner)
			}
		case "selector": // of a pod that is gated still
			if model.Gated(p) {
				p.Spec.NodeSelector = map[string]string{"zone": w.pick("selects", "a", "b")}
			}
		}
	})
}

// resizes gives a pod on a node other requests.
func (w *world) resizes() {
	if key, ok := w.someBoundPod(); ok {
		cpu := apiresource.MustParse(w.pick("cpu now", "100m", "500m", "1", "2", "3"))
		w.update(key, func(p *corev1.Pod) {
			if p.Spec.Containers[0].Resources.Requests == nil {
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
			}
			p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = cpu
		})
	}
}

// matchesItself gives a pod with rules about others the labels that one of its rules asks for, or takes them away.
func (w *world) matchesItself() {
	key, ok := w.somePodThat("of rules", func(p *corev1.Pod) bool { return len(ownSelectors(p)) > 0 })
	if !ok {
		return
	}
	w.update(key, func(p *corev1.Pod) {
		all := ownSelectors(p)
		s := all[rapid.IntRange(0, len(all)-1).Draw(w.t, "term")]
		p.Labels = map[string]string{}
		if w.pick("matches", "yes", "yes", "no") == "yes" {
			for k, v := range s.MatchLabels { // order does not matter: they become a map
				p.Labels[k] = v
			}
		}
		if rev := w.pick("rev", "", "1", "2"); rev != "" && p.Labels["rev"] == "" {
			p.Labels["rev"] = rev
		}
	})
}

// ownSelectors are those of a pod's own rules about others.
func ownSelectors(p *corev1.Pod) []*metav1.LabelSelector {
	var out []*metav1.LabelSelector
	add := func(s *metav1.LabelSelector) {
		if s != nil {
			out = append(out, s)
		}
	}
	for i := range p.Spec.TopologySpreadConstraints {
		add(p.Spec.TopologySpreadConstraints[i].LabelSelector)
	}
	if a := p.Spec.Affinity; a != nil && a.PodAffinity != nil {
		for i := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			add(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i].LabelSelector)
		}
	}
	if a := p.Spec.Affinity; a != nil && a.PodAntiAffinity != nil {
		for i := range a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			add(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution[i].LabelSelector)
		}
	}
	return out
}

// admitsTemplate admits pods as a controller does.
func (w *world) admitsTemplate() {
	p := w.sleeper(false)
	p.Name, p.GenerateName, p.Namespace = "", "t-", "default"
	if p.Spec.Priority != nil {
		p.Spec.PriorityClassName = w.Class(*p.Spec.Priority, p.Spec.PreemptionPolicy)
	} else {
		p.Spec.PreemptionPolicy = nil
	}
	w.Apply(&fsm.AdmitPods{Template: fsm.PodWire{Object: p}, Count: rapid.Int32Range(1, 3).Draw(w.t, "count")})
}

// replicaBudget makes a budget that goes by how many replicas there are to be.
func (w *world) replicaBudget() {
	w.PutBudget([]string{"web", "app=web", w.pick("share", "min=50%", "max=1", "max=50%", "max=0")})
}

// announces announces a disruption, as a client of the eviction API of old did.
func (w *world) announces() {
	old, ok := w.State.View().Budgets.Get("default/" + w.pick("budget", "web", "db", "all"))
	key, found := w.someBoundPod()
	if !ok || !found {
		return
	}
	b := old.DeepCopy()
	pod, _ := w.State.View().Pods.Get(key)
	b.Status.DisruptedPods = nil
	if w.pick("announced", "yes", "yes", "no") == "yes" {
		b.Status.DisruptedPods = map[string]metav1.Time{pod.Name: metav1.Unix(w.NowUnixNano/second, 0)}
	}
	w.Must(&fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: b}})
}

func (w *world) evicts() {
	if key, ok := w.somePod(); ok {
		w.Apply(&fsm.EvictPod{Key: key}) // budgets may refuse it
	}
}

func (w *world) bindsByHand() {
	if key, ok := w.somePodThat("waiting", func(p *corev1.Pod) bool { return p.Spec.NodeName == "" }); ok {
		w.Apply(&fsm.BindPod{Key: key, Node: w.someNode()}) // it may have no room
	}
}

// finalizer lets a finalizer hold a pod, or lets it go.
func (w *world) finalizer() {
	if key, ok := w.somePod(); ok {
		held := w.pick("held", "yes", "no") == "yes"
		w.update(key, func(p *corev1.Pod) {
			if p.Finalizers = nil; held && p.DeletionTimestamp == nil {
				p.Finalizers = []string{"berth.dev/test"}
			}
		})
	}
}

// restoresSnapshot goes back to what was saved before, with the same leader; the first time it saves.
func (w *world) restoresSnapshot() {
	if w.saved == nil {
		var b bytes.Buffer
		out, err := flate.NewWriter(&b, flate.BestSpeed)
		if err == nil {
			err = w.State.View().Write(out)
		}
		if err == nil {
			err = out.Close()
		}
		if err != nil {
			w.t.Fatal(err)
		}
		w.saved = b.Bytes()
		return
	}
	sum := sha256.Sum256(w.saved)
	w.Must(&fsm.StageSnapshot{ID: "s", Data: w.saved})
	w.Must(&fsm.RestoreSnapshot{ID: "s", Bytes: int64(len(w.saved)), SHA256: sum[:]})
	w.saved = nil
}

// overtakesPlans makes plans, lets things happen, and applies the plans or loses them, or their leader.
func (w *world) overtakesPlans() {
	if w.overtaking {
		return
	}
	w.overtaking = true
	defer func() { w.overtaking = false }()
	type made struct {
		plan *Plan
		by   *Scheduler
	}
	var under []made
	for range rapid.IntRange(1, 3).Draw(w.t, "plans") {
		if p := w.step(rapid.IntRange(1, 4).Draw(w.t, "max")); p != nil {
			w.t.Logf("decided: %s", describe(p.Command))
			under = append(under, made{p, w.sched})
		}
		for range rapid.IntRange(0, 2).Draw(w.t, "meanwhile") {
			w.anythingHappens()
		}
	}
	for _, m := range under {
		if w.pick("plan", "applied", "applied", "applied", "lost") == "applied" {
			w.t.Logf("applied: refused %+v", w.Must(m.plan.Command).Plan.Refused)
		}
		if m.by == w.sched { // else it is an earlier leader's, which comes late
			w.sched.Settle(m.plan)
		}
		if w.pick("between", "", "", "something") != "" {
			w.anythingHappens()
		}
	}
}

// decidesWrongly has a plan place pods where the scheduler did not mean to. Who failed, or preempts, counted on where it
// did.
func (w *world) decidesWrongly() {
	p := w.step(4)
	if p == nil {
		return
	}
	for i := range p.Command.Bindings {
		p.Command.Bindings[i].Node = w.someNode()
	}
	for i := range p.Command.Preemptions {
		p.Command.Preemptions[i].Node = w.someNode()
	}
	if p.Command.Failures = nil; len(p.Command.Bindings) > 0 {
		p.Command.Preemptions = nil
	}
	r := w.Must(p.Command)
	w.sched.Refused(p, r.Plan.Refused)
	w.sched.Settle(p)
}

// panics lets decisions panic for a while.
func (w *world) panics() {
	w.panicsAfter(rapid.IntRange(2, 60).Draw(w.t, "charges"))
	for range 3 {
		if p := w.step(4); p != nil {
			w.commit(p)
		}
	}
	w.sched.meter.charged = nil
	w.sched.Panics()
}

func (w *world) configuresPreemption() {
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		policies := []berthv1.BudgetPolicy{"", berthv1.BudgetsStrict}
		s.Preemption.Budgets = rapid.SampledFrom(policies).Draw(w.t, "budgets")
		s.Preemption.SystemClassBudgets = rapid.SampledFrom(policies).Draw(w.t, "budgets of the system")
		others := rapid.Int32Range(0, 2).Draw(w.t, "other nodes now")
		limit := rapid.SampledFrom([]int32{0, 1000}).Draw(w.t, "search limit")
		enabled := w.pick("enabled", "yes", "yes", "yes", "no") == "yes"
		s.Preemption.MaxOtherNodes, s.Preemption.SearchLimit, s.Preemption.Enabled = &others, &limit, &enabled
	})
}

func (w *world) configuresQueue() {
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		switch w.pick("of the queue", "order", "aging", "back-off", "reservation", "defaults", "slack") {
		case "order":
			s.Queue = rapid.SampledFrom([]berthv1.QueueOrder{"", berthv1.QueueFIFO}).Draw(w.t, "order")
		case "aging":
			s.Aging.SecondsPerPoint = ptr(rapid.SampledFrom([]int32{0, 1, 100}).Draw(w.t, "point"))
		case "back-off":
			s.PodMaxBackoffSeconds = ptr(rapid.SampledFrom([]int32{0, 10}).Draw(w.t, "most"))
		case "reservation":
			s.Reservation.Enabled = ptr(rapid.Bool().Draw(w.t, "reserves"))
			s.Reservation.AfterSeconds = ptr(rapid.SampledFrom([]int32{1, 100}).Draw(w.t, "after"))
		case "defaults":
			s.PodTopologySpread = berthv1.PodTopologySpreadConfiguration{}
			if word := w.pick("default", "", zoneKey+":1:-", hostKey+":1:-", "rack:2:-:soft"); word != "" {
				c, _ := clustertest.Constraint(word)
				s.PodTopologySpread.DefaultingType = berthv1.SpreadList
				s.PodTopologySpread.DefaultConstraints = []corev1.TopologySpreadConstraint{c}
			}
		case "slack":
			s.NominationSlackSeconds = ptr(rapid.SampledFrom([]int32{1, 10, 1000}).Draw(w.t, "slack"))
		}
	})
}

// changesProfile takes away the profile "odd", or brings it back: its pods leave the queue, or enter it.
func (w *world) changesProfile() {
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		before := len(s.Profiles)
		s.Profiles = slices.DeleteFunc(s.Profiles, func(p berthv1.SchedulerProfile) bool { return p.SchedulerName == "odd" })
		if len(s.Profiles) == before {
			s.Profiles = append(s.Profiles, berthv1.SchedulerProfile{SchedulerName: "odd"})
		}
	})
}

// changesNode changes one thing of a node.
func (w *world) changesNode() {
	old, ok := w.State.View().Nodes.Get(w.someNode())
	if !ok {
		return
	}
	n := old.DeepCopy()
	n.ResourceVersion = ""
	if n.Labels == nil {
		n.Labels = map[string]string{}
	}
	switch w.pick("of the node", "cordon", "taint", "label", "unrelated", "amount", "images") {
	case "cordon":
		n.Spec.Unschedulable = !n.Spec.Unschedulable
	case "taint":
		n.Spec.Taints = nil
		if key := w.pick("taint key", "", "team", "old"); key != "" {
			n.Spec.Taints = []corev1.Taint{{Key: key, Value: w.pick("taint value", "", "x"),
				Effect: rapid.SampledFrom([]corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute,
					corev1.TaintEffectPreferNoSchedule}).Draw(w.t, "effect")}}
		}
	case "label":
		key := w.pick("label key", "zone", zoneKey, hostKey, "rack")
		if v := w.pick("label value", "", "a", "b", "1"); v != "" {
			n.Labels[key] = v
		} else {
			delete(n.Labels, key)
		}
	case "unrelated":
		n.Labels["unrelated"] = fmt.Sprint(w.NowUnixNano)
	case "amount":
		name := rapid.SampledFrom([]corev1.ResourceName{corev1.ResourceCPU, corev1.ResourcePods}).Draw(w.t, "of what")
		n.Status.Allocatable[name] = apiresource.MustParse(w.pick("amount", "0", "1", "2", "4", "16"))
	case "images":
		n.Status.Images = []corev1.ContainerImage{{Names: []string{"web:1"}, SizeBytes: 900 << 20}}
	}
	if w.pick("said by", "the API", "the worker") == "the worker" {
		w.Apply(&fsm.RegisterNode{Node: fsm.NodeWire{Object: n}})
		return
	}
	w.Must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
}

func (w *world) changesHealth() {
	h := fsm.NodeHealth{Name: w.someNode(), Ready: w.pick("node is ready", "True", "True", "False", "Unknown"),
		LetGo: rapid.Bool().Draw(w.t, "let go")}
	w.Must(&fsm.SetNodeHealth{Nodes: []fsm.NodeHealth{h}})
}

// changesSelectors changes what default constraints and budgets go by.
func (w *world) changesSelectors() {
	if w.pick("kind", "service", "replicaset") == "replicaset" {
		w.changesReplicaSet()
		return
	}
	name := w.pick("service", "web", "first")
	if _, ok := w.State.View().Objects.Get(fsm.ObjectKey("services", "default", name)); ok {
		w.Must(&fsm.DeleteObject{Resource: "services", Namespace: "default", Name: name})
		return
	}
	w.PutService(name, map[string]string{"app": w.pick("selects", "web", "db")})
}

func (w *world) changesReplicaSet() {
	_, known := w.State.View().Objects.Get(fsm.ObjectKey(fsm.ReplicaSets, "default", "web"))
	if known && w.pick("the workload", "goes", "changes") == "goes" {
		w.Must(&fsm.DeleteObject{Resource: fsm.ReplicaSets, Namespace: "default", Name: "web"})
		return
	}
	w.PutReplicaSet("web", clustertest.Selector(w.pick("owns", "app=web", "app=db", "app=web&rev=1")),
		rapid.Int32Range(0, 4).Draw(w.t, "replicas"))
}

// workloadRef names the world's workload, if it is there.
func (w *world) workloadRef() (fsm.ObjectRef, bool) {
	o, ok := w.State.View().Objects.Get(fsm.ObjectKey(fsm.ReplicaSets, "default", "web"))
	if !ok {
		return fsm.ObjectRef{}, false
	}
	ref := fsm.ObjectRef{Resource: fsm.ReplicaSets, Namespace: "default", Name: "web", UID: string(o.Value.GetUID())}
	return ref, true
}

func (w *world) claims() {
	owner, ok := w.workloadRef()
	key, found := w.somePod()
	if !ok || !found {
		return
	}
	pod, _ := w.State.View().Pods.Get(key)
	refs := []fsm.PodRef{{Key: key, UID: string(pod.UID)}}
	w.Apply(&fsm.ClaimPods{Owner: owner, Adopt: refs, Release: refs})
}

func (w *world) scalesIn() {
	owner, ok := w.workloadRef()
	if !ok {
		return
	}
	var refs []fsm.PodRef
	w.State.View().Pods.Scan("default/", func(key string, p *corev1.Pod) bool {
		refs = append(refs, fsm.PodRef{Key: key, UID: string(p.UID)})
		return true
	})
	w.Apply(&fsm.ScaleIn{Owner: owner, Victims: refs})
}

// emptiesNamespace removes the namespace "other" with all that is in it.
func (w *world) emptiesNamespace() {
	var keys []string
	w.State.View().Pods.Scan("other/", func(key string, _ *corev1.Pod) bool {
		keys = append(keys, key)
		return true
	})
	for _, key := range keys {
		w.update(key, func(p *corev1.Pod) { p.Finalizers = nil })
		w.Apply(&fsm.DeletePod{Key: key, GraceSeconds: new(int64)})
	}
	var events []string
	w.State.View().Events.Scan("other/", func(key string, _ *corev1.Event) bool {
		events = append(events, key)
		return true
	})
	for _, key := range events {
		w.Must(&fsm.DeleteEvents{Key: key})
	}
	var objects []*fsm.Object
	w.State.View().NamespaceObjects("other", func(o *fsm.Object) bool {
		objects = append(objects, o)
		return true
	})
	for _, o := range objects {
		w.Must(&fsm.DeleteObject{Resource: o.Resource, Namespace: "other", Name: o.Value.GetName()})
	}
	if r := w.Apply(&fsm.DeleteNamespace{Name: "other"}); !r.Refused() && !r.Deleted {
		w.t.Fatalf("the namespace is not empty")
	}
}

// overflowsMarks lets a pod on a node have other labels so often that what is remembered for decisions under way
// does not suffice, and then has it as it was. It takes long, so it is rare.
func (w *world) overflowsMarks() {
	if rapid.IntRange(0, 19).Draw(w.t, "rare") > 0 {
		return
	}
	key, ok := w.someBoundPod()
	if !ok {
		return
	}
	pod, _ := w.State.View().Pods.Get(key)
	var changes []fsm.Proposal
	for i := range queue.MaxPodMarks/2 + 2 {
		p := pod.DeepCopy()
		p.Labels = map[string]string{"app": fmt.Sprint(i)}
		changes = append(changes, fsm.Proposal{Command: &fsm.UpdatePod{Pod: fsm.PodWire{Object: p}}})
	}
	changes = append(changes, fsm.Proposal{Command: &fsm.UpdatePod{Pod: fsm.PodWire{Object: pod.DeepCopy()}}})
	for _, r := range w.State.Try(w.NowUnixNano, changes...) {
		if r.Refused() {
			w.t.Fatal(r.Message)
		}
	}
}

func ptr[T any](v T) *T { return &v }
