package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/cgroup"
)

var (
	faultRounds = flag.Int("faults.rounds", 3, "rounds of TestFaults")
	faultSeed   = flag.Uint64("faults.seed", 0, "their seed; 0: the time")
)

// maxFaultDelay is about how long the pods of a round take to start and end: the fault is somewhere within.
const maxFaultDelay = 2500 * time.Millisecond

// faults is a node on which worker, daemon and shims are killed.
type faults struct {
	*cluster
	d       realDaemon
	rand    *rand.Rand
	witness string            // a file a pod, a line each time its container is run
	excused map[string]bool   // pods whose shim was killed
	killed  map[string]string // what was killed in the round of a pod
	codes   map[string]int32
	counts  map[string]int
	uids    []string // of all pods that ever were
	bounded bool     // the node's pods have cgroups
	service criv1.RuntimeServiceClient
}

// While pods start and end, their worker, the daemon of its containers and a shim are killed at random. Nobody runs without a pod or twice, no exit code is
// lost, and nothing is left. make faults runs more of it.
func TestFaults(t *testing.T) {
	seed := *faultSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	d := realContainers(t)
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), criWorker(d, "worker-1", "cri"))
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	f := &faults{cluster: c, d: d, rand: rand.New(rand.NewPCG(seed, 0)), witness: filepath.Join(c.Dir, "witness"),
		service: runtimeService(t, d), excused: map[string]bool{}, killed: map[string]string{}, codes: map[string]int32{}, counts: map[string]int{}}
	if err := os.Mkdir(f.witness, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := cgroup.Open("berth-e2e"); err != nil {
		t.Logf("cgroups are not counted: %v", err)
	} else {
		f.bounded = true
	}
	for round := range *faultRounds {
		f.round(t, round)
		if t.Failed() {
			t.Logf("the log of what runs containers ends:\n%s", d.LogTail())
			break
		}
	}
	f.nothingLeft(t)
}

// round begins some pods and ends others, kills something, and looks at what became of them.
func (f *faults) round(t *testing.T, round int) {
	kube := f.Reader().Kube
	var pods []string
	add := func(kind string, p corev1.RestartPolicy, script string) string {
		name := fmt.Sprintf("%s-%d", kind, round)
		create(t, kube, imaged(name, "echo run >> /witness/"+name+"; "+script, policy(p), volume("witness", "/witness",
			corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: f.witness}})))
		pods = append(pods, name)
		return name
	}
	for i := range 2 {
		code := f.rand.Int32N(120)
		name := add(fmt.Sprintf("ends%d", i), corev1.RestartPolicyNever, fmt.Sprintf("sleep 0.%d; exit %d", f.rand.IntN(9), code))
		f.codes[name] = code
	}
	add("fails", corev1.RestartPolicyOnFailure, fmt.Sprintf("test $(wc -l < /witness/fails-%d) -gt 1 || exit 7", round))
	add("stays", corev1.RestartPolicyAlways, "exec sleep 100000")
	if round > 0 {
		now := int64(1)
		if err := kube.CoreV1().Pods("default").Delete(t.Context(), fmt.Sprintf("stays-%d", round-1), metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case <-time.After(time.Duration(f.rand.Int64N(int64(maxFaultDelay)))):
	case <-t.Context().Done():
	}
	f.fault(t, pods)
	f.waitNode(t, true)
	for _, name := range pods {
		f.judge(t, name)
	}
	f.eventually(t, "sandboxes to be those of the pods", func(ctx context.Context) error { return f.compare(ctx, round) })
	for _, name := range pods[:3] {
		if err := kube.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// fault kills, and starts again what does not start by itself.
func (f *faults) fault(t *testing.T, pods []string) {
	w := f.Workers()[0]
	what := [...]string{"worker", "daemon", "both", "shim"}[f.rand.IntN(4)]
	f.counts[what]++
	daemon := func() {
		if err := f.d.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	start := func() {
		if err := w.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range pods {
		f.killed[name] = what
	}
	switch what {
	case "worker":
		w.Kill()
		start()
	case "daemon":
		f.d.Kill()
		daemon()
	case "both":
		w.Kill()
		f.d.Kill()
		if f.rand.IntN(2) == 0 {
			daemon()
			start()
		} else {
			start()
			daemon()
		}
	case "shim":
		name := pods[f.rand.IntN(len(pods))]
		p, err := f.get(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		f.excused[name] = true // also where it had none, or had ended
		if err := f.d.KillShim(t.Context(), string(p.UID)); err != nil {
			t.Fatal(err)
		}
	}
}

// judge waits until a pod is as it is to be.
func (f *faults) judge(t *testing.T, name string) {
	over := func(p *corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	}
	kind, _, _ := strings.Cut(name, "-")
	if kind == "stays" {
		over = podReady
	}
	p := f.waitFor(t, name, "to be as it is to be", over)
	f.uids = append(f.uids, string(p.UID))
	b, err := os.ReadFile(filepath.Join(f.witness, name)) // which is not there if it never ran
	runs, s := int32(strings.Count(string(b), "\n")), p.Status.ContainerStatuses[0]
	if f.excused[name] {
		if runs > s.RestartCount+1 {
			t.Errorf("%s ran %d times and was restarted %d times", name, runs, s.RestartCount)
		}
		return
	}
	x := s.State.Terminated
	lost := f.lost(name, x) || f.lost(name, s.LastTerminationState.Terminated)
	ran := runs == s.RestartCount+1
	if runs == s.RestartCount && (lost || f.daemonKilled(name)) {
		// A start was cut off, and ended before the first command: then with whatever its daemon says, but not well.
		ran, lost = x == nil || x.ExitCode != 0 || kind == "fails", true
	}
	switch kind {
	case "stays":
		ran = ran && (s.RestartCount == 0 || lost && s.RestartCount == 1)
	case "fails":
		ran = ran && (runs == 2 || lost) && x != nil && x.ExitCode == 0
	default:
		ran = ran && s.RestartCount == 0 && x != nil && (x.ExitCode == f.codes[name] || lost)
	}
	if !ran {
		t.Errorf("%s ran %d times (%v), restarts %d, is to end with %d, after %s was killed: %+v, before %+v",
			name, runs, err, s.RestartCount, f.codes[name], f.killed[name], s.State, s.LastTerminationState)
	}
}

// lost says whether containerd has lost how a container ended, or cut off its start.
func (f *faults) lost(name string, x *corev1.ContainerStateTerminated) bool {
	what := f.killed[name]
	return notNoted(x) && f.daemonKilled(name) || cutOff(x) && (what == "worker" || what == "both")
}

// daemonKilled says whether containerd was killed in the round of a pod.
func (f *faults) daemonKilled(name string) bool {
	return f.killed[name] == "daemon" || f.killed[name] == "both"
}

// cutOff says whether an end is that of a start whose caller went away: containerd ends what it was starting then, also what runs already.
func cutOff(x *corev1.ContainerStateTerminated) bool {
	return x != nil && x.ExitCode == 128 && x.Reason == "StartError"
}

// notNoted says whether an end is one that containerd lost. It has the shim forget a container that ended and writes the exit code down then (its
// handleContainerExit): who kills it between the two finds what it says of ends that it does not know.
func notNoted(x *corev1.ContainerStateTerminated) bool {
	return x != nil && x.ExitCode == 255 && x.Reason == "Unknown"
}

// compare says whether the node runs its pods, each in one sandbox with one address, and nothing else.
func (f *faults) compare(ctx context.Context, round int) error {
	running, err := f.d.Running(ctx)
	if err != nil {
		return err
	}
	p, err := f.get(ctx, fmt.Sprintf("stays-%d", round))
	if err != nil {
		return err
	}
	uid := string(p.UID)
	slices.Sort(running)
	if want := []string{uid + " container", uid + " sandbox"}; !slices.Equal(running, want) {
		return fmt.Errorf("there run %q, and should %q", running, want)
	}
	groups, err := cgroupsOf(uid)
	if err == nil && f.bounded != (len(groups) > 0) {
		err = fmt.Errorf("the cgroups of what runs are %q", groups)
	}
	if err != nil {
		return err
	}
	network, err := f.network(ctx)
	if err == nil && len(network) != 3 { // an address, the end of a link, and what was noted of them
		err = fmt.Errorf("the network has %q for one pod", network)
	}
	return err
}

// network is what the network has for pods, without what nobody can give back: a CRI-O that is killed while a sandbox gets its address forgets the sandbox when it is started
// again, and does not take back the address, nor its link.
func (f *faults) network(ctx context.Context) ([]string, error) {
	all, err := f.d.Network()
	if err != nil || *crioPrograms == "" || f.counts["daemon"]+f.counts["both"] == 0 {
		return all, err
	}
	boxes, err := f.service.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
	if err != nil {
		return nil, err
	}
	var out, links []string
	addresses, forgotten := 0, 0
	for _, at := range all {
		if filepath.Base(filepath.Dir(at)) == "brif" {
			links = append(links, at)
			continue
		}
		if _, err := netip.ParseAddr(filepath.Base(at)); err == nil {
			of, err := os.ReadFile(at)
			if err != nil {
				return nil, err
			}
			if !slices.ContainsFunc(boxes.Items, func(b *criv1.PodSandbox) bool { return strings.HasPrefix(string(of), b.Id) }) {
				forgotten++
				continue
			}
			addresses++
		}
		out = append(out, at)
	}
	f.counts["forgotten addresses"] = forgotten
	return append(out, links[min(forgotten, max(0, len(links)-addresses)):]...), nil
}

// nothingLeft ends all pods and counts.
func (f *faults) nothingLeft(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	if err := f.deletePods(ctx, metav1.NamespaceAll); err != nil {
		t.Fatal(err)
	}
	f.eventually(t, "nothing to be left on the node", func(ctx context.Context) error {
		var errs []error
		add := func(what string, is []string, err error) {
			if errs = append(errs, err); len(is) > 0 {
				errs = append(errs, fmt.Errorf("%d %s are left: %q", len(is), what, is))
			}
		}
		left, err := f.d.Left(ctx)
		left = f.withoutOrphans(t, left)
		add("sandboxes, containers, views and mounts", slices.Collect(strings.Lines(left)), err)
		groups, err := cgroupsOf(f.uids...)
		add("cgroups", groups, err)
		network, err := f.network(ctx)
		add("addresses and links", network, err)
		return errors.Join(append(errs, noneIn(filepath.Join(f.Workers()[0].DataDir, "worker", "cri")))...)
	})
	// A daemon that is killed while it starts a shim does not find that one again, and nobody else knows what it is of. It holds nothing of a pod's.
	t.Logf("done: %d pods, kills %v; nothing is left but %d processes of no container, of daemons that were killed", len(f.uids), f.counts, len(f.d.Processes())-1)
}

// withoutOrphans takes away the network namespaces of daemons that were killed while they made a sandbox: containerd has a name for one before it writes down
// which it is, and does not look for others when it is started again. No sandbox has them, and nothing runs there.
func (f *faults) withoutOrphans(t *testing.T, left string) (others string) {
	var out []string
	for line := range strings.SplitSeq(left, "\n") {
		at, mount := strings.CutPrefix(line, "mount ")
		if !mount || filepath.Base(filepath.Dir(at)) != "netns" || f.counts["daemon"]+f.counts["both"] == 0 || strings.Contains(left, "container ") {
			out = append(out, line)
			continue
		}
		f.counts["orphaned network namespaces"]++
		if err := errors.Join(unix.Unmount(at, 0), os.Remove(at)); err != nil {
			t.Errorf("a network namespace of no sandbox: %v", err)
		}
	}
	return strings.Join(out, "\n")
}

func noneIn(dir string) error {
	entries, err := os.ReadDir(dir)
	if len(entries) > 0 {
		err = fmt.Errorf("in %s there are %v", dir, entries)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
