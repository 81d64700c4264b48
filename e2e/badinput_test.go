package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/ports"
)

// sentence is the one line of stderr that is an error, and must be the last.
// What else is there are an agent's log lines, which begin with the time.
func sentence(t *testing.T, r result) string {
	t.Helper()
	var said []string
	for _, line := range strings.Split(strings.TrimRight(r.err, "\n"), "\n") {
		if line != "" && !logLine.MatchString(line) {
			said = append(said, line)
		}
	}
	if len(said) != 1 || !strings.HasSuffix(strings.TrimRight(r.err, "\n"), said[0]) {
		t.Errorf("it is not one sentence at the end:\n%s", r.err)
	}
	return strings.Join(said, "\n")
}

var logLine = regexp.MustCompile(`^\d{4}-\d\d-\d\dT|^  `)

// edited writes a variant of a process's configuration.
func edited(t *testing.T, c *cluster, p *fleet.Process, oldNew ...string) string {
	t.Helper()
	text, err := os.ReadFile(p.Config)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(string(text), oldNew[i]) {
			t.Fatalf("the configuration has no %q:\n%s", oldNew[i], text)
		}
	}
	file, err := c.WriteFile(strings.ReplaceAll(t.Name(), "/", "_")+".hcl", strings.NewReplacer(oldNew...).Replace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// A new user's mistakes. Each is told in one sentence, and harms nobody.
func TestBadInput(t *testing.T) {
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), worker("worker-1"))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.put(t, "kept")
	create(t, c.Reader().Kube, pod("default", "kept", "exec sleep 1000"))
	before := c.waitRunning(t, "default", "kept")[0]

	t.Run("agents", func(t *testing.T) { badAgents(t, c) })
	t.Run("requests", func(t *testing.T) { badRequests(t, c) })

	after := c.waitRunning(t, "default", "kept")[0]
	if after.UID != before.UID || after.Status.ContainerStatuses[0].RestartCount != 0 || !stored(t, c.Servers()[0], "kept") {
		t.Errorf("something was lost: %+v", after.Status)
	}
	if err := c.waitReady(t.Context()); err != nil {
		t.Error(err)
	}
	c.verify(t, 1)
}

func badAgents(t *testing.T, c *cluster) {
	one, work := c.Servers()[0], c.Workers()[0]
	added, err := c.Add(server("server-2", "bootstrap_expect = 0"), worker("worker-2"))
	if err != nil {
		t.Fatal(err)
	}
	two, work2 := added[0], added[1]
	// elsewhere is one agent's name on another's ports and disk.
	elsewhere := func(p, ports *fleet.Process) []string {
		return []string{
			fmt.Sprintf("%q", p.DataDir), fmt.Sprintf("%q", p.DataDir+"-other"),
			fmt.Sprintf("http   = %d", p.Ports.HTTP), fmt.Sprintf("http   = %d", ports.Ports.HTTP),
			fmt.Sprintf("rpc    = %d", p.Ports.RPC), fmt.Sprintf("rpc    = %d", ports.Ports.RPC),
			fmt.Sprintf("raft   = %d", p.Ports.Raft), fmt.Sprintf("raft   = %d", ports.Ports.Raft),
			fmt.Sprintf("gossip = %d", p.Ports.Gossip), fmt.Sprintf("gossip = %d", ports.Ports.Gossip),
		}
	}
	stranger, foreign := strangers(t)
	expired := expiredFiles(t, c)
	for _, test := range []struct {
		name   string
		config func(t *testing.T) string
		says   []string
	}{
		{"no such file", func(*testing.T) string { return "/nowhere/berth.hcl" }, []string{"/nowhere/berth.hcl", "no such file"}},
		{"broken file", func(t *testing.T) string { return edited(t, c, two, "gossip {", "gossip {{") }, []string{".hcl:11"}},
		{"unknown option", func(t *testing.T) string { return edited(t, c, two, "enabled = true", "enabeld = true") }, []string{`unknown option "server.enabeld"; did you mean "enabled"?`}},
		{"open to others without protection", func(t *testing.T) string {
			return edited(t, c, two, `"127.0.0.1"`, `"0.0.0.0"`, "encryption_key", "# encryption_key")
		}, []string{"gossip", "insecure"}},
		{"port in use", func(t *testing.T) string {
			return edited(t, c, two, fmt.Sprintf("http   = %d", two.Ports.HTTP), fmt.Sprintf("http   = %d", one.Ports.HTTP))
		}, []string{fmt.Sprintf("port %d for the API is in use", one.Ports.HTTP)}},
		{"port of gossip in use", func(t *testing.T) string {
			return edited(t, c, two, fmt.Sprintf("gossip = %d", two.Ports.Gossip), fmt.Sprintf("gossip = %d", one.Ports.Gossip))
		}, []string{fmt.Sprint(one.Ports.Gossip), "in use"}},
		{"data directory in use", func(t *testing.T) string {
			return edited(t, c, one, elsewhere(one, two)[2:]...)
		}, []string{one.DataDir, "is in use by another process"}},
		{"data directory of another server", func(t *testing.T) string {
			return edited(t, c, two, fmt.Sprintf("%q", two.DataDir), fmt.Sprintf("%q", stranger.DataDir))
		}, []string{stranger.DataDir, "server-9", "server-2"}},
		{"data directory of another cluster", func(t *testing.T) string {
			return edited(t, c, two, fmt.Sprintf("%q", two.DataDir), fmt.Sprintf("%q", foreign.DataDir))
		}, []string{"server-1", "belongs to cluster"}},
		{"two servers of one name", func(t *testing.T) string {
			return edited(t, c, one, elsewhere(one, two)...)
		},
			[]string{"another member named server-1", "already"}},
		{"two nodes of one name", func(t *testing.T) string { return edited(t, c, work, elsewhere(work, work2)...) },
			[]string{"another member named worker-1", "already"}},
		{"wrong gossip key", func(t *testing.T) string {
			return edited(t, c, two, c.GossipKey, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
		}, []string{"it most likely uses another gossip encryption key"}},
		{"a worker with a wrong gossip key", func(t *testing.T) string {
			return edited(t, c, work2, c.GossipKey, "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=")
		}, []string{"it most likely uses another gossip encryption key"}},
		{"a gossip key that is none", func(t *testing.T) string { return edited(t, c, two, c.GossipKey, "secret") }, []string{"encryption_key", "gossip-key"}},
		{"a container runtime that is no socket", func(t *testing.T) string {
			file := filepath.Join(c.Dir, "no-socket")
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			return edited(t, c, work2, `runtime = "process"`, fmt.Sprintf("runtime = \"cri\"\ncri {\n  endpoint = %q\n}", "unix://"+file))
		}, []string{"no-socket", "is not a socket"}},
		{"expired certificate", func(t *testing.T) string {
			return edited(t, c, two, "server-server-2.pem", filepath.Base(expired.Cert), "server-server-2-key.pem", filepath.Base(expired.Key))
		}, []string{filepath.Base(expired.Cert), "expired on"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, c.env, "", "agent", "-config", test.config(t))
			s := sentence(t, r)
			if r.code != 1 {
				t.Errorf("exit status %d", r.code)
			}
			has(t, "the sentence", s, test.says...)
		})
	}
}

// strangers are stopped servers of other clusters: one of another name, and one
// that has a name that is free here.
func strangers(t *testing.T) (*fleet.Process, *fleet.Process) {
	t.Helper()
	var out []*fleet.Process
	for _, name := range []string{"server-9", "server-2"} {
		other := newCluster(t, server(name, "bootstrap_expect = 1"))
		other.waitLeader(t)
		other.Stop(stopGrace)
		out = append(out, other.Servers()[0])
	}
	return out[0], out[1]
}

// expiredFiles is a server's and client's certificate whose day is over.
func expiredFiles(t *testing.T, c *cluster) pki.Files {
	t.Helper()
	pair, err := c.CA.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "server-2", Validity: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	return writePair(t, c, "expired", pair)
}

func writePair(t *testing.T, c *cluster, name string, pair pki.Pair) pki.Files {
	t.Helper()
	f := pki.Files{CA: filepath.Join(c.Dir, "ca", "ca.pem")}
	var err error
	if f.Cert, err = c.WriteFile("ca/"+name+".pem", string(pair.CertPEM)); err == nil {
		f.Key, err = c.WriteFile("ca/"+name+"-key.pem", string(pair.KeyPEM))
	}
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func badRequests(t *testing.T, c *cluster) {
	pair, err := c.CA.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: "eve", Validity: time.Nanosecond})
	if err != nil {
		t.Fatal(err)
	}
	expired := writePair(t, c, "eve", pair)
	nobody, err := ports.Free(1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nobody.Release)
	podWith := func(line string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: bad}\nspec:\n  " + line + "\n  containers: [{name: main, image: none, command: [\"true\"]}]\n"
	}
	for _, test := range []struct {
		name  string
		stdin string
		args  []string
		code  int
		says  []string
	}{
		{"no server up", "", []string{"--addresses", nobody.Addr(0), "get", "pods"}, 1, []string{"no Berth server answers at https://" + nobody.Addr(0), "connection refused"}},
		{"no server up, own verb", "", []string{"--addresses", nobody.Addr(0), "queue"}, 1, []string{"no Berth server answers at https://" + nobody.Addr(0)}},
		{"expired certificate", "", []string{"--cert-file", expired.Cert, "--key-file", expired.Key, "get", "pods"}, 1, []string{"eve.pem", "expired"}},
		{"another CA", "", []string{"--ca-file", otherCA(t, c), "get", "pods"}, 1, []string{"is not from the CA in", "another cluster"}},
		{"unknown field", podWith("priorityClas: high"), []string{"apply", "-f", "-"}, 1, []string{`unknown field "spec.priorityClas"`}},
		{"unknown class", podWith("priorityClassName: nope"), []string{"apply", "-f", "-"}, 1, []string{"no PriorityClass with name nope was found"}},
		{"a priority of one's own", podWith("priority: 5"), []string{"apply", "-f", "-"}, 1, []string{"the integer value of priority (5) must not be provided in pod spec"}},
		{"value above 1e9", "apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: huge}\nvalue: 1000000001\n", []string{"apply", "-f", "-"}, 1, []string{"maximum allowed value of a user defined priority is 1000000000"}},
		{"value above 1e9, own verb", "", []string{"class", "create", "huge", "--value", "1000000001"}, 1, []string{"1000000000"}},
		{"a file that is not there", "", []string{"apply", "-f", "/nowhere.yaml"}, 1, []string{"/nowhere.yaml"}},
		{"not YAML", "{{", []string{"apply", "-f", "-"}, 1, []string{"error"}},
		{"what is not there", "", []string{"why", "nobody"}, 1, []string{"there is no pod nobody in namespace"}},
		{"unknown context", "", []string{"--context", "nope", "get", "pods"}, 1, []string{"nope"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := run(t, c.env, test.stdin, test.args...)
			if r.code != test.code {
				t.Errorf("exit status %d\n%s", r.code, r.err)
			}
			has(t, "the sentence", sentence(t, r), test.says...)
		})
	}
	for _, args := range [][]string{{"frobnicate"}, {"agent"}, {"get", "pods", "--nope"}, {"queue", "a", "b"}} {
		if r := run(t, c.env, "", args...); r.code != 2 || !strings.Contains(r.err, "--help") {
			t.Errorf("berth %v: exit status %d, %q", args, r.code, r.err)
		}
	}
	pods, err := c.Reader().Kube.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("bad requests left something: %v", err)
	}
}

func otherCA(t *testing.T, c *cluster) string {
	t.Helper()
	ca, err := pki.NewCA(time.Now(), pki.DefaultCAValidity)
	if err != nil {
		t.Fatal(err)
	}
	file, err := c.WriteFile("other-ca.pem", string(ca.CertPEM()))
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// A server whose disk is full stops and says so. Nothing that it acknowledged
// is lost, and with room it goes on.
func TestFullDisk(t *testing.T) {
	dir, err := os.MkdirTemp(root, "disk-")
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("berth-e2e", dir, "tmpfs", 0, "size=48m"); err != nil {
		t.Skipf("a small file system can not be mounted here: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f, err := fleet.New(binary, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f.DieTogether = true
	c := &cluster{Fleet: f}
	t.Cleanup(func() { c.end(t) })
	added, err := f.Add(server("server-1", "bootstrap_expect = 1"))
	if err != nil {
		t.Fatal(err)
	}
	s := added[0]
	config := edited(t, c, s, fmt.Sprintf("%q", s.DataDir), fmt.Sprintf("%q", filepath.Join(dir, "data")))
	s.Config = config
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	c.waitLeader(t)
	c.put(t, "before") // waits for the namespace
	var acknowledged []string
	big := strings.Repeat("x", 900<<10)
	maps := s.Kube.CoreV1().ConfigMaps("default")
	for i := 0; i < 200; i++ {
		name := fmt.Sprintf("big-%d", i)
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"big": big}}
		if _, err := maps.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Logf("after %d: %v", i, err)
			break
		}
		acknowledged = append(acknowledged, name)
	}
	select {
	case <-s.Exited():
	case <-time.After(patience):
		t.Fatal("a server on a full disk goes on")
	}
	last := s.LogTail(1)
	if s.ExitCode() != 1 || !strings.HasPrefix(last, "error: ") || !strings.Contains(last, "no space left on device") {
		t.Errorf("status %d: %s", s.ExitCode(), last)
	}
	if r := run(t, nil, "", "agent", "-config", config); r.code != 1 || !strings.Contains(sentence(t, r), "no space left on device") {
		t.Errorf("a start on a full disk: status %d: %s", r.code, r.err)
	}
	if err := syscall.Mount("berth-e2e", dir, "tmpfs", syscall.MS_REMOUNT, "size=256m"); err != nil {
		t.Fatal(err)
	}
	c.restart(t, s)
	for _, name := range acknowledged {
		if !stored(t, s, name) {
			t.Errorf("%s was acknowledged, and is lost", name)
		}
	}
	if len(acknowledged) < 10 {
		t.Errorf("only %d were stored before the disk was full", len(acknowledged))
	}
	c.put(t, "after")
}
