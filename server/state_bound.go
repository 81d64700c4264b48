package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftnode"
)

// Every server holds the whole state in its memory, and one that has too little for it
// ends, and ends again when it is started. So the leader takes no command that makes the
// state larger than every server can hold, before it is in the log. What shrinks the
// state is always taken, and what the cluster needs to go on up to a reserve above that:
// a full cluster goes on, and can be emptied.

const (
	// reservePart is which part of the bound is kept for what goes on when the state is full. Those who use the
	// cluster get half of that, for small changes: what workers say is to find the other half.
	reservePart = 10
	// fullRetrySeconds is when whoever is refused may ask again. Clients of Kubernetes' do so ten times, and hold
	// up for so long what they have to say.
	fullRetrySeconds = 1
	// warnPercent is how full a state is that is warned of, and warnEvery how often.
	warnPercent = 80
	warnEvery   = 10 * time.Minute
)

// stateBound keeps the state's bytes within a bound, those of what is under way among them.
type stateBound struct {
	refused prometheus.Counter

	mu       sync.Mutex
	underWay int64 // what the commands that are on their way to the state would add
	warned   time.Time
}

// entered are proposals on their way through the leader's door.
type entered struct {
	server  *Server
	future  *raftnode.Future // of those that were taken; nil: none was
	refused []fsm.Result     // of all of them, those without a code are of who was taken; nil: all were
	bytes   int64            // what is under way of them
}

// enter proposes commands on the leader: those that the state has room for. here says that they come from one of
// its own loops.
func (s *Server) enter(here bool, ps []fsm.Proposal) (*entered, error) {
	e := &entered{server: s}
	defer func() {
		if e.future == nil { // nothing is under way, whatever has happened
			e.leave()
		}
	}()
	if s.node.IsLeader() { // else nothing is proposed
		ps = e.admit(here, ps)
	}
	if len(ps) == 0 && e.refused != nil {
		return e, nil
	}
	future, err := s.node.ProposeAsync(ps...)
	if err != nil {
		return nil, err
	}
	e.future = future
	return e, nil
}

// proposeEntered is enter that waits.
func (s *Server) proposeEntered(ctx context.Context, here bool, ps []fsm.Proposal) ([]fsm.Result, uint64, error) {
	e, err := s.enter(here, ps)
	if err != nil {
		return nil, 0, err
	}
	return e.Wait(ctx)
}

// admit are the proposals that there is room for, which is theirs from then on.
func (e *entered) admit(here bool, ps []fsm.Proposal) []fsm.Proposal {
	s := e.server
	b := &s.bound
	b.mu.Lock()
	defer b.mu.Unlock()
	v, most := s.state.View(), s.maxState() // now: it has all that is not under way any more
	taken := ps
	for i, p := range ps {
		bytes, ok := b.fits(v, p, here, most)
		if ok {
			b.underWay += bytes
			e.bytes += bytes
			if e.refused != nil {
				taken = append(taken, p)
			}
			continue
		}
		if e.refused == nil {
			e.refused, taken = make([]fsm.Result, len(ps)), slices.Clone(ps[:i])
		}
		b.refused.Inc()
		e.refused[i] = refuseFull(v, most)
	}
	if e.bytes > 0 || e.refused != nil {
		b.warn(s, v.Bytes(), most)
	}
	return taken
}

// fits says whether there is room for what a command adds, and how much that is. What the command would be if nothing
// was there is asked first, since that costs least.
func (b *stateBound) fits(v *fsm.View, p fsm.Proposal, here bool, most int64) (bytes int64, ok bool) {
	bytes = fsm.MostGrowth(p.Command)
	if bytes <= 0 || v.Bytes()+b.underWay+bytes <= most {
		return max(bytes, 0), true
	}
	g := fsm.GrowthOf(v, p.Command)
	return g.Bytes, g.Kind == fsm.GrowsNot || v.Bytes()+b.underWay+g.Bytes <= most+reserved(g.Kind, whoIs(p, here), most)
}

// proposer is who makes the state grow.
type proposer uint8

const (
	anybody proposer = iota
	// keeper is one of Kubernetes' controllers on the leader, or a node.
	keeper
	// berth is Berth itself, also for its operators.
	berth
)

func whoIs(p fsm.Proposal, here bool) proposer {
	switch {
	case p.User == systemUser || slices.Contains(p.Groups, operators):
		return berth
	case here || slices.Contains(p.Groups, access.Nodes) || slices.Contains(p.Groups, access.Workers):
		return keeper
	}
	return anybody
}

// reserved is how far beyond the bound the state may grow for something.
func reserved(kind fsm.GrowthKind, who proposer, most int64) int64 {
	reserve := most / reservePart
	switch kind {
	case fsm.GrowsAsNeeded:
		return reserve
	case fsm.GrowsSlightly:
		if who == anybody {
			return reserve / 2
		}
		return reserve
	case fsm.GrowsInPlace:
		if who != anybody {
			return reserve
		}
	case fsm.GrowsByObjects:
		if who == berth { // a leader that can not furnish its cluster does not lead
			return reserve
		}
	case fsm.GrowsNot, fsm.GrowsByPods:
	}
	return 0
}

// Wait returns the results of all proposals. Its errors are those of raftnode.Future.Wait.
func (e *entered) Wait(ctx context.Context) ([]fsm.Result, uint64, error) {
	if e.future == nil {
		return e.refused, e.server.node.AppliedIndex(), nil
	}
	rs, index, err := e.future.Wait(ctx)
	if errors.Is(err, raftnode.ErrUnknownOutcome) && ctx.Err() != nil {
		// They may be on their way still; whoever waits longer for them finds out.
		go func() {
			e.server.guard("outcome", func() { _, _, _ = e.future.Wait(context.WithoutCancel(ctx)) }) // it ends with the node
			e.leave()
		}()
		return rs, index, err
	}
	e.leave()
	if err != nil || e.refused == nil {
		return rs, index, err
	}
	for i := range e.refused {
		if !e.refused[i].Refused() {
			e.refused[i], rs = rs[0], rs[1:]
		}
	}
	return e.refused, index, nil
}

// leave: what was under way is in the state, or never will be.
func (e *entered) leave() {
	b := &e.server.bound
	b.mu.Lock()
	b.underWay -= e.bytes
	b.mu.Unlock()
	e.bytes = 0
}

// warn tells of a state that is nearly full, now and then.
func (b *stateBound) warn(s *Server, bytes, most int64) {
	if bytes < most/100*warnPercent || time.Since(b.warned) < warnEvery {
		return
	}
	b.warned = time.Now()
	s.log.Warn("the state is nearly as large as it may be; when it is full nothing more is taken in", "bytes", bytes, "max_state", most,
		"help", "delete what is not needed, or give every server more memory and a larger server.max_state")
}

// maxState is how many bytes the state may take: as many as the server takes that takes the fewest, as far as is known.
func (s *Server) maxState() int64 {
	if least := s.room.LeastState(); least > 0 {
		return min(least, s.config.MaxState)
	}
	return s.config.MaxState
}

func refuseFull(v *fsm.View, most int64) fsm.Result {
	return fsm.Result{
		Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Details: &metav1.StatusDetails{RetryAfterSeconds: fullRetrySeconds},
		Message: fmt.Sprintf("the cluster's state is full: it takes %s of %s (server.max_state), and nothing that makes it larger is taken in; "+
			"delete what is not needed, or have the servers' administrator give them more memory", mebibytes(v.Bytes()), mebibytes(most)),
		Revision: v.Revision(), Index: v.Index(),
	}
}

// checkRestored refuses to restore what the servers can not hold.
func (s *Server) checkRestored(bytes int64) error {
	if most := s.maxState(); bytes > most+most/reservePart {
		return fmt.Errorf("%w: the snapshot's state takes %s, and one of the servers takes no more than %s: give it more memory, and a larger server.max_state",
			errBadRequest, mebibytes(bytes), mebibytes(most))
	}
	return nil
}

func mebibytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }

// stateBytes register what is measured of the bound.
func (s *Server) stateBytes() error {
	s.bound.refused = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "berth_state_growth_refused_total", Help: "Commands that this server, while it led, refused because the state was full.",
	})
	for _, c := range []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_state_bytes", Help: "What the state takes of memory, about, as server.max_state counts it.",
		}, func() float64 { return float64(s.state.View().Bytes()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "berth_state_bytes_limit", Help: "What the state may take: the least server.max_state of the servers, as far as this one knows.",
		}, func() float64 { return float64(s.maxState()) }),
		s.bound.refused,
	} {
		if err := s.config.Metrics.Register(c); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
