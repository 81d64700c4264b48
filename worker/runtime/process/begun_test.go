package process

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// program writes a shell script, and returns its path.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// watcher takes note of what happens to files, in order.
type watcher struct {
	t     *testing.T
	fd    int
	files map[int32]string // single files
}

func watchFiles(t *testing.T) *watcher {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	return &watcher{t, fd, map[int32]string{}}
}

func (w *watcher) add(path, name string, what uint32) {
	w.t.Helper()
	wd, err := unix.InotifyAddWatch(w.fd, path, what)
	if err != nil {
		w.t.Fatal(err)
	}
	w.files[int32(wd)] = name
}

// happened are the names of the files, those in directories after the directory's.
func (w *watcher) happened() (names []string) {
	w.t.Helper()
	buf := make([]byte, 1<<20)
	n, err := unix.Read(w.fd, buf)
	if err == unix.EAGAIN {
		return nil
	}
	if err != nil {
		w.t.Fatal(err)
	}
	for b := buf[:n]; len(b) > 0; {
		wd, size := int32(binary.NativeEndian.Uint32(b)), unix.SizeofInotifyEvent+int(binary.NativeEndian.Uint32(b[12:]))
		names = append(names, w.files[wd]+strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00"))
		b = b[size:]
	}
	return names
}

// Before the command runs there is a mark that it may have, and before its shim answers no more it is written down how it ended.
func TestMarksComeFirst(t *testing.T) {
	h := open(t, Options{})
	itself, may := h.rt.shim, filepath.Join(t.TempDir(), "may")
	if exe, err := os.Executable(); err == nil && itself == "/proc/self/exe" {
		itself = exe
	}
	h.rt.shim = program(t, fmt.Sprintf(`while ! test -e %s; do sleep 0.01; done; exec %s "$@"`, may, itself))
	command := program(t, "exit 3")
	p := pod("p", corev1.Container{Command: []string{command}})
	spec := h.spec(p, 0)
	dir := h.rt.dir(spec.ID)
	started := make(chan error, 1)
	go func() { started <- h.rt.Start(t.Context(), spec) }()
	eventually(t, "the shim begins", func() bool { _, err := os.Stat(filepath.Join(dir, shim.LockFile)); return err == nil })
	w := watchFiles(t)
	w.add(dir, "", unix.IN_MOVED_TO|unix.IN_DELETE)
	w.add(command, "command", unix.IN_OPEN)
	if err := os.WriteFile(may, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	h.event()
	if x := h.exit(); x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	all := w.happened()
	for _, order := range [][2]string{{shim.StateFile, "command"}, {shim.ExitFile, shim.SocketFile}} {
		first, second := slices.Index(all, order[0]), slices.Index(all, order[1])
		if first < 0 || second < first {
			t.Errorf("%s does not come before %s: %q", order[0], order[1], all)
		}
	}
}

// A start that is cut off is made again only where the command has not run: after its mark it has begun, and then it has ended.
func TestStartCutOff(t *testing.T) {
	const mark = `echo '{"ShimPID":1,"StartedAt":"2026-01-02T03:04:05Z"}' > "$2/state.json"; `
	for name, c := range map[string]struct {
		shim  string
		again bool
		fault bool // the command's
	}{
		"before the mark":   {"exit 1", true, false},
		"after the mark":    {mark + "exit 1", false, false},
		"nothing to run":    {mark + `rm "$2/state.json"; echo '{"Error":"no such file","Command":true}' >&3; exit 1`, true, true},
		"nothing to run in": {`echo '{"Error":"no such volume"}' >&3; exit 1`, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			good := h.rt.shim
			h.rt.shim = program(t, c.shim)
			p := pod("p", shell("exit 4"))
			err := h.rt.Start(t.Context(), h.spec(p, 0))
			var se *runtime.StartError
			if (err != nil) != c.again || errors.As(err, &se) != c.fault {
				t.Errorf("start: %v", err)
			}
			h.rt.shim = good
			if c.again {
				h.start(p, 0)
				if x := h.exit(); x.Code != 4 {
					t.Errorf("exit is %+v", x)
				}
				return
			}
			if ev := h.event(); ev.Exit != nil || ev.StartedAt.Year() != 2026 {
				t.Errorf("first event is %+v", ev)
			}
			if x := h.exit(); x.Code != 137 || x.Reason != runtime.ReasonStatusUnknown {
				t.Errorf("exit is %+v", x)
			}
			// Whatever becomes of the mark, as long as there is one.
			for _, text := range []string{mark, "{", ""} {
				if text != mark {
					if err := os.WriteFile(filepath.Join(h.rt.dir(runtime.ID{Pod: p.UID, Container: "main"}), shim.StateFile), []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				h = h.reopen()
				if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit == nil ||
					h.found[0].Containers[0].Exit.Code != 137 || h.found[0].Containers[0].Exit.StartedAt.IsZero() {
					t.Errorf("with %q, found %+v", text, h.found)
				}
			}
		})
	}
}

// An agent that ends while it starts a container does not take it along.
func TestStartOfAnAgentThatEnds(t *testing.T) {
	h := open(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.rt.Start(ctx, h.spec(pod("p", shell("exit 4")), 0)); err != nil {
		t.Fatal(err)
	}
	h.event()
	if x := h.exit(); x.Code != 4 {
		t.Errorf("exit is %+v", x)
	}
}

// What an earlier start of the very same run has left in its cgroup ends before it runs, also where nothing else is left of that start.
func TestStartBesideNothing(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	p := pod("p", shell("exit 4"))
	spec := h.spec(p, 0)
	if err := h.rt.cgroups.forContainer(&spec, &shim.Config{}); err != nil {
		t.Fatal(err)
	}
	dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(spec.ID))
	if err != nil {
		t.Fatal(err)
	}
	left := exec.Command("sleep", "1000")
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = left.Process.Kill() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = left.Wait()
	}()
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), fmt.Append(nil, left.Process.Pid), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h.startSpec(spec)
	h.exit()
	if !gone(left.Process.Pid) && !zombie(left.Process.Pid) {
		t.Error("it ran beside what was left")
	}
	_ = left.Process.Kill()
	<-ended
}

// The process group whose number a container's command had is another's since the machine was started anew, or may be.
func TestStrangersAfterReboot(t *testing.T) {
	boot, err := shim.BootID()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		state shim.State
		kills bool
	}{
		"this start of the machine":    {shim.State{BootID: boot}, true},
		"another start of the machine": {shim.State{BootID: "another"}, false},
		"an earlier version's":         {shim.State{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{CgroupParent: "none"})
			id := h.start(pod("p", shell("true")), 0)
			h.exit()
			// A group without its leader.
			leader := exec.Command("/bin/sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!")
			leader.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			out, err := leader.Output()
			if err != nil {
				t.Fatal(err)
			}
			member, err := strconv.Atoi(strings.TrimSpace(string(out)))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = syscall.Kill(member, syscall.SIGKILL) })
			c.state.PID, c.state.PIDStart = leader.Process.Pid, 1
			b, err := json.Marshal(c.state)
			if err != nil {
				t.Fatal(err)
			}
			if err := errors.Join(os.WriteFile(filepath.Join(h.rt.dir(id), shim.StateFile), b, 0o600), os.Remove(filepath.Join(h.rt.dir(id), shim.ExitFile))); err != nil {
				t.Fatal(err)
			}
			h = h.reopen()
			if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit == nil || h.found[0].Containers[0].Exit.Code != 137 {
				t.Errorf("found %+v", h.found)
			}
			if c.kills {
				eventually(t, "it is killed", func() bool { return gone(member) || zombie(member) })
			} else if gone(member) || zombie(member) {
				t.Error("somebody else's group is killed")
			}
		})
	}
}
