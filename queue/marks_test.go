package queue

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/model"
)

// plainState is one in which no rule is added to anybody's.
type plainState struct{ budgets bool }

func (plainState) RuledClass(_ string, c *model.Class) *model.Class { return c }
func (plainState) Topology() *model.Topology                        { return model.NewTopology() }
func (plainState) JudgeCost(*model.Class) int                       { return 0 }
func (plainState) MayEvict(*model.Class) bool                       { return true }
func (s plainState) MindsBudgets(*model.Class, int64) bool          { return s.budgets }
func (plainState) DefaultsCost(*Group) int                          { return 0 }
func (plainState) NamespaceLabels(string) map[string]string         { return nil }

// TestForgottenConcernsWhomeverAMarkDoes (QU8): what is forgotten counts as having happened, for whomever.
func TestForgottenConcernsWhomeverAMarkDoes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"app": "web"}}}
		pod.Spec.Affinity = &corev1.Affinity{}
		terms := []corev1.PodAffinityTerm{{TopologyKey: "zone", LabelSelector: web}}
		if rapid.Bool().Draw(t, "spread") {
			pod.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
				TopologyKey: "zone", MaxSkew: 1, LabelSelector: web,
				WhenUnsatisfiable: rapid.SampledFrom([]corev1.UnsatisfiableConstraintAction{
					corev1.DoNotSchedule, corev1.ScheduleAnyway}).Draw(t, "how"),
			}}
		}
		if rapid.Bool().Draw(t, "near") {
			pod.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
		if rapid.Bool().Draw(t, "far") {
			pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
		}
		e := NewEntry(pod, model.ClassOf(pod), 1, 1)
		e.KeptAway = rapid.Bool().Draw(t, "kept away")
		e.ByDefaults = len(pod.Spec.TopologySpreadConstraints) == 0 && rapid.Bool().Draw(t, "by defaults")
		g := &Group{Class: e.Class(), Key: e.Group(), Rules: e.Class()}
		d := &Diagnosis{}
		if rapid.Bool().Draw(t, "was kept away") {
			d.Reasons = []ReasonCount{{Kind: model.ExistingAntiAffinity}}
		}
		change := PodChange{Pod: model.ClassOf(pod), Node: "n", How: rapid.SampledFrom([]model.PodChange{
			model.PodCame, model.PodLeft, model.PodLeaving, model.PodGone}).Draw(t, "change")}
		m := rapid.SampledFrom([]*PodMark{
			MarkOf(change), {Domains: true}, {Defaults: true}, {Budgets: true, Below: 5},
		}).Draw(t, "mark")
		s := plainState{budgets: rapid.Bool().Draw(t, "minds budgets")}
		if x := new(Index); x.Concerns(s, m, g, d) && !x.Concerns(s, Forgotten(7), g, d) {
			t.Fatalf("%+v concerns the group, and that it is forgotten does not", m)
		}
	})
}
