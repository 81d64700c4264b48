package process

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// Whatever has become of a pod's record, the containers that run are found, and none is started beside them.
func TestRecordDamaged(t *testing.T) {
	damage := map[string]func(path string) error{
		"gone":      os.Remove,
		"empty":     func(path string) error { return os.Truncate(path, 0) },
		"truncated": func(path string) error { return os.Truncate(path, 40) },
		"flipped": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[len(b)/2] ^= 4
			return os.WriteFile(path, b, 0o600)
		},
		"another's": func(path string) error {
			return os.Rename(filepath.Join(filepath.Dir(filepath.Dir(path)), "uid-other", record.File), path)
		},
	}
	for name, how := range damage {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{})
			id := h.start(pod("a", shell("sleep 1000")), 0)
			h.start(pod("other", shell("true")), 0)
			h.exit()
			if err := how(filepath.Join(h.rt.podDir(id.Pod), record.File)); err != nil {
				t.Fatal(err)
			}
			h = h.reopen()
			if len(h.found) == 0 || !h.found[0].Lost || h.found[0].Pod.UID != id.Pod || len(h.found[0].Containers) != 1 {
				t.Fatalf("found %+v", h.found)
			}
			if c := h.found[0].Containers[0]; c.ID != id || c.Exit != nil {
				t.Errorf("container %+v", c)
			}
			if err := h.rt.Signal(context.Background(), id, runtime.Kill); err != nil {
				t.Fatal(err)
			}
			if x := h.exit(); x.Code != 137 {
				t.Errorf("exit is %+v", x)
			}
			if err := h.rt.Remove(context.Background(), id.Pod); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(h.rt.podDir(id.Pod)); !os.IsNotExist(err) {
				t.Errorf("the pod's directory is left: %v", err)
			}
		})
	}
}

// A container whose shim lives, and that nobody has taken over, is not started a second time, nor is its directory removed.
func TestNeverTwice(t *testing.T) {
	h := open(t, Options{})
	p := pod("a", shell("sleep 1000"))
	id := h.start(p, 0)
	// What an agent knows that could not take it over.
	h.rt.mu.Lock()
	w := h.rt.running[id]
	delete(h.rt.running, id)
	h.rt.mu.Unlock()
	if err := h.rt.Start(context.Background(), h.spec(p, 1)); err == nil || !strings.Contains(err.Error(), "may still run") {
		t.Error(err)
	}
	if err := h.rt.Remove(context.Background(), p.UID); err == nil {
		t.Error("it was removed")
	}
	if _, err := os.Stat(filepath.Join(h.rt.dir(id), shim.ConfigFile)); err != nil {
		t.Error(err)
	}
	h.rt.mu.Lock()
	h.rt.running[id] = w
	h.rt.mu.Unlock()
}

// Of which image a container was made is known when it is found, whatever the pod's object says by then.
func TestImageOfAFoundContainer(t *testing.T) {
	h := open(t, Options{})
	c := shell("sleep 1000")
	c.Image = "web:1"
	p := pod("a", c)
	id := h.start(p, 0)
	later := p.DeepCopy()
	later.Spec.Containers[0].Image = "web:2"
	if err := record.Write(h.rt.podDir(p.UID), later); err != nil {
		t.Fatal(err)
	}
	h = h.reopen()
	if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Image != "web:1" {
		t.Errorf("found %+v", h.found)
	}
	if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	h.exit()
}
