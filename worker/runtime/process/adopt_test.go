package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// A container from before that cannot be looked at counts as running until it can: neither is it made again nor is its end told before that.
func TestWhatCannotBeLookedAtRuns(t *testing.T) {
	for name, c := range map[string]struct {
		meanwhile func(h *harness, id runtime.ID)
		reason    string
	}{
		"it runs on": {func(*harness, runtime.ID) {}, runtime.ReasonError},
		"it ends": {func(h *harness, id runtime.ID) {
			if err := h.rt.Signal(t.Context(), id, runtime.Terminate); err != nil {
				t.Error(err)
			}
		}, runtime.ReasonError},
		"its shim is killed": {func(h *harness, id runtime.ID) {
			h.signalShim(id, syscall.SIGKILL)
		}, runtime.ReasonStatusUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			p := pod("p", shell("exec sleep 1000"))
			id := h.start(p, 0)
			h.rt.Close()
			lock := filepath.Join(h.rt.dir(id), shim.LockFile)
			if err := errors.Join(os.Rename(lock, lock+".aside"), os.Symlink(shim.LockFile, lock)); err != nil {
				t.Fatal(err)
			}
			h = h.reopen()
			if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit != nil {
				t.Fatalf("found %+v", h.found)
			}
			c.meanwhile(h, id)
			if err := h.rt.Start(t.Context(), h.spec(p, 0)); err == nil {
				t.Error("it was made again")
			}
			if err := h.rt.Remove(t.Context(), p.UID); err == nil {
				t.Error("it was removed")
			}
			select {
			case ev := <-h.events:
				t.Errorf("it is told: %+v", ev)
			default:
			}
			if err := os.Rename(lock+".aside", lock); err != nil {
				t.Fatal(err)
			}
			if name == "it runs on" {
				if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
					t.Error(err)
				}
			}
			if x := h.exit(); x.Code < 128 || x.Reason != c.reason {
				t.Errorf("exit is %+v", x)
			}
		})
	}
}

// A run that was made already is not made again: whoever starts it gets what has become of it.
func TestStartOfARunThatIsThere(t *testing.T) {
	for name, script := range map[string]string{"it has ended": "exit 3", "it runs": "exec sleep 1000"} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			said := filepath.Join(t.TempDir(), "said")
			p := pod("p", shell(fmt.Sprintf("echo begun >> %s; %s", said, script)))
			id := h.start(p, 0)
			runs := name == "it runs"
			if !runs {
				h.exit()
			}
			eventually(t, "it begins", func() bool { _, err := os.Stat(said); return err == nil })
			h.rt.Close()
			// An agent that could not look at it.
			next := &harness{t: t, opts: h.opts, events: h.events}
			var err error
			if next.rt, err = New(h.opts); err != nil {
				t.Fatal(err)
			}
			defer next.rt.Close()
			next.rt.notify = func(ev runtime.Event) { next.events <- ev }
			next.start(p, 0)
			if runs {
				if err := next.rt.Signal(t.Context(), id, runtime.Terminate); err != nil {
					t.Error(err)
				}
			}
			if x := next.exit(); !runs && x.Code != 3 || runs && x.Code != 143 {
				t.Errorf("exit is %+v", x)
			}
			if b, err := os.ReadFile(said); err != nil || string(b) != "begun\n" {
				t.Errorf("it says %q, %v", b, err)
			}
			if err := next.rt.Remove(t.Context(), p.UID); err != nil {
				t.Error(err)
			}
		})
	}
}

// A shim that cannot be talked to, and whose number is not known, is found by its lock, and nobody is killed in its place: not by the number 0, which
// is everybody's.
func TestDestroyNobody(t *testing.T) {
	h := open(t, Options{})
	p := pod("a", shell("exec sleep 1000"))
	id, other := h.start(p, 0), h.start(pod("b", shell("exec sleep 1000")), 0)
	h.rt.Close()
	dir := h.rt.dir(id)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, shim.StateFile), []byte("{"), 0o600), os.Remove(filepath.Join(dir, shim.SocketFile))); err != nil {
		t.Fatal(err)
	}
	h = h.reopen()
	if len(h.found) != 2 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit != nil {
		t.Errorf("found %+v", h.found)
	}
	if ev := h.event(); ev.ID != id || ev.Exit == nil || ev.Exit.Reason != runtime.ReasonStatusUnknown {
		t.Errorf("it is told: %+v", ev)
	}
	if held, err := locked(h.rt.dir(other)); err != nil || !held {
		t.Errorf("another's shim: %v", err)
	}
	if err := (&watched{}).destroy(h.rt, id); err != nil {
		t.Errorf("of one that is gone: %v", err)
	}
	if err := h.rt.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	// Somebody else may hold a lock of a shim's.
	lock, err := os.Create(filepath.Join(t.TempDir(), shim.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if pid := shim.Find(filepath.Dir(lock.Name())); pid != 0 {
		t.Errorf("process %d is a shim of nothing", pid)
	}
}

// How often a container whose shim was killed is found, it has ended when that was noticed first.
func TestEndThatNobodySawStays(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("p", shell("exec sleep 1000")), 0)
	h.rt.Close()
	h.killShim(id)
	var ended []runtime.Exit
	for range 3 {
		h = h.reopen()
		if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit == nil {
			t.Fatalf("found %+v", h.found)
		}
		ended = append(ended, *h.found[0].Containers[0].Exit)
	}
	for _, x := range ended {
		if x.Code != 137 || x.Reason != runtime.ReasonStatusUnknown || !strings.Contains(x.Message, "nobody watched") || !x.FinishedAt.Equal(ended[0].FinishedAt) ||
			!x.StartedAt.Equal(ended[0].StartedAt) {
			t.Errorf("at first it was %+v, then %+v", ended[0], x)
		}
	}
}
