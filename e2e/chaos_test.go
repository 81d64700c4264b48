package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/pki"
)

var (
	chaosMinutes = flag.Int("chaos.minutes", 0, "minutes of faults; 0: none")
	chaosSeed    = flag.Uint64("chaos.seed", 0, "the seed of the faults and the work; 0: the time")
	chaosInside  = flag.Bool("chaos.inside", false, "this process has namespaces of its own")
)

// TestChaos lets a cluster of real processes, each on a machine of its own (a
// network namespace, a disk that forgets), live under faults, and holds it to what
// it promises. make chaos runs it.
func TestChaos(t *testing.T) {
	switch {
	case *chaosMinutes == 0:
		t.Skip("make chaos runs it")
	case os.Getuid() != 0:
		t.Fatal("it needs root: for namespaces, and for disks of its own")
	case !*chaosInside:
		inside(t)
		return
	}
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	c := newChaos(t, seed)
	c.live(t)
}

// inside runs the test again in namespaces that end with it.
func inside(t *testing.T) {
	cmd := exec.Command(os.Args[0], append(slices.Clone(os.Args[1:]), "-chaos.inside")...)
	cmd.Env = append(os.Environ(), "BERTH_E2E_BINARY="+binary)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

const (
	chaosServers = 3
	chaosWorkers = 4
	chaosSpace   = "default"
	chaosSets    = 3
	// faultEvery is how often something goes wrong, about.
	faultEvery = 2500 * time.Millisecond
	// lookEvery is how often capacity is looked at, and verifyEvery digests.
	lookEvery      = 5 * time.Second
	chaosPatience  = 3 * time.Minute
	exitAnnotation = "chaos/exit"
)

// chaos is a cluster with what goes wrong in it.
type chaos struct {
	*cluster
	rand    *rand.Rand
	network *chaosNetwork
	address map[*fleet.Process]string
	disks   map[*fleet.Process]*chaosDisk
	checker *chaosChecker
	starts  string // a file for every pod that never restarts, a line for each start

	began  time.Time
	tasks  []chaosTask
	down   map[*fleet.Process]bool // it does not run, on purpose
	counts map[string]int
}

type chaosTask struct {
	at time.Time
	do func()
}

func newChaos(t *testing.T, seed uint64) *chaos {
	t.Helper()
	n, err := newChaosNetwork()
	if err != nil {
		t.Fatal(err)
	}
	c := &chaos{
		rand: rand.New(rand.NewPCG(seed, 0)), network: n, checker: newChaosChecker(), began: time.Now(),
		address: map[*fleet.Process]string{}, disks: map[*fleet.Process]*chaosDisk{}, down: map[*fleet.Process]bool{}, counts: map[string]int{},
	}
	var specs []fleet.Spec
	for i := range chaosServers {
		specs = append(specs, server(fmt.Sprintf("server-%d", i+1), fmt.Sprintf("bootstrap_expect = %d", chaosServers)))
	}
	for i := range chaosWorkers {
		specs = append(specs, worker(fmt.Sprintf("worker-%d", i+1), `capacity { cpu = "4" }`))
	}
	specs = append(specs, pretender())
	for i := range specs {
		specs[i].Host = fmt.Sprintf("10.77.0.%d", 10+i)
		if specs[i].Prefix, err = n.add(specs[i].Host); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp(root, "chaos-")
	if err != nil {
		t.Fatal(err)
	}
	f, err := fleet.New(binary, dir)
	if err != nil {
		t.Fatal(err)
	}
	f.DieTogether = true
	c.cluster, c.starts = &cluster{Fleet: f}, filepath.Join(dir, "starts")
	if err := os.Mkdir(c.starts, 0o755); err != nil {
		t.Fatal(err)
	}
	control := filepath.Join(dir, "connections")
	if err := errors.Join(os.Mkdir(control, 0o700), syscall.Mount("fusectl", control, "fusectl", 0, "")); err != nil {
		t.Fatal(err)
	}
	procs, err := f.Add(specs...)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range procs {
		c.address[p] = specs[i].Host
		if p.Kind != pki.Server {
			continue
		}
		if c.disks[p], err = newChaosDisk(p.DataDir, control, seed+uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.close(t) })
	for _, p := range procs {
		c.start(t, p)
	}
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *chaos) close(t *testing.T) {
	for i := range chaosSets { // or they make their pods again
		ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
		err := c.Reader().Kube.AppsV1().ReplicaSets(chaosSpace).Delete(ctx, fmt.Sprintf("set-%d", i), metav1.DeleteOptions{})
		cancel()
		if err != nil {
			t.Log(err)
		}
	}
	c.end(t)
	for _, d := range c.disks {
		if err := d.unmount(false); err != nil {
			t.Error(err)
		}
	}
	if err := errors.Join(syscall.Unmount(filepath.Join(c.Dir, "connections"), syscall.MNT_DETACH), c.network.close()); err != nil {
		t.Error(err)
	}
}

// start starts a process that is down, with its disk.
func (c *chaos) start(t *testing.T, p *fleet.Process) {
	t.Helper()
	if d := c.disks[p]; d != nil && d.server == nil {
		if err := d.mount(); err != nil {
			t.Fatal(err)
		}
	}
	delete(c.down, p)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
}

func (c *chaos) tell(format string, args ...any) {
	fmt.Printf("%8.2f  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

func (c *chaos) after(d time.Duration, do func()) {
	c.tasks = append(c.tasks, chaosTask{time.Now().Add(d), do})
}

// due does what is due.
func (c *chaos) due(all bool) {
	for i := 0; i < len(c.tasks); i++ {
		if k := c.tasks[i]; all || time.Now().After(k.at) {
			c.tasks = slices.Delete(c.tasks, i, i+1)
			i--
			k.do()
		}
	}
}

// live lets the cluster live under faults, and looks at it.
func (c *chaos) live(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	users := c.users(t, ctx)
	watching, unwatch := context.WithCancel(t.Context())
	defer unwatch()
	for _, s := range c.Servers() {
		go c.checker.follow(watching, s)
	}
	next, look := time.Now(), time.Now()
	for until := c.began.Add(time.Duration(*chaosMinutes) * time.Minute); time.Now().Before(until) && len(c.checker.violations()) == 0; {
		chaosPause(ctx, pollEvery)
		c.due(false)
		c.revive(t)
		if time.Now().After(next) {
			next = next.Add(faultEvery/2 + time.Duration(c.rand.Int64N(int64(faultEvery))))
			c.fault(t)
		}
		if time.Now().After(look) {
			look = look.Add(lookEvery)
			c.look(ctx)
		}
	}
	c.tell("the faults are over: %v", c.counts)
	c.due(true)
	c.revive(t)
	for _, d := range c.disks {
		d.platter.Fill(false)
	}
	c.revive(t)
	chaosPause(ctx, 5*time.Second) // the users go on
	stop()
	users.Wait()
	c.rest(t)
}

// look asks every server that answers.
func (c *chaos) look(ctx context.Context) {
	for _, s := range c.Servers() {
		if !c.down[s] && s.Running() {
			one, cancel := context.WithTimeout(ctx, time.Second)
			c.checker.capacity(one, s)
			cancel()
		}
	}
}

// revive starts who has ended by himself. Only who had no room on his disk may.
func (c *chaos) revive(t *testing.T) {
	for _, p := range c.Processes() {
		if p.Running() || c.down[p] {
			continue
		}
		d := c.disks[p]
		if d == nil || !d.platter.WasFull() {
			c.checker.violated("%s ended by itself:\n%s", p.Name, p.LogTail(10))
			continue
		}
		c.tell("%s gives up: its disk is full", p.Name)
		c.down[p] = true
		c.after(3*time.Second, func() { c.start(t, p) })
	}
}

// rest waits until the cluster is at rest, as it must be within chaosPatience once
// nothing goes wrong any more, and looks at what is left.
func (c *chaos) rest(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), chaosPatience)
	defer cancel()
	for _, s := range c.Servers() {
		for err := unsettled(ctx, s); err != nil && len(c.checker.violations()) == 0; err = unsettled(ctx, s) {
			if ctx.Err() != nil {
				c.checker.violated("%s after the last fault, as %s says: %v", chaosPatience, s.Name, err)
				break
			}
			chaosPause(ctx, time.Second)
		}
	}
	list, err := c.Reader().Kube.CoreV1().Pods(metav1.NamespaceAll).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.checker.exits(c.starts, list.Items)
	c.secondEvictions(t)
	for _, v := range c.checker.violations() {
		t.Error(v)
	}
	if !t.Failed() {
		c.verify(t, chaosServers)
	}
	faults := 0
	for _, n := range c.counts {
		faults += n
	}
	t.Logf("%d faults in %s: %v; %d looks at pods", faults, time.Since(c.began).Round(time.Second), c.counts, c.checker.looks)
}

// secondEvictions: a pod is the victim of one preemption.
func (c *chaos) secondEvictions(t *testing.T) {
	list, err := c.Reader().Dynamic.Resource(berthv1.GroupVersion.WithResource("preemptions")).List(context.Background(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	by := map[types.UID]string{}
	for i := range list.Items {
		var p berthv1.Preemption
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, &p); err != nil {
			t.Fatal(err)
		}
		for _, v := range p.Status.Victims {
			if v.WaitedFor {
				continue
			}
			if first, twice := by[v.UID]; twice {
				c.checker.violated("pod %s was evicted for %s and for %s", v.Name, first, p.Name)
			}
			by[v.UID] = p.Name
		}
	}
	c.tell("%d preemptions are on record, with %d victims", len(list.Items), len(by))
}

// fault lets one thing go wrong, and sees to its end.
func (c *chaos) fault(t *testing.T) {
	servers, workers := c.up(c.Servers()), c.up(c.Workers())
	if len(servers) == 0 || len(workers) == 0 {
		return
	}
	s, w := servers[c.rand.IntN(len(servers))], workers[c.rand.IntN(len(workers))]
	short := 200*time.Millisecond + time.Duration(c.rand.Int64N(int64(8*time.Second)))
	faults := []struct {
		name   string
		weight int
		do     func()
	}{
		{"kill server", 3, func() { c.takeDown(t, s, false, short) }},
		{"lose power", 3, func() { c.takeDown(t, s, true, short) }},
		{"lose all power", 1, func() {
			for _, s := range servers {
				c.takeDown(t, s, true, short)
			}
		}},
		{"stop server", 1, func() { c.stopInOrder(t, s, short) }},
		{"pause server", 2, func() { c.pauseProcess(s, short) }},
		{"cut link", 4, func() { c.cut(t, c.address[s], c.address[servers[c.rand.IntN(len(servers))]], short) }},
		{"isolate server", 2, func() {
			for _, o := range c.Servers() {
				c.cut(t, c.address[s], c.address[o], short)
				c.cut(t, c.address[o], c.address[s], short)
			}
		}},
		{"cut worker", 2, func() {
			for _, o := range c.Servers() {
				c.cut(t, c.address[w], c.address[o], short)
			}
		}},
		{"cut user", 1, func() { c.cut(t, c.address[s], bridgeAddress, short) }},
		{"fill disk", 1, func() {
			c.disks[s].platter.Fill(true)
			c.after(short, func() { c.disks[s].platter.Fill(false) })
		}},
		{"slow disk", 2, func() {
			c.disks[s].platter.Slow(500 * time.Millisecond)
			c.after(short, func() { c.disks[s].platter.Slow(0) })
		}},
		{"kill worker", 3, func() { c.takeDown(t, w, false, short) }},
		{"pause worker", 2, func() { c.pauseProcess(w, 2*short) }},
	}
	sum := 0
	for _, f := range faults {
		sum += f.weight
	}
	n := c.rand.IntN(sum)
	for _, f := range faults {
		if n -= f.weight; n < 0 {
			c.tell("%s (%s, %s) for %s", f.name, s.Name, w.Name, short.Round(time.Millisecond))
			c.counts[f.name]++
			f.do()
			return
		}
	}
}

// up are those that run; the pretender is let be.
func (c *chaos) up(of []*fleet.Process) (out []*fleet.Process) {
	for _, p := range of {
		if p.Running() && !c.down[p] && p.Name != "pretender" {
			out = append(out, p)
		}
	}
	return out
}

func (c *chaos) takeDown(t *testing.T, p *fleet.Process, power bool, d time.Duration) {
	c.down[p] = true
	p.Kill()
	if disk := c.disks[p]; disk != nil && power {
		if err := disk.unmount(true); err != nil {
			t.Fatal(err)
		}
	}
	c.after(d, func() { c.start(t, p) })
}

func (c *chaos) stopInOrder(t *testing.T, p *fleet.Process, d time.Duration) {
	c.down[p] = true
	p.Signal(syscall.SIGTERM)
	deadline := time.Now().Add(stopGrace)
	var again func()
	again = func() {
		switch {
		case !p.Running():
			c.start(t, p)
		case time.Now().After(deadline):
			c.checker.violated("%s does not stop:\n%s", p.Name, p.LogTail(10))
			p.Kill()
			c.start(t, p)
		default:
			chaosPause(context.Background(), pollEvery)
			c.after(pollEvery, again)
		}
	}
	c.after(d, again)
}

// pauseProcess stops a process for a while; meanwhile nothing else happens to it.
func (c *chaos) pauseProcess(p *fleet.Process, d time.Duration) {
	c.down[p] = true
	p.Signal(syscall.SIGSTOP)
	c.after(d, func() {
		p.Signal(syscall.SIGCONT)
		delete(c.down, p)
	})
}

func (c *chaos) cut(t *testing.T, from, to string, d time.Duration) {
	if from == to {
		return
	}
	if err := c.network.cut(from, to); err != nil {
		t.Fatal(err)
	}
	c.after(d, func() { _ = c.network.mend(from, to) }) // another cut's end may have mended it
}

func chaosPause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
