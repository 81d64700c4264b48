package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// stray is a process in a container's cgroup that is no child of its shim, as what a shim that was killed leaves behind. ended is closed when it
// has ended.
func (h *harness) stray(id runtime.ID) (pid int, ended <-chan struct{}) {
	h.t.Helper()
	if h.rt.cgroups == nil {
		h.t.Skip("cgroups are not writable here")
	}
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = cmd.Process.Kill() })
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = cmd.Wait()
	}()
	dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(id))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	return cmd.Process.Pid, over
}

func (h *harness) cgroupIsThere(id runtime.ID) bool {
	dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(id))
	if err != nil {
		h.t.Fatal(err)
	}
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			return true
		}
	}
	return false
}

// killShim ends a container's shim alone.
func (h *harness) killShim(id runtime.ID) {
	h.t.Helper()
	h.signalShim(id, syscall.SIGKILL)
	eventually(h.t, "the shim has ended", func() bool { held, err := locked(h.rt.dir(id)); return err == nil && !held })
}

func (h *harness) signalShim(id runtime.ID, signal syscall.Signal) {
	h.t.Helper()
	var state shim.State
	if err := readJSON(filepath.Join(h.rt.dir(id), shim.StateFile), &state); err != nil {
		h.t.Fatal(err)
	}
	if err := syscall.Kill(state.ShimPID, signal); err != nil {
		h.t.Fatal(err)
	}
}

// Whatever is left in a container's cgroup has ended before the container counts as ended, is started anew, or is removed: of a
// shim that was killed and of one that said that all had ended.
func TestNothingIsLeftInACgroup(t *testing.T) {
	for name, how := range map[string]func(h *harness, id runtime.ID) *harness{
		"it ends": func(h *harness, id runtime.ID) *harness {
			if err := h.rt.Signal(h.t.Context(), id, runtime.Terminate); err != nil {
				h.t.Fatal(err)
			}
			h.exit()
			return h
		},
		"its shim is killed": func(h *harness, id runtime.ID) *harness {
			h.killShim(id)
			h.exit()
			return h
		},
		"it ends while no agent runs": func(h *harness, id runtime.ID) *harness {
			h.rt.Close()
			if _, err := ask(h.t.Context(), h.rt.dir(id), shim.Request{Op: shim.OpKill}); err != nil {
				h.t.Fatal(err)
			}
			eventually(h.t, "the shim has ended", func() bool { held, _ := locked(h.rt.dir(id)); return !held })
			return h.reopen()
		},
		"its shim is killed while no agent runs": func(h *harness, id runtime.ID) *harness {
			h.rt.Close()
			h.killShim(id)
			return h.reopen()
		},
		"its shim is killed before it said what runs": func(h *harness, id runtime.ID) *harness {
			h.rt.Close()
			h.killShim(id)
			if err := os.Remove(filepath.Join(h.rt.dir(id), shim.StateFile)); err != nil {
				h.t.Fatal(err)
			}
			return h.reopen()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			id := h.start(pod("p", shell("exec sleep 1000")), 0)
			_, ended := h.stray(id)
			h = how(h, id)
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("a process is left")
			}
			if err := h.rt.Remove(t.Context(), id.Pod); err != nil || h.cgroupIsThere(id) {
				t.Errorf("its cgroup: %v", err)
			}
		})
	}
}

// What comes to be in the cgroup of a container that has ended goes with it, and so do cgroups that the container made below its own.
func TestRemoveEndsWhatIsLeft(t *testing.T) {
	for name, remove := range map[string]func(h *harness, id runtime.ID) error{
		"removed":           func(h *harness, id runtime.ID) error { return h.rt.Remove(h.t.Context(), id.Pod) },
		"found and removed": func(h *harness, id runtime.ID) error { return h.reopen().rt.Remove(h.t.Context(), id.Pod) },
		"never begun": func(h *harness, id runtime.ID) error {
			if err := h.rt.undo(id, errors.New("it took too long")); err == nil || !strings.Contains(err.Error(), "it took too long") {
				return err
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			id := h.start(pod("p", shell("true")), 0)
			h.exit()
			_, ended := h.stray(id)
			dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(id))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.Mkdir(filepath.Join(dirs[0], "below"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := remove(h, id); err != nil {
				t.Error(err)
			}
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Error("a process is left")
			}
			if h.cgroupIsThere(id) {
				t.Error("a cgroup is left")
			}
			if _, err := os.Stat(h.rt.dir(id)); !os.IsNotExist(err) {
				t.Errorf("its directory: %v", err)
			}
		})
	}
}

// A process that cannot end yet keeps its container: neither is the end told, nor is it removed or started anew, by whichever agent.
func TestWhatCannotEndKeepsItsContainer(t *testing.T) {
	const freezer = "/sys/fs/cgroup/freezer"
	if _, err := os.Stat(filepath.Join(freezer, "cgroup.procs")); err != nil {
		t.Skip("there is no freezer that keeps what is killed")
	}
	ice := filepath.Join(freezer, fmt.Sprintf("berth-ice-%d", os.Getpid()))
	if err := os.Mkdir(ice, 0o755); err != nil {
		t.Skip(err)
	}
	state := func(s string) {
		if err := os.WriteFile(filepath.Join(ice, "freezer.state"), []byte(s), 0o600); err != nil {
			t.Error(err)
		}
	}
	h := open(t, Options{})
	p := pod("p", shell("exec sleep 1000"))
	id := h.start(p, 0)
	pid, ended := h.stray(id)
	t.Cleanup(func() {
		state("THAWED")
		<-ended
		if err := os.Remove(ice); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(ice, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0o600); err != nil {
		t.Skip(err)
	}
	state("FROZEN")
	h.killShim(id)
	kept := func(h *harness) {
		t.Helper()
		if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
			t.Errorf("it cannot be killed: %v", err)
		}
		if err := h.rt.Remove(t.Context(), p.UID); err == nil {
			t.Error("it was removed")
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := h.rt.Start(ctx, h.spec(p, 1)); err == nil || !strings.Contains(err.Error(), "may still run") {
			t.Errorf("it was started anew: %v", err)
		}
		// Where others have to make room they do not wait for it.
		next := runtime.ID{Pod: id.Pod, Container: id.Container, Attempt: 1}
		if err := os.MkdirAll(h.rt.dir(next), 0o700); err != nil {
			t.Fatal(err)
		}
		most, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := h.rt.Reclaim(most); err == nil || most.Err() != nil {
			t.Errorf("its room was taken, or waited for: %v", err)
		}
		if err := os.Remove(h.rt.dir(next)); err != nil {
			t.Error(err)
		}
		select {
		case ev := <-h.events:
			t.Errorf("it is told: %+v", ev)
		default:
		}
	}
	kept(h)
	h = h.reopen()
	if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit != nil {
		t.Fatalf("found %+v", h.found)
	}
	kept(h)
	state("THAWED")
	if x := h.exit(); x.Code != 137 || x.Reason != runtime.ReasonStatusUnknown {
		t.Errorf("exit is %+v", x)
	}
	select {
	case <-ended:
	default:
		if !zombie(pid) {
			t.Error("it ended later than its container")
		}
	}
}

// An agent that ends amid a removal leaves what is whole or what is no pod's any more: none finds a container whose end is not known. What
// was put aside goes when the next agent opens.
func TestRemovalThatIsCutOff(t *testing.T) {
	h := open(t, Options{})
	p := pod("p", shell("echo said; exit 3"))
	id := h.start(p, 0)
	h.exit()
	ctx, cancel := context.WithCancel(t.Context())
	seen := 0
	err := h.rt.Remove(mounts.WithTurns(ctx, func() {
		if seen++; seen == 3 { // some of it is deleted
			cancel()
		}
	}), p.UID)
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("it was not cut off: %v", err)
	}
	if entries, err := os.ReadDir(h.opts.Root); err != nil || len(entries) != 1 || entries[0].Name() != asidePrefix+"uid-p.0" {
		t.Errorf("there is %v, %v", entries, err)
	}
	if _, err := os.Stat(h.rt.dir(id)); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	h = h.reopen()
	if len(h.found) != 0 {
		t.Errorf("found %+v", h.found)
	}
	eventually(t, "nothing is left", func() bool { entries, err := os.ReadDir(h.opts.Root); return err == nil && len(entries) == 0 })
	// A pod of its UID can be there anew, and be removed, while something of the one before is left.
	if err := os.MkdirAll(filepath.Join(h.opts.Root, asidePrefix+"uid-p.0", containersDir), 0o700); err != nil {
		t.Fatal(err)
	}
	h.start(p, 0)
	if x := h.exit(); x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	if err := h.rt.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if entries, err := os.ReadDir(h.opts.Root); err != nil || len(entries) != 0 {
		t.Errorf("there is left %v, %v", entries, err)
	}
}

// What runs before have written holds up no start.
func TestStartWaitsForNoScratch(t *testing.T) {
	h := open(t, Options{})
	p := pod("p", shell("true"))
	var ids []runtime.ID
	for attempt := range int32(2) {
		ids = append(ids, h.start(p, attempt))
		h.exit()
	}
	h.rt.mu.Lock()
	h.rt.sweeping = true // nobody deletes anything
	h.rt.mu.Unlock()
	h.start(p, 2)
	h.exit()
	for i, id := range ids {
		if _, err := os.Stat(h.rt.dir(id)); os.IsNotExist(err) != (i == 0) {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.opts.Root, asidePrefix+"uid-p.0", shim.ExitFile)); err != nil {
		t.Errorf("the first run is not aside: %v", err)
	}
	h.rt.mu.Lock()
	h.rt.sweeping = false
	h.rt.mu.Unlock()
	h.rt.sweep()
	eventually(t, "it is deleted", func() bool {
		_, err := os.Stat(filepath.Join(h.opts.Root, asidePrefix+"uid-p.0"))
		return os.IsNotExist(err)
	})
}

// What several would delete one of them does, and the others are told that it is gone when it is: none takes what another has deleted for moved.
func TestOneDeletesWhatSeveralWould(t *testing.T) {
	h := open(t, Options{CgroupParent: "none"})
	const depth = 100
	if err := os.MkdirAll(filepath.Join(h.opts.Root, asidePrefix+"uid-p.0", strings.Repeat("d/", depth)), 0o700); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		release, ended := make(chan struct{}), make(chan error, 3)
		seen := 0
		first := mounts.WithTurns(t.Context(), func() {
			if seen++; seen == depth-10 {
				<-release
			}
		})
		go func() { ended <- h.rt.removeAside(first, asidePrefix) }()
		synctest.Wait()
		for range 2 {
			go func() { ended <- h.rt.removeAside(t.Context(), asidePrefix+"uid-p.") }()
		}
		synctest.Wait()
		close(release)
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
		if entries, err := os.ReadDir(h.opts.Root); err != nil || len(entries) > 0 || len(h.rt.deleting) > 0 {
			t.Errorf("there is left %v, %v, and deleted are %v", entries, err, h.rt.deleting)
		}
	})
}

// holdCgroup keeps a container's cgroup from being removed.
func (h *harness) holdCgroup(id runtime.ID) (letGo func()) {
	h.t.Helper()
	dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(id))
	if err != nil {
		h.t.Fatal(err)
	}
	if err := unix.Mount("berth-test", dirs[0], "tmpfs", 0, ""); err != nil {
		h.t.Skipf("this machine does not let mount: %v", err)
	}
	return func() {
		if err := unix.Unmount(dirs[0], unix.MNT_DETACH); err != nil {
			h.t.Error(err)
		}
	}
}

// A cgroup that cannot be removed keeps no pod of which nothing runs: it goes when it can, unless its container is made anew.
func TestCgroupThatCannotBeRemoved(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	p := pod("p", shell("true"))
	id := h.start(p, 0)
	h.exit()
	letGo := h.holdCgroup(id)
	err := h.rt.Remove(t.Context(), p.UID)
	there := h.cgroupIsThere(id)
	letGo()
	if err != nil || !there {
		t.Errorf("the pod is not gone without its cgroup: %v, %v", err, there)
	}
	if _, err := os.Stat(h.rt.podDir(p.UID)); !os.IsNotExist(err) {
		t.Errorf("its directory: %v", err)
	}
	eventually(t, "its cgroup is gone", func() bool { return !h.cgroupIsThere(id) })
	// Of one that is made anew nothing is taken away.
	h.start(p, 0)
	h.exit()
	letGo = h.holdCgroup(id)
	h.rt.removeCgroup(id)
	letGo()
	spec := h.spec(p, 0)
	h.rt.keepCgroup(id)
	if err := h.rt.cgroups.forContainer(&spec, &shim.Config{}); err != nil {
		t.Fatal(err)
	}
	if left := h.rt.cgroups.tryLeft(h.rt.forgetCgroup); left > 0 || !h.cgroupIsThere(id) {
		t.Errorf("%d are to go, and it is there: %v", left, h.cgroupIsThere(id))
	}
}
