package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// takeoverTarget is how long a new leader's controllers may take from its election until they have
	// done what was asked for right after the kill.
	takeoverTarget = 2 * time.Second
	// podsOfEach is how many pods each workload has, spaceSize how many workloads a namespace.
	podsOfEach = 10
	spaceSize  = 100
	// podsOfANode is how many of them a node gets at most: it has room for some more.
	podsOfANode = 100
	// worthWeighing is from how many pods on memory is told: it takes minutes, and of few pods it says nothing.
	worthWeighing = 10_000
	// settlePoll is how often all workloads are looked at, which costs the servers something.
	settlePoll = 2 * time.Second
	// asksOfARound is how many pods are made because of what is asked for after a kill: one by a Deployment and one
	// by a StatefulSet that are scaled, and those of a new Job.
	asksOfARound = 1 + 1 + podsOfEach
)

// takeover is a change of leader at size, under way.
type takeover struct {
	*run
	servers *processes
	fleet   *fleet

	elected           []time.Duration // from each kill to the election after it
	acted, looked     []time.Duration // from each election
	leading, agreed   []time.Duration // from each kill; from each restart
	made              int             // pods that there have to be
	deployments, jobs int             // and StatefulSets: as many as jobs
}

// takeOver: workloads rest. Then leaders are killed, one after the other, and each new one's controllers, which look at
// everything first, are given something to do.
func takeOver(ctx context.Context, r *run) (err error) {
	if r.Pods > podsOfANode*r.Nodes || r.Pods < podsOfEach*kindsInTurn || r.Pods%(podsOfEach*kindsInTurn) != 0 {
		return fmt.Errorf("it needs a multiple of %d pods, and a node for %d of them at most", podsOfEach*kindsInTurn, podsOfANode)
	}
	t := &takeover{run: r}
	if t.servers, err = r.startProcesses(ctx, serverSettings{}); err != nil {
		return err
	}
	defer t.servers.stop()
	if t.fleet, err = t.servers.fleet(ctx, r); err != nil {
		return err
	}
	defer t.fleet.stop()
	if err := t.carryOut(ctx); err != nil {
		return fmt.Errorf("%w; the servers' last words:\n%s", err, t.servers.lastWords())
	}
	return nil
}

func (t *takeover) carryOut(ctx context.Context) error {
	began := time.Now()
	if err := t.fill(ctx); err != nil {
		return err
	}
	if err := t.settled(ctx, t.servers.servers[0]); err != nil {
		return err
	}
	t.progress("%d workloads and %d pods after %s", t.deployments+2*t.jobs, t.made, inSeconds(time.Since(began)))
	for n := range t.Kills {
		if err := t.round(ctx, n); err != nil {
			return fmt.Errorf("kill %d: %w", n+1, err)
		}
	}
	leader, _, err := t.servers.awaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	if err := t.audit(ctx, leader); err != nil {
		return err
	}
	t.tell()
	if t.Pods < worthWeighing {
		return nil
	}
	return t.memory(ctx)
}

// round is one kill.
func (t *takeover) round(ctx context.Context, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, takeoverTimeout, fmt.Errorf("it took longer than %s", takeoverTimeout))
	defer cancel()
	leader, term, err := t.servers.awaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	rest := t.servers.others(leader)
	before, err := t.looksOf(ctx, rest)
	if err != nil {
		return err
	}
	asked, err := t.ask(ctx, rest, n)
	if err != nil {
		return err
	}
	defer asked.stop()
	logged := t.servers.logged()
	killed := time.Now()
	if err := leader.kill(); err != nil {
		return err
	}
	asked.begin(ctx)
	successor, _, err := t.servers.awaitLeader(ctx, term)
	if err != nil {
		return err
	}
	leading := time.Now()
	elected := successor.elected(logged[successor], leading)
	looked, err := t.awaitLooks(ctx, successor, before[successor])
	if err != nil {
		return err
	}
	acted, err := asked.done()
	if err != nil {
		return err
	}
	t.made += asksOfARound
	t.leading = append(t.leading, leading.Sub(killed))
	t.elected = append(t.elected, elected.Sub(killed))
	t.acted = append(t.acted, acted.Sub(elected))
	t.looked = append(t.looked, looked.Sub(elected))
	t.progress("kill %d of %d: %s; accepted %s after the kill; done after the election: %s; all looked at after %s", n+1, t.Kills, successor.steps(logged[successor], killed),
		asked.accepted(killed), asked.times(elected), inSeconds(looked.Sub(elected)))
	return t.recover(ctx, leader, successor)
}

// recover waits until all that was asked for is done, and the killed server is back and agrees.
func (t *takeover) recover(ctx context.Context, killed, successor *process) error {
	if err := t.settled(ctx, successor); err != nil {
		return err
	}
	began := time.Now()
	if err := killed.start(t.Program); err != nil {
		return err
	}
	if err := t.awaitAgreement(ctx, successor); err != nil {
		return fmt.Errorf("after server %s has begun again: %w", killed.name, err)
	}
	t.agreed = append(t.agreed, time.Since(began))
	return nil
}

func (t *takeover) awaitAgreement(ctx context.Context, leader *process) error {
	for {
		all, err := t.servers.verify(ctx, leader)
		switch {
		case err != nil:
			return err
		case all:
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), errors.New("the servers do not agree"))
		case <-time.After(100 * poll):
		}
	}
}

// tell gives the figures of all kills.
func (t *takeover) tell() {
	under := fmt.Sprintf("< %.0f", takeoverTarget.Seconds())
	t.figure("workloads", float64(t.deployments+2*t.jobs+t.Kills), "")
	t.figure("kills", float64(t.Kills), "")
	pairs := []struct {
		what   string
		of     []time.Duration
		target bool
	}{
		{"from a kill to the election", t.elected, false},
		{"from the election until what was asked for is done", t.acted, true},
		{"from the election until the controllers have looked at all", t.looked, false},
		{"from its restart until the killed server agrees", t.agreed, false},
	}
	for _, p := range pairs {
		half, worst := quantile(p.of, 0.5), quantile(p.of, 1)
		if !p.target {
			t.figure(p.what+", median", half.Seconds(), "s")
			t.figure(p.what+", worst", worst.Seconds(), "s")
			continue
		}
		t.target(p.what+", median", half.Seconds(), "s", under, half < takeoverTarget)
		t.target(p.what+", worst", worst.Seconds(), "s", under, worst < takeoverTarget)
	}
	t.figure("pods made twice, lost, or of a piece that has one", 0, "")
}
