package sim

import (
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/disk/platter"
)

// loseQuorum takes all servers but one, with their disks, and does what the documents say then: that one goes on alone, and
// machines with empty disks come to it, one after the other. Five times of six it is one that was cut off a while before.
// What an earlier fault has brought about late may be in the way: so many times it is tried again.
func (w *World) loseQuorum(d time.Duration, times int) {
	if !w.well() {
		if times > 0 {
			w.after(3*time.Second, func() { w.loseQuorum(d, times-1) })
		}
		return
	}
	left, alone := w.servers[0], time.Duration(0)
	for _, m := range w.servers {
		if m.server.View().Index() > left.server.View().Index() {
			left = m
		}
	}
	if w.rand.IntN(6) > 0 {
		left, alone = w.servers[w.rand.IntN(len(w.servers))], time.Duration(2+w.rand.IntN(3))*time.Second // if it led, somebody else does by then
		w.cutOff(left.name, alone)
	}
	w.after(alone, func() { w.goOnWith(left, d) })
}

// goOnWith goes on with one server when all others are lost for good.
func (w *World) goOnWith(left *machine, d time.Duration) {
	for _, m := range w.servers {
		if m.server == nil || m.dying {
			return // something else has begun
		}
	}
	w.checker.founds()
	for _, m := range w.servers {
		m.kill(false)
		if m != left {
			m.platter, m.term = w.newPlatter(100*len(w.servers)+m.lives), 0
			m.knows = max(m.knows, left.knows) // alone it goes by all that it knows
			m.goes = m.knows
		}
	}
	w.story.tell("world", "a quorum is lost, %s is left", left.name)
	w.then = nil
	w.after(min(d, 10*time.Second), func() {
		left.platter.Fill(false) // whoever has a disk that is full makes room first
		if err := left.writePeers(); err != nil {
			w.checker.violated("the peers of %s can not be written: %v", left.name, err)
		}
		w.restart(left)
		w.join(left, w.servers)
	})
}

// join lets servers come to one, when it leads, one at a time.
func (w *World) join(to *machine, rest []*machine) {
	if w.then == nil && to.leads() {
		w.then = to.platter.Copy(rand.New(rand.NewPCG(w.config.Seed, uint64(100*len(w.servers)+to.lives))))
	}
	switch {
	case len(rest) == 0:
		w.forgetSince(to, 80)
		then := w.then
		w.after(20*time.Second, func() { w.putBack(to, then, 400) })
	case rest[0] == to || rest[0].server != nil:
		w.join(to, rest[1:])
	case to.leads():
		w.restart(rest[0])
		w.after(5*time.Second, func() { w.join(to, rest[1:]) })
	default:
		w.after(step, func() { w.join(to, rest) })
	}
}

// forgetSince takes away the log of the server that went on alone, just when the others are there: its snapshot names nobody else, and it lives again where nothing
// reaches it, for longer than it waits for a leader. So many times it is tried again.
func (w *World) forgetSince(m *machine, times int) {
	if !w.wellSince(0) {
		if times > 0 {
			w.after(step, func() { w.forgetSince(m, times-1) })
		}
		return
	}
	w.loseLog(m)
	w.cutOff(m.name, 4*w.config.Pace.beat)
}

// putBack puts the directory of the server that went on alone back to when it was alone. By that it would lead, and the others tell it in time, which know more of it.
func (w *World) putBack(m *machine, then *platter.Platter, times int) {
	if w.then != then {
		return // a quorum was lost again
	}
	l := w.leader()
	if !w.well() || l == nil || l == m || !w.network.areCalm(l.ip, m.ip) { // somebody who leads, and knows of it, has a reason to speak to it at once
		if times > 0 {
			w.after(step, func() { w.putBack(m, then, times-1) })
		}
		return
	}
	m.kill(false)
	m.platter, m.term, m.early, w.then = then, 0, true, nil
	w.after(10*time.Second, func() { m.early = false })
	w.quiet = time.Since(begin) + 3*time.Second
	w.story.tell(m.name, "has its directory put back to when it was alone")
	w.after(step, func() { w.restart(m) })
}

// writePeers writes that a server is the only one.
func (m *machine) writePeers() error {
	b, err := json.Marshal([]map[string]any{{"id": m.name, "address": address(m.ip, raftPort), "non_voter": false}})
	if err != nil {
		return err
	}
	disk := m.platter.Mount()
	defer disk.End()
	f, err := disk.OpenFile(filepath.Join(dataDir, "raft", "peers.json"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err := f.Write(b); err != nil {
		return err
	}
	return f.Close()
}
