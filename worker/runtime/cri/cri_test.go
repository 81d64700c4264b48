package cri

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
)

// A pod's life: an address of its own, a container, its output and its end, and nothing left.
func TestLife(t *testing.T) {
	h := open(t)
	p := pod("life", shell(`echo "on $(hostname)"; echo wrong >&2; ip -4 addr show eth0 | grep -o 'inet [0-9.]*'; cat /etc/hosts; exit 3`))
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.9.8.7", Hostnames: []string{"friend"}}}
	s := h.sandbox(p)
	if len(s.IPs) != 1 || net.ParseIP(s.IPs[0]) == nil {
		t.Fatalf("addresses %v", s.IPs)
	}
	if again := h.sandbox(p); again.IPs[0] != s.IPs[0] {
		t.Errorf("asked again: %v", again)
	}
	id := h.startSpec(h.spec(p, 0))
	x := h.exit(id)
	if x.Code != 3 || x.Reason != runtime.ReasonError || x.FinishedAt.Before(x.StartedAt) {
		t.Errorf("exit %+v", x)
	}
	out := h.logs(id, runtime.LogOptions{})
	for _, want := range []string{"on life\n", "wrong\n", "inet " + s.IPs[0], s.IPs[0] + "\tlife\n", "10.9.8.7\tfriend\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in its output %q", want, out)
		}
	}
	if got := h.logs(id, runtime.LogOptions{Stream: "Stderr"}); got != "wrong\n" {
		t.Errorf("stderr: %q", got)
	}
	// Another attempt: the first one is kept for its logs, and no longer.
	for attempt := int32(1); attempt < 3; attempt++ {
		h.exit(h.startSpec(h.spec(p, attempt)))
	}
	if _, err := h.rt.Logs(t.Context(), id, runtime.LogOptions{}); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("the first attempt's log: %v", err)
	}
	if err := h.rt.Start(t.Context(), runtime.Spec{ID: runtime.ID{Pod: "nobody"}, Pod: p, Container: &p.Spec.Containers[0]}); err == nil {
		t.Error("a container was started without a sandbox")
	}
}

// TERM is told and not waited for; KILL ends what does not listen; commands run beside it.
func TestSignalsAndCommands(t *testing.T) {
	h := open(t)
	p := pod("deaf", shell(`trap "echo heard" TERM; touch /ready; while :; do sleep 0.1; done`))
	id := h.run(p)
	ctx := t.Context()
	h.until("the trap to be set", func() bool {
		res, err := h.rt.Exec(ctx, id, []string{"test", "-e", "/ready"})
		return err == nil && res.Code == 0
	})
	res, err := h.rt.Exec(ctx, id, []string{"sh", "-c", "echo out; echo err >&2; exit 7"})
	if err != nil || res.Code != 7 || string(res.Output) != "out\nerr\n" {
		t.Errorf("command: %+v %q, %v", res, res.Output, err)
	}
	if _, err := h.rt.Exec(ctx, id, []string{"/nowhere"}); err == nil || errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a command that is not there: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, time.Second)
	if _, err := h.rt.Exec(short, id, []string{"sleep", "1000"}); err == nil || errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a command that takes too long: %v", err)
	}
	cancel()
	// What it leaves running holds its output, and it has ended well for all that anybody is told.
	h.rt.execPatience = time.Millisecond
	short, cancel = context.WithTimeout(ctx, time.Second)
	if res, err := h.rt.Exec(short, id, []string{"sh", "-c", "sleep 1000 & exit 0"}); !ofCRIO() && (err == nil || errors.Is(err, runtime.ErrUnavailable)) {
		t.Errorf("a command whose output does not end: %+v, %v", res, err)
	}
	cancel()
	if _, err := h.rt.Exec(ctx, id, []string{"head", "-c", "2000000", "/dev/zero"}); err == nil || errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a command that writes too much: %v", err)
	}
	if err := h.rt.Signal(ctx, id, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	h.until("it to be heard", func() bool { return strings.Contains(h.logs(id, runtime.LogOptions{}), "heard") })
	if err := h.rt.Remove(ctx, p.UID); err == nil {
		t.Error("a pod was removed whose container runs")
	}
	if err := h.rt.Signal(ctx, id, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(id); x.Code != 137 {
		t.Errorf("exit %+v", x)
	}
	if err := h.rt.Signal(ctx, id, runtime.Kill); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("a signal to what has ended: %v", err)
	}
	if err := h.rt.StopSandbox(ctx, p.UID); err != nil {
		t.Fatal(err)
	}
	if got := h.logs(id, runtime.LogOptions{}); !strings.Contains(got, "heard") {
		t.Errorf("its log, after its sandbox: %q", got)
	}
}

// What cannot be started says why, and whether it counts as an attempt.
func TestCannotStart(t *testing.T) {
	h := open(t)
	yes, nobody := true, "no users found"
	if ofCRIO() {
		nobody = "unable to find user missing"
	}
	for name, c := range map[string]struct {
		container corev1.Container
		attempt   bool // it counts as one
		config    bool // the spec is to blame
		text      string
	}{
		"command": {corev1.Container{Command: []string{"/nowhere"}}, !ofCRIO(), false, "/nowhere"}, // CRI-O creates no such container
		"user":    {corev1.Container{Command: []string{"true"}, Image: "registry.test/nobody:1"}, false, false, nobody},
		"nonroot": {corev1.Container{Command: []string{"true"}, SecurityContext: &corev1.SecurityContext{RunAsNonRoot: &yes}}, false, true, "image will run as root"},
		"named":   {corev1.Container{Command: []string{"true"}, Image: named, SecurityContext: &corev1.SecurityContext{RunAsNonRoot: &yes}}, false, true, "non-numeric user (somebody)"},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "user" {
				h.withUser(t, c.container.Image, "missing")
			}
			p := pod("cannot-"+name, c.container)
			h.sandbox(p)
			err := h.rt.Start(t.Context(), h.spec(p, 0))
			var se *runtime.StartError
			var ce *runtime.ConfigError
			if err == nil || errors.As(err, &se) != c.attempt || errors.As(err, &ce) != c.config || !strings.Contains(err.Error(), c.text) {
				t.Errorf("%T: %v", err, err)
			}
			// And the next try is not in the way of the last.
			if again := h.rt.Start(t.Context(), h.spec(p, 0)); again == nil || !strings.Contains(again.Error(), c.text) {
				t.Errorf("again: %v, first: %v", again, err)
			}
		})
	}
}

// Whom a container runs as and what it may do.
func TestSecurity(t *testing.T) {
	h := open(t)
	n := func(i int64) *int64 { return &i }
	yes, no := true, false
	unmasked := corev1.UnmaskedProcMount
	for name, c := range map[string]struct {
		change func(p *corev1.Pod, s *corev1.SecurityContext)
		script string
		want   string
	}{
		"nothing": {nil, "id -u; id -g; grep -c . /proc/1/comm; touch /x && echo writable", "0\n0\n1\nwritable\n"},
		"image's": {func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.Containers[0].Image = nonroot }, "id -u", "1234\n"},
		"by name": {func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.Containers[0].Image = named }, "id -u; id -G", "1000\n1000 5000\n"},
		"pod's":   {func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.SecurityContext.RunAsUser = n(7) }, "id -u; id -g", "7\n0\n"},
		"own": {func(p *corev1.Pod, s *corev1.SecurityContext) {
			p.Spec.SecurityContext.RunAsUser, s.RunAsUser, s.RunAsGroup = n(7), n(8), n(9)
		}, "id -u; id -g", "8\n9\n"},
		"groups": {func(p *corev1.Pod, _ *corev1.SecurityContext) {
			p.Spec.SecurityContext.SupplementalGroups, p.Spec.SecurityContext.FSGroup = []int64{11}, n(12)
		}, "id -G", "0 11 12\n"},
		"non-root":  {func(p *corev1.Pod, s *corev1.SecurityContext) { s.RunAsNonRoot, s.RunAsUser = &yes, n(8) }, "id -u", "8\n"},
		"read-only": {func(_ *corev1.Pod, s *corev1.SecurityContext) { s.ReadOnlyRootFilesystem = &yes }, "touch /x 2>/dev/null || echo no", "no\n"},
		"no new privileges": {func(_ *corev1.Pod, s *corev1.SecurityContext) { s.AllowPrivilegeEscalation = &no },
			"grep NoNewPrivs /proc/self/status", "NoNewPrivs:\t1\n"},
		"capabilities": {func(_ *corev1.Pod, s *corev1.SecurityContext) {
			s.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"CAP_NET_BIND_SERVICE"}}
		}, "grep CapEff /proc/self/status", "CapEff:\t0000000000000400\n"},
		"filter": {func(p *corev1.Pod, _ *corev1.SecurityContext) {
			p.Spec.SecurityContext.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
		}, "grep Seccomp: /proc/self/status", "Seccomp:\t2\n"},
		"no filter": {nil, "grep Seccomp: /proc/self/status", "Seccomp:\t0\n"},
		"masked":    {nil, "grep -c ' /proc/sys ' /proc/self/mounts", "1\n"},
		"unmasked": {func(_ *corev1.Pod, s *corev1.SecurityContext) { s.ProcMount = &unmasked },
			"grep -c ' /proc/sys ' /proc/self/mounts || true", "0\n"},
		"processes": {func(p *corev1.Pod, _ *corev1.SecurityContext) { p.Spec.ShareProcessNamespace = &yes },
			"test $$ -ne 1 && tr '\\0' ' ' < /proc/1/cmdline | cut -c1-7", "/bin/sh\n"},
		"sysctl": {func(p *corev1.Pod, _ *corev1.SecurityContext) {
			p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "81"}}
		}, "cat /proc/sys/net/ipv4/ip_unprivileged_port_start", "81\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pod("secure-"+strings.ReplaceAll(strings.ReplaceAll(name, " ", "-"), "'", ""), shell(c.script))
			p.Spec.SecurityContext, p.Spec.Containers[0].SecurityContext = &corev1.PodSecurityContext{}, &corev1.SecurityContext{}
			if c.change != nil {
				c.change(p, p.Spec.Containers[0].SecurityContext)
			}
			if x := h.rt.Refuse(p); x != nil {
				t.Fatalf("refused: %+v", x)
			}
			if got := h.output(p); got != c.want {
				t.Errorf("output %q, want %q", got, c.want)
			}
		})
	}
}

// On the host's network a pod has the host's name and addresses, and no others.
func TestHostNetwork(t *testing.T) {
	h := open(t)
	p := pod("host", shell("hostname; test ! -e /sys/class/net/eth0 || true"))
	p.Spec.HostNetwork = true
	if s := h.sandbox(p); len(s.IPs) != 0 {
		t.Errorf("addresses %v", s.IPs)
	}
	want, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	id := h.startSpec(h.spec(p, 0))
	h.exit(id)
	if got := h.logs(id, runtime.LogOptions{}); got != want+"\n" {
		t.Errorf("it is called %q, the host %q", got, want)
	}
}

// Requests and limits are the kernel's, in the kubelet's layout; what takes too much memory is ended, and it says so.
func TestResources(t *testing.T) {
	h := open(t)
	p := pod("bounded", shell("sleep 1000"))
	p.Spec.Containers[0].Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("250m"), "memory": resource.MustParse("32Mi")},
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("64Mi")},
	}
	h.run(p)
	if h.rt.cgroups == nil {
		t.Fatal("this machine has no cgroups for the tests")
	}
	dir := h.opts.CgroupParent + "/burstable/poduid-bounded"
	files := map[string]string{"memory" + dir + "/memory.limit_in_bytes": "67108864", "cpu" + dir + "/cpu.cfs_quota_us": "50000",
		"cpu" + dir + "/cpu.shares": "256", "cpu" + h.opts.CgroupParent + "/burstable/cpu.shares": "256"}
	if h.rt.cgroups.Unified {
		files = map[string]string{dir + "/memory.max": "67108864", dir + "/cpu.max": "50000 100000"}
	}
	for name, want := range files {
		b, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", name))
		if err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s: %q, %v; want %s", name, b, err, want)
		}
	}
	greedy := pod("greedy", shell(`dd if=/dev/zero of=/dev/null bs=100M count=1; echo survived`))
	greedy.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("16Mi")}
	id := h.run(greedy)
	if x := h.exit(id); x.Reason != runtime.ReasonOOMKilled && !strings.Contains(h.logs(id, runtime.LogOptions{}), "Killed") {
		t.Errorf("exit %+v, output %q", x, h.logs(id, runtime.LogOptions{}))
	}
}

// Of hugepages a pod and its containers have what they ask for, and others none.
func TestHugepages(t *testing.T) {
	h := open(t)
	if !h.rt.Hugepages() || len(h.rt.pages) == 0 {
		t.Skip("this machine's cgroups do not bound hugepages")
	}
	size := h.rt.pages[0].PageBytes
	asks := pod("huge", shell("sleep 1000"))
	asks.Spec.Containers[0].Resources.Limits = corev1.ResourceList{hugepages.Resource(size): *resource.NewQuantity(2*size, resource.BinarySI)}
	for p, want := range map[*corev1.Pod]string{asks: fmt.Sprint(2 * size), pod("plain", shell("sleep 1000")): "0"} {
		if x := h.rt.Refuse(p); x != nil {
			t.Fatalf("refused: %+v", x)
		}
		id := h.run(p)
		dir, file := "/sys/fs/cgroup/hugetlb", "hugetlb."+hugepages.Kernel(size)+".limit_in_bytes"
		if h.rt.cgroups.Unified {
			dir, file = "/sys/fs/cgroup", "hugetlb."+hugepages.Kernel(size)+".max"
		}
		if b, err := os.ReadFile(filepath.Join(dir, h.opts.CgroupParent, podCgroupName(p), file)); err != nil || strings.TrimSpace(string(b)) != want {
			t.Errorf("%s may have %q, %v; want %s", p.Name, b, err, want)
		}
		if got := h.rt.resources(p, &p.Spec.Containers[0]).HugepageLimits; len(got) != len(h.rt.pages) || fmt.Sprint(got[0].Limit) != want {
			t.Errorf("the container of %s is to have %v", p.Name, got)
		}
		if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
			t.Fatal(err)
		}
		h.exit(id)
	}
}

// Volumes come where the container wants them, also parts of one, whatever becomes a symbolic link.
func TestMounts(t *testing.T) {
	h := open(t)
	volume := t.TempDir()
	outside := t.TempDir()
	for _, err := range []error{
		os.MkdirAll(filepath.Join(volume, "a", "b"), 0o755), os.WriteFile(filepath.Join(volume, "a", "b", "f"), []byte("inside\n"), 0o644),
		os.WriteFile(filepath.Join(outside, "secret"), []byte("outside\n"), 0o644), os.Symlink(outside, filepath.Join(volume, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := pod("mounts", shell(`cat /v/a/b/f /sub/f /file; echo new > /made/x; touch /ro/x 2>/dev/null || echo read-only; echo last words > /dev/termination-log`))
	spec := h.specOf(p, runtime.Mount{Source: volume, Target: "/v"}, runtime.Mount{Source: volume, SubPath: "a/b", Target: "/sub"},
		runtime.Mount{Source: volume, SubPath: "a/b/f", Target: "/file"}, runtime.Mount{Source: volume, SubPath: "made/here", Target: "/made"},
		runtime.Mount{Source: volume, Target: "/ro", ReadOnly: true})
	id := h.startSpec(spec)
	x := h.exit(id)
	if got := h.logs(id, runtime.LogOptions{}); got != "inside\ninside\ninside\nread-only\n" || x.Message != "last words\n" {
		t.Errorf("output %q, exit %+v", got, x)
	}
	if b, err := os.ReadFile(filepath.Join(volume, "made", "here", "x")); err != nil || string(b) != "new\n" {
		t.Errorf("%q, %v", b, err)
	}
	bad := pod("leads-out", shell("cat /sub/secret"))
	if err := h.rt.Start(t.Context(), h.specOf(bad, runtime.Mount{Volume: "v", Source: volume, SubPath: "link", Target: "/sub"})); err == nil {
		t.Error("a sub path led out of its volume")
	}
	if err := h.rt.Remove(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(volume, "a", "b", "f")); err != nil {
		t.Errorf("the pod's removal took of its volume: %v", err)
	}
}

// The end of the log is the last word of a container that fails and wants it so.
func TestLastWordFromLog(t *testing.T) {
	h := open(t)
	p := pod("words", shell("echo one; echo two; exit 1"))
	p.Spec.Containers[0].TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	if x := h.exit(h.run(p)); x.Message != "one\ntwo\n" {
		t.Errorf("exit %+v", x)
	}
}

// Logs are bounded, and read across their files.
func TestLogRotation(t *testing.T) {
	h := open(t, func(o *Options) { o.LogBytes, o.LogFiles = 4096, 3 })
	p := pod("chatty", shell(`i=0; while [ $i -lt 1000 ]; do i=$((i+1)); echo "line $i"; done; touch /done; while [ ! -e /more ]; do sleep 0.05; done; echo after; sleep 1000`))
	id := h.run(p)
	h.until("it to have written", func() bool {
		res, err := h.rt.Exec(t.Context(), id, []string{"test", "-e", "/done"})
		return err == nil && res.Code == 0
	})
	h.rt.rotateLogs(t.Context())
	if _, err := h.rt.Exec(t.Context(), id, []string{"touch", "/more"}); err != nil {
		t.Fatal(err)
	}
	h.until("the newest line", func() bool { return strings.HasSuffix(h.logs(id, runtime.LogOptions{}), "line 1000\nafter\n") })
	if fi, err := os.Stat(h.rt.logFile(id)); err != nil || fi.Size() > 200 {
		t.Errorf("the newest file: %v, %v", fi, err)
	}
}

func (h *harness) specOf(p *corev1.Pod, mounts ...runtime.Mount) runtime.Spec {
	h.t.Helper()
	h.sandbox(p)
	spec := h.spec(p, 0)
	spec.Mounts = mounts
	return spec
}

// A runtime that is no socket, or an endpoint that is none, is said at once; one that is away is waited for.
func TestEndpoints(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for endpoint, want := range map[string]string{
		"unix://" + file: "is not a socket", "tcp://127.0.0.1:1": "write unix:///PATH", "unix://relative/x": "write unix:///PATH", "%": "write unix:///PATH",
	} {
		if _, err := New(Options{Endpoint: endpoint, Root: t.TempDir(), Node: "n"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", endpoint, err)
		}
	}
	r, err := New(Options{Endpoint: "unix://" + file + ".away", Root: t.TempDir(), Node: "n", CgroupParent: fmt.Sprintf("/berth-cri-test-%d", os.Getpid())})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Open(func(runtime.Event) {}); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("opened: %v", err)
	}
	if err := r.Check(t.Context()); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("checked: %v", err)
	}
	if _, _, err := Probe(t.Context(), "unix://"+file+".away"); err == nil {
		t.Error("it answers")
	}
}
