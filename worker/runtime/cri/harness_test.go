package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// harness is an agent's end of a runtime over a directory of its own, and what it was told.
type harness struct {
	t      *testing.T
	opts   Options
	rt     *Runtime
	events chan runtime.Event
	found  []runtime.Pod
	image  string
}

const patience = time.Minute

func open(t *testing.T, change ...func(*Options)) *harness {
	t.Helper()
	d := daemon(t)
	h := &harness{t: t, image: busybox, opts: Options{Endpoint: d.Endpoint(), Root: filepath.Join(t.TempDir(), "pods"),
		Node: strings.ToLower(t.Name()), CgroupParent: fmt.Sprintf("/berth-cri-test-%d", os.Getpid()), MemoryBytes: 8 << 30}}
	for _, f := range change {
		f(&h.opts)
	}
	h.start()
	t.Cleanup(func() {
		h.clear()
		h.rt.Close()
	})
	return h
}

func (h *harness) start() {
	h.t.Helper()
	var err error
	if h.rt, err = New(h.opts); err != nil {
		h.t.Fatal(err)
	}
	events := make(chan runtime.Event, 1000)
	h.events = events
	if h.found, err = h.rt.Open(func(ev runtime.Event) {
		select {
		case events <- ev:
		default: // a lost sandbox is told each time
		}
	}); err != nil {
		h.t.Fatal(err)
	}
}

// restart is a new agent over what the last one left.
func (h *harness) restart() {
	h.t.Helper()
	h.rt.Close()
	h.start()
}

// clear ends and removes all pods.
func (h *harness) clear() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	h.rt.mu.Lock()
	var ids []runtime.ID
	for id := range h.rt.running {
		ids = append(ids, id)
	}
	h.rt.mu.Unlock()
	for _, id := range ids {
		if err := h.rt.Signal(ctx, id, runtime.Kill); err != nil && !errors.Is(err, runtime.ErrNotFound) {
			h.t.Error(err)
		}
	}
	h.until("nothing to run", func() bool {
		h.rt.mu.Lock()
		defer h.rt.mu.Unlock()
		return len(h.rt.running) == 0
	})
	entries, err := os.ReadDir(h.opts.Root)
	if err != nil {
		h.t.Error(err)
	}
	for _, e := range entries {
		if err := h.rt.Remove(ctx, types.UID(e.Name())); err != nil {
			h.t.Error(err)
		}
	}
	h.until("no records to be left", func() bool { return len(h.rt.rests.pods()) == 0 })
	if entries, err = os.ReadDir(h.opts.Root); err != nil || len(entries) > 0 {
		h.t.Errorf("of pods there is left: %v, %v", entries, err)
	}
	for _, hierarchy := range [...]string{"", "/*"} { // of version 2, and of version 1
		found, _ := filepath.Glob("/sys/fs/cgroup" + hierarchy + h.opts.CgroupParent + "/*") // the pattern is a good one
		for _, at := range found {
			if s, err := os.Stat(at); err == nil && s.IsDir() {
				h.t.Errorf("cgroup %s is left", at)
			}
		}
	}
}

func (h *harness) until(what string, ok func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			h.t.Fatalf("it did not come to be: %s", what)
		}
		<-time.After(10 * time.Millisecond)
	}
}

func pod(name string, containers ...corev1.Container) *corev1.Pod {
	for i := range containers {
		if containers[i].Name == "" {
			containers[i].Name = "main"
		}
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name)},
		Spec: corev1.PodSpec{Containers: containers}}
}

func shell(script string) corev1.Container {
	return corev1.Container{Command: []string{"/bin/sh", "-c", script}}
}

func (h *harness) sandbox(p *corev1.Pod) runtime.Sandbox {
	h.t.Helper()
	s, err := h.rt.RunSandbox(h.t.Context(), p)
	if err != nil {
		h.t.Fatal(err)
	}
	return s
}

func (h *harness) spec(p *corev1.Pod, attempt int32) runtime.Spec {
	h.t.Helper()
	c := &p.Spec.Containers[0]
	if c.Image == "" {
		c.Image = h.image
	}
	ref, err := h.rt.FindImage(h.t.Context(), c.Image)
	if err != nil || ref == "" {
		h.t.Fatalf("image %s: %q, %v", c.Image, ref, err)
	}
	return runtime.Spec{ID: runtime.ID{Pod: p.UID, Container: c.Name, Attempt: attempt}, Pod: p, Container: c,
		Command: c.Command, Args: c.Args, Image: ref}
}

// run makes a pod's sandbox and starts its first container.
func (h *harness) run(p *corev1.Pod) runtime.ID {
	h.t.Helper()
	h.sandbox(p)
	return h.startSpec(h.spec(p, 0))
}

func (h *harness) startSpec(spec runtime.Spec) runtime.ID {
	h.t.Helper()
	if err := h.rt.Start(h.t.Context(), spec); err != nil {
		h.t.Fatal(err)
	}
	if ev := h.next(spec.ID); ev.Exit != nil || ev.Ref == "" || ev.StartedAt.IsZero() {
		h.t.Fatalf("event %+v", ev)
	}
	return spec.ID
}

// next is the next event about a container.
func (h *harness) next(id runtime.ID) runtime.Event {
	h.t.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		select {
		case ev := <-h.events:
			if ev.ID == id {
				return ev
			}
		case <-timer.C:
			h.t.Fatalf("no event of %s", id)
		}
	}
}

func (h *harness) exit(id runtime.ID) *runtime.Exit {
	h.t.Helper()
	ev := h.next(id)
	if ev.Exit == nil {
		h.t.Fatalf("event %+v is no exit", ev)
	}
	return ev.Exit
}

func (h *harness) logs(id runtime.ID, o runtime.LogOptions) string {
	h.t.Helper()
	rc, err := h.rt.Logs(h.t.Context(), id, o)
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

// output runs a pod's container to its end and returns what it wrote.
func (h *harness) output(p *corev1.Pod) string {
	h.t.Helper()
	id := h.run(p)
	x := h.exit(id)
	out := h.logs(id, runtime.LogOptions{})
	if x.Code != 0 {
		h.t.Errorf("exit is %+v, output %q", x, out)
	}
	return out
}

// withUser imports an image that runs as somebody.
func (h *harness) withUser(t *testing.T, name, user string) {
	t.Helper()
	i := imagepack.Image{Names: []string{name}, User: user, Files: []imagepack.File{
		{Path: "etc", Mode: 0o755, Dir: true}, {Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0::/:/bin/sh\n")}}}
	if err := daemon(t).Import(t.Context(), &i); err != nil {
		t.Fatal(err)
	}
}
