package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftlog"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/worker/runtime"
)

func (w *World) machine(name string) *machine {
	for _, m := range w.servers {
		if m.name == name {
			return m
		}
	}
	return nil
}

func (w *World) node(name string) *node {
	for _, n := range w.workers {
		if n.name == name {
			return n
		}
	}
	return nil
}

// task is something that the world does at a time.
type task struct {
	at time.Duration
	do func()
}

// after does something in a while, between two steps.
func (w *World) after(d time.Duration, do func()) {
	w.tasks = append(w.tasks, task{time.Since(begin) + d, do})
}

// due does what is due, in the order in which it is.
func (w *World) due() {
	for {
		first := -1
		for i, t := range w.tasks {
			if t.at <= time.Since(begin) && (first < 0 || t.at < w.tasks[first].at) {
				first = i
			}
		}
		if first < 0 {
			return
		}
		do := w.tasks[first].do
		w.tasks = append(w.tasks[:first], w.tasks[first+1:]...)
		do()
	}
}

func (w *World) restart(m *machine) {
	if m.server != nil {
		return
	}
	if wait := w.dark - time.Since(begin); wait > 0 {
		w.after(wait, func() { w.restart(m) })
		return
	}
	err := m.start()
	if err != nil && m.rotten != "" && !m.platter.IsFull() {
		// It does what the sentence says.
		w.story.tell(m.name, "does not start: %v", err)
		var file *raftnode.DamagedFileError
		var entry *raftlog.DamageError
		if !errors.As(err, &file) && !errors.As(err, &entry) {
			w.checker.violated("server %s does not start, as %s was damaged, and does not say which file is: %v", m.name, m.rotten, err)
		}
		m.platter = w.newPlatter(100*len(w.servers) + m.lives)
		m.term, m.rotten = 0, ""
		w.restart(m)
		return
	}
	if err != nil && m.platter.IsFull() {
		w.story.tell(m.name, "does not start: %v", err)
		w.after(5*time.Second, func() { w.restart(m) })
		return
	}
	m.rotten = ""
	if err != nil {
		w.checker.violated("%v", err)
	}
}

// crashContainer ends a container of a node by itself.
func (w *World) crashContainer(n *node) {
	m := w.up()
	if m == nil {
		return
	}
	for _, p := range podsOn(m.server.View(), n.name) {
		if n.containers.Crash(runtime.ID{Pod: p.UID, Container: "main", Attempt: restarts(p)}, 3) == nil {
			return
		}
	}
}

// up is a server that runs.
func (w *World) up() *machine {
	for _, m := range w.servers {
		if m.server != nil {
			return m
		}
	}
	return nil
}

const (
	step = 500 * time.Millisecond
	// restAfter is within how long the world must come to rest once nothing goes
	// wrong any more: a container that has crashed again and again starts after five.
	restAfter = 6 * time.Minute
)

// Run lets a world live: the faults happen while users work, and are over; then
// the users stop, and everything must come to rest. wait returns when nobody in
// the bubble can go on (synctest.Wait), pause is called between two steps.
func (w *World) Run(faults []fault, until time.Duration, wait, pause func()) error {
	if err := w.Start(); err != nil {
		return err
	}
	registers := &registers{}
	observers, goHome, err := w.populate(registers)
	if err != nil {
		return err
	}
	for _, f := range faults {
		w.after(f.At-time.Since(begin), func() { w.happen(f) })
	}
	for n := 0; time.Since(begin) < until && w.checker.Err() == nil; n++ {
		time.Sleep(step)
		wait()
		w.due()
		w.look(n)
		pause()
	}
	w.story.tell("world", "the faults are over")
	w.doomed.Store(0)
	w.dark = 0
	w.network.heal()
	for _, m := range w.servers {
		m.setClock(0, 0)
		m.calm.Store(true)
		m.platter.Fill(false)
		m.platter.Slow(0)
		w.restart(m)
	}
	time.Sleep(10 * time.Second) // the users go on
	for _, stop := range goHome {
		stop()
		wait() // one after the other: what each does last is the same in every run
	}
	w.rest(observers, wait, pause)
	if err := registers.check(w.checker.forgotten); err != nil {
		w.checker.violated("%v", err)
	}
	return w.checker.Err()
}

// populate brings the users, and says how each of them is sent home.
func (w *World) populate(r *registers) (_ []*observer, goHome []context.CancelFunc, err error) {
	type worker struct {
		name string
		work func(u *user, ctx context.Context)
	}
	crew := []worker{
		{"submit", func(u *user, ctx context.Context) { u.submit(ctx, w.config.Pace.pods) }},
		{"tidy", (*user).tidy},
	}
	busy := []worker{
		{"scale", (*user).scale},
		{"drain", (*user).drain},
		{"hold", (*user).hold},
		{"prepare", (*user).prepare},
		{"reserve", (*user).reserve},
		{"recreate", (*user).recreate},
		{"hand-over", (*user).handOver},
		{"deploy", (*user).deploy},
		{"ration", (*user).ration},
		{"resize", (*user).resize},
		{"reg-1", func(u *user, ctx context.Context) { u.useRegisters(ctx, r, 1) }},
		{"reg-2", func(u *user, ctx context.Context) { u.useRegisters(ctx, r, 2) }},
		{"reg-3", func(u *user, ctx context.Context) { u.useRegisters(ctx, r, 3) }},
		{"read-first", func(u *user, ctx context.Context) { u.readFirst(ctx, r, 4) }},
		{"claim", (*user).claim},
		{"define", (*user).define},
		{"kubelet", (*user).keepLease},
		{"weigh", (*user).weigh},
		{"equip", (*user).equip},
	}
	const masters = "system:masters"
	ward, err := w.newUser("ward", 101)
	if err != nil {
		return nil, nil, err
	}
	busy = append(busy, worker{"grant", func(u *user, ctx context.Context) { u.grant(ctx, ward) }})
	if !w.config.Pace.alone {
		crew = append(crew, busy...)
	}
	owner, err := w.newUser("owner", 0, masters)
	if err != nil {
		return nil, nil, err
	}
	watcher, err := w.newUser("watch", 1, masters)
	if err != nil {
		return nil, nil, err
	}
	if w.operator, err = w.newUser("operator", 100, masters); err != nil {
		return nil, nil, err
	}
	var begin []func()
	for i, c := range crew {
		u, err := w.newUser(c.name, 2+i, masters)
		if err != nil {
			return nil, nil, err
		}
		ctx, stop := context.WithCancel(context.Background())
		goHome = append(goHome, stop)
		begin = append(begin, func() { go c.work(u, ctx) })
	}
	ctx, stop := context.WithCancel(context.Background())
	goHome = append(goHome, stop)
	go func() {
		owner.furnish(ctx)
		for _, do := range begin {
			do()
		}
	}()
	return watcher.observe(context.Background()), goHome, nil
}

// slowly is after how many steps what controllers do within seconds is looked at.
const slowly = 4

// look checks what the servers show now, after so many steps.
func (w *World) look(n int) {
	w.lookAtClocks()
	whole := w.config.Pace.whole()
	for _, m := range w.servers {
		if m.server == nil {
			continue
		}
		if m.dying && !m.fell.Load() {
			continue
		}
		if m.fell.Swap(false) {
			m.dying = false
			m.kill(m.dark)
			w.after(m.fallen, func() { w.restart(m) })
			continue
		}
		if err := m.hasFailed(); err != nil {
			w.gaveUp(m, err)
			continue
		}
		w.lookAtTime(m)
		w.lookAtTerm(m)
		if m.server == nil {
			continue
		}
		v := m.server.View()
		if lowest := w.lowest(); v.Version() > lowest {
			w.checker.violated("server %s goes by version %d of the log's rules, and one knows %d", m.name, v.Version(), lowest)
		}
		if v.Index() == w.newest() {
			w.checker.view(m.name, v)
		}
		if n%slowly == 0 {
			w.lookAtServices(m, v)
			w.lookAtCrons(m, v)
		}
		if n%whole == 0 {
			w.checker.whole(m.name, v)
		}
	}
	if n%whole == 0 {
		w.checker.alone(w.furthestBehind())
	}
	w.lookAtTies()
}

// furthestBehind is how far every server is, at least; 0: one does not run.
func (w *World) furthestBehind() (index uint64) {
	for i, m := range w.servers {
		if m.server == nil {
			return 0
		}
		if at := m.server.View().Index(); i == 0 || at < index {
			index = at
		}
	}
	return index
}

// lowest is the newest version of the log's rules that all servers know.
func (w *World) lowest() int {
	v := fsm.LogVersion
	for _, m := range w.servers {
		v = min(v, m.goes)
	}
	return v
}

// lookAtTerm: no server goes back behind a term that it knew, whatever it went
// through.
func (w *World) lookAtTerm(m *machine) {
	now := m.server.Term()
	if now < m.term {
		w.checker.violated("server %s, life %d, was in term %d and is in term %d", m.name, m.lives, m.term, now)
	}
	m.term = max(m.term, now)
	// Who has just heard of a newer term says for a moment that it leads.
	if m.server.IsLeader() && m.server.Role() == "leader" && m.server.Term() == now {
		if w.checker.leads(m.name, now) {
			w.lookAtLeader(m, now)
		}
	}
}

// ahead is by how many entries others may be ahead of who leads, as what it has committed is applied everywhere at once.
const ahead = 50

// lookAtLeader: whoever begins to lead has all that anybody has applied.
func (w *World) lookAtLeader(m *machine, term uint64) {
	for _, o := range w.servers {
		if o.term > term {
			return // somebody else leads by now
		}
	}
	if has, others := m.server.View().Index(), w.newest(); has+ahead < others {
		w.checker.violated("server %s leads in term %d with entry %d, and another has applied entry %d", m.name, term, has, others)
	}
}

// lookAtClocks: Kubernetes' controllers go by the time of day, and only where it was compared: a leader serves from when its clock
// and those of a majority are right.
func (w *World) lookAtClocks() {
	right := 0
	for _, m := range w.servers {
		if m.server != nil && !m.isWrong() {
			right++
		}
	}
	for _, m := range w.servers {
		if 2*right <= len(w.servers) || m.isWrong() {
			m.wrong = time.Now()
		}
	}
}

// serves is from when on a leader's controllers can do their work.
func (m *machine) serves() time.Time {
	if m.wrong.After(m.led.since) {
		return m.wrong
	}
	return m.led.since
}

// lookAtTime: the state's time runs as fast as real time, but for a tenth, as long as
// one leader leads, whatever its wall clock shows. It is put forward once, when the
// leader has learned what the others' clocks show.
func (w *World) lookAtTime(m *machine) {
	now, state, term := time.Now(), m.server.NowUnixNano(), m.server.Term()
	if !m.server.IsLeader() || term != m.led.term {
		m.led = leadership{term: term, since: now, at: now, state: state}
		return
	}
	if state < m.led.state {
		w.checker.violated("server %s leads, and the state's time goes back by %s", m.name, time.Duration(m.led.state-state))
	}
	if passed := state - m.led.state; now.Sub(m.led.since) > 10*time.Second && passed > int64(now.Sub(m.led.at))*11/10+int64(3*time.Second) {
		if m.led.put {
			w.checker.violated("server %s leads, and lets %s pass for the state in %s", m.name, time.Duration(passed), now.Sub(m.led.at))
		}
		m.led.put = true
	}
	m.led.at, m.led.state = now, state
}

// leadership is what was seen of one last.
type leadership struct {
	term      uint64
	since, at time.Time
	state     int64 // the state's time
	put       bool  // it was put forward
}

// gaveUp is told of a server that has stopped by itself. One without a place to
// write must, and one whose disk fails or is of an earlier time; its process ends, and is started again.
func (w *World) gaveUp(m *machine, err error) {
	if !m.platter.WasFull() && !m.disk.HasFailed() && !m.early {
		w.checker.violated("server %s gives up: %v", m.name, err)
		return
	}
	w.story.tell(m.name, "gives up: %v", err)
	m.early = false // it knows now
	m.kill(false)
	w.after(5*time.Second, func() { w.restart(m) })
}

// rest waits until the world has come to rest, or tells what has not.
func (w *World) rest(observers []*observer, wait, pause func()) {
	var why []string
	for n, limit := 0, time.Since(begin)+restAfter; time.Since(begin) < limit && w.checker.Err() == nil; {
		time.Sleep(10 * step)
		n += 10
		wait()
		w.due()
		w.look(n)
		pause()
		if why = w.restless(observers); len(why) == 0 {
			w.look(0)
			w.story.tell("world", "has come to rest")
			return
		}
		if m := w.up(); m != nil && time.Since(begin) > limit-restAfter+lostAfter {
			for _, late := range lost(m.server.View()) {
				w.checker.violated("%s after the last renewal: %s", lostAfter, late)
			}
		}
	}
	if w.checker.Err() == nil {
		w.checker.violated("%s after the last fault:\n  %s", restAfter, strings.Join(why, "\n  "))
	}
}

// panics is how many are in the records of a server.
func (w *World) panics() int {
	if m := w.up(); m != nil {
		return m.server.View().ApplyFailures.Len()
	}
	return 0
}

// restless says what has not come to rest.
func (w *World) restless(observers []*observer) (why []string) {
	var first *machine
	for i, m := range w.servers {
		if m.server == nil {
			why = append(why, "server "+m.name+" does not run")
			continue
		}
		v := m.server.View()
		if first == nil {
			first = m
			why = append(why, w.checker.settled(v, time.Now().UnixNano())...)
		} else if a, b := first.server.View().Index(), v.Index(); a != b {
			why = append(why, "servers "+first.name+" and "+m.name+" are not equally far")
		}
		if err := observers[i].same(v); err != nil {
			why = append(why, err.Error())
		}
	}
	if len(why) > 20 {
		why = append(why[:20], "and more")
	}
	return why
}
