package apiserver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

var aPlan = &request.RequestInfo{IsResourceRequest: true, Verb: "create", APIGroup: "berth.dev", Resource: "plans"}

// plansFor is a request's context, by somebody.
func plansFor(ctx context.Context, all *turns, name string) context.Context {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: name})
	return context.WithValue(ctx, answerKey{}, &answer{share: &fairShare{turns: all}, client: name})
}

// What a plan computes is held to its user's share while another asks, and so is what encodes its answer.
func TestPlansArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const lasts, share = 10 * time.Second, 0.25
		all := &turns{free: 1, pace: pace{share: share}, plans: &turns{free: 1}}
		ctx, cancel := context.WithTimeout(plansFor(t.Context(), all, "storm"), lasts)
		var asking sync.WaitGroup
		defer asking.Wait()
		defer cancel()
		asking.Go(func() {
			for ctx.Err() == nil {
				all.pace.ask("calm")
				<-time.After(asksFor / 2)
			}
		})
		ctx, mine, err := beginPlan(ctx)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Duration(0)
		for {
			if !mine.held || all.free != 0 || all.plans.free != 0 {
				t.Fatalf("a plan has a turn: %t, %d turns and %d rooms are free", mine.held, all.free, all.plans.free)
			}
			<-time.After(turnSlice) // it computes
			took += turnSlice
			if err := GoOn(ctx); err != nil {
				break
			}
		}
		mine.end(int(10 * time.Second / placementCosts))
		want := paceBurst + time.Duration(float64(lasts)*share)
		if slack := 2*asksFor + paceDebt; took > want+slack || took < want-slack {
			t.Errorf("a plan computed for %s of %s, and not %s", took, lasts, want)
		}
		if all.free != 1 || all.plans.free != 1 {
			t.Errorf("after it %d turns and %d rooms are free", all.free, all.plans.free)
		}
		if left := all.pace.accounts["storm"].left; left != -paceDebt {
			t.Errorf("after a long answer %s are left", left)
		}
	})
}

// What is as long as a plan and none has turns, and is charged, and takes no plan's room.
func TestLongAnswersHaveTurns(t *testing.T) {
	all := &turns{free: 1, pace: pace{share: 1}, plans: &turns{}}
	ctx, end, err := BeginLong(plansFor(t.Context(), all, "asks"))
	if err != nil {
		t.Fatal(err)
	}
	if all.free != 0 {
		t.Error("it has no turn")
	}
	if err := GoOn(ctx); err != nil {
		t.Error(err)
	}
	end()
	if all.free != 1 || all.pace.accounts["asks"] == nil || all.pace.accounts["asks"].left == paceBurst {
		t.Errorf("after it %d turns are free, %v is left", all.free, all.pace.accounts["asks"])
	}
	over, cancel := context.WithCancel(plansFor(t.Context(), all, "asks"))
	cancel()
	if _, _, err := BeginLong(over); !errors.Is(err, context.Canceled) {
		t.Errorf("one that is over: %v", err)
	}
}

// There are so many plans in memory and no more; an administrator's is not kept waiting for them.
func TestRoomForPlans(t *testing.T) {
	all := &turns{free: 9, plans: &turns{free: 1}}
	_, first, err := beginPlan(plansFor(t.Context(), all, "first"))
	if err != nil {
		t.Fatal(err)
	}
	over, cancel := context.WithCancel(t.Context())
	failed := make(chan error)
	go func() {
		_, _, err := beginPlan(plansFor(over, all, "second"))
		failed <- err
	}()
	eventually(t, "it waits", func() bool { return all.plans.inLine() == 1 })
	root := request.WithUser(plansFor(t.Context(), all, ""), &user.DefaultInfo{Name: "root", Groups: []string{"system:masters"}})
	_, own, err := beginPlan(root)
	if err != nil {
		t.Fatal(err)
	}
	own.end(0)
	cancel()
	if err := <-failed; !errors.Is(err, context.Canceled) {
		t.Errorf("one that is over: %v", err)
	}
	first.end(0)
	if all.free != 9 || all.plans.free != 1 {
		t.Errorf("%d turns and %d rooms are free", all.free, all.plans.free)
	}
}

// A second plan of one user's has no seat, and keeps nothing else of his waiting.
func TestOneUsersPlans(t *testing.T) {
	u := &userShare{most: 3, lists: 1, users: map[string]*atWork{}}
	var ends []func()
	begin := func(who string, info *request.RequestInfo) {
		t.Helper()
		_, end, err := u.begin(t.Context(), who, info)
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	begin("storm", aPlan)
	second := make(chan func())
	go func() {
		_, end, err := u.begin(t.Context(), "storm", aPlan)
		if err != nil {
			t.Error(err)
		}
		second <- end
	}()
	eventually(t, "it waits", func() bool {
		u.mu.Lock()
		defer u.mu.Unlock()
		return len(u.users["storm"].waiting) == 1
	})
	begin("storm", aGet)
	begin("calm", aPlan)
	ends[0]()
	for _, end := range append(ends[1:], <-second) {
		end()
	}
	if len(u.users) != 0 {
		t.Errorf("%d users are remembered", len(u.users))
	}
}

// endless plans until nobody waits any more.
type endless struct {
	fakePlanner
	begun, ended chan struct{}
}

func (e endless) Plan(ctx context.Context, _ *fsm.View, _ string, _ []string, _ []fsm.Command, _ []*corev1.Pod) (*berthv1.PlanStatus, error) {
	e.begun <- struct{}{}
	defer func() { e.ended <- struct{}{} }()
	for {
		if err := GoOn(ctx); err != nil {
			return nil, err
		}
	}
}

// A plan is over when its request is, though it is made by another goroutine than that which answers.
func TestPlansEndWithTheirRequests(t *testing.T) {
	e := endless{begun: make(chan struct{}, 1), ended: make(chan struct{}, 1)}
	s := start(t, newDouble(t), func(c *Config) { c.Planner = e })
	client := s.dynamic(t, "planner")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	answered := make(chan error, 1)
	go func() {
		_, err := client.Resource(berthv1.GroupVersion.WithResource(berthv1.ResourcePlans)).Create(ctx, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "berth.dev/v1", "kind": "Plan", "spec": map[string]any{"pods": []any{map[string]any{
				"metadata": map[string]any{"name": "p"}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "i"}}},
			}}},
		}}, metav1.CreateOptions{})
		answered <- err
	}()
	select {
	case <-e.begun:
	case err := <-answered:
		t.Fatal(err)
	}
	cancel()
	<-e.ended
	if err := <-answered; err == nil {
		t.Error("a plan without an end has an answer")
	}
	eventually(t, "nothing of it is left", func() bool {
		s.turns.mu.Lock()
		defer s.turns.mu.Unlock()
		s.turns.plans.mu.Lock()
		defer s.turns.plans.mu.Unlock()
		return s.turns.free == newTurns().free && s.turns.plans.free == plansAtWork
	})
}
