package cri

import (
	"context"
	"os"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// A daemon that tells of what happens is listened to.
func TestEventsOfDaemon(t *testing.T) {
	h := open(t)
	h.exit(h.run(pod("tells", shell("true"))))
	if !ofCRIO() {
		t.Skip("containerd has no events before 1.7")
	}
	h.until("an event to be seen", h.rt.eventful)
}

// A container is told to end by the signal of its own, where the runtime has that.
func TestOwnStopSignal(t *testing.T) {
	h := open(t)
	p := pod("signalled", shell(`trap "exit 3" USR1; trap "" TERM; touch /ready; while :; do sleep 0.1; done`))
	p.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{StopSignal: new(corev1.SIGUSR1)}
	if x := h.rt.Refuse(p); (x == nil) != h.rt.known().signals {
		t.Fatalf("refused: %+v", x)
	} else if x != nil {
		return
	}
	id := h.run(p)
	h.until("the trap to be set", func() bool {
		res, err := h.rt.Exec(t.Context(), id, []string{"test", "-e", "/ready"})
		return err == nil && res.Code == 0
	})
	if err := h.rt.Signal(t.Context(), id, runtime.Terminate); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(id); x.Code != 3 {
		t.Errorf("exit %+v", x)
	}
}

// Who a container began as is told, where the runtime tells it.
func TestUserOfDaemon(t *testing.T) {
	h := open(t)
	p := pod("somebody", shell("id -u; id -g; id -G"))
	p.Spec.SecurityContext = &corev1.PodSecurityContext{RunAsUser: new(int64(1234)), RunAsGroup: new(int64(4321)), SupplementalGroups: []int64{60000}}
	h.sandbox(p)
	spec := h.spec(p, 0)
	if err := h.rt.Start(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	began := h.next(spec.ID)
	h.exit(spec.ID)
	if got := h.logs(spec.ID, runtime.LogOptions{}); got != "1234\n4321\n4321 60000\n" {
		t.Errorf("it says that it is %q", got)
	}
	if !ofCRIO() {
		t.Skip("containerd does not tell before 2.0")
	}
	want := &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1234, GID: 4321, SupplementalGroups: []int64{4321, 60000}}}
	if !reflect.DeepEqual(began.User, want) {
		t.Errorf("user %+v", began.User)
	}
	h.restart()
	if c := h.found[0].Containers[0]; !reflect.DeepEqual(c.User, want) {
		t.Errorf("user of what is found %+v", c.User)
	}
}

// What a container uses is counted: processor, memory, processes and what it has written.
func TestUse(t *testing.T) {
	h := open(t)
	ctx := t.Context()
	const written = 3000000
	p := pod("busy", shell("head -c 3000000 /dev/zero > /much; while :; do :; done"))
	id := h.run(p)
	h.until("its use to be told", func() bool {
		all, err := h.rt.Use(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(all) == 1 && all[0].ID == id && all[0].CPU > 0 && all[0].WorkingSetBytes > 0
	})
	h.until("what it has written to be told", func() bool {
		use, err := h.rt.DiskUse(ctx, p.UID)
		if err != nil {
			t.Fatal(err)
		}
		return use.Bytes["main"] >= written && use.Inodes > 0
	})
	if n, err := h.rt.Processes(ctx); err != nil || n[p.UID] < 1 {
		t.Errorf("processes %v, %v", n, err)
	}
	dir, err := h.rt.ImageDir(ctx)
	if err == nil {
		_, err = os.Stat(dir)
	}
	if err != nil {
		t.Errorf("the images' directory %q: %v", dir, err)
	}
}

// A pod's class says what runs it.
func TestHandlerOfDaemon(t *testing.T) {
	h := open(t, func(o *Options) {
		o.Handler = func(_ context.Context, class string) (string, error) { return class, nil }
	})
	p := pod("classed", shell("echo runs"))
	p.Spec.RuntimeClassName = new("other")
	if got := h.output(p); got != "runs\n" {
		t.Errorf("it says %q", got)
	}
	// CRI-O does not tell which it was.
	if boxes, err := h.rt.sandboxesOf(t.Context(), p.UID); err != nil || len(boxes) != 1 || !ofCRIO() && boxes[0].RuntimeHandler != "other" {
		t.Errorf("sandboxes %v, %v", boxes, err)
	}
	none := pod("unclassed", shell("true"))
	none.Spec.RuntimeClassName = new("none")
	if _, err := h.rt.RunSandbox(t.Context(), none); err == nil {
		t.Error("a handler that is not there was passed over")
	}
}
