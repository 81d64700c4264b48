package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
)

// Works that others are asked about may take as long as those do. They are no part of those that
// a reconciler has under way, and those of one namespace are not in the way of the others'.
const (
	worksAsked            = 128
	worksAskedOfNamespace = 8
)

func namespaceOf(w controller.Work) string {
	namespace, _, _ := strings.Cut(w.For, "/")
	return namespace
}

// errBroke is of a question that panicked.
var errBroke = errors.New("to ask admission policies and webhooks was broken off by a mistake of Berth's, which its log tells")

// sendAsked has others asked about a work, unless too many are waiting for their answers.
func (l *workLoop) sendAsked(ctx context.Context, m *member, w controller.Work) {
	namespace := namespaceOf(w)
	if m.asked >= worksAsked || l.asking[namespace] >= worksAskedOfNamespace {
		refused := make([]fsm.Result, len(w.Commands))
		for i := range refused {
			refused[i] = fsm.Result{
				Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
				Message: fmt.Sprintf("admission policies and webhooks are asked about pods of %d other workloads of the namespace %s", l.asking[namespace], namespace),
			}
		}
		l.settle(finishedWork{by: m, o: controller.Outcome{Work: w, Results: refused}})
		return
	}
	if l.asking == nil {
		l.asking = map[string]int{}
	}
	m.underWay--
	m.asked++
	l.asking[namespace]++
	go func() {
		var results []fsm.Result
		err := l.guard.Or().Call("controllers/asked", errBroke, func() (err error) {
			results, err = l.ask(ctx, w)
			return err
		})
		l.done <- finishedWork{by: m, o: controller.Outcome{Work: w, Results: results, Err: err}, asked: true}
	}()
}

// asksOthers says whether a work makes pods that a policy or a webhook may be about.
func (s *Server) asksOthers(w controller.Work) bool {
	return slices.ContainsFunc(w.Commands, func(c fsm.Command) bool { _, ok := c.(*fsm.AdmitPods); return ok }) && s.api.AsksAboutPods()
}

// askOthers asks about every pod of a work, and proposes those that were taken with the rest of it.
// The results are those of the work's own commands.
func (s *Server) askOthers(ctx context.Context, w controller.Work) ([]fsm.Result, error) {
	var commands []fsm.Command
	ends, refusals := make([]int, len(w.Commands)), make([]error, len(w.Commands))
	for i, c := range w.Commands {
		if pods, ok := c.(*fsm.AdmitPods); ok {
			made, refusal := s.api.AskAboutPods(ctx, pods)
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			for _, m := range made {
				commands = append(commands, m)
			}
			refusals[i] = refusal
		} else {
			commands = append(commands, c)
		}
		ends[i] = len(commands)
	}
	var done []fsm.Result
	if len(commands) > 0 {
		wait, err := s.proposeWork(controller.Work{For: w.For, Commands: commands, Seen: w.Seen})
		if err != nil {
			return nil, err
		}
		if done, err = wait(ctx); err != nil {
			return nil, err
		}
	}
	results := make([]fsm.Result, len(w.Commands))
	begin := 0
	for i, end := range ends {
		results[i] = together(done[begin:end], refusals[i])
		begin = end
	}
	return results, nil
}

// together is what became of a command that was carried out in parts, some of which were refused
// before.
func together(parts []fsm.Result, refusal error) (out fsm.Result) {
	var revision int64
	if refusal != nil {
		out = apiserver.RefusalOf(refusal)
	}
	for _, part := range parts {
		revision = max(revision, part.Revision)
		if !out.Refused() {
			out = part
		}
	}
	out.Revision = revision
	return out
}
