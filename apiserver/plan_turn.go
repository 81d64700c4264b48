package apiserver

import (
	"context"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/api/berthv1"
)

const (
	// plansAtWork are in memory at a time, each with up to maxPlannedPods pods, and plansOfUser of them one user's: more of his wait
	// without a seat (userShare).
	plansAtWork, plansOfUser = 4, 1
	// placementCosts is what it costs to encode the answer for one pod, which is done in one piece, by experience.
	placementCosts = 10 * time.Microsecond
)

func isPlan(info *request.RequestInfo) bool {
	return info.IsResourceRequest && info.Verb == "create" && info.APIGroup == berthv1.GroupName && info.Resource == berthv1.ResourcePlans
}

// planTurn is a plan's part in the turns: the whole of it is computed in turns, and charged. It is not the request's own turn, since
// upstream computes what a request asks for in a goroutine that may outlive it.
type planTurn struct {
	*turn
	room bool
}

type planTurnKey struct{}

// beginPlan waits until a plan may begin. Its context lets GoOn do its part.
func beginPlan(ctx context.Context) (context.Context, *planTurn, error) {
	mine := &planTurn{}
	a := answerFrom(ctx)
	if a == nil {
		return ctx, mine, nil
	}
	all := a.share.turns
	if mine.turn = all.turnOf(ctx); mine.turn == nil {
		return ctx, mine, nil
	}
	if mine.paced {
		if err := all.plans.take(ctx, mine.user); err != nil {
			return nil, nil, err
		}
		mine.room = true
	}
	if err := mine.goOn(ctx); err != nil {
		mine.end(0)
		return nil, nil, err
	}
	return context.WithValue(ctx, planTurnKey{}, mine), mine, nil
}

// BeginLong waits until something may be computed that is long and no plan. Its context lets GoOn do its part; end has to be called.
func BeginLong(ctx context.Context) (_ context.Context, end func(), err error) {
	mine := &planTurn{}
	if a := answerFrom(ctx); a != nil {
		mine.turn = a.share.turns.turnOf(ctx)
	}
	if err := mine.goOn(ctx); err != nil {
		return nil, nil, err
	}
	return context.WithValue(ctx, planTurnKey{}, mine), func() { mine.end(0) }, nil
}

// end is for a plan whose answer tells of so many pods.
func (p *planTurn) end(placements int) {
	p.pause()
	if p.turn != nil && p.paced {
		p.all.pace.charge(p.user, time.Duration(placements)*placementCosts)
	}
	if p.room {
		p.room = false
		p.all.plans.done()
	}
}

// GoOn is called between the pieces of a plan, or of what is as long, by the goroutine that makes it: others may have a turn meanwhile. An error says that
// nobody waits for the plan any more.
func GoOn(ctx context.Context) error {
	if p, ok := ctx.Value(planTurnKey{}).(*planTurn); ok {
		return p.goOn(ctx)
	}
	return ctx.Err()
}

// withoutTurn does what waits for somebody, without a plan's turn where it is done for one. An error says that nobody waits for the plan
// any more.
func withoutTurn(ctx context.Context, wait func()) error {
	p, ok := ctx.Value(planTurnKey{}).(*planTurn)
	if !ok || !p.held {
		wait()
		return nil
	}
	p.pause()
	wait()
	return p.resume(ctx)
}

// goOn is called between two pieces of what is long from its beginning.
func (t *turn) goOn(ctx context.Context) error {
	if t == nil {
		return ctx.Err()
	}
	t.taken = true
	if t.held && t.all.contended.Load() && time.Since(t.began) >= turnSlice || t.overdrawn() {
		t.pause()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.resume(ctx)
}
