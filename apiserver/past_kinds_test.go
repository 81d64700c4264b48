package apiserver

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

// pastKinds are the kinds with a table of their own, and of those that share one some whose names begin alike, in
// namespaces and in none.
func pastKinds() []*kind {
	return []*kind{
		podKind(), nodeKind(), namespaceKind("ca"), priorityClassKind(), eventKind(), budgetKind(), queueEntryKind(), preemptionKind(),
		schedulerConfigurationKind(), configMapKind(), secretKind(), serviceKind(), serviceAccountKind(), runtimeClassKind(),
	}
}

// pastRow is a row of a moment: rows are immutable, so that it is the same one or another.
type pastRow struct {
	key string
	row any
}

func rowsAt(at moment) (out []pastRow) {
	at.rows.scan(at.view, "", "", func(key string, row any) bool {
		out = append(out, pastRow{key, row})
		return true
	})
	return out
}

// TestMomentsOfEveryKind: the rows of every kind are at every revision, those within a command included, what the changes up to
// there made of them, whatever commands have changed since; so are the pods of a node.
func TestMomentsOfEveryKind(t *testing.T) {
	seen := map[string]bool{} // kinds of which something changed
	rapid.Check(t, func(rt *rapid.T) {
		d := newDouble(t)
		d.must(t, pastNode("n1", true), &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class("a", 5, false)}}, pastPod("default/a", ""),
			&fsm.BindPod{Key: "default/a", Node: "n1"}, pastPod("default/b", "a"))
		d.must(t, pastPlan(d.View()))
		d.must(t, pastFirst(d.View())...) // what few steps would come to seldom
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			// What is refused changes nothing, or only tells so.
			if _, err := d.Propose(context.Background(), fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: pastCommand(rt, d.View())}); err != nil {
				rt.Fatal(err)
			}
		}
		var changes []store.Change
		for at := int64(0); at < d.View().Revision(); at = changes[len(changes)-1].Revision {
			more, err := d.Feed().After(at, undoBatch)
			if err != nil || len(more) == 0 {
				rt.Fatalf("after %d there are %d changes: %v", at, len(more), err)
			}
			changes = append(changes, more...)
		}
		upTo := 0
		tables := map[string]map[string]any{}
		for _, revision := range drawRevisions(rt, d.View().Revision()) {
			for ; upTo < len(changes) && changes[upTo].Revision <= revision; upTo++ {
				c := &changes[upTo]
				if tables[c.Table] == nil {
					tables[c.Table] = map[string]any{}
				}
				if tables[c.Table][c.Key] = c.New; c.New == nil {
					delete(tables[c.Table], c.Key)
				}
			}
			for _, k := range pastKinds() {
				if momentIs(rt, d, k, revision, tables[k.rows.table]) > 0 {
					seen[k.resource.Resource] = true
				}
			}
		}
	})
	for _, k := range pastKinds() {
		if !seen[k.resource.Resource] {
			t.Errorf("nothing was ever there of the kind %s", k.resource)
		}
	}
}

// drawRevisions are some of all, in order.
func drawRevisions(t *rapid.T, last int64) []int64 {
	out := rapid.SliceOfN(rapid.Int64Range(1, last), 1, 12).Draw(t, "revisions")
	slices.Sort(out)
	return out
}

// momentIs holds a kind's rows at a revision against those of its table then, and returns how many they are.
func momentIs(t *rapid.T, d *double, k *kind, revision int64, table map[string]any) int {
	tb := &tables{kind: k, prefix: "/p/", backend: d, pins: newPins(time.Now)}
	at, err := tb.momentAt(context.Background(), "", revision)
	if err != nil {
		t.Fatal(err)
	}
	var want []pastRow
	onNode := map[string]int{}
	for _, key := range slices.Sorted(maps.Keys(table)) {
		if own, ours := strings.CutPrefix(key, k.rows.keyPrefix); ours {
			want = append(want, pastRow{own, table[key]})
			if k.rows.nodeOf != nil {
				onNode[k.rows.nodeOf(table[key])]++
			}
		}
	}
	if got := rowsAt(at); !slices.Equal(got, want) {
		t.Fatalf("%s at %d are %v, want %v", k.resource, revision, got, want)
	}
	for _, r := range want {
		if row, ok := at.rows.get(at.view, r.key); !ok || row != r.row {
			t.Fatalf("%s %s at %d is %v, want %v", k.resource, r.key, revision, row, r.row)
		}
	}
	for _, node := range []string{"n1", "n2"} {
		n := 0
		if at.rows.onNode != nil {
			at.rows.onNode(at.view, node, func(_ string, row any) bool {
				n++
				return k.rows.nodeOf(row) == node
			})
		}
		if n != onNode[node] {
			t.Fatalf("%d %s are on %s at %d, want %d", n, k.resource, node, revision, onNode[node])
		}
	}
	return len(want)
}

// pastCommand is any command that changes a row of one of the kinds, or of several.
func pastCommand(t *rapid.T, v *fsm.View) fsm.Command {
	pick := func(label string, of ...string) string { return rapid.SampledFrom(of).Draw(t, label) }
	meta := metav1.ObjectMeta{Namespace: pick("namespace", "default", "other"), Name: pick("name", "a", "b", "c")}
	meta.UID, meta.Labels = types.UID("u-"+meta.Name), map[string]string{"value": fmt.Sprint(v.Revision())}
	key := meta.Namespace + "/" + meta.Name
	none := meta
	none.Namespace = ""
	switch pick("command", "pod", "pod", "pod", "relabel", "bind", "bind", "pod goes", "node", "node", "node goes", "namespace", "namespace goes", "class", "class goes",
		"event", "event goes", "budget", "budget goes", "plan", "plan", "configuration", "plain", "plain", "plain", "plain", "plain goes") {
	case "pod":
		return pastPod(key, pick("priority", "", "a"))
	case "relabel":
		if old, ok := v.Pods.Get(key); ok {
			p := old.DeepCopy()
			p.Labels = meta.Labels
			return &fsm.UpdatePod{Pod: fsm.PodWire{Object: p}}
		}
	case "bind":
		return &fsm.BindPod{Key: key, Node: pick("node", "n1", "n2")}
	case "pod goes":
		return &fsm.DeletePod{Key: key, GraceSeconds: new(int64)}
	case "node":
		name := pick("node", "n1", "n2")
		_, known := v.Nodes.Get(name)
		c := pastNode(name, !known)
		c.Node.Object.Labels = meta.Labels
		return c
	case "node goes":
		return &fsm.DeleteNode{Name: pick("node", "n1", "n2")}
	case "namespace":
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other", UID: "other", Labels: meta.Labels}}
		_, known := v.Namespaces.Get("other")
		return &fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}, Create: !known, RootCA: "ca"}
	case "namespace goes":
		return &fsm.DeleteNamespace{Name: "other"}
	case "class":
		c := class(meta.Name, 5, false)
		c.Labels = meta.Labels
		if old, known := v.PriorityClasses.Get(meta.Name); known {
			c.UID = old.UID
			return &fsm.UpdatePriorityClass{Class: fsm.PriorityClassWire{Object: c}}
		}
		return &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: c}}
	case "class goes":
		return &fsm.DeletePriorityClass{Name: meta.Name}
	case "event":
		_, known := v.Events.Get(key)
		return &fsm.PutEvent{Event: fsm.EventWire{Object: &corev1.Event{ObjectMeta: meta, Reason: "Tried"}}, Create: !known}
	case "event goes":
		return &fsm.DeleteEvents{Key: key}
	case "budget":
		least := intstr.FromInt32(rapid.Int32Range(0, 2).Draw(t, "least"))
		b := &policyv1.PodDisruptionBudget{ObjectMeta: meta, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{}}}
		_, known := v.Budgets.Get(key)
		return &fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: b}, Create: !known}
	case "budget goes":
		return &fsm.DeleteDisruptionBudget{Namespace: meta.Namespace, Name: meta.Name}
	case "plan":
		return pastPlan(v)
	case "configuration":
		return &fsm.ConfigureScheduler{JSON: fmt.Appendf(nil, `{"metadata":{"name":"cluster"},"spec":{"podMaxBackoffSeconds":%d}}`, 10+v.Revision()%90)}
	case "plain":
		return pastObject(pick("resource", pastPlain...), meta, none, v)
	}
	return &fsm.DeleteObject{Resource: "configmaps", Namespace: meta.Namespace, Name: meta.Name}
}

// pastFirst is one of each kind that has none yet, in a namespace that no other command speaks of, if the kind has them.
func pastFirst(v *fsm.View) []fsm.Command {
	meta := metav1.ObjectMeta{Namespace: "kube-system", Name: "first", UID: "u-first"}
	none := meta
	none.Namespace = ""
	least := intstr.FromInt32(1)
	out := []fsm.Command{
		&fsm.PutEvent{Event: fsm.EventWire{Object: &corev1.Event{ObjectMeta: meta, Reason: "Tried"}}, Create: true},
		&fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: &policyv1.PodDisruptionBudget{ObjectMeta: meta,
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{}}}}},
		&fsm.ConfigureScheduler{JSON: []byte(`{"metadata":{"name":"cluster"},"spec":{"podMaxBackoffSeconds":9}}`)},
	}
	for _, resource := range pastPlain {
		out = append(out, pastObject(resource, meta, none, v))
	}
	return out
}

// pastPlain are the kinds that share a table.
var pastPlain = []string{"configmaps", "secrets", "services", "serviceaccounts", "runtimeclasses"}

func pastPod(key, priorityClass string) *fsm.AdmitPod {
	namespace, name, _ := strings.Cut(key, "/")
	p := testPod(name)
	p.Namespace, p.UID = namespace, types.UID("u-"+name)
	p.Spec.Containers[0].Resources.Requests["cpu"] = apiresource.MustParse("1")
	p.Spec.PriorityClassName = priorityClass
	return &fsm.AdmitPod{Pod: fsm.PodWire{Object: p}}
}

// pastNode has room for one pod.
func pastNode(name string, create bool) *fsm.PutNode {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Status.Allocatable = corev1.ResourceList{"cpu": apiresource.MustParse("1"), "memory": apiresource.MustParse("1Gi"), "pods": apiresource.MustParse("9")}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	return &fsm.PutNode{Node: fsm.NodeWire{Object: n}, Create: create}
}

// pastPlan has whoever waits evict whom he can.
func pastPlan(v *fsm.View) fsm.Command {
	plan := &fsm.ApplyPlan{Revision: v.Revision()}
	v.Ready(v.TimeUnixNano(), func(e *fsm.QueueEntry) bool {
		d := fsm.PreemptDecision{Key: e.Key(), UID: string(e.UID), Node: "n1", Diagnosis: &fsm.Diagnosis{Message: "no room"}}
		v.PodsOnNode("n1", func(p *corev1.Pod) bool {
			d.Victims = append(d.Victims, fsm.PlannedVictim{Key: p.Namespace + "/" + p.Name, UID: string(p.UID), ViolatesBudget: true})
			return true
		})
		if len(d.Victims) > 0 && e.Priority > 0 {
			plan.Preemptions = append(plan.Preemptions, d)
		} else {
			plan.Failures = append(plan.Failures, fsm.FailDecision{Pods: []fsm.PodRef{{Key: e.Key(), UID: string(e.UID)}}, Diagnosis: d.Diagnosis})
		}
		return true
	})
	return plan
}

// pastObject puts an object of a kind that shares its table with others.
func pastObject(resource string, meta, inNone metav1.ObjectMeta, v *fsm.View) fsm.Command {
	var o codec.Object
	switch resource {
	case "configmaps":
		o = &corev1.ConfigMap{ObjectMeta: meta}
	case "secrets":
		o = &corev1.Secret{ObjectMeta: meta}
	case "services":
		o = &corev1.Service{ObjectMeta: meta}
	case "serviceaccounts":
		o = &corev1.ServiceAccount{ObjectMeta: meta}
	case "runtimeclasses":
		o = &nodev1.RuntimeClass{ObjectMeta: inNone, Handler: "h"}
	}
	raw, err := o.Marshal()
	if err != nil {
		panic(err)
	}
	_, known := v.Objects.Get(fsm.ObjectKey(resource, o.GetNamespace(), o.GetName()))
	return &fsm.PutObject{Resource: resource, Raw: raw, Create: !known}
}
