package cri

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// An agent that comes back finds what runs, what has ended meanwhile and how, and the pods' addresses.
func TestAdopt(t *testing.T) {
	h := open(t)
	runs := pod("runs", shell("sleep 1000"))
	address := h.sandbox(runs).IPs[0]
	running := h.startSpec(h.spec(runs, 0))
	ends := pod("ends", shell("while [ ! -e /go ]; do sleep 0.05; done; exit 5"))
	ended := h.run(ends)
	bare := pod("bare", shell("true"))
	h.sandbox(bare)
	h.rt.Close()
	// What an agent leaves that is killed between two calls.
	ctx := t.Context()
	other, err := New(h.opts)
	if err != nil {
		t.Fatal(err)
	}
	box, err := other.sandboxesOf(ctx, bare.UID)
	if err != nil || len(box) != 1 {
		t.Fatal(box, err)
	}
	spec := h.specWith(other, bare)
	config, err := other.containerConfig(ctx, &spec)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.prepare(ctx, &spec, config); err != nil {
		t.Fatal(err)
	}
	sandboxConfig, err := other.sandboxConfig(ctx, bare, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: box[0].Id, Config: config, SandboxConfig: sandboxConfig}); err != nil {
		t.Fatal(err)
	}
	left, err := other.containersOf(ctx, ends.UID, "")
	if err != nil || len(left) != 1 {
		t.Fatal(left, err)
	}
	if _, err := other.runtime.ExecSync(ctx, &criv1.ExecSyncRequest{ContainerId: left[0].Id, Cmd: []string{"touch", "/go"}, Timeout: 5}); err != nil {
		t.Fatal(err)
	}
	h.until("the container to have ended", func() bool {
		s, err := other.status(ctx, left[0].Id)
		return err == nil && s.State == criv1.ContainerState_CONTAINER_EXITED
	})
	other.Close()
	h.start()
	found := map[string]runtime.Pod{}
	for _, p := range h.found {
		found[p.Pod.Name] = p
	}
	if p := found["runs"]; p.Sandbox == nil || p.Sandbox.IPs[0] != address || len(p.Containers) != 1 || p.Containers[0].ID != running ||
		p.Containers[0].Exit != nil || p.Containers[0].Earlier || p.Containers[0].Ref == "" {
		t.Errorf("the one that runs: %+v", p)
	}
	if p := found["ends"]; len(p.Containers) != 1 || p.Containers[0].ID != ended || p.Containers[0].Exit == nil || p.Containers[0].Exit.Code != 5 {
		t.Errorf("the one that has ended: %+v", p)
	}
	if p, ok := found["bare"]; !ok || p.Sandbox == nil || len(p.Containers) != 0 {
		t.Errorf("the one that was begun: %+v", p)
	}
	if err := h.rt.Signal(ctx, running, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Signal(ctx, running, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(running); x.Code != 137 && x.Code != 143 {
		t.Errorf("exit %+v", x)
	}
}

func (h *harness) specWith(rt *Runtime, p *corev1.Pod) runtime.Spec {
	h.t.Helper()
	old := h.rt
	h.rt = rt
	defer func() { h.rt = old }()
	return h.spec(p, 0)
}

// Another agent's pods are not this one's, and what a pod's record was is not guessed.
func TestAdoptOnlyItsOwn(t *testing.T) {
	h := open(t)
	p := pod("mine", shell("sleep 1000"))
	id := h.run(p)
	stranger := h.opts
	stranger.Node, stranger.Root = "stranger", filepath.Join(t.TempDir(), "pods")
	other, err := New(stranger)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if found, err := other.Open(func(runtime.Event) {}); err != nil || len(found) != 0 {
		t.Errorf("a stranger finds %+v, %v", found, err)
	}
	if err := os.Truncate(filepath.Join(h.rt.podDir(p.UID), record.File), 10); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if len(h.found) != 1 || !h.found[0].Lost || h.found[0].Pod.UID != p.UID || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].ID != id {
		t.Errorf("found %+v", h.found)
	}
}

// A daemon that is killed takes no container with it; what ends meanwhile is told by its exit code; nothing is asked
// of it that it does not answer, and that is told as what it is.
func TestDaemonKilled(t *testing.T) {
	h, d := open(t), daemon(t)
	stays := h.run(pod("stays", shell("sleep 1000")))
	ends := h.run(pod("ends-meanwhile", shell("sleep 1; exit 6")))
	d.Kill()
	if err := h.rt.Check(t.Context()); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("checked: %v", err)
	}
	if _, err := h.rt.Exec(t.Context(), stays, []string{"true"}); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a command: %v", err)
	}
	if err := h.rt.Signal(t.Context(), stays, runtime.Terminate); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a signal: %v", err)
	}
	if _, err := h.rt.RunSandbox(t.Context(), pod("unlucky", shell("true"))); !errors.Is(err, runtime.ErrUnavailable) {
		t.Errorf("a sandbox: %v", err)
	}
	if err := d.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(ends); x.Code != 6 {
		t.Errorf("exit %+v", x)
	}
	h.until("it to be well again", func() bool { return h.rt.Check(t.Context()) == nil })
	if res, err := h.rt.Exec(t.Context(), stays, []string{"true"}); err != nil || res.Code != 0 {
		t.Errorf("a command: %+v, %v", res, err)
	}
}

// A daemon that hangs is told from one that is well.
func TestDaemonHangs(t *testing.T) {
	h, d := open(t), daemon(t)
	id := h.run(pod("waits", shell("sleep 1000")))
	if err := d.Freeze(); err != nil {
		t.Fatal(err)
	}
	cerr := h.rt.Check(t.Context())
	if err := d.Thaw(); err != nil {
		t.Fatal(err)
	}
	if !errors.Is(cerr, runtime.ErrUnavailable) {
		t.Errorf("checked: %v", cerr)
	}
	h.until("it to be well again", func() bool { return h.rt.Check(t.Context()) == nil })
	if res, err := h.rt.Exec(t.Context(), id, []string{"true"}); err != nil || res.Code != 0 {
		t.Errorf("a command: %+v, %v", res, err)
	}
}

// A container that ends without what would tell of it is known to have ended, also where the daemon says that it runs.
func TestShimKilled(t *testing.T) {
	h := open(t)
	volume := t.TempDir()
	p := pod("unwatched", shell("while [ ! -e /v/go ]; do sleep 0.05; done; exit 6"))
	id := h.startSpec(h.specOf(p, runtime.Mount{Source: volume, Target: "/v"}))
	if err := daemon(t).KillShim(t.Context(), string(p.UID)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(id); x.Code == 0 {
		t.Errorf("exit %+v", x)
	}
}

// A sandbox that ends is told until there is another one; the containers of before are known as those of before.
func TestSandboxLost(t *testing.T) {
	h := open(t)
	p := pod("boxed", shell("sleep 1000"))
	id := h.run(p)
	first := h.rt.sandboxes[p.UID]
	if _, err := h.rt.runtime.StopPodSandbox(t.Context(), &criv1.StopPodSandboxRequest{PodSandboxId: first.id}); err != nil {
		t.Fatal(err)
	}
	h.next(runtime.ID{Pod: p.UID})
	h.next(runtime.ID{Pod: p.UID})
	h.until("the container to have ended", func() bool { _, err := h.rt.find(id); return err != nil })
	h.restart()
	if len(h.found) != 1 || h.found[0].Sandbox != nil || !h.found[0].Owing || len(h.found[0].Containers) != 1 || !h.found[0].Containers[0].Earlier {
		t.Errorf("found %+v", h.found)
	}
	if err := h.rt.StopSandbox(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	h.restart()
	if len(h.found) != 1 || h.found[0].Owing {
		t.Errorf("after what it held was given back: %+v", h.found)
	}
	h.sandbox(p)
	if second := h.rt.sandboxes[p.UID]; second.id == first.id || second.attempt != 1 {
		t.Errorf("another sandbox: %+v", second)
	}
	again := h.startSpec(h.spec(p, 1))
	h.restart()
	if len(h.found) != 1 || h.found[0].Sandbox == nil || len(h.found[0].Containers) != 2 || !h.found[0].Containers[0].Earlier || h.found[0].Containers[1].Earlier {
		t.Errorf("found %+v", h.found)
	}
	// Somebody else removes what runs.
	c := h.rt.running[again]
	if _, err := h.rt.runtime.RemoveContainer(t.Context(), &criv1.RemoveContainerRequest{ContainerId: c.ref}); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(again); x.Code != 137 {
		t.Errorf("exit %+v", x)
	}
}

// A container never runs twice, whatever the agent knows.
func TestNeverTwice(t *testing.T) {
	h := open(t)
	p := pod("once", shell("sleep 1000"))
	id := h.run(p)
	h.rt.mu.Lock()
	c := h.rt.running[id]
	delete(h.rt.running, id)
	h.rt.mu.Unlock()
	refused := func(attempts ...int32) {
		t.Helper()
		for _, attempt := range attempts {
			if err := h.rt.Start(t.Context(), h.spec(p, attempt)); err == nil || !strings.Contains(err.Error(), "may still run") {
				t.Errorf("attempt %d: %v", attempt, err)
			}
		}
	}
	refused(1, 2)
	// That attempt itself is what was asked for.
	if err := h.rt.Start(t.Context(), h.spec(p, 0)); err != nil {
		t.Fatal(err)
	}
	if ev := h.next(id); ev.Ref != c.ref {
		t.Errorf("it is %+v", ev)
	}
	refused(0, 1, 2)
}

// A start that nobody answered is found by the next try: what runs goes on, what has ended has its exit code, and what was of another image
// goes. Nothing runs twice.
func TestStartUnanswered(t *testing.T) {
	h := open(t)
	ctx := t.Context()
	start := func(name, script string) (runtime.Spec, string) {
		p := pod("unanswered-"+name, shell(script))
		h.sandbox(p)
		spec := h.spec(p, 0)
		config, err := h.rt.containerConfig(ctx, &spec)
		if err == nil {
			err = h.rt.prepare(ctx, &spec, config)
		}
		if err != nil {
			t.Fatal(err)
		}
		sandbox, err := h.rt.sandboxConfig(ctx, p, 0)
		if err != nil {
			t.Fatal(err)
		}
		made, err := h.rt.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: h.rt.sandboxes[p.UID].id, Config: config, SandboxConfig: sandbox})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.rt.runtime.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: made.ContainerId}); err != nil {
			t.Fatal(err)
		}
		return spec, made.ContainerId
	}
	one := func(spec runtime.Spec) {
		t.Helper()
		if all, err := h.rt.containersOf(ctx, spec.ID.Pod, ""); err != nil || len(all) != 1 {
			t.Errorf("containers %v, %v", all, err)
		}
	}
	runs, ref := start("runs", "sleep 1000")
	if err := h.rt.Start(ctx, runs); err != nil {
		t.Fatal(err)
	}
	if ev := h.next(runs.ID); ev.Ref != ref || ev.Exit != nil {
		t.Errorf("what runs is %+v", ev)
	}
	one(runs)
	ended, ref := start("ended", "exit 5")
	h.until("its end", func() bool {
		s, err := h.rt.status(ctx, ref)
		return err == nil && s.State == criv1.ContainerState_CONTAINER_EXITED
	})
	if err := h.rt.Start(ctx, ended); err != nil {
		t.Fatal(err)
	}
	if ev := h.next(ended.ID); ev.Ref != ref || ev.Exit != nil {
		t.Errorf("what has ended is %+v", ev)
	}
	if x := h.exit(ended.ID); x.Code != 5 {
		t.Errorf("it ended %+v", x)
	}
	one(ended)
	other, ref := start("other", "sleep 1000")
	var err error
	if other.Image, err = h.rt.FindImage(ctx, nonroot); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Start(ctx, other); err != nil {
		t.Fatal(err)
	}
	if ev := h.next(other.ID); ev.Ref == ref || ev.Exit != nil {
		t.Errorf("of another image it is %+v", ev)
	}
	one(other)
}

// What runs in a pod's cgroup when the container runtime says that nothing of it does is ended: before another sandbox is made, when its
// sandbox is given back, and when it is removed.
func TestLostProcesses(t *testing.T) {
	h := open(t)
	if h.rt.podCgroups() == nil {
		t.Skip("pods have no cgroups here")
	}
	p := pod("loses", shell("true"))
	lose := func() *exec.Cmd {
		t.Helper()
		cmd := exec.Command("sleep", "1000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill() }) // it was, unless the test failed
		if err := h.rt.podCgroup(p); err != nil {
			t.Fatal(err)
		}
		dirs, err := h.rt.cgroups.Dirs(podCgroupName(p))
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range dirs {
			// With version 2 nothing may run in a cgroup of which others are a part, only below it, where containers are.
			dir = filepath.Join(dir, "lost")
			err := os.MkdirAll(dir, 0o755)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, cmd.Process.Pid), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return cmd
	}
	for what, do := range map[string]func() error{
		"another sandbox": func() error { _, err := h.rt.RunSandbox(t.Context(), p); return err },
		"its sandbox":     func() error { return h.rt.StopSandbox(t.Context(), p.UID) },
	} {
		if err := h.rt.StopSandbox(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
		lost := lose()
		if err := do(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		_ = lost.Wait() // the test would hang if it were not killed
	}
	lost := lose()
	if err := h.rt.Remove(t.Context(), p.UID); err != nil && !strings.Contains(err.Error(), "busy") { // it may take a moment to be gone
		t.Error(err)
	}
	_ = lost.Wait()
	if err := h.rt.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}
