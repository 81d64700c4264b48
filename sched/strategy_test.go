package sched

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestStrategies holds the scores against kube-scheduler's formulas, written down as plainly as they are in its
// documents.
func TestStrategies(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawStrategy(t, rapid.SampledFrom([]berthv1.ScoringStrategyType{
			berthv1.LeastAllocated, berthv1.MostAllocated, berthv1.RequestedToCapacityRatioStrategy}).Draw(t, "type"),
			"cpu", "memory", "ephemeral-storage", "example.com/gpu")
		amount := rapid.Int64Range(0, 200)
		resources := func(what string) model.Resources {
			r := model.Resources{MilliCPU: amount.Draw(t, what), MemoryBytes: amount.Draw(t, what),
				EphemeralStorageBytes: amount.Draw(t, what)}
			if gpus := amount.Draw(t, what); gpus > 0 {
				r.Scalars = []model.Scalar{{Name: "example.com/gpu", Value: gpus}}
			}
			return r
		}
		alloc, u, c := resources("capacity"), &model.Usage{}, &model.Class{}
		u.Requested, u.NonZero = resources("used"), resources("counted")
		c.Request, c.NonZero = resources("asked"), resources("asked at least")
		want := plainFit(s, c, alloc, u)
		one := &strategy{kind: s.Type, resources: s.Resources}
		if s.RequestedToCapacityRatio != nil {
			one.shape = s.RequestedToCapacityRatio.Shape
		}
		if got := one.score(c, &alloc, u); got != want {
			t.Fatalf("%+v: %d, want %d", *s, got, want)
		}
		plain := berthv1.ScoringStrategy{Type: berthv1.LeastAllocated,
			Resources: (&berthv1.SchedulerProfile{}).ScoringStrategy().Resources}
		if compileStrategy(plain) != nil {
			t.Fatal("the default is not the default")
		}
		if got, want := (&strategy{kind: plain.Type, resources: plain.Resources}).score(c, &alloc, u),
			leastAllocated(c, &alloc, u); got != want {
			t.Fatalf("the default scores %d, said in words %d", want, got)
		}
	})
}

// TestAddedAffinity: what a profile asks of nodes holds for its pods and for no others: in a decision, in a preemption,
// when it is applied, and in why. When it changes those who wait are tried again.
func TestAddedAffinity(t *testing.T) {
	added := func(value string) func(*berthv1.SchedulerConfigurationSpec) {
		return func(s *berthv1.SchedulerConfigurationSpec) {
			s.Profiles = s.Profiles[:1]
			s.Profiles = append(s.Profiles, berthv1.SchedulerProfile{SchedulerName: "pool",
				PluginConfig: []berthv1.PluginConfig{{
					Name: berthv1.PluginNodeAffinity, Args: berthv1.PluginArguments{AddedAffinity: &corev1.NodeAffinity{
						RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
							NodeSelectorTerms: []corev1.NodeSelectorTerm{{
								MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "pool", Operator: corev1.NodeSelectorOpIn,
									Values: []string{value}}}}}},
					}}}}})
		}
	}
	h := newHarness()
	h.Configure(added("a"))
	h.PutNode(clustertest.Node("n1 cpu=8 label=pool=a"))
	h.PutNode(clustertest.Node("n2 cpu=80 label=pool=b"))
	for i := range 5 {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d cpu=1 scheduler=pool", i)))
	}
	h.AdmitPod(clustertest.Pod("other cpu=1"))
	h.run()
	for i := range 5 {
		if p, _ := h.State.View().Pods.Get(fmt.Sprintf("default/p%d", i)); p.Spec.NodeName != "n1" {
			t.Errorf("p%d is on %q", i, p.Spec.NodeName)
		}
	}
	if p, _ := h.State.View().Pods.Get("default/other"); p.Spec.NodeName != "n2" {
		t.Errorf("a pod of another profile is on %q", p.Spec.NodeName)
	}
	h.AdmitPod(clustertest.Pod("large cpu=9 scheduler=pool"))
	p := h.next(1)
	d := p.Command.Failures[0].Diagnosis
	const want = "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) didn't match scheduler-enforced node affinity."
	if !strings.HasPrefix(d.Message, want) {
		t.Errorf("it fails with %q", d.Message)
	}
	h.commit(p)
	pod, _ := h.State.View().Pods.Get("default/large")
	verdict := explainAll(h.State.View(), pod)[1]
	if len(verdict.Reasons) != 1 || verdict.Reasons[0].Detail != "by the profile pool" {
		t.Errorf("why says %+v", verdict)
	}
	r := h.Must(&fsm.ApplyPlan{Revision: h.State.View().Revision(),
		Bindings: []fsm.BindDecision{{Key: "default/large", UID: "uid-large", Node: "n2"}}})
	if len(r.Plan.Refused) != 1 {
		t.Error("a binding beside the profile's affinity is not refused")
	}
	h.Configure(added("b"))
	h.NowUnixNano += 60 * second
	h.run()
	if pod, _ = h.State.View().Pods.Get("default/large"); pod.Spec.NodeName != "n2" {
		t.Errorf("after the change it is on %q", pod.Spec.NodeName)
	}
	scheduled := false
	h.State.View().Events.Scan("", func(_ string, e *corev1.Event) bool {
		if e.Reason == "Scheduled" && e.InvolvedObject.Name == "large" {
			scheduled = e.Source.Component == "pool" && e.ReportingController == "pool"
		}
		return true
	})
	if !scheduled {
		t.Error("its event does not name the profile")
	}
}

// TestStrategyPacks: a profile that prefers what is allocated fills one node before the next.
func TestStrategyPacks(t *testing.T) {
	h := newHarness()
	h.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		s.Profiles = append(s.Profiles, berthv1.SchedulerProfile{SchedulerName: "packed",
			PluginConfig: []berthv1.PluginConfig{{
				Name: berthv1.PluginNodeResourcesFit,
				Args: berthv1.PluginArguments{ScoringStrategy: &berthv1.ScoringStrategy{Type: berthv1.MostAllocated}}}},
			Plugins: berthv1.ProfilePlugins{Disabled: []string{berthv1.PluginNodeResourcesBalancedAllocation}}})
	})
	for i := range 4 {
		h.PutNode(clustertest.Node(fmt.Sprintf("n%d cpu=4 mem=8Gi", i)))
	}
	for i := range 4 {
		h.AdmitPod(clustertest.Pod(fmt.Sprintf("p%d cpu=1 mem=1Gi scheduler=packed", i)))
	}
	h.run()
	on := map[string]int{}
	h.State.View().Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		on[p.Spec.NodeName]++
		return true
	})
	if len(on) != 1 {
		t.Errorf("four pods that one node can take are on %v", on)
	}
}
