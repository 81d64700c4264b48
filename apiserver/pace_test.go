package apiserver

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// computes takes as much as it gets for a time, in slices, and says how much that was.
func (p *pace) computes(t *testing.T, user string, lasts time.Duration) (took time.Duration) {
	t.Helper()
	for end := time.Now().Add(lasts); time.Now().Before(end); {
		if err := p.take(t.Context(), user, 0); err != nil {
			t.Fatal(err)
		}
		<-time.After(turnSlice) // it computes
		p.charge(user, turnSlice)
		took += turnSlice
	}
	return took
}

// What one user computes is held to his share while another asks, and to nothing when nobody else does.
func TestPaceOfOneUserWhileOthersAsk(t *testing.T) {
	const lasts = 10 * time.Second
	for _, tc := range []struct {
		name  string
		share float64
		asks  string
		until time.Duration // he asks
		want  time.Duration
	}{
		{"nobody else asks", 0.25, "storm", lasts, lasts},
		{"another asks", 0.25, "calm", lasts, paceBurst + lasts/4},
		{"another has asked, and does no more", 0.25, "calm", lasts / 2, paceBurst + lasts/8 + lasts/2},
		{"there is no share", 0, "calm", lasts, lasts},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &pace{share: tc.share}
			began := time.Now()
			go func() {
				for time.Since(began) < tc.until {
					p.ask(tc.asks)
					<-time.After(asksFor / 2)
				}
			}()
			took := p.computes(t, "storm", lasts)
			if slack := 2*asksFor + paceDebt; took > tc.want+slack || took < tc.want-slack {
				t.Errorf("%s: it computed for %s of %s, and not %s", tc.name, took, lasts, tc.want)
			}
		})
	}
}

// A request whose user has nothing left waits as long as its context lasts, and another's does not.
func TestPaceWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pace{share: 0.25}
		p.ask("storm")
		p.ask("calm")
		p.charge("storm", 10*time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), paceDebt)
		defer cancel()
		if err := p.take(ctx, "storm", 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("who owes goes on: %v", err)
		}
		if err := p.take(t.Context(), "calm", time.Millisecond); err != nil {
			t.Error(err)
		}
		p.ask("calm")
		began := time.Now()
		if err := p.take(t.Context(), "storm", time.Millisecond); err != nil || time.Since(began) > 4*paceDebt {
			t.Errorf("what is owed is more than %s: it took %s, %v", paceDebt, time.Since(began), err)
		}
		<-time.After(10 * time.Second)
		p.charge("third", time.Millisecond)
		if len(p.accounts) != 1 {
			t.Errorf("%d accounts are remembered, and one is not full", len(p.accounts))
		}
	})
}

// What a request costs that looks at few rows is known before it begins.
func TestCostsOfRequests(t *testing.T) {
	for _, tc := range []struct {
		info request.RequestInfo
		want time.Duration
	}{
		{request.RequestInfo{Verb: "get"}, readCosts},
		{request.RequestInfo{IsResourceRequest: true, Verb: "get"}, readCosts},
		{request.RequestInfo{IsResourceRequest: true, Verb: "create"}, writeCosts},
		{request.RequestInfo{IsResourceRequest: true, Verb: "list", Namespace: "default"}, readCosts},
		{request.RequestInfo{IsResourceRequest: true, Verb: "list"}, readCosts},
		{request.RequestInfo{IsResourceRequest: true, Verb: "watch"}, readCosts},
		{*aPlan, 0},
	} {
		if got := costsOf(&tc.info); got != tc.want {
			t.Errorf("%+v: %s, and not %s", tc.info, got, tc.want)
		}
	}
}

// Who has nothing left has no turn while others ask, neither to begin with nor to go on; an administrator has.
func TestNoTurnForWhoHasNothingLeft(t *testing.T) {
	for _, paced := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			all := &turns{free: 1, pace: pace{share: 0.25}}
			mine := &turn{all: all, user: "storm", paced: paced, looked: rowsWithoutTurn}
			look := func() (waited bool) {
				all.pace.ask("calm")
				began := time.Now()
				if err := mine.look(t.Context()); err != nil {
					t.Fatal(err)
				}
				if !mine.held || all.free != 0 {
					t.Errorf("it has a turn: %t, %d are free", mine.held, all.free)
				}
				return time.Since(began) >= asksFor
			}
			all.pace.charge("storm", 10*time.Second)
			if waited := look(); waited != paced {
				t.Errorf("paced: %t, it waits to begin: %t", paced, waited)
			}
			all.pace.charge("storm", 10*time.Second)
			<-time.After(turnSlice)
			if waited := look(); waited != paced {
				t.Errorf("paced: %t, it waits to go on: %t", paced, waited)
			}
			mine.pause()
		})
	}
}

// Of who asks for more than he may, and has nothing left, requests wait that could begin, while others ask.
func TestCrowdedRequestsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := flowControl{shares: &userShare{most: 1, lists: 1, calm: 1, users: map[string]*atWork{}}, pace: &pace{share: 0.25}}
		f.pace.charge("storm", 10*time.Second)
		f.pace.ask("calm")
		ended := func(wait bool) {
			began := time.Now()
			end, err := f.begin(t.Context(), "storm", aGet)
			if err != nil {
				t.Error(err)
				return
			}
			if waited := time.Since(began) >= asksFor; waited != wait {
				t.Errorf("it waits: %t, and not %t", waited, wait)
			}
			end()
		}
		ended(false) // it is alone
		first, err := f.begin(t.Context(), "storm", aGet)
		if err != nil {
			t.Fatal(err)
		}
		var waiting sync.WaitGroup
		for range 2 {
			waiting.Go(func() { ended(true) })
			synctest.Wait()
		}
		f.pace.ask("calm")
		first()
		waiting.Wait()
	})
}
