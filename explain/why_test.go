package explain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/whatif"
)

// asked is a state to ask about, with a scheduler for it.
type asked struct {
	testing.TB
	state *fsm.State
	sched *sched.Scheduler
}

const askedAtNano = 1_000_000_000_000

func newAsked(t testing.TB) *asked {
	a := &asked{TB: t, state: fsm.NewState()}
	a.sched = sched.New(a.state)
	for _, ns := range []string{"default", "secret"} {
		a.must(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, UID: types.UID("ns-" + ns)}}}})
	}
	for _, class := range []struct {
		name  string
		value int32
	}{{"low", 1}, {"high", 100}} {
		a.must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: class.name, UID: types.UID(class.name)}, Value: class.value}}})
	}
	for i, cpu := range []string{"2", "1", "1"} {
		a.must(&fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i+1), UID: types.UID(fmt.Sprint(i))},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")}}}}})
	}
	return a
}

func (a *asked) must(c fsm.Command) {
	a.Helper()
	if r := a.state.Try(askedAtNano, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})[0]; r.Refused() {
		a.Fatalf("%T: %s", c, r.Message)
	}
}

// changeNodes changes all three.
func (a *asked) changeNodes(change func(n *corev1.Node)) {
	a.Helper()
	for i := range 3 {
		obj, _ := a.state.View().Nodes.Get(fmt.Sprintf("n%d", i+1))
		n := obj.DeepCopy()
		change(n)
		a.must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
	}
}

func (a *asked) pod(namespace, name, class, cpu string) {
	a.Helper()
	a.podWith(namespace, name, class, cpu)
}

func (a *asked) podWith(namespace, name, class, cpu string, with ...func(p *corev1.Pod)) {
	a.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler", PriorityClassName: class, Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}}}}},
	}
	for _, set := range with {
		set(pod)
	}
	a.must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
	a.step()
}

// step decides on whoever waits.
func (a *asked) step() {
	a.Helper()
	for p := a.sched.Step(askedAtNano, 100); p != nil; p = a.sched.Step(askedAtNano, 100) {
		a.must(p.Command)
		a.sched.Settle(p)
	}
}

func (a *asked) ask(q Question) (*ledger.Answer, error) {
	a.Helper()
	return Why(context.Background(), a.state.View(), q, func(ns string) bool { return ns == "default" })
}

func (a *asked) must1(answer *ledger.Answer, err error) *ledger.Answer {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
	return answer
}

func TestWhy(t *testing.T) {
	a := newAsked(t)
	a.pod("default", "web", "low", "2")
	a.pod("secret", "boss", "high", "2")
	a.pod("default", "huge", "low", "4")

	web := a.must1(a.ask(Question{Namespace: "default", Pod: "web"}))
	if len(web.Decisions) != 1 || web.Decisions[0].Kind != "Bound" || web.Decisions[0].Node != "n1" || web.Decisions[0].Feasible != 1 {
		t.Errorf("the decision about web: %+v", web.Decisions)
	}
	// PR20: who may not read the preemptor's namespace learns its UID.
	if len(web.Against) != 1 || web.Against[0].Status.Preemptor.Name != "" || web.Against[0].Status.Preemptor.UID != "uid-boss" || web.Against[0].Status.Preemptor.Priority != 0 {
		t.Fatalf("who evicted web: %+v", web.Against)
	}
	if p := web.Against[0]; p.Name != "" || p.Namespace != "" || p.Status.Victims[0].Name != "web" {
		t.Errorf("a record that tells the preemptor's name, or not the victim's: %+v", p)
	}

	huge := a.must1(a.ask(Question{Namespace: "default", Pod: "huge", Nodes: true}))
	if huge.Now == nil || huge.Now.Total != 3 || huge.Now.Fit != 0 || len(huge.Now.Each) != 3 {
		t.Fatalf("the nodes say %+v", huge.Now)
	}
	if len(huge.Now.Refusals) != 1 || huge.Now.Refusals[0].Nodes != 3 || huge.Now.Refusals[0].Reasons[0] != "Insufficient cpu (short 3 to 6)" {
		t.Errorf("together they say %+v", huge.Now.Refusals)
	}
	if d := huge.Decisions; len(d) != 1 || d[0].Kind != "Unschedulable" || d[0].Nodes != 3 || !strings.Contains(d[0].Message, "Insufficient cpu") {
		t.Errorf("decisions about huge: %+v", d)
	}

	// By UID, when the pod is gone.
	zero := int64(0)
	a.must(&fsm.DeletePod{Key: "default/web", GraceSeconds: &zero})
	gone := a.must1(a.ask(Question{Namespace: "default", Pod: "uid-web"}))
	if gone.Name != "web" || gone.UID != "uid-web" || len(gone.Decisions) != 1 || len(gone.Against) != 1 {
		t.Errorf("by its UID: %+v", gone)
	}
	// At a revision: what counted then, and nothing that came later.
	at := web.Decisions[0].Revision
	then := a.must1(a.ask(Question{Namespace: "default", Pod: "web", At: at}))
	if len(then.Decisions) != 1 || then.Against != nil || then.Now != nil {
		t.Errorf("at revision %d: %+v", at, then)
	}
	if early := a.must1(a.ask(Question{Namespace: "default", Pod: "huge", At: at})); len(early.Decisions) != 0 {
		t.Errorf("before huge was there: %+v", early)
	}
}

// A preemption that was refused over a victim tells its name to those alone who may read it (PR20).
func TestWhyNamesNoRefusedVictim(t *testing.T) {
	a := newAsked(t)
	a.pod("secret", "boss", "high", "2")
	a.pod("default", "web", "low", "20")
	a.must(&fsm.ApplyPlan{Revision: a.state.View().Revision(), Preemptions: []fsm.PreemptDecision{{
		Key: "default/web", UID: "uid-web", Node: "n1", Victims: []fsm.PlannedVictim{{Key: "secret/boss", UID: "uid-boss"}},
	}}})
	q := Question{Namespace: "default", Pod: "web"}
	everywhere, err := Why(t.Context(), a.state.View(), q, func(string) bool { return true })
	for told, tc := range map[string]struct {
		answer *ledger.Answer
		want   string
	}{
		"victim secret/boss has priority 100, which is not below 1":        {a.must1(everywhere, err), "of all"},
		"a victim in another namespace has a priority that is not below 1": {a.must1(a.ask(q)), "of default"},
	} {
		if !slices.ContainsFunc(tc.answer.Decisions, func(d ledger.Decision) bool { return d.Refused == told }) {
			t.Errorf("who may read the pods %s is told %+v", tc.want, tc.answer.Decisions)
		}
	}
}

func TestWhyRefuses(t *testing.T) {
	a := newAsked(t)
	a.pod("default", "web", "low", "2")
	for i := range 40 { // the ledger forgets
		c := &fsm.ApplyPlan{Revision: a.state.View().Revision()}
		for range 1000 {
			c.Bindings = append(c.Bindings, fsm.BindDecision{Key: "default/nobody", UID: fmt.Sprint(i), Node: "n1"})
		}
		a.must(c)
	}
	for _, c := range []struct {
		namespace, pod string
		at             int64
		reason         metav1.StatusReason
		text           string
	}{
		{"default", "web", 1, metav1.StatusReasonExpired, "the ledger reaches back to revision"},
		{"default", "web", 999999, metav1.StatusReasonBadRequest, "revision 999999 has not come yet"},
		{"default", "other", 0, metav1.StatusReasonNotFound, "there is no pod other in namespace default"},
		{"secret", "boss", 0, metav1.StatusReasonForbidden, "you may not read the pods of namespace secret"},
	} {
		_, err := a.ask(Question{Namespace: c.namespace, Pod: c.pod, At: c.at})
		var refused *Refused
		if !errors.As(err, &refused) || refused.Reason != c.reason || !strings.Contains(refused.Text, c.text) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestWhyNamesWhoIsInTheWay: by anti-affinity, and only those whom the asker may know (PR20).
func TestWhyNamesWhoIsInTheWay(t *testing.T) {
	a := newAsked(t)
	a.changeNodes(func(n *corev1.Node) { n.Labels = map[string]string{"zone": "z", "host": n.Name} })
	apart := func(key, app string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: key, NamespaceSelector: &metav1.LabelSelector{}, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
		}
	}
	labelled := func(app string) func(p *corev1.Pod) {
		return func(p *corev1.Pod) { p.Labels = map[string]string{"app": app} }
	}
	on := func(node string) func(p *corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	for i := range 5 {
		a.podWith("default", fmt.Sprintf("web-%d", i), "low", "100m", labelled("web"), on(fmt.Sprintf("n%d", i%3+1)))
	}
	a.podWith("secret", "vault", "high", "100m", labelled("web"), on("n1"), apart("host", "late"))
	a.podWith("default", "byhost", "low", "100m", apart("host", "web"))
	a.podWith("default", "byzone", "low", "100m", apart("zone", "web"))
	a.podWith("default", "late", "low", "100m", labelled("late"), func(p *corev1.Pod) {
		p.Spec.NodeSelector = map[string]string{"host": "n1"}
	})

	rule := "node(s) didn't match pod anti-affinity rules"
	for _, c := range []struct{ pod, reasons string }{
		{"byhost", rule + " (pod uid-vault, web-0, web-1 and 3 more)"},
		{"byzone", rule + " (pod uid-vault, web-0, web-1 and 3 more in the same zone)"},
		{"late", "node(s) didn't match Pod's node affinity/selector | node(s) didn't satisfy existing pods anti-affinity rules (pod uid-vault)"},
	} {
		var reasons []string
		for _, r := range a.must1(a.ask(Question{Namespace: "default", Pod: c.pod})).Now.Refusals {
			reasons = append(reasons, r.Reasons...)
		}
		if got := strings.Join(reasons, " | "); got != c.reasons {
			t.Errorf("%s: kept off by %s, want %s", c.pod, got, c.reasons)
		}
	}
	byHost := a.must1(a.ask(Question{Namespace: "default", Pod: "byhost", Nodes: true})).Now
	who := byHost.Refusals[0].InTheWay
	if len(who) != 1 || who[0].Total != 6 || who[0].TopologyKey != "host" || who[0].Reason != rule || len(who[0].Pods) != maxNamed {
		t.Fatalf("all nodes together: %+v", who)
	}
	want := []ledger.PodInTheWay{{UID: "uid-vault", Node: "n1", Domain: "n1"}, {Namespace: "default", Name: "web-0", UID: "uid-web-0", Node: "n1", Domain: "n1"}}
	if got := who[0].Pods[:2]; !slices.Equal(got, want) {
		t.Errorf("the first of them: %+v, want %+v", got, want)
	}
	if n2 := byHost.Each[1]; n2.Reasons[0] != rule+": web-1, web-4" || len(n2.InTheWay) != 1 || n2.InTheWay[0].Total != 2 {
		t.Errorf("n2 by itself: %+v", n2)
	}
	text, err := json.Marshal(a.must1(a.ask(Question{Namespace: "default", Pod: "late", Nodes: true})))
	if err != nil || strings.Contains(string(text), `"vault"`) || strings.Contains(string(text), "secret") {
		t.Errorf("who may not know a pod is told of it: %s, %v", text, err)
	}
}

// TestWhyTellsForWhomRoomIsKept: a nomination's pod is named beside what is short, if the asker may know it.
func TestWhyTellsForWhomRoomIsKept(t *testing.T) {
	for _, c := range []struct{ namespace, name string }{{"default", "boss"}, {"secret", "pod uid-boss"}} {
		a := newAsked(t)
		a.pod("default", "web", "low", "2")
		a.pod(c.namespace, "boss", "high", "2")
		a.pod("default", "late", "low", "2")
		now := a.must1(a.ask(Question{Namespace: "default", Pod: "late", Nodes: true})).Now
		want := "Insufficient cpu (short 1 to 4; kept for " + c.name + " on n1)"
		var told []string
		for _, r := range now.Refusals {
			told = append(told, r.Reasons...)
		}
		if !slices.Contains(told, want) {
			t.Errorf("the nodes say %q, and none says %q", told, want)
		}
		if got, want := now.Each[0].Reasons[0], "Insufficient cpu (short 4); kept for "+c.name+" on n1"; got != want {
			t.Errorf("n1 says %q, want %q", got, want)
		}
		if got := now.Each[0].InTheWay; len(got) != 1 || got[0].TopologyKey != "" || !got[0].Pods[0].Nominated || got[0].Pods[0].Node != "n1" {
			t.Errorf("in the way on n1: %+v", got)
		}
	}
}

// TestWhyTellsTheSkew: of hard topology spread the numbers.
func TestWhyTellsTheSkew(t *testing.T) {
	a := newAsked(t)
	a.changeNodes(func(n *corev1.Node) {
		n.Labels, n.Spec.Unschedulable = map[string]string{"host": n.Name}, n.Name == "n3"
	})
	spread := func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{MaxSkew: 1, TopologyKey: "host", WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}
	}
	for i := range 3 {
		a.podWith("default", fmt.Sprintf("web-%d", i), "low", "100m", spread)
	}
	now := a.must1(a.ask(Question{Namespace: "default", Pod: "web-2"})).Now
	want := []ledger.Skew{{TopologyKey: "host", MaxSkew: 1, Domains: []ledger.SkewedDomain{{Domain: "n1", Pods: 1}, {Domain: "n2", Pods: 1}}, Total: 2}}
	if len(now.Refusals) != 2 || !reflect.DeepEqual(now.Refusals[0].Skews, want) {
		t.Fatalf("the nodes say %+v", now)
	}
	const words = "node(s) didn't match pod topology spread constraints (host=n1 has 1, n2 has 1, at most 1 more than the least (0))"
	if got := now.Refusals[0].Reasons[0]; got != words {
		t.Errorf("%s, want %s", got, words)
	}
}

// TestPlanTellsWhoBars: of pods of a plan that have no place.
func TestPlanTellsWhoBars(t *testing.T) {
	a := newAsked(t)
	a.changeNodes(func(n *corev1.Node) { n.Labels = map[string]string{"host": n.Name} })
	var pods []*corev1.Pod
	for i := range 6 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprint(i)), Labels: map[string]string{"app": "web"}}}
		p.Spec = corev1.PodSpec{SchedulerName: "default-scheduler", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: "host", LabelSelector: &metav1.LabelSelector{MatchLabels: p.Labels}}}}}
		if i == 5 {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("9")}
		}
		pods = append(pods, p)
	}
	seen, err := whatif.Foresee(t.Context(), a.state.View(), whatif.Asker{User: "test"}, nil, pods)
	if err != nil {
		t.Fatal(err)
	}
	bars := whoBars{after: seen.After, mayRead: func(string) bool { return true }, known: map[string]map[string]string{}}
	for i, want := range []string{3: "web-0, web-1, web-2", 4: "web-0, web-1, web-2", 5: "web-0, web-1, web-2"} {
		reasons := seen.Placements[i].Diagnosis.API()
		if err := bars.tell(t.Context(), seen.Placements[i].Key, reasons); err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, r := range reasons {
			got[r.Reason] = r.Detail
		}
		if got["node(s) didn't match pod anti-affinity rules"] != want || i == 5 && got["Insufficient cpu"] != "short 7" {
			t.Errorf("web-%d: %v", i, got)
		}
	}
	if len(bars.known) != 2 {
		t.Errorf("%d pods were asked about, two would do", len(bars.known))
	}
}

func (a *asked) remove(key string, graceSeconds int64) {
	a.Helper()
	a.must(&fsm.DeletePod{Key: key, GraceSeconds: &graceSeconds})
}

// TestWhyOfAGoneName: of several pods that had one name, one is told of, and the
// others are named.
func TestWhyOfAGoneName(t *testing.T) {
	a := newAsked(t)
	first := func(uid string) func(p *corev1.Pod) { return func(p *corev1.Pod) { p.UID = types.UID(uid) } }
	for _, uid := range []string{"one", "two", "three"} {
		a.podWith("default", "web", "low", "1", first(uid))
		a.remove("default/web", 0)
	}
	uids := func(answer *ledger.Answer) (told string) {
		for _, d := range answer.Decisions {
			told += string(d.UID) + " "
		}
		told += "|"
		for _, n := range answer.Others {
			told += " " + string(n.UID)
		}
		return told
	}
	name := Question{Namespace: "default", Pod: "web"}
	last := a.must1(a.ask(name))
	if got, want := uids(last), "three | two one"; got != want || last.UID != "three" {
		t.Errorf("the last one: %s, UID %s, want %s", got, last.UID, want)
	}
	at := last.Others[0].Revision
	for _, c := range []struct {
		ask  Question
		want string
	}{
		{Question{UID: "one"}, "one | three two"},
		{Question{UID: "two", At: at}, "two | one"},
		{Question{At: at}, "two | one"},
	} {
		c.ask.Namespace, c.ask.Pod = name.Namespace, name.Pod
		if got := uids(a.must1(a.ask(c.ask))); got != c.want {
			t.Errorf("%+v: %s, want %s", c.ask, got, c.want)
		}
	}
	var refused *Refused
	if _, err := a.ask(Question{Namespace: "default", Pod: "web", UID: "four"}); !errors.As(err, &refused) ||
		refused.Reason != metav1.StatusReasonNotFound || !strings.Contains(refused.Text, "web of UID four") {
		t.Errorf("a UID that nobody had: %v", err)
	}
	// One is there again, about whom nothing is decided yet.
	a.podWith("default", "web", "low", "9", first("five"), func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "x"}} })
	if got, want := uids(a.must1(a.ask(name))), "| three two one"; got != want {
		t.Errorf("who is there: %s, want %s", got, want)
	}
	if got, want := uids(a.must1(a.ask(Question{Namespace: "default", Pod: "web", UID: "three"}))), "three | two one"; got != want {
		t.Errorf("one that was there before: %s, want %s", got, want)
	}
}

// TestWhyOfOneWhoWasEndingBefore: whoever waited for his end is not its cause.
func TestWhyOfOneWhoWasEndingBefore(t *testing.T) {
	a := newAsked(t)
	for _, name := range []string{"deleted", "alive"} {
		a.podWith("default", name, "low", "1", func(p *corev1.Pod) { p.Spec.NodeName = "n1" })
	}
	a.remove("default/deleted", 30)
	a.podWith("default", "boss", "high", "2", func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"kubernetes.io/hostname": "n1"} })
	a.changeNodes(func(n *corev1.Node) { n.Labels = map[string]string{"kubernetes.io/hostname": n.Name} })
	a.step()

	deleted := a.must1(a.ask(Question{Namespace: "default", Pod: "deleted"}))
	if len(deleted.Against) != 0 || len(deleted.AwaitedBy) != 1 || deleted.AwaitedBy[0].Status.Preemptor.Name != "boss" {
		t.Errorf("who was deleted had to go for %+v, and was waited for by %+v", deleted.Against, deleted.AwaitedBy)
	}
	alive := a.must1(a.ask(Question{Namespace: "default", Pod: "alive"}))
	if len(alive.Against) != 1 || len(alive.AwaitedBy) != 0 {
		t.Errorf("who was evicted had to go for %+v, and was waited for by %+v", alive.Against, alive.AwaitedBy)
	}
	for _, v := range alive.Against[0].Status.Victims {
		if v.WaitedFor != (v.Name == "deleted") {
			t.Errorf("the record says of %s: waited for: %t", v.Name, v.WaitedFor)
		}
	}
}
