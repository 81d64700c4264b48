package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/api/operator"
)

// looks is how many objects each of a server's controllers has worked on since its process began, by the name of its queue.
type looks map[string]int

// lookers are the controllers that a new leader lets look at all objects of their kinds, and how many there are of those.
func (t *takeover) lookers() looks {
	return looks{"deployment": t.deployments, "statefulset": t.jobs, "job": t.jobs}
}

func (t *takeover) looks(ctx context.Context, p *process) (looks, error) {
	raw, err := p.metrics(ctx)
	if err != nil {
		return nil, err
	}
	out := looks{}
	for name := range t.lookers() {
		out[name] = int(sumOf(raw, "workqueue_work_duration_seconds_count", `name="`+name+`"`))
	}
	return out, nil
}

func (t *takeover) looksOf(ctx context.Context, all []*process) (map[*process]looks, error) {
	out := map[*process]looks{}
	for _, p := range all {
		l, err := t.looks(ctx, p)
		if err != nil {
			return nil, err
		}
		out[p] = l
	}
	return out, nil
}

// awaitLooks waits until a new leader's controllers have worked on as many objects as there are.
func (t *takeover) awaitLooks(ctx context.Context, p *process, before looks) (time.Time, error) {
	for {
		now, err := t.looks(ctx, p)
		if err != nil {
			return time.Time{}, err
		}
		done := true
		for name, n := range t.lookers() {
			done = done && now[name]-before[name] >= n
		}
		if done {
			return time.Now(), nil
		}
		select {
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%w: of %v objects %s's controllers had worked on %v before the kill, and %v after it",
				context.Cause(ctx), t.lookers(), p.name, before, now)
		case <-time.After(4 * poll):
		}
	}
}

func (p *process) metrics(ctx context.Context) ([]byte, error) {
	raw, err := p.rest().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", p.name, err)
	}
	return raw, nil
}

// sumOf adds up a metric's values, of those that have the label.
func sumOf(raw []byte, name, label string) (sum float64) {
	lines := bufio.NewScanner(bytes.NewReader(raw))
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), name)
		if !ok || rest == "" || rest[0] != '{' && rest[0] != ' ' || !strings.Contains(rest, label) {
			continue
		}
		v, err := strconv.ParseFloat(rest[strings.LastIndexByte(rest, ' ')+1:], 64)
		if err == nil {
			sum += v
		}
	}
	return sum
}

// footprint is the memory of a server, in bytes.
type footprint struct {
	live     float64 // what its last collection left
	resident float64
}

// footprints waits until every server has collected its garbage once more, as one that rests does every two minutes,
// and gives what is left.
func (ps *processes) footprints(ctx context.Context) (map[*process]footprint, error) {
	began, out := time.Now(), map[*process]footprint{}
	for len(out) < len(ps.servers) {
		for _, p := range ps.servers {
			if _, known := out[p]; known {
				continue
			}
			raw, err := p.metrics(ctx)
			if err != nil {
				return nil, err
			}
			if collected := sumOf(raw, "go_memstats_last_gc_time_seconds", ""); collected > float64(began.Unix()+1) {
				out[p] = footprint{sumOf(raw, "go_gc_heap_live_bytes", ""), sumOf(raw, "process_resident_memory_bytes", "")}
			}
		}
		if time.Since(began) > startTimeout+stallTimeout {
			return nil, errors.New("the servers do not collect their garbage")
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(100 * poll):
		}
	}
	return out, nil
}

const mebibyte = 1 << 20

// memory tells what a server that leads holds with its controllers, and without them. It is one server, which begins anew from its disk each time:
// what the state takes depends on how a server came by it.
func (t *takeover) memory(ctx context.Context) error {
	var leader *process
	for _, c := range []struct {
		how         string
		controllers []string
	}{{"with controllers", nil}, {"without them", []string{"-job"}}} { // of a list without * those that it names are run alone
		var err error
		if leader, err = t.beginAnew(ctx, c.controllers, leader); err != nil {
			return err
		}
		all, err := t.servers.footprints(ctx)
		if err != nil {
			return err
		}
		t.figure("heap of a leader, "+c.how, all[leader].live/mebibyte, "MiB")
		t.figure("resident, "+c.how, all[leader].resident/mebibyte, "MiB")
	}
	return nil
}

// beginAnew stops all servers and starts them with these controllers. It waits until they agree, and what runs has looked at all. It gives who leads
// then: wanted, unless that is nil.
func (t *takeover) beginAnew(ctx context.Context, controllers []string, wanted *process) (*process, error) {
	for _, p := range t.servers.servers {
		if err := p.kill(); err != nil {
			return nil, err
		}
	}
	t.servers.settings.Controllers = controllers
	for _, p := range t.servers.servers {
		if err := errors.Join(t.servers.furnish(p), p.start(t.Program)); err != nil {
			return nil, err
		}
	}
	leader, _, err := t.servers.awaitLeader(ctx, 0)
	if err != nil {
		return nil, err
	}
	if len(controllers) == 0 {
		if _, err := t.awaitLooks(ctx, leader, looks{}); err != nil {
			return nil, err
		}
	}
	if err := t.awaitAgreement(ctx, leader); err != nil {
		return nil, err
	}
	if wanted == nil || wanted == leader {
		return leader, nil
	}
	body := fmt.Appendf(nil, `{"id":%q}`, wanted.name)
	if _, err := leader.rest().Post().AbsPath(operator.PathTransferLeader).Body(body).DoRaw(ctx); err != nil {
		return nil, fmt.Errorf("have %s lead instead of %s: %w", wanted.name, leader.name, err)
	}
	return wanted, nil
}
