package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/berth-dev/berth/disk/platter"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/server"
)

// fault is something that goes wrong, and for how long.
type fault struct {
	At   time.Duration // since the world's begin
	Kind string
	Who  string // a machine; of a link: from
	To   string
	For  time.Duration // 0: once
}

func (f fault) String() string {
	return fmt.Sprintf("%s %s %s %s", f.Kind, f.Who, f.To, f.For)
}

// kinds are the faults, with their weights.
var kinds = []struct {
	name   string
	weight int
}{
	{"kill server", 2}, {"stop server", 1}, {"upgrade server", 2}, {"lose power", 2}, {"power at election", 3}, {"slow election", 3}, {"blackout", 1}, {"replace server", 1}, {"restore snapshot", 1}, {"lose quorum", 1},
	{"full disk", 1}, {"slow disk", 3}, {"bit rot", 1}, {"amnesia", 2}, {"half a write", 1}, {"half a term", 1}, {"late heartbeat", 2}, {"failing disk", 1}, {"failing reads", 3},
	{"cut link", 6}, {"cut off server", 2}, {"deaf server", 2}, {"mute server", 2}, {"slow link", 4}, {"lossy link", 4}, {"double packets", 2},
	{"hand over amid work", 3}, {"set clock", 2}, {"set clock far", 1}, {"clock drifts", 1}, {"kill worker", 4}, {"crash container", 6}, {"cut off worker", 3}, {"lost worker", 3},
}

// quietBefore is for how long nothing else begins before a fault that only a world survives in which all is well (World.well).
const quietBefore = 45 * time.Second

// wellFor is for how long every server has lived when all is well.
const wellFor = 30 * time.Second

// timeToJoin is what the operator needs for a lost quorum before the faults are over, when every machine is started.
const timeToJoin = 30 * time.Second

// needsCalm says whether a fault is one of those.
func (c *Config) needsCalm(kind string) bool {
	switch kind {
	case "replace server", "bit rot", "amnesia", "half a write":
		return true
	case "lose quorum":
		return c.Recovers
	}
	return false
}

// timeFor is how long before the end a fault begins that is to happen for certain.
func (c *Config) timeFor(kind string) time.Duration {
	if c.needsCalm(kind) {
		return quietBefore + timeToJoin
	}
	return 10 * time.Second
}

// draw makes the faults of a world.
func draw(c Config, from, until time.Duration) (out []fault) {
	r, servers, p := rand.New(rand.NewPCG(c.Seed, 3)), c.Servers, c.Pace
	certain := []string{"power at election", "late heartbeat", "half a term"} // happen once, if there is time
	switch {
	case c.Recovers:
		certain = []string{"lose quorum", "power at election"}
	case p.isIdle(): // elsewhere the next write makes good what is wrong
		certain = []string{"half a write", "hand over amid work"}
	case c.Forgets:
		certain = []string{"power at election", "amnesia"}
	}
	if c.Restores {
		certain = append([]string{"restore snapshot"}, certain...)
	}
	total := 0
	for _, k := range kinds {
		total += k.weight
	}
	blackout := c.Seed%4 == 3 && !p.isIdle() && !p.alone && until > 2*from
	if blackout {
		// The first is before the first snapshot, the second before the first tick.
		out = append(out, fault{At: from / 3, Kind: "unread first"}, fault{At: from, Kind: "blackout at tick"})
	}
	for at := from; at < until; at += time.Duration(r.Int64N(int64(2 * p.fault))) {
		n := r.IntN(total)
		f := fault{}
		for _, k := range kinds {
			if n -= k.weight; n < 0 {
				f.Kind = k.name
				break
			}
		}
		if blackout && at >= p.chimes && at < 2*p.chimes+wellFor/2 {
			at = 2*p.chimes + wellFor/2
		}
		must := len(certain) > 0 && at > from+(until-from)/10 && at+c.timeFor(certain[0]) < until
		if must {
			f.Kind, certain = certain[0], certain[1:]
		}
		if c.needsCalm(f.Kind) && (must || r.IntN(p.calm) == 0) && at+quietBefore < until {
			at += quietBefore
			endBefore(out, at)
		}
		if f.Kind == "lose quorum" && at+timeToJoin >= until {
			f.Kind = "kill server"
		}
		if f.At = at; at >= until {
			break
		}
		if c.Restores && !must && at > from+(until-from)/2 && r.IntN(3) == 0 { // not before: then less is asked
			f.Kind = "restore snapshot"
		}
		server := func() string { return string(rune('a' + r.IntN(servers))) }
		worker := func() string { return fmt.Sprintf("node-%02d", r.IntN(p.workers)) }
		f.Who = server()
		// Most are short; some last longer than any timeout.
		f.For = time.Duration(r.Int64N(int64(p.lasting)))
		if r.IntN(p.rare) == 0 {
			f.For += time.Duration(r.Int64N(int64(p.longer) * int64(time.Minute)))
		}
		switch f.Kind {
		case "kill worker", "crash container", "cut off worker":
			f.Who = worker()
		case "lost worker":
			f.Who, f.For = worker(), f.For+time.Minute
		case "cut link", "slow link", "lossy link", "double packets":
			if f.To = server(); f.To == f.Who {
				f.To = worker()
			}
			if r.IntN(2) == 0 {
				f.Who, f.To = f.To, f.Who
			}
		}
		f.For = min(f.For, until-at)
		out = append(out, f)
		switch f.Kind { // nothing else begins meanwhile
		case "late heartbeat":
			at += 4 * p.beat
		case "lose quorum":
			at += 5 * time.Second
		}
	}
	return out
}

// endBefore has faults end so long before a time that all may be well then (World.well).
func endBefore(faults []fault, at time.Duration) {
	for i := range faults {
		faults[i].For = min(faults[i].For, at-wellFor-5*time.Second-faults[i].At)
	}
}

// ipOf is the address of a machine.
func (w *World) ipOf(name string) string {
	for _, m := range w.servers {
		if m.name == name {
			return m.ip
		}
	}
	for _, n := range w.workers {
		if n.name == name {
			return n.ip
		}
	}
	return ""
}

// links changes a link, or all links of a machine, and makes it calm again later.
func (w *World) link(from, to string, l link, d time.Duration) {
	a, b := w.ipOf(from), w.ipOf(to)
	w.network.set(a, b, l)
	time.AfterFunc(d, func() { w.network.set(a, b, calm()) })
}

// cutOff lets nothing through between a machine and the servers for a while.
func (w *World) cutOff(name string, d time.Duration) {
	for _, m := range w.servers {
		if m.name != name {
			w.link(name, m.name, link{cut: true, delay: time.Millisecond}, d)
			w.link(m.name, name, link{cut: true, delay: time.Millisecond}, d)
		}
	}
}

// kill ends a server within one of the changes that it makes on its disk next, and
// starts it again after a while.
func (w *World) kill(m *machine, power bool, d time.Duration) {
	if m.server == nil || m.dying {
		return
	}
	m.dying = true
	host := m.host
	m.disk.Light(1+w.rand.IntN(20), func() { w.network.end(host, power) })
	w.after(step, func() {
		m.dying = false
		m.kill(power)
		w.after(d, func() { w.restart(m) })
	})
}

// stop ends a server's life in good order, and starts it again after a while.
func (w *World) stop(m *machine, d time.Duration) {
	if m.server == nil || m.dying {
		return
	}
	m.dying = true
	w.story.tell(m.name, "is told to stop")
	var stopped atomic.Bool
	go func(s *server.Server, disk *platter.Mounted) {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = s.Stop(ctx) // what it has not done by then it does not do
		disk.Rest(func(path string) {
			go w.checker.violated("server %s writes %s although it has stopped: who has the directory now may be overwritten", m.name, path)
		})
		stopped.Store(true)
	}(m.server, m.disk)
	var end func()
	end = func() {
		if !stopped.Load() {
			w.after(step, end)
			return
		}
		m.dying = false
		m.kill(false)
		w.after(d, func() { w.restart(m) })
	}
	w.after(step, end)
}

// happen lets a fault happen.
func (w *World) happen(f fault) {
	if wait := w.quiet - time.Since(begin); wait > 0 {
		w.after(wait, func() { w.happen(f) })
		return
	}
	w.story.tell("FAULT", "%s", f)
	w.faults++
	switch f.Kind {
	case "kill server", "lose power":
		w.kill(w.machine(f.Who), f.Kind == "lose power", f.For)
	case "stop server":
		w.stop(w.machine(f.Who), f.For)
	case "upgrade server":
		if m := w.machine(f.Who); m.knows < fsm.LogVersion {
			w.stop(m, f.For)
			m.knows = fsm.LogVersion // from its next life on, however it comes to it
		}
	case "blackout":
		for i, m := range w.servers {
			w.kill(m, true, f.For+time.Duration(i)*time.Second)
		}
	case "full disk":
		m := w.machine(f.Who)
		m.platter.Fill(true)
		w.after(f.For, func() { m.platter.Fill(false) })
	case "slow disk":
		w.slowDisk(w.machine(f.Who), f.For)
	case "unread first":
		w.unreadFirst()
	case "restore snapshot":
		if w.config.Restores {
			go w.operator.restore(f.For)
		}
	case "lose quorum":
		if w.config.Recovers {
			w.loseQuorum(f.For, 5)
		}
	case "replace server":
		w.replace(w.machine(f.Who), f.For)
	case "cut link":
		w.link(f.Who, f.To, link{cut: true, delay: time.Millisecond}, f.For)
	case "cut off server", "cut off worker", "lost worker":
		w.cutOff(f.Who, f.For)
	case "deaf server", "mute server":
		for _, m := range w.servers {
			switch {
			case m.name == f.Who:
			case f.Kind == "deaf server":
				w.link(m.name, f.Who, link{cut: true, delay: time.Millisecond}, f.For)
			default:
				w.link(f.Who, m.name, link{cut: true, delay: time.Millisecond}, f.For)
			}
		}
	case "power at election":
		w.powerAtElection(w.machine(f.Who), f.For)
		go w.operator.handTo(context.Background(), w.next(w.machine(f.Who)).name)
	case "slow election":
		w.slowElection(f.For)
	case "amnesia":
		w.forget(w.machine(f.Who), f.For)
	case "half a write":
		w.forgetWhatWasRead(w.machine(f.Who), f.For)
	case "half a term":
		w.forgetTermThatWasRead(w.machine(f.Who))
	case "late heartbeat":
		w.lateHeartbeat(w.machine(f.Who))
	case "failing disk":
		w.failDisk(w.machine(f.Who))
	case "failing reads":
		w.failReads(f.For)
	case "bit rot":
		w.rot(w.machine(f.Who), f.For)
	case "slow link":
		w.link(f.Who, f.To, link{delay: 300 * time.Millisecond}, f.For)
	case "lossy link":
		w.link(f.Who, f.To, link{delay: time.Millisecond, loss: 0.2}, f.For)
	case "double packets":
		w.link(f.Who, f.To, link{delay: 20 * time.Millisecond, twice: 0.5}, f.For)
	case "blackout at tick":
		w.blackoutAtTick()
	case "hand over amid work":
		w.handOverAmidWork(f.Who)
	case "set clock far":
		m := w.machine(f.Who)
		if slices.ContainsFunc(w.servers, func(o *machine) bool { return o != m && o.isFarOff() }) {
			return // of three clocks two must be right
		}
		m.setClock(w.anyOf(24*time.Hour), 0)
	case "set clock":
		m := w.machine(f.Who)
		if l := w.leader(); l != nil && w.rand.IntN(2) == 0 {
			m = l
		}
		m.setClock(w.anyOf(time.Minute), 0)
	case "clock drifts":
		w.machine(f.Who).setClock(w.anyOf(time.Second), w.anyOf(50*time.Millisecond))
	case "kill worker":
		n := w.node(f.Who)
		if n.worker == nil {
			return
		}
		n.kill()
		w.after(f.For, func() {
			if err := n.start(); err != nil {
				w.checker.violated("%v", err)
			}
		})
	case "crash container":
		w.crashContainer(w.node(f.Who))
	}
}

// slowSync is what a sync of a slow disk takes at most.
const slowSync = 500 * time.Millisecond

// slowDisk lets every sync of a server be slow for a while.
func (w *World) slowDisk(m *machine, d time.Duration) {
	m.platter.Slow(slowSync)
	w.after(d, func() { m.platter.Slow(0) })
}

// anyOf is any time between -d and d.
func (w *World) anyOf(d time.Duration) time.Duration {
	return time.Duration(w.rand.Int64N(int64(2*d))) - d
}

// replace takes a server out of the cluster, and brings another machine in its place
// and under its name, with an empty disk and the newest binary: when the old one has
// been taken out, the others need not wait for it before they go by newer rules.
func (w *World) replace(m *machine, d time.Duration) {
	if !w.well() {
		return
	}
	m.kill(false)
	m.knows = fsm.LogVersion
	m.goes = m.knows
	m.platter, m.term = w.newPlatter(100*len(w.servers)+m.lives), 0
	var removed atomic.Bool
	go func() {
		w.operator.remove(m)
		removed.Store(true)
	}()
	var begin func()
	begin = func() {
		if removed.Load() {
			w.restart(m)
		} else {
			w.after(step, begin)
		}
	}
	w.after(d, begin)
}

// rot lets a bit flip on the disk of a server while it does not run; as one
// damage at a time is what a cluster has to survive, only where all of them are
// well.
func (w *World) rot(m *machine, d time.Duration) {
	if !w.well() {
		return
	}
	m.kill(false)
	m.rotten = m.platter.Rot()
	w.story.tell(m.name, "has a bit flipped in %s", m.rotten)
	w.after(min(d, 5*time.Second), func() { w.restart(m) })
}

// well: all servers run, have done so for a while, have a vote, and are equally far, and none is about to lose its log. One that has been
// replaced has none for a while: of two others that have, none may be lost.
func (w *World) well() bool { return w.wellSince(wellFor) }

// wellSince is well, for servers that have run for so long.
func (w *World) wellSince(d time.Duration) bool {
	if w.losing {
		return false
	}
	for _, o := range w.servers {
		if o.server == nil || o.dying || o.hasFailed() != nil || o.disk.IsDead() || time.Since(o.began) < d || o.server.View().Index()+ahead < w.newest() ||
			o.server.Role() == "learner" {
			return false
		}
	}
	return true
}

// newest is how far the furthest server is.
func (w *World) newest() (index uint64) {
	for _, m := range w.servers {
		if m.server != nil {
			index = max(index, m.server.View().Index())
		}
	}
	return index
}
