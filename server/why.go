package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// unanswered refuses a question about a pod.
type unanswered struct {
	code   int
	reason metav1.StatusReason
	text   string
}

func (u *unanswered) Error() string { return u.text }

func unansweredf(code int, reason metav1.StatusReason, format string, values ...any) error {
	return &unanswered{code, reason, fmt.Sprintf(format, values...)}
}

// maxHistory bounds the decisions of one answer.
const maxHistory = 100

// why answers why a pod is where it is.
func (s *Server) why(r *http.Request) (any, error) {
	q, err := askedAbout(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if err := s.ReadIndex(r.Context()); err != nil {
		return nil, err
	}
	q.view = s.state.View()
	q.mayRead = readable(r.Context())
	return q.answer(r.Context())
}

// readable tells of which namespaces a request's user may read the pods, and
// asks for each once.
func readable(ctx context.Context) func(namespace string) bool {
	known := map[string]bool{}
	return func(ns string) bool {
		may, ok := known[ns]
		if !ok {
			may = apiserver.MayReadPods(ctx, ns)
			known[ns] = may
		}
		return may
	}
}

// question is one question about a pod.
type question struct {
	namespace, pod string
	at             int64
	nodes          bool

	view    *fsm.View
	mayRead func(namespace string) bool
}

func askedAbout(values url.Values) (*question, error) {
	q := &question{
		namespace: values.Get(ledger.ParamNamespace), pod: values.Get(ledger.ParamPod),
		nodes: values.Get(ledger.ParamNodes) == "true",
	}
	if q.namespace == "" || q.pod == "" {
		return nil, fmt.Errorf("%w: both %s and %s must be given", errBadRequest, ledger.ParamNamespace, ledger.ParamPod)
	}
	if text := values.Get(ledger.ParamAt); text != "" {
		var err error
		if q.at, err = strconv.ParseInt(text, 10, 64); err != nil || q.at <= 0 {
			return nil, fmt.Errorf("%w: %q is not a revision", errBadRequest, text)
		}
	}
	return q, nil
}

func (q *question) answer(ctx context.Context) (*ledger.Answer, error) {
	v := q.view
	reach := v.LedgerReach()
	switch {
	case !q.mayRead(q.namespace):
		return nil, unansweredf(http.StatusForbidden, metav1.StatusReasonForbidden, "you may not read the pods of namespace %s", q.namespace)
	case q.at > v.Revision():
		return nil, unansweredf(http.StatusBadRequest, metav1.StatusReasonBadRequest, "revision %d has not come yet: the state is at %d", q.at, v.Revision())
	case q.at > 0 && q.at < reach:
		return nil, unansweredf(http.StatusGone, metav1.StatusReasonExpired, "the ledger reaches back to revision %d; what was decided at revision %d is no longer in it", reach, q.at)
	}
	a := &ledger.Answer{Namespace: q.namespace, Name: q.pod, Revision: v.Revision(), At: q.at, ReachesBackTo: reach}
	pod, there := v.Pods.Get(fsm.PodKey(q.namespace, q.pod))
	if there {
		a.UID = pod.UID
	} else {
		q.byUID(a)
	}
	q.addDecisions(a)
	q.addPreemptions(a)
	if !there && len(a.Decisions)+len(a.For)+len(a.Against) == 0 {
		return nil, unansweredf(http.StatusNotFound, metav1.StatusReasonNotFound, "there is no pod %s in namespace %s, and neither the ledger nor a preemption names one", q.pod, q.namespace)
	}
	if there && q.at == 0 && (q.nodes || pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil) {
		var err error
		if a.Now, err = q.askNodes(ctx, pod); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// byUID takes what was asked for as a UID, if a pod of the namespace has it or
// had it.
func (q *question) byUID(a *ledger.Answer) {
	uid, prefix := types.UID(q.pod), q.namespace+"/"
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
			found = found || r.Decisions[i].UID == q.pod && take(r.Decisions[i].Key)
		}
		return !found
	})
}

func (q *question) addDecisions(a *ledger.Answer) {
	q.view.DecisionsAbout(fsm.PodKey(a.Namespace, a.Name), a.UID, q.at, func(r *fsm.PlanRecord, d *fsm.Decision) bool {
		out := ledger.Decision{
			Kind: d.Kind.String(), UID: types.UID(d.UID), Refused: d.Refused, Revision: d.Revision, RaftIndex: r.Index,
			Term: r.Term, DecidedAtRevision: r.DecidedAtRevision, Node: d.Node, Feasible: d.Feasible, Score: d.Score, RunnerUp: d.RunnerUp,
			Time: metav1.NewMicroTime(time.Unix(0, r.TimeUnixNano).UTC().Truncate(time.Microsecond)),
		}
		_, out.Preemption, _ = strings.Cut(d.Preemption, "/")
		if why := r.Why(d); why != nil {
			out.Nodes, out.Message, out.Reasons = why.Nodes, why.Message, why.API()
		}
		a.Decisions = append(a.Decisions, out)
		return q.at == 0 && len(a.Decisions) < maxHistory
	})
}

// addPreemptions looks up who made room for the pod, and who had it evicted.
func (q *question) addPreemptions(a *ledger.Answer) {
	is := func(ns, name string, uid types.UID) bool {
		return ns == a.Namespace && name == a.Name && (a.UID == "" || uid == "" || uid == a.UID)
	}
	q.view.Preemptions.Scan("", func(_ string, p *berthv1.Preemption) bool {
		if q.at > 0 && p.Status.Revision > q.at {
			return true
		}
		if ref := p.Status.Preemptor; is(ref.Namespace, ref.Name, ref.UID) {
			a.For = append(a.For, q.shown(p))
		}
		if slices.ContainsFunc(p.Status.Victims, func(v berthv1.Victim) bool { return is(v.Namespace, v.Name, v.UID) }) {
			a.Against = append(a.Against, q.shown(p))
		}
		return true
	})
	for _, list := range [][]berthv1.Preemption{a.For, a.Against} {
		slices.SortFunc(list, func(x, y berthv1.Preemption) int { return cmp.Compare(x.Status.Revision, y.Status.Revision) })
	}
}

// shown is a preemption as the asker may see it (PR20).
func (q *question) shown(p *berthv1.Preemption) berthv1.Preemption {
	out := *p.DeepCopy()
	if ref := &out.Status.Preemptor; !q.mayRead(ref.Namespace) {
		ref.Namespace, ref.Name = "", ""
		out.ObjectMeta = metav1.ObjectMeta{UID: out.UID}
	}
	for i := range out.Status.Victims {
		if v := &out.Status.Victims[i]; !q.mayRead(v.Namespace) {
			v.Namespace, v.Name = "", ""
		}
	}
	return out
}

// maxExamples is how many nodes are named for each refusal.
const maxExamples = 5

// askNodes lets every node speak, and sums up what they say.
func (q *question) askNodes(ctx context.Context, pod *corev1.Pod) (*ledger.Nodes, error) {
	out := &ledger.Nodes{}
	var all []*refusal
	byText := map[string]*refusal{}
	who := newNaming(q)
	verdicts, err := sched.Explain(ctx, q.view, pod)
	if err != nil {
		return nil, err
	}
	for _, verdict := range verdicts {
		out.Total++
		if q.nodes {
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
	out := ledger.NodeVerdict{Node: v.Node, Preemption: v.Preemption, Victims: q.shownKeys(v.Victims), Ending: q.shownKeys(v.Ending)}
	for _, r := range v.Reasons {
		text := r.Explain()
		if len(r.Blockers) > 0 {
			all := rally{reason: r.Text()}
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
