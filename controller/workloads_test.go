package controller_test

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/store"
)

// workloads are the reconcilers that follow the state's changes.
type workloads struct {
	sets    *follower
	garbage *follower
}

// reconciler is what the server's loop needs of them.
type reconciler interface {
	Reset(v *fsm.View)
	Observe(v *fsm.View, changes []store.Change)
	Step(v *fsm.View, nowUnixNano int64, most int) []controller.Work
	Settle(v *fsm.View, o controller.Outcome, nowUnixNano int64)
	Pending() bool
	NextUnixNano() (int64, bool)
}

// follower is a reconciler with how far it has followed.
type follower struct {
	reconciler
	at   int64
	lost []controller.Work // proposed, and nothing heard of them yet
}

func (w *world) leadWorkloads() {
	for _, f := range []struct {
		to **follower
		r  reconciler
	}{{&w.sets, &controller.ReplicaSets{}}, {&w.garbage, &controller.Garbage{}}} {
		*f.to = &follower{reconciler: f.r, at: w.state.View().Revision()}
		f.r.Reset(w.state.View())
	}
}

// works runs a reconciler once: what it wants is shown and carried out; with
// "until-quiet" again and again; with "under-way" what it wants stays on its
// way until "settle".
func (w *world) works(f *follower, a args) string {
	if a.has("settle") {
		lost := f.lost
		f.lost = nil
		var out []string
		for _, work := range lost {
			out = append(out, w.carryOut(f, work)...)
		}
		return orNothing(out)
	}
	if a.has("fail") { // nothing is known of what is under way
		for _, work := range f.lost {
			f.Settle(w.state.View(), controller.Outcome{Work: work, Err: fmt.Errorf("unknown outcome")}, w.now.UnixNano())
		}
		f.lost = nil
		return "ok"
	}
	var out []string
	for round := 0; ; round++ {
		v := w.state.View()
		for f.at < v.Revision() {
			changes, err := w.state.Feed().After(f.at, 1<<20)
			if err != nil {
				w.t.Fatal(err)
			}
			f.Observe(v, changes)
			f.at = changes[len(changes)-1].Revision
		}
		works := f.Step(v, w.now.UnixNano(), 100)
		for _, work := range works {
			for _, c := range work.Commands {
				out = append(out, describeWork(c)...)
			}
			if a.has("under-way") {
				f.lost = append(f.lost, work)
			} else {
				out = append(out, w.carryOut(f, work)...)
			}
		}
		if len(works) == 0 && !f.Pending() || !a.has("until-quiet") {
			return orNothing(out)
		}
		if round > 1000 {
			w.t.Fatal("it is never quiet")
		}
		w.now = w.now.Add(200 * time.Millisecond) // statuses are written so often at most
	}
}

func orNothing(out []string) string {
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, "\n")
}

func (w *world) carryOut(f *follower, work controller.Work) []string {
	ps := make([]fsm.Proposal, len(work.Commands))
	for i, c := range work.Commands {
		ps[i] = fsm.Proposal{User: "system:berth", Groups: []string{"system:masters"}, Command: c}
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
	for _, r := range results {
		if r.Refused() {
			out = append(out, "  refused: "+r.Message)
		}
	}
	f.Settle(w.state.View(), controller.Outcome{Work: work, Results: results}, w.now.UnixNano())
	return out
}

func describeWork(c fsm.Command) []string {
	switch c := c.(type) {
	case *fsm.AdmitPods:
		return []string{fmt.Sprintf("make %d pods for %s", c.Count, c.Owner.Name)}
	case *fsm.ScaleIn:
		if len(c.Victims) > 8 {
			return []string{fmt.Sprintf("delete %d pods of %s", len(c.Victims), c.Owner.Name)}
		}
		return []string{fmt.Sprintf("delete %d pods of %s: %s", len(c.Victims), c.Owner.Name, keys(c.Victims))}
	case *fsm.ClaimPods:
		var out []string
		if len(c.Adopt) > 0 {
			out = append(out, c.Owner.Name+" adopts "+keys(c.Adopt))
		}
		if len(c.Release) > 0 {
			out = append(out, c.Owner.Name+" releases "+keys(c.Release))
		}
		return out
	case *fsm.SetStatus:
		var s appsv1.ReplicaSetStatus
		if err := s.Unmarshal(c.Status); err != nil {
			return []string{err.Error()}
		}
		line := fmt.Sprintf("status of %s: %d replicas, %d ready, %d available, %d fully labeled, %d terminating, generation %d",
			c.Owner.Name, s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.FullyLabeledReplicas, *s.TerminatingReplicas, s.ObservedGeneration)
		for _, c := range s.Conditions {
			line += fmt.Sprintf(", %s=%s %s (%s)", c.Type, c.Status, c.Reason, c.Message)
		}
		if c.WarningReason != "" {
			line += "; warns"
		}
		return []string{line}
	case *fsm.CollectGarbage:
		var names []string
		for _, o := range c.Objects {
			names = append(names, o.Resource+"/"+o.Namespace+"/"+o.Name)
		}
		if len(names) > 8 {
			return []string{fmt.Sprintf("collect %d objects", len(names))}
		}
		return []string{"collect " + strings.Join(names, " ")}
	}
	return []string{fmt.Sprintf("%T", c)}
}

func keys(refs []fsm.PodRef) string {
	var out []string
	for _, r := range refs {
		out = append(out, r.Key)
	}
	return strings.Join(out, " ")
}

func pairsOf(list []string) map[string]string {
	var m map[string]string
	for _, p := range list {
		if m == nil {
			m = map[string]string{}
		}
		k, v, _ := strings.Cut(p, ":")
		m[k] = v
	}
	return m
}

func describeOwner(p *corev1.Pod) string {
	if c := owners.ControllerOf(p); c != nil {
		return " of " + c.Name
	}
	return ""
}

func (w *world) describeSets() []string {
	var out []string
	w.state.View().ScanReplicaSets("", func(rs *appsv1.ReplicaSet) bool {
		line := fmt.Sprintf("%s/%s wants %d, has %d, ready %d", rs.Namespace, rs.Name, fsm.ReplicasOf(rs), rs.Status.Replicas, rs.Status.ReadyReplicas)
		if rs.DeletionTimestamp != nil {
			line += ", is being deleted"
		}
		out = append(out, line)
		return true
	})
	return out
}

// workload runs the directives about workloads.
func (w *world) workload(cmd string, a args) (string, bool) {
	switch cmd {
	case "rs": // rs web replicas=3 selector=k:v labels=k:v min-ready=10 class= annotations=k:v: makes or changes one
		return w.putSet(a), true
	case "delete-rs": // delete-rs web propagation=Foreground
		return w.apply(&fsm.DeleteObject{Resource: fsm.ReplicaSets, Namespace: a.or("ns", "default"), Name: a.name(0), Propagation: fsm.Propagation(a.or("propagation", "Background"))}), true
	case "class":
		value, _ := strconv.Atoi(a.or("value", "1"))
		return w.apply(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: a.name(0), UID: types.UID("uid-" + a.name(0))}, Value: int32(value)}}}), true
	case "relabel": // relabel POD k:v,…
		old, ok := w.state.View().Pods.Get("default/" + a.name(0))
		if !ok {
			w.t.Fatalf("no pod %s", a.name(0))
		}
		pod := old.DeepCopy()
		pod.Labels = pairsOf(a.list("labels"))
		return w.apply(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}}), true
	case "all": // all SET ready|unready|Failed|gone|bound=NODE: every pod of it
		return w.allPods(a), true
	case "one": // one SET ready|Failed|gone …: the first active one of it
		return w.allPods(a, 1), true
	}
	return w.spreadDirective(cmd, a)
}

func (w *world) putSet(a args) string {
	ns, name := a.or("ns", "default"), a.name(0)
	old, known := w.state.View().ReplicaSet(ns, name)
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(a.or("uid", "uid-"+name)), Generation: 1}}
	if known {
		rs = old.DeepCopy()
		rs.Generation++
	} else {
		labels := pairsOf(strings.Split(a.or("selector", "app:"+name), ","))
		rs.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
		rs.Spec.Template.Labels = labels
		rs.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: "none"}}
	}
	if n, ok := a.get("replicas"); ok {
		replicas, _ := strconv.Atoi(n)
		count := int32(replicas)
		rs.Spec.Replicas = &count
	}
	if l, ok := a.get("labels"); ok {
		rs.Spec.Template.Labels = pairsOf(strings.Split(l, ","))
	}
	if class, ok := a.get("class"); ok {
		rs.Spec.Template.Spec.PriorityClassName = class
	}
	if l, ok := a.get("annotations"); ok {
		rs.Annotations = pairsOf(strings.Split(l, ","))
	}
	if n, ok := a.get("min-ready"); ok {
		least, _ := strconv.Atoi(n)
		rs.Spec.MinReadySeconds = int32(least)
	}
	if owner, ok := a.get("owner"); ok { // a controller of a kind that is not held here
		yes := true
		rs.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: owner, UID: types.UID("uid-" + owner), Controller: &yes}}
	}
	raw, err := rs.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	return w.apply(&fsm.PutObject{Resource: fsm.ReplicaSets, Raw: raw, Create: !known})
}

// allPods does the same to all pods of a set, or to the first few.
func (w *world) allPods(a args, most ...int) string {
	var pods []*corev1.Pod
	w.state.View().PodsOf(owners.ID{Namespace: "default", UID: types.UID("uid-" + a.name(0))}, func(_ string, pod *corev1.Pod) bool {
		if owners.Active(pod) || a.has("gone") {
			pods = append(pods, pod)
		}
		return len(most) == 0 || len(pods) < most[0]
	})
	for _, pod := range pods {
		key := fsm.PodKey(pod.Namespace, pod.Name)
		var c fsm.Command
		report := fsm.PodReport{Key: key, UID: string(pod.UID), Removed: a.has("gone")}
		if node, ok := a.get("bound"); ok {
			c = &fsm.BindPod{Key: key, Node: node}
		} else {
			status := &corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.NewTime(w.now)}}}
			switch {
			case a.has("ready"):
				status.Conditions[0].Status = corev1.ConditionTrue
			case a.has("Failed"):
				status.Phase = corev1.PodFailed
			}
			if !report.Removed {
				report.Status.Object = status
			}
			c = &fsm.ReportPods{Node: pod.Spec.NodeName, Reports: []fsm.PodReport{report}}
		}
		if answer := w.apply(c); answer != "ok" {
			return answer
		}
	}
	return "ok"
}
