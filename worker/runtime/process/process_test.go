package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

func TestMain(m *testing.M) {
	if IsShim(os.Args) {
		os.Exit(ShimMain(os.Args))
	}
	// The race detector keeps every process a second longer, and each shim is one.
	if err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE")); err != nil {
		panic(err)
	}
	var err error
	if smallShims, err = os.MkdirTemp("", "berth-shim-"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if err := os.RemoveAll(smallShims); err != nil {
			panic(err)
		}
		os.Exit(code)
	}))
}

// smallShims is where the small shim of tests is, if `make shim` has built one: else this test binary is the shim.
var smallShims string

// harness is a runtime over a directory of its own, and what it reported.
type harness struct {
	t      *testing.T
	opts   Options
	rt     *Runtime
	events chan runtime.Event
	found  []runtime.Pod
}

func open(t *testing.T, opts Options) *harness {
	t.Helper()
	if opts.Root == "" {
		opts.Root = t.TempDir()
	}
	if opts.CgroupParent == "" {
		opts.CgroupParent = fmt.Sprintf("/berth-test-%d", os.Getpid())
	}
	if opts.ShimDir == "" {
		opts.ShimDir = smallShims
	}
	h := &harness{t: t, opts: opts, events: make(chan runtime.Event, 100)}
	var err error
	if h.rt, err = New(opts); err != nil {
		t.Fatal(err)
	}
	if h.found, err = h.rt.Open(func(ev runtime.Event) { h.events <- ev }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.rt.mu.Lock()
		var left []runtime.ID
		for id := range h.rt.running {
			left = append(left, id)
		}
		closed := h.rt.closed
		h.rt.mu.Unlock()
		if !closed {
			for _, id := range left {
				_ = h.rt.Signal(context.Background(), id, runtime.Kill)
				h.exit()
			}
			entries, _ := os.ReadDir(opts.Root)
			for _, e := range entries {
				if strings.HasPrefix(e.Name(), asidePrefix) {
					continue
				}
				if err := h.rt.Remove(context.Background(), types.UID(e.Name())); err != nil {
					t.Error(err)
				}
			}
		}
		h.rt.Close()
	})
	return h
}

// reopen is what a restarted agent does.
func (h *harness) reopen() *harness {
	h.rt.Close()
	return open(h.t, h.opts)
}

func pod(name string, c corev1.Container) *corev1.Pod {
	if c.Name == "" {
		c.Name = "main"
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func shell(script string) corev1.Container {
	return corev1.Container{Command: []string{"/bin/sh", "-c", script}}
}

func (h *harness) spec(p *corev1.Pod, attempt int32) runtime.Spec {
	c := &p.Spec.Containers[0]
	return runtime.Spec{ID: runtime.ID{Pod: p.UID, Container: c.Name, Attempt: attempt}, Pod: p, Container: c, Command: c.Command}
}

func (h *harness) start(p *corev1.Pod, attempt int32) runtime.ID {
	h.t.Helper()
	spec := h.spec(p, attempt)
	return h.startSpec(spec)
}

func (h *harness) startSpec(spec runtime.Spec) runtime.ID {
	h.t.Helper()
	if err := h.rt.Start(context.Background(), spec); err != nil {
		h.t.Fatal(err)
	}
	if ev := h.event(); ev.ID != spec.ID || ev.Exit != nil || ev.StartedAt.IsZero() {
		h.t.Fatalf("first event is %+v", ev)
	}
	return spec.ID
}

func (h *harness) event() runtime.Event {
	h.t.Helper()
	select {
	case ev := <-h.events:
		return ev
	case <-time.After(20 * time.Second):
		h.t.Fatal("no event came")
		panic("unreachable")
	}
}

func (h *harness) exit() *runtime.Exit {
	h.t.Helper()
	ev := h.event()
	if ev.Exit == nil {
		h.t.Fatalf("not an end: %+v", ev)
	}
	return ev.Exit
}

func (h *harness) logs(id runtime.ID, opts runtime.LogOptions) string {
	h.t.Helper()
	rc, err := h.rt.Logs(context.Background(), id, opts)
	if err != nil {
		h.t.Fatal(err)
	}
	defer rc.Close()
	b, err := io.ReadAll(rc)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(b)
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("it did not come to be: %s", what)
		}
		tick := time.NewTimer(5 * time.Millisecond)
		<-tick.C
	}
}

func gone(pid int) bool { return syscall.Kill(pid, 0) == syscall.ESRCH }

func TestExitCodesAndOutput(t *testing.T) {
	h := open(t, Options{})
	p := pod("a", shell(`echo out; echo err >&2; printf 'no end'; exit 7`))
	id := h.start(p, 0)
	x := h.exit()
	if x.Code != 7 || x.Reason != runtime.ReasonError || x.FinishedAt.Before(x.StartedAt) {
		t.Errorf("exit is %+v", x)
	}
	all := h.logs(id, runtime.LogOptions{})
	for _, line := range []string{"out\n", "err\n", "no end"} {
		if !strings.Contains(all, line) {
			t.Errorf("log lacks %q: %q", line, all)
		}
	}
	if got := h.logs(id, runtime.LogOptions{Stream: "Stderr"}); got != "err\n" {
		t.Errorf("stderr is %q", got)
	}
	id = h.start(p, 1)
	if x := h.exit(); x.Code != 7 {
		t.Errorf("second attempt: %+v", x)
	}
	// The attempt before is still there for its logs, and none before that.
	h.start(p, 2)
	h.exit()
	// What had no newline at its end has none when it is read.
	if got := h.logs(id, runtime.LogOptions{Stream: "Stdout"}); got != "out\nno end" {
		t.Errorf("previous log is %q", got)
	}
	if _, err := h.rt.Logs(context.Background(), runtime.ID{Pod: p.UID, Container: "main"}, runtime.LogOptions{}); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("log of the attempt before the last one: %v", err)
	}
}

// The signal by which a container is told to end is the one that its spec names.
func TestStopSignal(t *testing.T) {
	h := open(t, Options{})
	quit := corev1.SIGQUIT
	c := shell(`trap 'echo TERM; exit 1' TERM; trap 'echo QUIT; exit 5' QUIT; echo ready; while :; do sleep 0.05; done`)
	c.Lifecycle = &corev1.Lifecycle{StopSignal: &quit}
	id := h.start(pod("told", c), 0)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(h.logs(id, runtime.LogOptions{}), "ready") {
		select {
		case <-t.Context().Done():
			t.Fatal("it was not ready")
		case <-tick.C:
		}
	}
	if err := h.rt.Signal(t.Context(), id, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 5 {
		t.Errorf("exit is %+v, log %q", x, h.logs(id, runtime.LogOptions{}))
	}
}

func TestStartErrors(t *testing.T) {
	h := open(t, Options{})
	ctx := context.Background()
	for name, c := range map[string]corev1.Container{
		"none":    {},
		"missing": {Command: []string{"no-such-command"}},
		"path":    {Command: []string{"/no/such/command"}},
		"dir":     {Command: []string{"/bin"}},
	} {
		var se *runtime.StartError
		if err := h.rt.Start(ctx, h.spec(pod(name, c), 0)); !errors.As(err, &se) {
			t.Errorf("%s: %v is no StartError", name, err)
		}
	}
	yes := true
	root := shell("true")
	root.SecurityContext = &corev1.SecurityContext{RunAsNonRoot: &yes, RunAsUser: new(int64)}
	var se *runtime.StartError
	if err := h.rt.Start(ctx, h.spec(pod("root", root), 0)); err == nil || errors.As(err, &se) {
		t.Errorf("runAsNonRoot as root: %v", err)
	}
	if err := h.rt.Signal(ctx, runtime.ID{Pod: "x"}, runtime.Kill); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("signal to nothing: %v", err)
	}
}

func TestTermThenKill(t *testing.T) {
	h := open(t, Options{})
	polite := h.start(pod("polite", shell(`trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.02; done`)), 0)
	eventually(t, "the trap is set", func() bool { return h.logs(polite, runtime.LogOptions{}) == "up\n" })
	if err := h.rt.Signal(context.Background(), polite, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 3 {
		t.Errorf("exit after TERM is %+v", x)
	}
	if got := h.logs(polite, runtime.LogOptions{}); got != "up\nbye\n" {
		t.Errorf("log is %q", got)
	}
	deaf := h.start(pod("deaf", shell(`trap '' TERM; echo up; while :; do sleep 0.02; done`)), 0)
	eventually(t, "the trap is set", func() bool { return h.logs(deaf, runtime.LogOptions{}) == "up\n" })
	if err := h.rt.Signal(context.Background(), deaf, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Signal(context.Background(), deaf, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 137 || x.Signal != 9 || x.Reason != runtime.ReasonError {
		t.Errorf("exit after KILL is %+v", x)
	}
}

// Whatever a container started ends with it: children, what they left behind, and what made itself a session.
func TestChildrenEndToo(t *testing.T) {
	for _, cgroup := range []string{"", "none"} {
		h := open(t, Options{CgroupParent: cgroup})
		dir := t.TempDir()
		script := fmt.Sprintf(`
			sleep 1000 & echo $! > %[1]s/child
			(setsid sh -c 'trap "" TERM HUP; (sleep 1001 & echo $! > %[1]s/deep); sleep 1002' & echo $! > %[1]s/own) &
			while ! test -s %[1]s/deep; do sleep 0.01; done
			echo ready; exec sleep 1003`, dir)
		id := h.start(pod("tree", shell(script)), 0)
		eventually(t, "the tree stands", func() bool { return h.logs(id, runtime.LogOptions{}) == "ready\n" })
		if err := h.rt.Signal(context.Background(), id, runtime.Terminate); err != nil {
			t.Fatal(err)
		}
		if x := h.exit(); x.Code != 143 || x.Signal != 15 {
			t.Errorf("exit is %+v", x)
		}
		for _, name := range []string{"child", "deep", "own"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			if !gone(pid) {
				t.Errorf("%s (%d) is still there", name, pid)
			}
		}
	}
}

func TestEnvironmentVolumesAndWorkDir(t *testing.T) {
	var warned []string
	h := open(t, Options{Event: func(p *corev1.Pod, _, reason, message string) { warned = append(warned, reason+": "+message) }})
	data := t.TempDir()
	c := shell(`echo "$GREETING $HOSTNAME"; test -n "$HOME" || echo no home; echo "$BERTH_VOLUME_MY_DATA"; pwd; echo last words > "$BERTH_TERMINATION_LOG"`)
	c.Image = "busybox"
	spec := h.spec(pod("env", c), 0)
	spec.Env = []string{"GREETING=hello", "HOSTNAME=other"}
	target := filepath.Join(t.TempDir(), "point")
	spec.Mounts = []runtime.Mount{{Volume: "my-data", Source: data, Target: target}}
	id := h.startSpec(spec)
	if x := h.exit(); x.Code != 0 || x.Reason != runtime.ReasonCompleted || x.Message != "last words\n" {
		t.Errorf("exit is %+v", x)
	}
	want := "hello other\nno home\n" + data + "\n" + filepath.Join(h.rt.dir(id), "work") + "\n"
	if h.rt.bind {
		want = "hello other\nno home\n" + target + "\n/.berth/work\n"
	}
	if got := h.logs(id, runtime.LogOptions{}); got != want {
		t.Errorf("output is %q, want %q", got, want)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "busybox") {
		t.Errorf("warnings: %q", warned)
	}
}

func TestMounts(t *testing.T) {
	h := open(t, Options{})
	if !h.rt.bind {
		t.Skip("this host has no mount namespaces for us")
	}
	data, other, host := t.TempDir(), t.TempDir(), t.TempDir()
	target := filepath.Join(host, "a", "data")
	c := shell(fmt.Sprintf(`cd %[1]s && echo written > file; (echo x > %[1]s/inner/file) 2>/dev/null || echo read-only; echo why > %[2]s/last-words`, target, host))
	c.TerminationMessagePath = filepath.Join(host, "last-words")
	spec := h.spec(pod("mounts", c), 0)
	spec.Mounts = []runtime.Mount{{Volume: "in", Source: other, Target: filepath.Join(target, "inner"), ReadOnly: true}, {Volume: "out", Source: data, Target: target}}
	id := h.startSpec(spec)
	if x := h.exit(); x.Code != 0 || x.Message != "why\n" {
		t.Errorf("exit is %+v, log %q", x, h.logs(id, runtime.LogOptions{}))
	}
	if got := h.logs(id, runtime.LogOptions{}); got != "read-only\n" {
		t.Errorf("output is %q", got)
	}
	if b, err := os.ReadFile(filepath.Join(data, "file")); err != nil || string(b) != "written\n" {
		t.Errorf("the volume holds %q, %v", b, err)
	}
	if entries, _ := os.ReadDir(target); len(entries) != 0 {
		t.Errorf("the host sees the mount: %v", entries)
	}
}

func TestTerminationMessageFromLog(t *testing.T) {
	h := open(t, Options{})
	c := shell(`echo it broke; exit 1`)
	c.TerminationMessagePolicy = corev1.TerminationMessageFallbackToLogsOnError
	h.start(pod("fallback", c), 0)
	if x := h.exit(); x.Message != "it broke\n" {
		t.Errorf("exit is %+v", x)
	}
}

func TestExec(t *testing.T) {
	h := open(t, Options{})
	p := pod("exec", shell(`sleep 1000`))
	spec := h.spec(p, 0)
	spec.Env = []string{"WHO=container"}
	id := h.startSpec(spec)
	ctx := context.Background()
	res, err := h.rt.Exec(ctx, id, []string{"sh", "-c", "echo $WHO; exit 4"})
	if err != nil || res.Code != 4 || string(res.Output) != "container\n" {
		t.Errorf("exec gave %+v, %v", res, err)
	}
	// What it leaves running with its output keeps nobody waiting, and takes nothing away from what was said.
	res, err = h.rt.Exec(ctx, id, []string{"sh", "-c", "sleep 1000 & echo said; exit 5"})
	if err != nil || res.Code != 5 || string(res.Output) != "said\n" {
		t.Errorf("exec that leaves something running gave %+v, %v", res, err)
	}
	if _, err := h.rt.Exec(ctx, id, []string{"no-such-command"}); err == nil {
		t.Error("a command that is not there could be run")
	}
	pidFile := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error)
	go func() {
		_, err := h.rt.Exec(ctx, id, []string{"sh", "-c", "echo $$ > " + pidFile + ".tmp && mv " + pidFile + ".tmp " + pidFile + "; sleep 1000"})
		done <- err
	}()
	var pid int
	eventually(t, "the command runs", func() bool {
		b, err := os.ReadFile(pidFile)
		pid, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil && pid > 0
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled exec: %v", err)
	}
	eventually(t, "the command is killed", func() bool { return gone(pid) })
}

func TestRestartedAgentTakesOver(t *testing.T) {
	h := open(t, Options{})
	dir := t.TempDir()
	p := pod("kept", shell(fmt.Sprintf(`echo one; while ! test -e %s/go; do sleep 0.01; done; echo two; exit 5`, dir)))
	id := h.start(p, 0)
	short := h.start(pod("short", shell(fmt.Sprintf(`while ! test -e %s/short; do sleep 0.01; done; exit 6`, dir))), 0)

	// Nobody watches while one of them ends.
	h.rt.Close()
	if err := os.WriteFile(filepath.Join(dir, "short"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the short one has ended", func() bool { alive, _ := locked(h.rt.dir(short)); return !alive })
	h = open(t, h.opts)
	if len(h.found) != 2 {
		t.Fatalf("found %d pods", len(h.found))
	}
	for _, f := range h.found {
		c := f.Containers[0]
		switch f.Pod.Name {
		case "kept":
			if c.ID != id || c.Exit != nil || c.StartedAt.IsZero() {
				t.Errorf("kept: %+v", c)
			}
		case "short":
			if c.ID != short || c.Exit == nil || c.Exit.Code != 6 {
				t.Errorf("short: %+v", c)
			}
		}
	}
	if res, err := h.rt.Exec(context.Background(), id, []string{"true"}); err != nil || res.Code != 0 {
		t.Errorf("exec after the restart: %+v, %v", res, err)
	}
	// A follower of the log sees what comes, and the end.
	rc, err := h.rt.Logs(context.Background(), id, runtime.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	text := make(chan string)
	go func() {
		b, _ := io.ReadAll(rc)
		text <- string(b)
	}()
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 5 {
		t.Errorf("exit is %+v", x)
	}
	if got := <-text; got != "one\ntwo\n" {
		t.Errorf("followed log is %q", got)
	}
	// And again: all is on disk.
	h = h.reopen()
	if len(h.found) != 2 || h.found[0].Containers[0].Exit == nil {
		t.Errorf("third agent found %+v", h.found)
	}
}

// The shim killed, the command goes with it, and so does what it started; how it ended, nobody knows.
func TestShimKilled(t *testing.T) {
	h := open(t, Options{})
	dir := t.TempDir()
	p := pod("lost", shell(fmt.Sprintf(`sleep 1000 & echo $! > %[1]s/child; echo $$ > %[1]s/main; echo up; wait`, dir)))
	id := h.start(p, 0)
	eventually(t, "it is up", func() bool { return h.logs(id, runtime.LogOptions{}) == "up\n" })
	w, err := h.rt.find(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.destroy(h.rt, id); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 137 || x.Reason != runtime.ReasonStatusUnknown {
		t.Errorf("exit is %+v", x)
	}
	for _, name := range []string{"main", "child"} {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		pid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
		eventually(t, name+" is gone", func() bool { return gone(pid) || zombie(pid) })
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(b), ") Z ")
}

func TestLogRotationAndSelection(t *testing.T) {
	h := open(t, Options{LogBytes: 2000, LogFiles: 3})
	id := h.start(pod("chatty", shell(`i=0; while [ $i -lt 200 ]; do echo "line $i"; i=$((i+1)); done`)), 0)
	h.exit()
	all := h.logs(id, runtime.LogOptions{})
	if !strings.HasSuffix(all, "line 198\nline 199\n") || strings.Contains(all, "line 0\n") {
		t.Errorf("rotated log is %q", all)
	}
	if n := strings.Count(all, "\n"); n < 60 || n > 150 {
		t.Errorf("%d lines are kept", n)
	}
	n := int64(60) // more than one file has
	tail := h.logs(id, runtime.LogOptions{TailLines: &n})
	if strings.Count(tail, "\n") != 60 || !strings.HasPrefix(tail, "line 140\n") {
		t.Errorf("tail is %q", tail)
	}
	n = 0
	if got := h.logs(id, runtime.LogOptions{TailLines: &n}); got != "" {
		t.Errorf("tail of nothing is %q", got)
	}
	limit := int64(12)
	if got := h.logs(id, runtime.LogOptions{LimitBytes: &limit}); len(got) != 12 {
		t.Errorf("limited log is %q", got)
	}
	if got := h.logs(id, runtime.LogOptions{Since: time.Now().Add(time.Hour)}); got != "" {
		t.Errorf("log since the future is %q", got)
	}
	n = 1
	stamped := h.logs(id, runtime.LogOptions{TailLines: &n, Timestamps: true})
	stamp, text, _ := strings.Cut(stamped, " ")
	if _, err := time.Parse(time.RFC3339Nano, stamp); err != nil || text != "line 199\n" {
		t.Errorf("stamped line is %q: %v", stamped, err)
	}
	entries, _ := filepath.Glob(filepath.Join(h.rt.dir(id), shim.LogFile+"*"))
	if len(entries) != 3 {
		t.Errorf("log files are %v", entries)
	}
}

func TestLongLines(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("long", shell(`head -c 100000 /dev/zero | tr '\0' x; echo; echo end`)), 0)
	h.exit()
	want := strings.Repeat("x", 100000) + "\nend\n"
	if got := h.logs(id, runtime.LogOptions{}); got != want {
		t.Errorf("got %d bytes, want %d", len(got), len(want))
	}
}

func TestFollowEndsWithItsReader(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("quiet", shell(`echo hi; sleep 1000`)), 0)
	ctx, cancel := context.WithCancel(context.Background())
	rc, err := h.rt.Logs(ctx, id, runtime.LogOptions{Follow: true})
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	buf := make([]byte, 100)
	n, err := rc.Read(buf)
	if err != nil || string(buf[:n]) != "hi\n" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
	cancel()
	if _, err := rc.Read(buf); err != io.EOF {
		t.Errorf("after the reader left: %v", err)
	}
}
