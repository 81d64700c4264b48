package explain

import (
	"context"
	"slices"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched"
)

// maxExplained is for how many different pods without a place a plan says who
// is in their way: for each of them every node is asked.
const maxExplained = 3

// whoBars tells, of the pods of a plan that have no place, which others are in
// their way when everything that the plan places is there.
type whoBars struct {
	after   *fsm.View
	mayRead func(namespace string) bool
	known   map[string]map[string]string // words by reason, by what a pod asks for
	goOn    func() error
}

// tell adds to the reasons of a pod who they are about.
func (w *whoBars) tell(ctx context.Context, key string, reasons []berthv1.ReasonCount) error {
	pod, ok := w.after.Pods.Get(key)
	if !ok || !slices.ContainsFunc(reasons, aboutPods) {
		return nil
	}
	class := w.after.EffectiveClass(model.ClassOf(pod), pod).Signature
	words, ok := w.known[class]
	if !ok {
		if len(w.known) == maxExplained {
			return nil
		}
		words = map[string]string{}
		w.known[class] = words
		all := map[string]*gathered{}
		verdicts, err := sched.Explain(ctx, w.after, pod, w.goOn)
		if err != nil {
			return err
		}
		for _, v := range verdicts {
			for _, r := range v.Reasons {
				if all[r.Text()] == nil {
					all[r.Text()] = &gathered{}
				}
				all[r.Text()].blockers.add(r.Blockers)
				all[r.Text()].skews.add(r.Skews)
			}
		}
		who := newNaming(&question{Question: Question{Namespace: pod.Namespace}, mayRead: w.mayRead})
		// order does not matter: each reason by itself.
		for text, g := range all {
			if _, words[text] = who.told(&g.blockers); words[text] == "" {
				words[text] = g.skews.words()
			}
		}
	}
	for i := range reasons {
		if say := words[reasons[i].Reason]; say != "" {
			reasons[i].Detail = say
		}
	}
	return nil
}

// aboutPods says whether a reason is about pods that are there.
func aboutPods(r berthv1.ReasonCount) bool {
	for _, kind := range []model.ReasonKind{model.PodAntiAffinity, model.ExistingAntiAffinity, model.TopologySpread} {
		if r.Reason == (model.Reason{Kind: kind}).Text() {
			return true
		}
	}
	return false
}
