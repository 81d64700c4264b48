package server

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/clock"
	"github.com/berth-dev/berth/explain"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/whatif"
)

// why answers why a pod is where it is.
func (s *Server) why(r *http.Request) (any, error) {
	q, err := askedAbout(r.URL.Query())
	if err != nil {
		return nil, err
	}
	if err := s.ReadIndex(r.Context()); err != nil {
		return nil, err
	}
	ctx, endTurn, err := apiserver.BeginLong(r.Context())
	if err != nil {
		return nil, err
	}
	defer endTurn()
	ctx, end := context.WithCancel(ctx)
	defer end()
	q.GoOn = func() error { return apiserver.GoOn(ctx) }
	pods, disruptions := readable{ctx: ctx, end: end, mayRead: apiserver.MayReadPods}, readable{ctx: ctx, end: end, mayRead: apiserver.MayReadBudgets}
	q.MayReadBudgets = disruptions.in
	answer, err := explain.Why(ctx, s.state.View(), q, pods.in)
	if unknown := cmp.Or(pods.unknown, disruptions.unknown); unknown != nil {
		return nil, unknown
	}
	return answer, err
}

// readable tells of which namespaces a request's user may read something, and
// asks for each once. Once that cannot be told of one, no more is asked, and what is being made of it is ended: it would be no answer.
type readable struct {
	ctx     context.Context
	end     context.CancelFunc
	mayRead func(ctx context.Context, namespace string) (bool, error)
	known   map[string]bool
	unknown error
}

func (r *readable) in(ns string) bool {
	if r.unknown != nil {
		return false
	}
	may, ok := r.known[ns]
	if !ok {
		if r.known == nil {
			r.known = map[string]bool{}
		}
		may, r.unknown = r.mayRead(r.ctx, ns)
		r.known[ns] = may
		if r.unknown != nil {
			r.end()
		}
	}
	return may
}

func askedAbout(values url.Values) (explain.Question, error) {
	q := explain.Question{
		Namespace: values.Get(ledger.ParamNamespace), Pod: values.Get(ledger.ParamPod),
		UID: types.UID(values.Get(ledger.ParamUID)), Nodes: values.Get(ledger.ParamNodes) == "true",
	}
	if q.Namespace == "" || q.Pod == "" {
		return q, fmt.Errorf("%w: both %s and %s must be given", errBadRequest, ledger.ParamNamespace, ledger.ParamPod)
	}
	if text := values.Get(ledger.ParamAt); text != "" {
		var err error
		if q.At, err = strconv.ParseInt(text, 10, 64); err != nil || q.At <= 0 {
			return q, fmt.Errorf("%w: %q is not a revision", errBadRequest, text)
		}
	}
	return q, nil
}

// refusedCode is the code of what explain refuses for a reason.
func refusedCode(reason metav1.StatusReason) int {
	switch reason {
	case metav1.StatusReasonForbidden:
		return http.StatusForbidden
	case metav1.StatusReasonNotFound:
		return http.StatusNotFound
	case metav1.StatusReasonExpired:
		return http.StatusGone
	}
	return http.StatusBadRequest
}

// planner answers what would become of pods (apiserver.Planner).
type planner struct{ clock *clock.Clock }

// Plan implements apiserver.Planner.
func (planner) Plan(
	ctx context.Context, view *fsm.View, user string, groups []string, setup []fsm.Command, pods []*corev1.Pod,
) (*berthv1.PlanStatus, error) {
	ctx, end := context.WithCancel(ctx)
	defer end()
	mayReadPods, mayReadBudgets := readable{ctx: ctx, end: end, mayRead: apiserver.MayReadPods}, readable{ctx: ctx, end: end, mayRead: apiserver.MayReadBudgets}
	by := explain.Planner{
		Asker:       whatif.Asker{User: user, Groups: groups, GoOn: func() error { return apiserver.GoOn(ctx) }},
		MayReadPods: mayReadPods.in, MayReadBudgets: mayReadBudgets.in,
	}
	status, err := explain.Plan(ctx, view, by, setup, pods)
	if unknown := cmp.Or(mayReadPods.unknown, mayReadBudgets.unknown); unknown != nil {
		return nil, unknown
	}
	return status, err
}

// ScaleIn implements apiserver.Planner.
func (p planner) ScaleIn(view *fsm.View, rs *appsv1.ReplicaSet, fewer int) []berthv1.PlanRemoval {
	return explain.ScaleIn(view, rs, fewer, p.clock.NowUnixNano())
}
