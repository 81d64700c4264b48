package sim

import (
	"context"
	"slices"
	"time"
)

// Faults that wait for a moment, or bring several things about of which each alone is harmless.

// handOverAmidWork lets leadership go to a server when a controller is about to make pods, which wait for a leader whose disk and links
// have become slow.
func (w *World) handOverAmidWork(to string) {
	const slow = 3 * time.Second
	hand := func() {
		for _, m := range w.servers {
			if !m.leads() {
				continue
			}
			m.platter.Slow(slowSync)
			time.AfterFunc(slow, func() { m.platter.Slow(0) })
			for _, o := range w.servers {
				if o != m {
					w.link(m.name, o.name, link{delay: 150 * time.Millisecond}, slow)
				}
			}
		}
		go w.operator.handTo(context.Background(), to)
	}
	w.checker.burst.Store(&hand)
}

// blackoutAtTick kills all servers when a CronJob has a new Job, of which its status does not tell yet, until after the next one is due: who leads then looks
// for the Job of the last time only.
func (w *World) blackoutAtTick() {
	kill := func() {
		if w.losing || slices.ContainsFunc(w.servers, func(m *machine) bool { return m.calm.Load() }) {
			return
		}
		w.story.tell("FAULT", "all servers end, as a Job of %s has come", ticking)
		until := w.config.Pace.chimes + 2*time.Second
		w.dark = time.Since(begin) + until
		for _, m := range w.servers {
			if m.isUp() {
				m.fall(false, until)
			}
		}
	}
	w.checker.ticked.Store(&kill)
	now, chimes := time.Now(), w.config.Pace.chimes
	w.after(now.Truncate(chimes).Add(chimes-step).Sub(now), func() { // or the status would be written at the same moment
		for _, m := range w.servers {
			w.slowDisk(m, 10*step)
		}
	})
}

// slowElection kills whoever leads as soon as it has acknowledged a write to somebody, while the disks of the others are slow: they
// do not know yet that it is committed, and between votes, an election and the first entry of the new leader time passes.
func (w *World) slowElection(d time.Duration) {
	for _, m := range w.servers {
		if !m.leads() {
			w.slowDisk(m, 5*time.Second+d)
		}
	}
	w.doomed.Store(int64(max(d, 1)))
}

// acknowledged is told that a server has acknowledged a write.
func (w *World) acknowledged(m *machine) {
	s := m.server
	if s == nil || !s.IsLeader() || m.server != s || m.dying {
		return
	}
	if down := w.doomed.Swap(0); down > 0 {
		m.fall(false, time.Duration(down))
	}
}

// powerAtElection takes the power of a server as soon as it has come into another
// term, which it tells the others at that moment.
func (w *World) powerAtElection(m *machine, down time.Duration) {
	if m.awaits.Swap(true) {
		return
	}
	if w.rand.IntN(4) > 0 { // whoever tells of a term before it is on the disk has told it for long
		w.slowDisk(m, 10*step)
	}
	go func() {
		defer m.awaits.Store(false)
		for !m.calm.Load() {
			s, life := m.server, m.lives
			if s == nil || m.dying {
				time.Sleep(step)
				continue
			}
			was := s.Term()
			for m.server == s && !m.dying && !m.calm.Load() {
				time.Sleep(2 * time.Millisecond)
				if s.Term() == was {
					continue
				}
				if m.server != s || m.lives != life || m.dying {
					break
				}
				m.fall(true, down)
				return
			}
		}
	}()
}

// lateHeartbeat lets a server hear of a newer term, and a heartbeat of the one before while it still keeps that: it has heard of neither before,
// as nothing reached it while leadership went to another one and back.
func (w *World) lateHeartbeat(to *machine) {
	first := w.leader()
	if first == to {
		to = w.next(to)
	}
	i := slices.IndexFunc(w.servers, func(m *machine) bool { return m != first && m != to && m.isUp() })
	if first == nil || i < 0 || !to.isUp() {
		return
	}
	second := w.servers[i]
	lead := func(m *machine) bool {
		w.operator.handTo(context.Background(), m.name)
		led := await(2*w.config.Pace.beat, m.leads)
		time.Sleep(w.config.Pace.beat / 4) // the first heartbeat is on its way
		return led
	}
	var others []*machine
	for _, m := range w.servers {
		if m != to {
			others = append(others, m)
		}
	}
	round := func(then func()) bool {
		for _, m := range others {
			w.network.set(m.ip, to.ip, link{cut: true, delay: time.Millisecond})
		}
		defer func() {
			for _, m := range others {
				w.network.release(m.ip, to.ip)
			}
			time.Sleep(w.config.Pace.beat / 4)
		}()
		if !lead(second) || !lead(first) {
			return false
		}
		then()
		return true
	}
	go func() {
		if !round(func() {}) { // to connect takes longer than to keep a term, so there are connections from here on
			return
		}
		round(func() {
			to.platter.Slow(slowSync)
			to.disk.AtSync("promises", func() {
				w.story.tell(to.name, "keeps a term while a heartbeat of %s comes", second.name)
				w.network.release(second.ip, to.ip)
			})
			w.story.tell(to.name, "hears of %s again", first.name)
			w.network.release(first.ip, to.ip)
			time.Sleep(2 * slowSync)
			to.platter.Slow(0)
		})
	}()
}

// forget takes away the log of a server that has acknowledged what others did not hear of, and leaves it alone with those: of three and of
// five servers they would be a majority with it, and nobody may lead.
func (w *World) forget(m *machine, d time.Duration) {
	if !w.well() {
		return
	}
	behind := w.minority(m)
	for _, o := range behind {
		w.cutOff(o.name, 2*time.Second)
	}
	w.losing = true
	w.after(1500*time.Millisecond, func() {
		w.losing = false
		for i, o := range w.servers {
			if o != m && !slices.Contains(behind, o) && o.server != nil && !o.dying {
				o.kill(false)
				w.after(5*time.Second+d+time.Duration(i)*time.Second, func() { w.restart(o) })
			}
		}
		if m.server == nil || m.dying {
			return
		}
		w.loseLog(m)
	})
}

func (w *World) loseLog(m *machine) {
	m.kill(false)
	m.platter.RemoveAll("data", "raft", "log")
	m.rotten = "its log"
	w.story.tell(m.name, "has lost its log")
	w.after(step, func() { w.restart(m) })
}

// minority are as many servers as the others can do without, of which none leads and none is m.
func (w *World) minority(m *machine) (out []*machine) {
	first := w.rand.IntN(len(w.servers))
	for i := range w.servers {
		o := w.servers[(first+i)%len(w.servers)]
		if o != m && !o.leads() && len(out) < (len(w.servers)-1)/2 {
			out = append(out, o)
		}
	}
	return out
}

// forgetWhatWasRead kills a server between a write of its log and its sync, and takes its power as soon as it has acknowledged in its next life what it read. Who else
// has that is gone, for as long as those can elect somebody who were cut off.
func (w *World) forgetWhatWasRead(m *machine, d time.Duration) {
	if !w.well() || w.leader() == nil {
		return
	}
	leader := w.leader()
	if m == leader {
		m = w.next(m)
	}
	behind := w.minority(m)
	for _, o := range behind {
		w.cutOff(o.name, 10*w.config.Pace.beat)
	}
	w.losing = true
	m.platter.Slow(slowSync)
	life := m.fallAtSync("/log/")
	go func() {
		defer func() { w.losing = false }()
		defer m.platter.Slow(0)
		if !await(2*w.config.Pace.beat, func() bool { return m.dying || m.lives != life }) {
			return
		}
		time.Sleep(step / 5) // until then all has come that it has said
		at := leader.index()
		if !await(w.config.Pace.beat, func() bool { return m.lives != life && m.isUp() && leader.leads() && leader.index() > at }) {
			return
		}
		m.fall(true, step)
		for _, o := range w.servers {
			if o != m && !slices.Contains(behind, o) && o.isUp() {
				o.fall(false, d+4*w.config.Pace.beat+time.Minute)
			}
		}
		for _, o := range behind {
			for _, other := range w.servers {
				if other != o {
					w.network.release(o.ip, other.ip)
					w.network.release(other.ip, o.ip)
				}
			}
		}
	}()
}

// forgetTermThatWasRead kills a server between the write of a new term and its sync, and takes its power as soon as it lives again, in that term.
func (w *World) forgetTermThatWasRead(m *machine) {
	if !m.isUp() {
		return
	}
	w.slowDisk(m, 10*step) // or it is synced as soon as it lives again
	life := m.fallAtSync("promises")
	go func() {
		w.operator.handTo(context.Background(), w.next(m).name)
		if await(20*step, func() bool { return m.lives != life && m.isUp() }) {
			m.fall(true, step)
		}
	}()
}

// fallAtSync lets a server's life, which it gives, end when a file is about to be synced, and another one begin at once.
func (m *machine) fallAtSync(within string) (life int) {
	life = m.lives
	m.disk.AtSync(within, func() {
		if m.isUp() && m.lives == life {
			m.fall(false, 0)
		}
	})
	return life
}

// failDisk lets every call to a server's disk fail. It hears and is heard, and has to give up when it is to keep something; whoever is to keep nothing for a
// minute is ended.
func (w *World) failDisk(m *machine) {
	if !m.isUp() {
		return
	}
	m.disk.End()
	life := m.lives
	time.AfterFunc(time.Minute, func() {
		if m.lives == life && m.isUp() && m.hasFailed() == nil {
			m.fall(false, 0)
		}
	})
}

// failReads lets whoever leads when it next takes a snapshot read nothing of its log for a while, on a slow disk: entries come before the snapshot is there, and
// when those before it are removed the newest ones are not in memory either.
func (w *World) failReads(d time.Duration) {
	for _, m := range w.servers {
		if !m.isUp() {
			continue
		}
		mounted, platter := m.disk, m.platter
		mounted.AtSync("/snapshots/", func() {
			if !m.leads() || m.calm.Load() || w.losing {
				return
			}
			w.story.tell(m.name, "can read nothing of its log")
			platter.Slow(slowSync)
			mounted.FailReads("/log/")
			time.AfterFunc(d+10*slowSync, func() {
				platter.Slow(0)
				mounted.FailReads("")
			})
		})
	}
}

// unreadFirst lets the founder of the cluster be started again, lead again, and read nothing of its log when another server has to be told how far that
// goes: as long as the log has its second entry, whoever leads has more to tell.
func (w *World) unreadFirst() {
	m := w.leader()
	if m == nil || !m.isUp() {
		return
	}
	life := m.lives
	m.fall(false, 0)
	go func() {
		if !await(10*w.config.Pace.beat, func() bool { return m.lives != life && m.isUp() && w.leader() != nil }) {
			return
		}
		if !m.leads() {
			w.operator.handTo(context.Background(), m.name)
		}
		o := w.next(m)
		if !await(2*w.config.Pace.beat, m.leads) || !o.isUp() {
			return
		}
		mounted := m.disk
		w.story.tell(m.name, "can read nothing of its log, and %s comes", o.name)
		mounted.FailReads("/log/")
		o.fall(false, 0)
		time.Sleep(5 * w.config.Pace.beat)
		mounted.FailReads("")
	}()
}

// await waits until something is so, for a while.
func await(d time.Duration, is func() bool) bool {
	for by := time.Now().Add(d); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(by) {
			return false
		}
	}
	return true
}

// leader is whoever leads; nil: nobody does.
func (w *World) leader() *machine {
	if i := slices.IndexFunc(w.servers, (*machine).leads); i >= 0 {
		return w.servers[i]
	}
	return nil
}

// next is another server.
func (w *World) next(m *machine) *machine {
	return w.servers[(slices.Index(w.servers, m)+1)%len(w.servers)]
}

// isUp: it runs, and its end has not begun.
func (m *machine) isUp() bool { return m.server != nil && !m.dying }

// index is how far a server is; 0: it does not run.
func (m *machine) index() uint64 {
	if s := m.server; s != nil {
		return s.View().Index()
	}
	return 0
}
