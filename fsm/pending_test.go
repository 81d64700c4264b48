package fsm

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/queue"
)

// hurried is a state whose entries have little time for what is pending.
type hurried struct {
	t     *rapid.T
	state *State
	now   int64
	fresh int
	// version is that of the rules by which the entries are carried out.
	version int
}

// apply puts commands into an entry that may spend so many units on what is
// pending.
func (w *hurried) apply(left int, cs ...Command) []Result {
	w.now += 1e9
	s := w.state
	tx := s.begin(s.View().Index()+1, 1, Header{Version: cmp.Or(w.version, LogVersion), TimeUnixNano: w.now})
	spent := new(queue.Work)
	for !spent.HalfOver() {
		spent.Charge(1)
	}
	tx.work.Charge(spent.Spent() - left)
	ps := make([]Proposal, len(cs))
	for i, c := range cs {
		ps[i] = Proposal{User: "admin", Groups: []string{"system:masters"}, Command: c}
	}
	results := tx.carryOut(ps)
	s.show(outcome{tx, s.live.freeze(), results})
	if len(tx.faults) > 0 {
		w.t.Fatalf("%+v", tx.faults)
	}
	return results
}

func (w *hurried) must(left int, cs ...Command) {
	for i, r := range w.apply(left, cs...) {
		if r.Refused() {
			w.t.Fatalf("%T: %s", cs[i], r.Message)
		}
	}
}

var hurriedSchedulers = []string{"default-scheduler", "", "other", "third"}

// command is one at random; nil where there is nothing that it could be about.
func (w *hurried) command() Command {
	pick := func(what string, from ...string) string { return rapid.SampledFrom(from).Draw(w.t, what) }
	var all []*corev1.Pod
	w.state.View().Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		all = append(all, pod)
		return true
	})
	some := func() (*corev1.Pod, PodRef) {
		pod := rapid.SampledFrom(all).Draw(w.t, "pod")
		return pod, PodRef{PodKey(pod.Namespace, pod.Name), string(pod.UID)}
	}
	what := pick("what", "pod", "pod", "pod", "fail", "fail", "bind", "bind", "bind",
		"preempt", "delete", "relabel", "ready", "configure", "configure", "configure", "budget", "budget", "no budget")
	if len(all) == 0 && slices.Contains([]string{"fail", "bind", "preempt", "delete", "relabel", "ready"}, what) {
		what = "pod"
	}
	switch what {
	case "pod":
		w.fresh++
		pod := benchPod(w.fresh)
		pod.Name = fmt.Sprintf("%s%d", pick("prefix", "a", "m", "z"), w.fresh)
		pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.Unix(w.now/1e9, 0)
		if rapid.Bool().Draw(w.t, "alone") {
			pod.OwnerReferences = nil
		}
		pod.Spec.SchedulerName = rapid.SampledFrom(hurriedSchedulers).Draw(w.t, "scheduler")
		pod.Labels = map[string]string{"app": pick("app", "x", "y")}
		pod.Spec.PriorityClassName = pick("class", "", "high")
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse(pick("cpu", "1", "9"))}
		if pick("node", "", "", "n1") != "" {
			pod.Spec.NodeName = "n1"
		}
		return &AdmitPod{Pod: PodWire{Object: pod}}
	case "fail":
		_, ref := some()
		return &ApplyPlan{Revision: w.state.View().Revision(), Failures: []FailDecision{
			{Pods: []PodRef{ref}, Diagnosis: &Diagnosis{Message: "no room"}}}}
	case "bind":
		_, ref := some()
		return &ApplyPlan{Revision: w.state.View().Revision(), Bindings: []BindDecision{
			{Key: ref.Key, UID: ref.UID, Node: "n1"}}}
	case "preempt":
		_, ref := some()
		_, victim := some()
		return &ApplyPlan{Revision: w.state.View().Revision(), Preemptions: []PreemptDecision{{
			Key: ref.Key, UID: ref.UID, Node: "n1",
			Victims: []PlannedVictim{{Key: victim.Key, UID: victim.UID}}}}}
	case "delete":
		_, ref := some()
		none := int64(0)
		return &DeletePod{Key: ref.Key, GraceSeconds: &none}
	case "relabel":
		pod, _ := some()
		next := pod.DeepCopy()
		next.Labels["app"] = pick("app", "x", "y")
		return &UpdatePod{Pod: PodWire{Object: next}}
	case "ready":
		pod, ref := some()
		if pod.Spec.NodeName == "" {
			return nil
		}
		return &ReportPods{Node: "n1", Reports: []PodReport{
			{Key: ref.Key, UID: ref.UID, Status: PodStatusWire{Object: runningStatus()}}}}
	case "configure":
		spec := map[string]any{"queue": pick("queue", "fifo", "priority"),
			"aging": map[string]any{"secondsPerPoint": rapid.IntRange(0, 2).Draw(w.t, "aging")}}
		var profiles []map[string]any
		for _, name := range []string{"default-scheduler", "other", "third"} {
			if rapid.Bool().Draw(w.t, name) {
				profiles = append(profiles, map[string]any{"schedulerName": name})
			}
		}
		if len(profiles) > 0 {
			spec["profiles"] = profiles
		}
		return &ConfigureScheduler{JSON: worstConfig(spec)}
	case "budget":
		least := intstr.FromString(pick("least", "50%", "0%", "100%"))
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: pick("budget", "b1", "b2"), Generation: 1}}
		b.Spec.MinAvailable = &least
		b.Spec.Selector = rapid.SampledFrom([]*metav1.LabelSelector{
			nil, {}, {MatchLabels: map[string]string{"app": "x"}}}).Draw(w.t, "selector")
		old, known := w.state.View().Budgets.Get("default/" + b.Name)
		if known {
			b.Generation = old.Generation + 1
		}
		return &PutDisruptionBudget{Create: !known, Budget: BudgetWire{Object: b}}
	}
	return &DeleteDisruptionBudget{Namespace: "default", Name: pick("budget", "b1", "b2")}
}

// TestWhatIsPendingGoesOn: what an entry has no time for goes on in the next ones, on
// a server that was restored meanwhile just as on the others; until then nobody is
// decided about who is to leave the queue, and a budget allows nothing whose pods are
// being counted. In the end it is as if there had been time enough.
func TestWhatIsPendingGoesOn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &hurried{t: t, state: NewState(), now: worldStart.UnixNano()}
		node := benchNodeObject(1)
		node.Name = "n1"
		w.must(0, &PutNamespace{Create: true, Namespace: NamespaceWire{
			Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}},
			&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=7"}.class()}},
			&PutNode{Create: true, Node: NodeWire{Object: node}})
		for range rapid.IntRange(10, 60).Draw(t, "steps") {
			cs := []Command{&Checkpoint{}}
			if c := w.command(); c != nil {
				cs = append(cs, c)
			}
			before := w.state.View()
			results := w.apply(rapid.SampledFrom([]int{0, 0, 1, 1, 20, 300, 1000, 9000}).Draw(t, "time"), cs...)
			w.refusedFor(before, cs, results)
			w.check()
			if rapid.IntRange(0, 3).Draw(t, "restart") == 0 {
				w.restart()
			}
		}
		for range 100 {
			if !w.state.View().WorkPending() {
				break
			}
			w.apply(1, &Checkpoint{}) // the least that there can be
			w.check()
		}
		if w.state.View().WorkPending() {
			t.Fatal("it never ends")
		}
		w.checkAll()
	})
}

// restart goes on with a server that was restored, and is the same.
func (w *hurried) restart() {
	var b bytes.Buffer
	if err := w.state.View().Write(&b); err != nil {
		w.t.Fatal(err)
	}
	restored := NewState()
	if err := restored.Restore(&b); err != nil {
		w.t.Fatal(err)
	}
	compareViews(w.t, "restored", w.state.View(), restored.View())
	w.state = restored
}

// refusedFor: of a pod whose profile is gone nothing is decided.
func (w *hurried) refusedFor(before *View, cs []Command, results []Result) {
	for i, c := range cs {
		plan, ok := c.(*ApplyPlan)
		if !ok || len(plan.Bindings) == 0 {
			continue
		}
		d := plan.Bindings[0]
		pod, ok := before.Pods.Get(d.Key)
		if ok && before.profileFor(pod.Spec.SchedulerName) == nil && len(results[i].Plan.Refused) == 0 {
			w.t.Fatalf("%s was bound, and nobody has a profile for %q", d.Key, pod.Spec.SchedulerName)
		}
	}
}

func (w *hurried) check() {
	v := w.state.View()
	for _, scan := range []func(func(e *QueueEntry) bool){
		v.Blocked, func(f func(e *QueueEntry) bool) { v.Ready(w.now, f) },
	} {
		scan(func(e *QueueEntry) bool {
			if v.profileFor(e.Class().SchedulerName) == nil {
				w.t.Fatalf("%s is to be decided about, and nobody has a profile for it", e.Key())
			}
			return true
		})
	}
	v.Budgets.Scan("", func(key string, b *policyv1.PodDisruptionBudget) bool {
		// On a fork, a pod more is counted only by a budget that is still counting.
		fork := v.budgets.Fork()
		_, counted := fork.Count(v.budgetState(), key, func(_, _ string, f func(*corev1.Pod) bool) { f(&corev1.Pod{}) }, func(int) bool { return false })
		is := !counted
		if is != (b.Status.ObservedGeneration != b.Generation) {
			w.t.Fatalf("the pods of %s are being counted: %t; its status is of generation %d, it is %d",
				key, is, b.Status.ObservedGeneration, b.Generation)
		}
		if is && (b.Status.DisruptionsAllowed != 0 ||
			budgets.Lenient(&b.Spec, int64(b.Status.DesiredHealthy), int64(b.Status.CurrentHealthy))) {
			w.t.Fatalf("%s allows something while its pods are being counted: %+v", key, b.Status)
		}
		return true
	})
}

// checkAll holds when nothing is pending.
func (w *hurried) checkAll() {
	v := w.state.View()
	w.restart()
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		_, queued := v.Queue.Get(key)
		_, unclaimed := v.unclaimed.Get(unclaimedKey(pod, key))
		if queued != v.waits(pod) || unclaimed != (unplaced(pod) && !queued) {
			w.t.Fatalf("%s is in the queue: %t, is waiting for a profile: %t", key, queued, unclaimed)
		}
		return true
	})
	if now, sorting := v.queue.Sorting(); sorting || now != queue.OrderOf(&v.SchedulerConfig().Spec) {
		w.t.Fatalf("the queue goes by %+v", now)
	}
	keys := []string{}
	v.InOrder(func(_ int32, e *QueueEntry) bool {
		keys = append(keys, v.QueueSortKey(e))
		return true
	})
	tried := 0
	v.Queue.Scan("", func(_ string, e *QueueEntry) bool {
		if e.IsTried() {
			tried++
		}
		return true
	})
	if !slices.IsSorted(keys) || len(keys) != tried {
		w.t.Fatalf("of %d that are to be tried these are in order: %q", tried, keys)
	}
	v.Budgets.Scan("", func(key string, b *policyv1.PodDisruptionBudget) bool {
		healthy := int32(0)
		v.Pods.Scan("default/", func(_ string, pod *corev1.Pod) bool {
			if budgets.Selector(&b.Spec).Matches(labels.Set(pod.Labels)) && model.Healthy(pod) {
				healthy++
			}
			return true
		})
		if b.Status.CurrentHealthy != healthy || b.Status.ObservedGeneration != b.Generation {
			w.t.Fatalf("%s has %d healthy pods: %+v", key, healthy, b.Status)
		}
		return true
	})
}

// TestManyPodsFollowAChangeInParts: of pods that a change of the configuration is
// about, or a new budget, an entry does a bounded number, and the next ones go on.
func TestManyPodsFollowAChangeInParts(t *testing.T) {
	const pods = 3000
	w := worstPlan{Nodes: 10, Zones: 1, Placed: 5 * pods, Kinds: 3, Waiting: pods, Shapes: 10, Namespaces: 1}.build(t)
	evicted := w.placedName(0)
	w.must(&ReportPods{Node: w.nodeName(0), Reports: []PodReport{{
		Key: evicted.Key, UID: evicted.UID, Status: PodStatusWire{Object: runningStatus()}}}})
	for _, c := range []struct {
		name     string
		commands []Command
		done     func(v *View) bool
	}{
		{"order", []Command{&ConfigureScheduler{JSON: worstConfig(map[string]any{"queue": "fifo"})}}, func(v *View) bool {
			now, _ := v.queue.Sorting()
			return now.FIFO
		}},
		{"leave", []Command{&ConfigureScheduler{JSON: worstConfig(map[string]any{
			"profiles": []any{map[string]any{"schedulerName": "other"}}})}},
			func(v *View) bool { return v.Queue.Len() == 0 }},
		{"join", []Command{&ConfigureScheduler{JSON: worstConfig(map[string]any{})}},
			func(v *View) bool { return v.Queue.Len() == pods }},
		{"budget", []Command{&PutDisruptionBudget{Create: true, Budget: BudgetWire{
			Object: func() *policyv1.PodDisruptionBudget {
				b := w.budget(0)
				b.Generation, b.Spec.Selector = 1, &metav1.LabelSelector{}
				return b
			}()}}}, func(v *View) bool {
			b, ok := v.Budgets.Get(w.namespace(0) + "/budget-00000")
			return ok && b.Status.ObservedGeneration == 1
		}},
	} {
		entries := 0
		for commands := c.commands; entries == 0 || w.state.View().WorkPending(); commands = []Command{&ApplyPlan{}} {
			if entries++; entries > 1 && c.done(w.state.View()) {
				t.Errorf("%s: done, and yet something is pending", c.name)
			}
			w.must(commands...)
			if c.name == "budget" && entries == 1 {
				r := w.may(&EvictPod{Key: evicted.Key})[0]
				if r.Code != http.StatusTooManyRequests || len(r.Details.Causes) != 1 ||
					!strings.Contains(r.Details.Causes[0].Message, "is still being processed") {
					t.Errorf("an eviction while pods are counted: %+v", r)
				}
			}
			if entries > 100 {
				t.Fatalf("%s: it never ends", c.name)
			}
		}
		if entries < 2 || !c.done(w.state.View()) {
			t.Errorf("%s: after %d entries it is done: %t", c.name, entries, c.done(w.state.View()))
		}
	}
	if v := w.state.View(); v.QueueLengths().Active != pods {
		t.Errorf("%+v", v.QueueLengths())
	}
}

// TestTheOldestJoinFirst: by when they were made, whatever they are called.
func TestTheOldestJoinFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &hurried{t: t, state: NewState(), now: worldStart.UnixNano()}
		w.must(0, &PutNamespace{Create: true, Namespace: NamespaceWire{
			Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}})
		var made []string
		for i := range 20 {
			pod := benchPod(i)
			pod.Name, pod.Spec.SchedulerName = fmt.Sprintf("%s-%d", rapid.StringMatching("[a-z]").Draw(t, "name"), i), "other"
			pod.UID, pod.CreationTimestamp = types.UID(pod.Name), metav1.Unix(w.now/1e9, 0)
			w.must(0, &AdmitPod{Pod: PodWire{Object: pod}})
			made = append(made, pod.Name)
		}
		profiles := []any{
			map[string]any{"schedulerName": "other"},
			map[string]any{"schedulerName": berthv1.Default().Spec.Profiles[0].SchedulerName}}
		w.must(rapid.SampledFrom([]int{0, 1, 500}).Draw(t, "time"),
			&ConfigureScheduler{JSON: worstConfig(map[string]any{"profiles": profiles})})
		for w.state.View().WorkPending() {
			w.apply(300, &Checkpoint{})
		}
		var got []string
		w.state.View().InOrder(func(_ int32, e *QueueEntry) bool {
			got = append(got, e.Name)
			return true
		})
		if !slices.Equal(got, made) {
			t.Fatalf("in order are %s, want %s", strings.Join(got, " "), strings.Join(made, " "))
		}
	})
}
