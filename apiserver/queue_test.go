package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
)

func queueEntryOf(t *testing.T, obj runtime.Object) *berthv1.QueueEntry {
	t.Helper()
	e := new(berthv1.QueueEntry)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(obj.(*unstructured.Unstructured).Object, e); err != nil {
		t.Fatal(err)
	}
	return e
}

// TestQueueEventsShowTheirOwnMoment: an event of a revision shows whom the pod was
// nominated to at that revision, however long ago that was.
func TestQueueEventsShowTheirOwnMoment(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	ctx := context.Background()
	must := func(c fsm.Command) fsm.Result {
		t.Helper()
		rs, err := d.Propose(ctx, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})
		if err == nil {
			err = rs[0].Err()
		}
		if err != nil {
			t.Fatalf("%T: %v", c, err)
		}
		return rs[0]
	}
	high := class("high", 100, false)
	high.UID = "high"
	must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: high}})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n1"}}
	node.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("1"), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("9")}
	must(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: node}})
	for _, name := range []string{"low", "high"} {
		p := testPod(name)
		p.Namespace, p.UID, p.Spec.SchedulerName = "default", types.UID(name), "default-scheduler"
		p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("1")
		if name == "high" {
			p.Spec.PriorityClassName = name
		} else {
			p.Spec.NodeName = "n1"
		}
		must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	}
	from := d.View().Revision()
	r := must(&fsm.ApplyPlan{Revision: from, Preemptions: []fsm.PreemptDecision{{
		Key: "default/high", UID: "high", Node: "n1", Victims: []fsm.PlannedVictim{{Key: "default/low", UID: "low"}},
		Diagnosis: &fsm.Diagnosis{Message: "no room"},
	}}})
	if len(r.Plan.Refused) > 0 {
		t.Fatal(r.Plan.Refused)
	}
	must(&fsm.ApplyPlan{Revision: d.View().Revision(), Failures: []fsm.FailDecision{{
		Pods: []fsm.PodRef{{Key: "default/high", UID: "high"}}, Diagnosis: &fsm.Diagnosis{Message: "no room"}, ClearNomination: true,
	}}})

	queue := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceQueueEntries)).Namespace("default")
	w, err := queue.Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(from, 10)})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var told []string
	for last := ""; last != string(berthv1.QueueUnschedulable); {
		e := queueEntryOf(t, next(t, w).Object)
		last = string(e.Status.State)
		told = append(told, fmt.Sprintf("%s %q", last, e.Status.NominatedNode))
	}
	if got, want := strings.Join(told, ", "), `Nominated "n1", Backoff "", Unschedulable ""`; got != want {
		t.Errorf("the events are %s, want %s", got, want)
	}
}

// TestQueueEntriesSortAsTheyAreTried: whatever the order of the queue goes by.
func TestQueueEntriesSortAsTheyAreTried(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	client := s.client(t)
	for name, value := range map[string]int32{"negative": -100, "middle": 50, "high": 100} {
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class(name, value, false), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for i, name := range []string{"middle", "negative", "high", "middle"} {
		p := testPod(fmt.Sprintf("%s-%d", name, i))
		p.Spec.PriorityClassName = name
		if i == 2 {
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}}
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	queue := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceQueueEntries)).Namespace("default")
	configs := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceSchedulerConfigurations))
	for _, c := range []struct{ config, want string }{
		{`{"spec":{"queue":"priority"}}`, "high-2 middle-0 middle-3 negative-1"},
		{`{"spec":{"queue":"fifo"}}`, "middle-0 negative-1 high-2 middle-3"},
		{`{"spec":{"queue":"priority","aging":{"secondsPerPoint":3600}}}`, "high-2 middle-0 middle-3 negative-1"},
	} {
		if _, err := configs.Patch(ctx, "cluster", types.MergePatchType, []byte(c.config), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		list, err := queue.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var all []*berthv1.QueueEntry
		for i := range list.Items {
			all = append(all, queueEntryOf(t, &list.Items[i]))
		}
		slices.SortFunc(all, func(a, b *berthv1.QueueEntry) int { return cmp.Compare(a.Status.SortKey, b.Status.SortKey) })
		var names []string
		last := int32(0)
		for _, e := range all {
			names = append(names, e.Name)
			if p := e.Status.Position; p > 0 {
				if p <= last {
					t.Errorf("%s: the positions do not rise with the sort keys", c.config)
				}
				last = p
			}
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %s, want %s", c.config, got, c.want)
		}
	}
}

// What the entries of a list have in common is looked up once, whoever selects among them; one alone looks no further than itself.
func TestAListLooksUpOnceWhatItShows(t *testing.T) {
	d := newDouble(t)
	for i := range 9 {
		p := testPod(fmt.Sprint("p", i))
		p.Namespace, p.UID, p.Spec.SchedulerName = "default", types.UID(p.Name), "default-scheduler"
		d.must(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	}
	k, presenters := queueEntryKind(), 0
	present := k.present
	k.present = func(v *fsm.View) presenter {
		presenters++
		return present(v)
	}
	tb := &tables{kind: k, prefix: "/queueentries/", backend: d, pins: newPins(time.Now), attrs: storage.DefaultNamespaceScopedAttr}
	list := &berthv1.QueueEntryList{}
	one := storage.SelectionPredicate{Label: labels.Everything(), Field: fields.OneTermEqualSelector("metadata.name", "p3"), GetAttrs: storage.DefaultNamespaceScopedAttr}
	if err := tb.GetList(t.Context(), "/queueentries/default", storage.ListOptions{Recursive: true, Predicate: one}, list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 1 || presenters > 2 {
		t.Errorf("%d entries, for which %d presenters were made", len(list.Items), presenters)
	}
	want := queuePositions(d.View())
	several := present(d.View())
	for key, position := range want {
		row, _ := d.View().Queue.Get(key)
		for _, shows := range []presenter{present(d.View()), several} {
			var e berthv1.QueueEntry
			if err := shows(row, &e); err != nil || e.Status.Position != position {
				t.Errorf("%s is at %d, %v; want %d", key, e.Status.Position, err, position)
			}
		}
	}
}

// An entry tells of its own namespace's budgets, and of no other's.
func TestQueueEntriesNameNoBudgetsOfOthers(t *testing.T) {
	e := &fsm.QueueEntry{Namespace: "mine", Name: "p", Diagnosis: &fsm.Diagnosis{Message: "1 " + budgets.Barred("mine/web", 1, 1) + ", 1 " + budgets.Barred("team/db", 3, 2)}}
	var out berthv1.QueueEntry
	showQueueEntry(newDouble(t).View(), e, &out)
	if want := "1 " + budgets.Barred("mine/web", 1, 1) + ", 1 node(s) blocked by a PodDisruptionBudget"; out.Status.Message != want {
		t.Errorf("it tells %q", out.Status.Message)
	}
}
