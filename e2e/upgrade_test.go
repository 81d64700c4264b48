package e2e

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/fsm"
)

// earlierCommit names the commit whose servers run together with those of this
// one, until there are releases. A change of a rule that is not versioned makes
// the two differ: version it, or, as long as nobody has to keep a log, name a
// later commit.
const earlierCommit = "testdata/earlier-commit"

var upgradePods = flag.Int("upgrade.pods", 40, "pods that are created in every phase of an upgrade")

// buildEarlier makes the earlier commit's binary.
func buildEarlier(t *testing.T) string {
	t.Helper()
	named, err := os.ReadFile(earlierCommit)
	if err != nil {
		t.Fatal(err)
	}
	commit := strings.TrimSpace(string(named))
	git := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), "git", args...)
		cmd.Dir = ".."
		return cmd
	}
	if out, err := git("cat-file", "-e", commit+"^{commit}").CombinedOutput(); err != nil {
		without := t.Skipf
		if os.Getenv("GITHUB_ACTIONS") != "" { // whose clone is whole: without the commit nobody would notice that nothing is compared
			without = t.Fatalf
		}
		without("the earlier commit %s is not here: this is no clone, or a shallow one: %v: %s", commit, err, out)
	}
	dir := filepath.Join(root, "earlier")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(root, "earlier.tar")
	built := filepath.Join(root, "berth-earlier")
	build := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", built, "./cmd/berth")
	build.Dir = dir
	for _, cmd := range []*exec.Cmd{
		git("archive", "--format=tar", "-o", archive, commit),
		exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", dir),
		build,
	} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(cmd.Args, " "), err, out)
		}
	}
	return built
}

// heldBack is the option of a server that keeps all of them at the rules of the earlier
// commit.
const heldBack = "  max_log_version = 20"

// TestUpgrade: servers of an earlier commit and of this one run together under
// load, whoever leads, and their states are equal; one after the other is upgraded
// in place, and one goes back, and nothing that was acknowledged is lost.
func TestUpgrade(t *testing.T) {
	t.Parallel() // an earlier version is built first, which takes most of its time
	earlier := buildEarlier(t)
	dir, err := os.MkdirTemp(root, "upgrade-")
	if err != nil {
		t.Fatal(err)
	}
	f, err := fleet.New(binary, dir)
	if err != nil {
		t.Fatal(err)
	}
	f.DieTogether, f.SignsNothing = true, true
	c := &cluster{Fleet: f}
	t.Cleanup(func() { c.end(t) })
	expect := "  bootstrap_expect = 4"
	pretends := []string{`runtime = "fake"`, `taints = ["pretend:NoSchedule"]`, `max_pods = 10000`, `capacity { cpu = "1000" }`}
	agents, err := f.Add(
		server("server-1", expect), server("server-2", expect), server("server-3", expect, heldBack), server("server-4", expect),
		worker("pretender", pretends...), worker("other", pretends...))
	if err == nil {
		err = c.writeCLI()
	}
	if err != nil {
		t.Fatal(err)
	}
	servers := agents[:4]
	for _, i := range []int{0, 1, 4} { // half and half
		agents[i].Binary = earlier
	}
	if err := f.Start(); err != nil {
		t.Fatal(err)
	}
	c.waitLeader(t)
	ns := c.namespace(t, "upgrade")

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	loads := make([]*load, 2)
	for i := range loads {
		loads[i] = &load{c: c, ns: ns, name: fmt.Sprintf("client-%d", i), kube: c.balanced(t, i, nil), acknowledged: map[string]types.UID{}}
		clients.Go(func() { loads[i].run(ctx) })
	}
	compare := func(what string) {
		t.Helper()
		created := func() (n int64) {
			for _, l := range loads {
				n += l.created.Load()
			}
			return n
		}
		from := created()
		c.eventually(t, "pods to be created "+what, func(context.Context) error {
			if n := created() - from; n < int64(*upgradePods) {
				return fmt.Errorf("%d were", n)
			}
			return nil
		})
		c.verify(t, len(servers))
	}
	// Both kinds lead while the other follows.
	for _, s := range []*fleet.Process{servers[0], servers[3]} {
		c.berth(t, "operator", "transfer-leader", s.Name)
		compare("while " + s.Name + " leads")
	}
	become := func(p *fleet.Process, binary, what string) {
		t.Helper()
		p.Signal(syscall.SIGTERM)
		<-p.Exited()
		p.Binary = binary
		if p.Kind == servers[0].Kind {
			c.restart(t, p)
		} else if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		compare("after " + p.Name + " " + what)
	}
	for _, p := range agents {
		if p.Binary != "" {
			become(p, "", "was upgraded")
		}
	}
	become(servers[0], earlier, "went back")
	become(servers[0], "", "was upgraded again")
	file := servers[2].Config
	text, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(text, []byte(heldBack), nil, 1), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	become(servers[2], "", "holds nobody back any more")
	newest := fmt.Sprintf("version %d, of %[1]d that this server knows", fsm.LogVersion)
	c.eventually(t, "the newest rules", func(context.Context) error {
		if out := c.berth(t, "operator", "status"); !strings.Contains(out, newest) {
			return fmt.Errorf("the status has no %q:\n%s", newest, out)
		}
		return nil
	})
	stop()
	clients.Wait()
	list, err := c.Reader().Kube.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]types.UID{}
	for _, p := range list.Items {
		have[p.Name] = p.UID
	}
	for _, l := range loads {
		for _, err := range l.refused {
			t.Errorf("%s was refused: %v", l.name, err)
		}
		for name, uid := range l.acknowledged {
			if have[name] != uid {
				t.Errorf("pod %s was acknowledged with UID %s, and there is %q", name, uid, have[name])
			}
		}
	}
	// What came with this version is there once all have it.
	saved := filepath.Join(c.Dir, "upgraded.snapshot")
	c.berth(t, "operator", "snapshot", "save", saved)
	has(t, "restore", c.berth(t, "operator", "snapshot", "restore", saved), "restored at index")
	c.verify(t, len(servers))
}
