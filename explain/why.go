package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
)

// Refused says why a question about a pod has no answer: Forbidden, BadRequest,
// NotFound or Expired.
type Refused struct {
	Reason metav1.StatusReason
	Text   string
}

func (r *Refused) Error() string { return r.Text }

func refusedf(reason metav1.StatusReason, format string, values ...any) error {
	return &Refused{reason, fmt.Sprintf(format, values...)}
}

const (
	// maxHistory bounds the decisions of one answer, and maxOthers the other pods of
	// the name.
	maxHistory = 100
	maxOthers  = 16
)

// Question is one question about a pod.
type Question struct {
	// Namespace and Pod name it; Pod may be its UID.
	Namespace, Pod string
	// UID chooses one of those that had the name; "": the one that is there, or
	// else the last.
	UID types.UID
	// At is the revision whose decision is asked for; 0: now.
	At int64
	// Nodes asks for every node's own verdict.
	Nodes bool
	// MayReadBudgets tells of which namespaces the asker may read the disruption budgets; nil: of those whose pods he may read.
	MayReadBudgets func(namespace string) bool
	// GoOn is asked before each node, and may take its time to let others work. An error ends the answer; nil: it goes on.
	GoOn func() error
}

// Why answers why a pod is where it is. mayRead tells of which namespaces the
// asker may read the pods (PR20); it is asked often, and ends ctx when it cannot
// tell: nothing more is asked then. Errors are *Refused, or those of ctx.
func Why(
	ctx context.Context, view *fsm.View, asked Question, mayRead func(namespace string) bool,
) (*ledger.Answer, error) {
	q := &question{Question: asked, view: view, mayRead: mayRead}
	return q.answer(ctx)
}

type question struct {
	Question
	view    *fsm.View
	mayRead func(namespace string) bool
}

func (q *question) answer(ctx context.Context) (*ledger.Answer, error) {
	v := q.view
	reach := v.LedgerReach()
	switch {
	case !q.mayRead(q.Namespace):
		return nil, refusedf(metav1.StatusReasonForbidden, "you may not read the pods of namespace %s", q.Namespace)
	case q.At > v.Revision():
		return nil, refusedf(metav1.StatusReasonBadRequest, "revision %d has not come yet: the state is at %d",
			q.At, v.Revision())
	case q.At > 0 && q.At < reach:
		return nil, refusedf(metav1.StatusReasonExpired,
			"the ledger reaches back to revision %d; what was decided at revision %d is no longer in it", reach, q.At)
	}
	a := &ledger.Answer{Namespace: q.Namespace, Name: q.Pod, Revision: v.Revision(), At: q.At, ReachesBackTo: reach}
	pod, there := v.Pods.Get(fsm.PodKey(q.Namespace, q.Pod))
	if !there && q.UID == "" {
		q.byUID(a)
	}
	q.choose(a, pod)
	there = there && pod.UID == a.UID
	q.addDecisions(ctx, a)
	q.addPreemptions(ctx, a)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("the answer was not finished: %w", err)
	}
	if !there && len(a.Decisions)+len(a.For)+len(a.Against)+len(a.AwaitedBy) == 0 {
		return nil, refusedf(metav1.StatusReasonNotFound,
			"there is no pod %s in namespace %s, and neither the ledger nor a preemption names one", q.asked(), q.Namespace)
	}
	if there && q.At == 0 && (q.Nodes || pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil) {
		var err error
		if a.Now, err = q.askNodes(ctx, pod); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// asked is how the pod was named.
func (q *question) asked() string {
	if q.UID == "" {
		return q.Pod
	}
	return fmt.Sprintf("%s of UID %s", q.Pod, q.UID)
}

// choose decides of which of those that had the name the answer tells: who was
// asked for, who is there, or the last. Of an earlier revision, that is the last
// about whom something had been decided. The others are named.
func (q *question) choose(a *ledger.Answer, pod *corev1.Pod) {
	all := q.namesakes(a)
	switch {
	case q.UID != "":
		a.UID = q.UID
	case a.UID != "": // found by it
	case pod != nil && (q.At == 0 || len(all) == 0):
		a.UID = pod.UID
	case len(all) > 0:
		a.UID = all[0].UID
	}
	all = slices.DeleteFunc(all, func(n ledger.Namesake) bool { return n.UID == a.UID })
	a.Others = all[:min(len(all), maxOthers)]
}

// namesakes are all pods that had the name, as far as something is known of them,
// the last first.
func (q *question) namesakes(a *ledger.Answer) []ledger.Namesake {
	last := map[types.UID]int64{}
	q.view.DecisionsAbout(fsm.PodKey(a.Namespace, a.Name), "", q.At, func(_ *fsm.PlanRecord, d *fsm.Decision) bool {
		last[types.UID(d.UID)] = max(last[types.UID(d.UID)], d.Revision)
		return true
	})
	q.view.Preemptions.Scan("", func(_ string, p *berthv1.Preemption) bool {
		if q.At > 0 && p.Status.Revision > q.At {
			return true
		}
		note := func(ns, name string, uid types.UID) {
			if ns == a.Namespace && name == a.Name {
				last[uid] = max(last[uid], p.Status.Revision)
			}
		}
		note(p.Status.Preemptor.Namespace, p.Status.Preemptor.Name, p.Status.Preemptor.UID)
		for i := range p.Status.Victims {
			v := &p.Status.Victims[i]
			note(v.Namespace, v.Name, v.UID)
		}
		return true
	})
	var all []ledger.Namesake
	for uid, revision := range last {
		all = append(all, ledger.Namesake{UID: uid, Revision: revision})
	}
	slices.SortFunc(all, func(x, y ledger.Namesake) int {
		return cmp.Or(cmp.Compare(y.Revision, x.Revision), cmp.Compare(x.UID, y.UID))
	})
	return all
}

// byUID takes what was asked for as a UID, if a pod of the namespace has it or
// had it.
func (q *question) byUID(a *ledger.Answer) {
	uid, prefix := types.UID(q.Pod), q.Namespace+"/"
	take := func(key string) bool {
		name, ours := strings.CutPrefix(key, prefix)
		if ours {
			a.Name, a.UID = name, uid
		}
		return ours
	}
	found := false
	q.view.Preemptions.Scan("", func(_ string, p *berthv1.Preemption) bool {
		for _, v := range p.Status.Victims {
			found = found || v.UID == uid && take(fsm.PodKey(v.Namespace, v.Name))
		}
		return !found
	})
	if found {
		return
	}
	q.view.Decisions.Scan("", func(_ string, r *fsm.PlanRecord) bool {
		for i := range r.Decisions {
			found = found || r.Decisions[i].UID == q.Pod && take(r.Decisions[i].Key)
		}
		return !found
	})
}

func (q *question) addDecisions(ctx context.Context, a *ledger.Answer) {
	q.view.DecisionsAbout(fsm.PodKey(a.Namespace, a.Name), a.UID, q.At, func(r *fsm.PlanRecord, d *fsm.Decision) bool {
		out := ledger.Decision{
			Kind: d.Kind.String(), UID: types.UID(d.UID), Refused: fsm.ShownRefusal(d.Refused, q.mayRead), Revision: d.Revision, RaftIndex: r.Index,
			Term: r.Term, DecidedAtRevision: r.DecidedAtRevision, Node: d.Node, Feasible: d.Feasible, Score: d.Score,
			RunnerUp: d.RunnerUp,
			Time:     metav1.NewMicroTime(time.Unix(0, r.TimeUnixNano).UTC().Truncate(time.Microsecond)),
		}
		_, out.Preemption, _ = strings.Cut(d.Preemption, "/")
		if why := r.Why(d); why != nil {
			out.Nodes, out.Message, out.Reasons = why.Nodes, budgets.Shown(why.Message, q.mayReadBudgets), why.API()
		}
		a.Decisions = append(a.Decisions, out)
		return q.At == 0 && len(a.Decisions) < maxHistory && ctx.Err() == nil
	})
}

// addPreemptions looks up who made room for the pod, who had it evicted, and who
// waited for it, because it was ending anyway.
func (q *question) addPreemptions(ctx context.Context, a *ledger.Answer) {
	is := func(ns, name string, uid types.UID) bool {
		return ns == a.Namespace && name == a.Name && uid == a.UID
	}
	q.view.Preemptions.Scan("", func(_ string, p *berthv1.Preemption) bool {
		if q.At > 0 && p.Status.Revision > q.At {
			return true
		}
		if ref := p.Status.Preemptor; is(ref.Namespace, ref.Name, ref.UID) {
			a.For = append(a.For, q.shown(p))
		}
		for i := range p.Status.Victims {
			switch v := &p.Status.Victims[i]; {
			case !is(v.Namespace, v.Name, v.UID):
			case v.WaitedFor:
				a.AwaitedBy = append(a.AwaitedBy, q.shown(p))
			default:
				a.Against = append(a.Against, q.shown(p))
			}
		}
		return ctx.Err() == nil
	})
	for _, list := range [][]berthv1.Preemption{a.For, a.Against, a.AwaitedBy} {
		slices.SortFunc(list, func(x, y berthv1.Preemption) int { return cmp.Compare(x.Status.Revision, y.Status.Revision) })
	}
}

// shown is a preemption as the asker may see it (PR20).
func (q *question) shown(p *berthv1.Preemption) berthv1.Preemption {
	out := *p.DeepCopy()
	if ref := &out.Status.Preemptor; !q.mayRead(ref.Namespace) {
		ref.Namespace, ref.Name, ref.Priority = "", "", 0
		out.ObjectMeta = metav1.ObjectMeta{UID: out.UID}
	}
	for i := range out.Status.Victims {
		if v := &out.Status.Victims[i]; !q.mayRead(v.Namespace) {
			v.Namespace, v.Name, v.Priority = "", "", 0
		}
	}
	return out
}
