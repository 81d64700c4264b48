package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/sched"
	corev1 "k8s.io/api/core/v1"
)

// maxExamples is how many nodes are named for each refusal.
const maxExamples = 5

// askNodes lets every node speak, and sums up what they say.
func (q *question) askNodes(ctx context.Context, pod *corev1.Pod) (*ledger.Nodes, error) {
	out := &ledger.Nodes{}
	var all []*refusal
	byText := map[string]*refusal{}
	who := newNaming(q)
	verdicts, err := sched.Explain(ctx, q.view, pod, q.GoOn)
	if err != nil {
		return nil, err
	}
	for _, verdict := range verdicts {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("the answer was not finished: %w", err)
		}
		out.Total++
		if q.Nodes {
			out.Each = append(out.Each, q.nodeVerdict(&verdict, who))
		}
		if len(verdict.Reasons) == 0 {
			out.Fit++
			continue
		}
		key := ""
		for _, r := range verdict.Reasons {
			key += r.Text() + "\n"
		}
		one, ok := byText[key]
		if !ok {
			one = newRefusal(&verdict)
			byText[key], all = one, append(all, one)
		}
		one.add(&verdict)
	}
	slices.SortStableFunc(all, func(a, b *refusal) int { return cmp.Compare(b.nodes, a.nodes) })
	for _, r := range all {
		out.Refusals = append(out.Refusals, r.shown(who))
	}
	return out, nil
}

func (q *question) nodeVerdict(v *sched.NodeVerdict, who *naming) ledger.NodeVerdict {
	out := ledger.NodeVerdict{
		Node: v.Node, Preemption: budgets.Shown(v.Preemption, q.mayReadBudgets), Victims: q.shownKeys(v.Victims), Ending: q.shownKeys(v.Ending),
	}
	for _, r := range v.Reasons {
		text := r.Explain()
		if len(r.Blockers) > 0 {
			all := blockers{reason: r.Text()}
			all.add(r.Blockers)
			fields, words := who.told(&all)
			out.InTheWay = append(out.InTheWay, fields...)
			if all.kept() {
				text += "; " + words
			} else {
				text = r.Text() + ": " + words
			}
		}
		var skew skews
		skew.add(r.Skews)
		out.Skews = append(out.Skews, skew.of...)
		out.Reasons = append(out.Reasons, text)
	}
	return out
}

// shownKeys are pods as the asker may see them (PR20).
func (q *question) shownKeys(keys []string) []string {
	out := make([]string, 0, len(keys))
	for _, key := range keys {
		ns, _, _ := strings.Cut(key, "/")
		if pod, ok := q.view.Pods.Get(key); ok && !q.mayRead(ns) {
			key = string(pod.UID)
		}
		out = append(out, key)
	}
	return out
}

// mayReadBudgets says whether the asker may read the disruption budgets of a namespace.
func (q *question) mayReadBudgets(namespace string) bool {
	if q.MayReadBudgets == nil {
		return q.mayRead(namespace)
	}
	return q.MayReadBudgets(namespace)
}
