package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

var (
	besidePods   = flag.Int("beside.pods", 0, "how many pods the agents beside each other have at a time; 0: the test is left out")
	besideRounds = flag.Int("beside.rounds", 3, "how often each of the agents has them")
)

const (
	// besideRest is how long the pods are left alone, with the agent.
	besideRest = 30 * time.Second
	besideApp  = "beside"
)

// A node's worker and Kubernetes' own kubelet have the same to do in one run, in turn: each on a machine of its own with a containerd
// of its own, for the same servers. It fails where Berth's worker is slower, or needs more than half of the kubelet's processor time
// or memory.
func TestNodeBesideKubelet(t *testing.T) {
	if *besidePods == 0 {
		t.Skip("`make bench-kubelet` runs this")
	}
	needsKubelet(t)
	s := server("server-1", "bootstrap_expect = 1", "signed_kubelets = true")
	s.Host = reachable()
	c := newCluster(t, s)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	kubelet := &sideAgent{cluster: c, machine: c.addKubelet(t, "kubelet-1"), who: "kubelet", program: *kubeletProgram}
	berth := &sideAgent{cluster: c, machine: c.addWorkerMachine(t, "worker-1", 1), who: "Berth's worker", program: binary}
	for _, a := range [...]*sideAgent{berth, kubelet} {
		c.eventually(t, "node "+a.machine.name+" to be ready", func(ctx context.Context) error {
			n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, a.machine.name, metav1.GetOptions{})
			if err == nil && !nodeReady(n) {
				err = fmt.Errorf("its conditions are %+v", n.Status.Conditions)
			}
			return err
		})
	}
	c.approveServing(t, "kubelet-1")
	load, _ := os.ReadFile("/proc/loadavg") // it is shown
	for round := range *besideRounds {
		order := []*sideAgent{berth, kubelet}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, a := range order {
			if err := a.round(t.Context()); err != nil {
				t.Fatalf("%s, round %d: %v", a.who, round+1, err)
			}
		}
	}
	t.Logf("%d pods, %d rounds in turn; load at the start %s\n%s", *besidePods, *besideRounds, bytes.TrimSpace(load), besideTable(berth, kubelet))
	for i, goal := range sideGoals() {
		if ours, theirs := berth.median(i), kubelet.median(i); goal.most > 0 && ours > goal.most*theirs {
			t.Errorf("%s: %.1f %s and %.1f %s, which is %.2f of it and not %.2f at the most", goal.what, ours, goal.unit, theirs, goal.unit, ours/theirs, goal.most)
		}
	}
}

// addWorkerMachine starts a machine with one of Berth's workers.
func (c *cluster) addWorkerMachine(t *testing.T, name string, nth int) *machine {
	t.Helper()
	m := c.newMachine(t, name, nth)
	w := worker(name, "runtime = \"cri\"", fmt.Sprintf("cri {\n  endpoint = \"unix://%s/containerd.sock\"\n}", m.dir), "services {\n  mode = \"off\"\n}")
	w.Host = m.address()
	added, err := c.Add(w)
	if err != nil {
		t.Fatal(err)
	}
	c.startMachine(t, m, binary, "agent", "-config", added[0].Config)
	return m
}

// sideAgent is one of those that are compared, and what it took in each round.
type sideAgent struct {
	cluster *cluster
	machine *machine
	who     string
	program string
	rounds  [][]float64 // a figure for each of sideGoals
}

// sideGoal is a figure, and how much of the kubelet's Berth's may be; 0: it is shown.
type sideGoal struct {
	what, unit string
	most       float64
}

func sideGoals() []sideGoal {
	return []sideGoal{
		{"from assigned to Running, median", "ms", 1},
		{"from assigned to Running, 99th percentile", "ms", 1},
		{"all Running", "ms", 1},
		{"processor time until all run", "ms/pod", 0.5},
		{"processor time at rest", "ms/s", 0.5},
		{"from told to end to the object's removal, median", "ms", 1},
		{"from told to end to the object's removal, 99th percentile", "ms", 1},
		{"all gone", "ms", 1},
		{"processor time until all are gone", "ms/pod", 0.5},
		{"resident with all pods", "MiB", 0.5},
		{"of that not the program's own file", "MiB", 0},
		{"processor time of containerd, until all run", "ms/pod", 0},
		{"processor time of containerd, at rest", "ms/s", 0},
	}
}

func (a *sideAgent) median(figure int) float64 {
	var all []float64
	for _, r := range a.rounds {
		all = append(all, r[figure])
	}
	slices.Sort(all)
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}

func besideTable(ours, theirs *sideAgent) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "median of the rounds\t%s\t%s\t\tratio\tof each round\n", ours.who, theirs.who)
	for i, g := range sideGoals() {
		var each []string
		for r := range ours.rounds {
			each = append(each, fmt.Sprintf("%.1f/%.1f", ours.rounds[r][i], theirs.rounds[r][i]))
		}
		fmt.Fprintf(w, "%s\t%.1f\t%.1f\t%s\t%.2f\t%s\n", g.what, ours.median(i), theirs.median(i), g.unit, ours.median(i)/theirs.median(i), strings.Join(each, " "))
	}
	_ = w.Flush() // into memory
	return b.String()
}

// round starts the pods, leaves them alone, and ends them.
func (a *sideAgent) round(ctx context.Context) error {
	agent, err := a.pid(a.program)
	if err != nil {
		return err
	}
	daemon, err := a.pid("containerd")
	if err != nil {
		return err
	}
	var errs []error
	spent := func(pid int) float64 {
		ms, err := processorTime(pid)
		errs = append(errs, err)
		return ms
	}
	kube := a.cluster.Reader().Kube.CoreV1()
	seen, err := watchBeside(ctx, kube.Pods("default").Watch)
	if err != nil {
		return err
	}
	defer seen.stop()
	all := float64(*besidePods)

	agent0, daemon0, began := spent(agent), spent(daemon), time.Now()
	var creating sync.WaitGroup
	failed := make(chan error, *besidePods)
	next := make(chan int, *besidePods)
	for i := range *besidePods {
		next <- i
	}
	close(next)
	for range 8 {
		creating.Go(func() {
			for i := range next {
				_, err := kube.Pods("default").Create(ctx, a.pod(i), metav1.CreateOptions{})
				failed <- err
			}
		})
	}
	creating.Wait()
	close(failed)
	for err := range failed {
		errs = append(errs, err)
	}
	if err := errors.Join(append(errs, seen.wait(ctx, "running", *besidePods))...); err != nil {
		return err
	}
	running, agent1, daemon1 := time.Since(began), spent(agent), spent(daemon)

	rested := time.Now()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(besideRest):
	}
	rest, agent2, daemon2 := time.Since(rested), spent(agent), spent(daemon)
	resident, own, err := residentOf(agent)
	errs = append(errs, err)

	ending := time.Now()
	errs = append(errs, kube.Pods("default").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "app=" + besideApp}),
		seen.wait(ctx, "gone", *besidePods))
	gone, agent3 := time.Since(ending), spent(agent)
	starts, ends := seen.took()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	a.rounds = append(a.rounds, []float64{
		at(starts, 0.5), at(starts, 0.99), inMillis(running), (agent1 - agent0) / all, (agent2 - agent1) / rest.Seconds(),
		at(ends, 0.5), at(ends, 0.99), inMillis(gone), (agent3 - agent2) / all, resident, own, (daemon1 - daemon0) / all, (daemon2 - daemon1) / rest.Seconds(),
	})
	return nil
}

// pod ends as soon as it is told to.
func (a *sideAgent) pod(i int) *corev1.Pod {
	p := imaged(fmt.Sprintf("%s-%s-%d", besideApp, a.machine.name, i), `trap "exit 0" TERM; sleep 100000 & wait`)
	p.Labels, p.Spec.NodeName = map[string]string{"app": besideApp}, a.machine.name
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("5m"), "memory": resource.MustParse("8Mi")},
		Limits:   corev1.ResourceList{"memory": resource.MustParse("64Mi")},
	}
	return p
}

// pid finds the process of a program on the agent's machine: its arguments name something in its directory, or its own.
func (a *sideAgent) pid(program string) (int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return 0, err
	}
	var found []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")) // it may have just ended
		args := strings.Split(string(b), "\x00")
		if filepath.Base(args[0]) == filepath.Base(program) && (strings.Contains(string(b), a.machine.dir+"/") || strings.Contains(string(b), a.machine.dir+".hcl")) {
			found = append(found, pid)
		}
	}
	if len(found) != 1 {
		return 0, fmt.Errorf("on machine %s %d processes are %s", a.machine.name, len(found), filepath.Base(program))
	}
	return found[0], nil
}

// processorTime is a process's in milliseconds, as the scheduler of the kernel counts it.
func processorTime(pid int) (float64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	const user, system = 11, 12 // after the name, in hundredths of a second
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	u, err1 := strconv.ParseFloat(fields[user], 64)
	s, err2 := strconv.ParseFloat(fields[system], 64)
	return (u + s) * 10, errors.Join(err1, err2)
}

// residentOf is what a process has resident, and how much of it is not of files, in MiB.
func residentOf(pid int) (all, own float64, err error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "VmRSS:" && f[0] != "RssAnon:" {
			continue
		}
		kib, err := strconv.ParseFloat(f[1], 64)
		if err != nil {
			return 0, 0, err
		}
		if f[0] == "VmRSS:" {
			all = kib / 1024
		} else {
			own = kib / 1024
		}
	}
	return all, own, nil
}

func inMillis(d time.Duration) float64 { return d.Seconds() * 1000 }

func at(sorted []float64, q float64) float64 {
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// besideSeen is what a client saw of the pods, and when.
type besideSeen struct {
	watch   watch.Interface
	changed chan struct{}

	mu     sync.Mutex
	pods   map[types.UID]*besideTimes
	broken error
}

type besideTimes struct{ assigned, running, told, gone time.Time }

func watchBeside(ctx context.Context, begin func(context.Context, metav1.ListOptions) (watch.Interface, error)) (*besideSeen, error) {
	w, err := begin(ctx, metav1.ListOptions{LabelSelector: "app=" + besideApp})
	if err != nil {
		return nil, err
	}
	s := &besideSeen{watch: w, changed: make(chan struct{}, 1), pods: map[types.UID]*besideTimes{}}
	go func() {
		for ev := range w.ResultChan() {
			s.see(ev, time.Now())
		}
		s.mu.Lock()
		s.broken = errors.New("the watch of the pods broke off")
		s.mu.Unlock()
		s.tell()
	}()
	return s, nil
}

func (s *besideSeen) stop() { s.watch.Stop() }

func (s *besideSeen) tell() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

func (s *besideSeen) see(ev watch.Event, now time.Time) {
	p, ok := ev.Object.(*corev1.Pod)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.pods[p.UID]
	if t == nil {
		t = &besideTimes{}
		s.pods[p.UID] = t
	}
	set := func(at *time.Time, is bool) {
		if is && at.IsZero() {
			*at = now
		}
	}
	set(&t.assigned, p.Spec.NodeName != "")
	set(&t.running, p.Status.Phase == corev1.PodRunning)
	set(&t.told, p.DeletionTimestamp != nil)
	set(&t.gone, ev.Type == watch.Deleted)
	s.tell()
}

// wait waits until so many pods run, or are gone.
func (s *besideSeen) wait(ctx context.Context, what string, n int) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	for {
		count := 0
		s.mu.Lock()
		for _, t := range s.pods {
			if what == "running" && !t.running.IsZero() || what == "gone" && !t.gone.IsZero() {
				count++
			}
		}
		err := s.broken
		s.mu.Unlock()
		if count == n || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%d of %d pods are %s: %w", count, n, what, ctx.Err())
		case <-s.changed:
		}
	}
}

// took is how long each pod's beginning and end took, sorted.
func (s *besideSeen) took() (starts, ends []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.pods {
		starts, ends = append(starts, inMillis(t.running.Sub(t.assigned))), append(ends, inMillis(t.gone.Sub(t.told)))
	}
	slices.Sort(starts)
	slices.Sort(ends)
	return starts, ends
}
