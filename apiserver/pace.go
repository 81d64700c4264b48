package apiserver

import (
	"context"
	"runtime"
	"sync"
	"time"
)

// pace is how fast one user's requests are worked on while others ask. Go and the machine serve everything alike that computes, so
// what one user's storm computes makes everybody wait. Here each user has an account of processor time, which fills by a share of the
// processors, and what his requests compute is taken from it. Whose account is empty waits as long as somebody else asks: a short
// request before it has a seat, a list between two rows and without a turn; when nobody does, nobody waits. What is computed in one
// piece (a table, YAML) can owe no more than paceDebt.
//
// The zero value lets everybody go on.
type pace struct {
	share float64 // of one processor, that an account fills by; 0: nobody waits

	mu       sync.Mutex
	accounts map[string]*account
	swept    time.Time // when accounts were looked at last of whom nobody has to know any more
	// The last two users that have asked for something short, or one and nobody.
	last, before seen
}

// account is one user's.
type account struct {
	left time.Duration // of processor time; less than 0: it is owed
	owed time.Duration // for single objects that were dear (owe)
	at   time.Time     // when that was so
}

type seen struct {
	user string
	at   time.Time
}

const (
	// paceBurst is what an account holds at the most, paceDebt what is owed at the most.
	paceBurst, paceDebt = time.Second, 100 * time.Millisecond
	// paceDeepDebt is what is owed at the most for one object (owe).
	paceDeepDebt = 2 * time.Second
	// paceShare is the part of the processors that compute lists, by which an account fills.
	paceShare = 4
	// asksFor is how long somebody counts as one who asks.
	asksFor = 200 * time.Millisecond
	// What a request costs that looks at few rows, by experience: of all servers' processor time. It is taken before it begins.
	writeCosts, readCosts = 3 * time.Millisecond, 300 * time.Microsecond
)

func newPace() pace { return pace{share: max(1, float64(runtime.GOMAXPROCS(0))/2) / paceShare} }

// ask takes note of a short request of a user's.
func (p *pace) ask(user string) {
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last.user != user {
		p.before = p.last
	}
	p.last = seen{user, now}
}

// othersAsk is called with mu held.
func (p *pace) othersAsk(user string, now time.Time) bool {
	other := p.last
	if other.user == user {
		other = p.before
	}
	return !other.at.IsZero() && now.Sub(other.at) < asksFor
}

// take waits until a user may compute, and takes what it will cost from his account.
func (p *pace) take(ctx context.Context, user string, costs time.Duration) error {
	return p.wait(ctx, func() time.Duration { return p.try(user, costs) })
}

// pay waits until a user owes nothing for what was dear.
func (p *pace) pay(ctx context.Context, user string) error {
	return p.wait(ctx, func() time.Duration { return p.tryOwed(user) })
}

// wait tries as often as it is told to wait.
func (p *pace) wait(ctx context.Context, try func() time.Duration) error {
	for {
		wait := try()
		if wait <= 0 {
			return nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// try is take for one who does not wait: it says how long he had to, and has taken nothing then.
func (p *pace) try(user string, costs time.Duration) (wait time.Duration) {
	if p.share == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	a := p.fill(user, now)
	if a.left <= 0 && p.othersAsk(user, now) {
		return time.Duration(float64(time.Microsecond-a.left) / p.share)
	}
	a.left = max(a.left-costs, -paceDebt)
	return 0
}

// tryOwed says how long a user has to wait until he owes nothing for what was dear.
func (p *pace) tryOwed(user string) time.Duration {
	if p.share == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	a := p.accounts[user]
	if a == nil || !p.othersAsk(user, now) {
		return 0
	}
	return time.Duration(float64(p.fill(user, now).owed) / p.share)
}

// charge takes from a user's account what was not known before.
func (p *pace) charge(user string, costs time.Duration) {
	if p.share == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.fill(user, time.Now())
	a.left = max(a.left-costs, -paceDebt)
}

// owe notes what one object costs that is far dearer than most. It is owed beside what the account holds, so that what is small and urgent
// need not wait for it.
func (p *pace) owe(user string, costs time.Duration) {
	if p.share == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.fill(user, time.Now())
	a.owed = min(a.owed+costs, paceDeepDebt)
}

// fill is a user's account as it is now, with mu held. Those that are full again are forgotten when one is made, once a second at most.
func (p *pace) fill(user string, now time.Time) *account {
	a := p.accounts[user]
	if a != nil {
		a.owed = max(0, a.owed-time.Duration(float64(now.Sub(a.at))*p.share))
		a.left = p.filled(a, now)
		a.at = now
		return a
	}
	if now.Sub(p.swept) > time.Second {
		p.swept = now
		for name, other := range p.accounts {
			if p.filled(other, now) == paceBurst && now.Sub(other.at) > time.Duration(float64(paceDeepDebt)/p.share) {
				delete(p.accounts, name)
			}
		}
	}
	if p.accounts == nil {
		p.accounts = map[string]*account{}
	}
	a = &account{left: paceBurst, at: now}
	p.accounts[user] = a
	return a
}

func (p *pace) filled(a *account, now time.Time) time.Duration {
	return min(paceBurst, a.left+time.Duration(float64(now.Sub(a.at))*p.share))
}
