package server

import (
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
	return explain.Why(r.Context(), s.state.View(), q, readable(r.Context(), apiserver.MayReadPods))
}

// readable tells of which namespaces a request's user may read something, and
// asks for each once.
func readable(ctx context.Context, mayRead func(ctx context.Context, namespace string) bool) func(namespace string) bool {
	known := map[string]bool{}
	return func(ns string) bool {
		may, ok := known[ns]
		if !ok {
			may = mayRead(ctx, ns)
			known[ns] = may
		}
		return may
	}
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
	by := explain.Planner{
		Asker:       whatif.Asker{User: user, Groups: groups, GoOn: func() error { return apiserver.GoOn(ctx) }},
		MayReadPods: readable(ctx, apiserver.MayReadPods), MayReadBudgets: readable(ctx, apiserver.MayReadBudgets),
	}
	return explain.Plan(ctx, view, by, setup, pods)
}

// ScaleIn implements apiserver.Planner.
func (p planner) ScaleIn(view *fsm.View, rs *appsv1.ReplicaSet, fewer int) []berthv1.PlanRemoval {
	return explain.ScaleIn(view, rs, fewer, p.clock.NowUnixNano())
}
