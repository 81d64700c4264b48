package explain

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/whatif"
)

// evicts is a state in which a pod of default evicts one of secret, which a budget and a quota there are about.
func evicts(t testing.TB) (*asked, *corev1.Pod) {
	a := newAsked(t)
	yes := true
	a.podWith("secret", "victim", "low", "2", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "hush"}
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs", Controller: &yes}}
	})
	victim, _ := a.state.View().Pods.Get("secret/victim")
	a.must(&fsm.ReportPods{Node: victim.Spec.NodeName, Reports: []fsm.PodReport{{Key: "secret/victim", UID: string(victim.UID), Status: fsm.PodStatusWire{Object: &corev1.PodStatus{
		Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
	}}}}})
	least := intstr.FromInt32(1)
	a.must(&fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "secret", Name: "hush-budget", UID: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "hush"}}},
	}}})
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "top", UID: "top"}}
	p.Spec = corev1.PodSpec{SchedulerName: "default-scheduler", PriorityClassName: "high", Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("2")}}}}}
	return a, p
}

// TestPlanTellsNothingOfOthers: of pods and budgets of a namespace that is not the asker's to read, no name, nor why they have no place.
func TestPlanTellsNothingOfOthers(t *testing.T) {
	for _, reads := range []bool{true, false} {
		a, p := evicts(t)
		may := func(ns string) bool { return ns == "default" || reads }
		by := Planner{Asker: whatif.Asker{User: "test", Groups: []string{"system:masters"}}, MayReadPods: may, MayReadBudgets: may}
		got, err := Plan(t.Context(), a.state.View(), by, nil, []*corev1.Pod{p})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Placements) != 1 || len(got.Placements[0].Victims) != 1 || len(got.Replacements) != 1 || len(got.Budgets) != 1 {
			t.Fatalf("got %+v", got)
		}
		v, r, b := got.Placements[0].Victims[0], got.Replacements[0], got.Budgets[0]
		if told := v.Priority == 1 && r.Of.Priority == 1; told != reads {
			t.Errorf("who may read it: %t; the priority is told as %d, %d", reads, v.Priority, r.Of.Priority)
		}
		if reads && (v.Name != "victim" || b.Name != "hush-budget" || r.Message == "") {
			t.Errorf("who may read it is told %+v, %+v, %+v", v, r, b)
		}
		if !reads && (v.Name != "" || v.UID == "" || b != (berthv1.PlanBudget{}) || r.Message != "" || r.Of.Name != "" || r.Of.Namespace != "") {
			t.Errorf("who may not read it is told %+v, %+v, %+v", v, r, b)
		}
	}
}

// TestAnswersEndWithWhatCannotBeTold: once it cannot be told what the asker may read, nothing more is asked or made, of a plan or of why a pod
// is where it is.
func TestAnswersEndWithWhatCannotBeTold(t *testing.T) {
	a, p := evicts(t)
	more := p.DeepCopy()
	more.Name, more.UID = "more", "more"
	state := a.state.View()
	a.pod("secret", "boss", "high", "1")
	a.pod("default", "waits", "high", "2")
	for range 3 {
		a.must(&fsm.ApplyPlan{Revision: a.state.View().Revision(), Preemptions: []fsm.PreemptDecision{{
			Key: "default/waits", UID: "uid-waits", Node: "n1", Victims: []fsm.PlannedVictim{{Key: "secret/boss", UID: "uid-boss"}},
		}}})
	}
	for what, answer := range map[string]func(ctx context.Context, may func(string) bool) error{
		"a plan": func(ctx context.Context, may func(string) bool) error {
			_, err := Plan(ctx, state, Planner{Asker: whatif.Asker{User: "test", Groups: []string{"system:masters"}}, MayReadPods: may, MayReadBudgets: may}, nil, []*corev1.Pod{p, more})
			return err
		},
		"why": func(ctx context.Context, may func(string) bool) error {
			_, err := Why(ctx, a.state.View(), Question{Namespace: "default", Pod: "waits", Nodes: true}, may)
			return err
		},
	} {
		all := 0
		if err := answer(t.Context(), func(string) bool { all++; return true }); err != nil || all < 2 {
			t.Fatalf("%s: %d were asked about, %v", what, all, err)
		}
		for ends := 2; ends <= all; ends++ {
			ctx, end := context.WithCancel(t.Context())
			asked := 0
			err := answer(ctx, func(string) bool {
				if asked++; asked == ends {
					end()
				}
				return asked < ends
			})
			if asked > ends+1 || ends < all-1 && !errors.Is(err, context.Canceled) { // of one row it may be asked twice
				t.Errorf("%s: of the %dth of %d it cannot be told: %d were asked about, %v", what, ends, all, asked, err)
			}
			end()
		}
	}
}

// TestPlanEnds: when whoever asked for it does not wait any longer, whatever it has come to.
func TestPlanEnds(t *testing.T) {
	a, p := evicts(t)
	pods := []*corev1.Pod{p}
	for range 3 * placementsAtATime {
		more := p.DeepCopy()
		more.Name, more.UID = "", ""
		pods = append(pods, more)
	}
	gone := errors.New("gone")
	everything := func(string) bool { return true }
	by := Planner{Asker: whatif.Asker{User: "test", Groups: []string{"system:masters"}}, MayReadPods: everything, MayReadBudgets: everything}
	pieces := 0
	by.GoOn = func() error { pieces++; return nil }
	if _, err := Plan(t.Context(), a.state.View(), by, nil, pods); err != nil || pieces < len(pods) {
		t.Fatalf("%d pieces for %d pods, %v", pieces, len(pods), err)
	}
	for _, end := range []int{0, 1, len(pods), len(pods) + 1, pieces - 2, pieces - 1} {
		n := 0
		by.GoOn = func() error {
			if n++; n > end {
				return gone
			}
			return nil
		}
		if _, err := Plan(t.Context(), a.state.View(), by, nil, pods); !errors.Is(err, gone) || n != end+1 {
			t.Fatalf("after %d pieces: %v, and %d more", end, err, n-end-1)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	by.GoOn = nil
	if _, err := Plan(ctx, a.state.View(), by, nil, pods); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "not finished") {
		t.Error(err)
	}
}
