package process

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// unreadable makes a file or directory one that cannot be read for now.
func unreadable(t *testing.T, path string) (mend func()) {
	t.Helper()
	if err := errors.Join(os.Rename(path, path+".aside"), os.Symlink(filepath.Base(path), path)); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		err := os.Rename(path+".aside", path)
		if errors.Is(err, syscall.ENOTDIR) { // no directory takes the place of a link; nor is it ever missing
			err = unix.Renameat2(unix.AT_FDCWD, path+".aside", unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
			if rerr := os.Remove(path + ".aside"); !os.IsNotExist(rerr) { // all of it may be gone already
				err = errors.Join(err, rerr)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// emptyRoot waits until nothing is left of any pod.
func (h *harness) emptyRoot() {
	h.t.Helper()
	eventually(h.t, "nothing is left", func() bool { entries, err := os.ReadDir(h.opts.Root); return err == nil && len(entries) == 0 })
}

// An end that is written down and cannot be read for a while is told when it can be, and as what it is.
func TestEndThatCannotBeReadYet(t *testing.T) {
	h := open(t, Options{})
	id := h.start(pod("p", shell("exit 3")), 0)
	h.exit()
	h.rt.Close()
	mend := unreadable(t, filepath.Join(h.rt.dir(id), shim.ExitFile))
	h = h.reopen()
	if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit != nil {
		t.Fatalf("found %+v", h.found)
	}
	mend()
	if x := h.exit(); x.Code != 3 || x.Reason != runtime.ReasonError {
		t.Errorf("exit is %+v", x)
	}
}

// lines are those of a log.
type lines chan string

func (l lines) Write(line []byte) (int, error) {
	l <- string(line)
	return len(line), nil
}

// An end that was told as one that nobody knows, since it could not be read for too long, stays that, whoever can read it later. It is not told before
// that is written down.
func TestEndThatWasToldStays(t *testing.T) {
	said := make(lines, 100)
	h := open(t, Options{Logger: hclog.New(&hclog.LoggerOptions{Level: hclog.Error, Output: said})})
	id := h.start(pod("p", shell("exit 3")), 0)
	h.exit()
	dir := h.rt.dir(id)
	mend := unreadable(t, filepath.Join(dir, shim.ExitFile))
	blocked := filepath.Join(dir, shim.ToldFile+".tmp")
	if err := os.Mkdir(blocked, 0o700); err != nil {
		t.Fatal(err)
	}
	late, cancel := context.WithCancel(t.Context())
	cancel()
	told := make(chan *runtime.Exit, 1)
	go func() { told <- h.rt.awaitExit(late, id, shim.State{}) }()
	select {
	case x := <-told:
		t.Fatalf("it is told without being written down: %+v", x)
	case line := <-said:
		if !strings.Contains(line, "neither be read") {
			t.Errorf("the log says %q", line)
		}
	}
	if err := os.Remove(blocked); err != nil {
		t.Fatal(err)
	}
	first := <-told
	if first.Code != 137 || first.Reason != runtime.ReasonStatusUnknown {
		t.Errorf("when nobody waits any more it is %+v", first)
	}
	mend()
	h = h.reopen()
	if len(h.found) != 1 || len(h.found[0].Containers) != 1 {
		t.Fatalf("found %+v", h.found)
	}
	if x := h.found[0].Containers[0].Exit; x == nil || x.Code != first.Code || x.Reason != first.Reason || !x.FinishedAt.Equal(first.FinishedAt) {
		t.Errorf("it was told as %+v, and is told as %+v", first, x)
	}
}

// Of a container whose shim took its mark back no end is written down: its command has not run.
func TestNoEndOfWhatHasNotRun(t *testing.T) {
	t.Run("found", func(t *testing.T) {
		h := open(t, Options{})
		p := pod("p", shell("exec sleep 1000"))
		id := h.start(p, 0)
		h.rt.Close()
		h.killShim(id)
		dir := h.rt.dir(id)
		mend := unreadable(t, filepath.Join(dir, shim.LockFile))
		h = h.reopen()
		if len(h.found) != 1 || len(h.found[0].Containers) != 1 || h.found[0].Containers[0].Exit != nil {
			t.Fatalf("found %+v", h.found)
		}
		if err := os.Remove(filepath.Join(dir, shim.StateFile)); err != nil {
			t.Fatal(err)
		}
		mend()
		if x := h.exit(); x.Code != 128 || x.Reason != runtime.ReasonStartError {
			t.Errorf("exit is %+v", x)
		}
		if _, err := os.Stat(filepath.Join(dir, shim.ExitFile)); !os.IsNotExist(err) {
			t.Errorf("its end is written down: %v", err)
		}
	})
	t.Run("started", func(t *testing.T) {
		h := open(t, Options{})
		h.rt.shim = program(t, `echo '{"ShimPID":1}' > "$2/state.json"; echo '{"Error":"no such file","Command":true}' >&3; exit 1`)
		p := pod("p", shell("exit 4"))
		var se *runtime.StartError
		if err := h.rt.Start(t.Context(), h.spec(p, 0)); !errors.As(err, &se) {
			t.Fatal(err)
		}
		if h = h.reopen(); len(h.found) != 1 || len(h.found[0].Containers) != 0 {
			t.Errorf("found %+v", h.found)
		}
	})
}

// Shims that are silent are waited for side by side.
func TestSilentShimsSideBySide(t *testing.T) {
	h := open(t, Options{})
	w := watchFiles(t)
	var held []*os.File
	for _, name := range []string{"a", "b"} {
		dir := h.rt.dir(runtime.ID{Pod: "uid-p", Container: name})
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		lock, err := os.Create(filepath.Join(dir, shim.LockFile))
		if err != nil {
			t.Fatal(err)
		}
		defer lock.Close()
		if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		held = append(held, lock)
		w.add(lock.Name(), name, unix.IN_OPEN)
	}
	next, err := New(h.opts)
	if err != nil {
		t.Fatal(err)
	}
	defer next.Close()
	opened := make(chan error, 1)
	go func() {
		_, err := next.Open(func(runtime.Event) {})
		opened <- err
	}()
	var order []string
	over, mixed := false, false
	eventually(t, "both are looked at", func() bool {
		order = append(order, w.happened()...)
		changes := 0
		for i := range order[min(1, len(order)):] {
			if order[i] != order[i+1] {
				changes++
			}
		}
		mixed = changes > 8 // each is looked at a few times before the first waits
		select {
		case err = <-opened:
			over = true
		default:
		}
		return mixed || over
	})
	for _, lock := range held {
		if err := lock.Close(); err != nil {
			t.Error(err)
		}
	}
	if !over {
		err = <-opened
	}
	if err != nil || !mixed {
		t.Errorf("one was waited for after the other: %v, %q", err, order)
	}
}

// foundOf is what is told of a pod that could not be looked at before.
func (h *harness) foundOf() *runtime.Pod {
	h.t.Helper()
	select {
	case ev := <-h.events:
		if ev.Found == nil || ev.Pod != ev.Found.Pod.UID || ev.Container != "" || ev.Found.Unseen {
			h.t.Fatalf("told is %+v", ev)
		}
		return ev.Found
	case <-time.After(20 * time.Second):
		h.t.Fatal("it is not told what was found")
	}
	return nil
}

// A pod whose directory cannot be listed at the start is taken over when it can be, by whichever agent: until then nothing of it is started, and it is
// not removed.
func TestPodThatCannotBeListed(t *testing.T) {
	h := open(t, Options{})
	p := pod("p", shell("exec sleep 1000"))
	id := h.start(p, 0)
	h.rt.Close()
	mend := unreadable(t, filepath.Join(h.rt.podDir(p.UID), containersDir))
	for range 2 {
		h = h.reopen()
		if len(h.found) != 1 || h.found[0].Pod.UID != p.UID || !h.found[0].Unseen || !h.found[0].Lost || len(h.found[0].Containers) != 0 {
			t.Fatalf("found %+v", h.found)
		}
	}
	if err := h.rt.Remove(t.Context(), p.UID); err == nil {
		t.Error("it is removed")
	}
	if err := h.rt.Start(t.Context(), h.spec(p, 1)); err == nil {
		t.Error("it is started beside itself")
	}
	mend()
	f := h.foundOf()
	if f.Lost || f.Pod.Name != p.Name || len(f.Containers) != 1 || f.Containers[0].ID != id || f.Containers[0].Exit != nil {
		t.Fatalf("found %+v", f)
	}
	if held, err := locked(h.rt.dir(id)); !held || err != nil {
		t.Errorf("its shim has ended: %v", err)
	}
	if err := h.rt.Signal(t.Context(), id, runtime.Terminate); err != nil {
		t.Error(err)
	}
	if x := h.exit(); x.Code != 143 {
		t.Errorf("exit is %+v", x)
	}
	if err := h.rt.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	h.emptyRoot()
}

// What turns out to be only the rest of a pod is told as nothing, and goes.
func TestRestThatCannotBeListed(t *testing.T) {
	h := open(t, Options{})
	dir := filepath.Join(h.rt.podDir("uid-p"), containersDir)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	mend := unreadable(t, dir)
	h = h.reopen()
	if len(h.found) != 1 || !h.found[0].Unseen {
		t.Fatalf("found %+v", h.found)
	}
	mend()
	if f := h.foundOf(); !f.Lost || f.Pod.UID != "uid-p" || len(f.Containers) != 0 {
		t.Errorf("found %+v", f)
	}
	h.emptyRoot()
}

// While somebody finds out what has become of a pod's containers, others are started and removed; and whoever waits for that waits no longer than he
// may.
func TestOnePodHoldsUpNoOther(t *testing.T) {
	h := open(t, Options{})
	begin := func(p *corev1.Pod) runtime.ID {
		id := h.spec(p, 0).ID
		if err := os.MkdirAll(h.rt.dir(id), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(h.rt.dir(id), shim.StateFile), []byte(`{"PID":1}`), 0o600); err != nil {
			t.Fatal(err)
		}
		return id
	}
	a, b := pod("a", shell("true")), pod("b", shell("true"))
	id := begin(a)
	begin(b)
	over, err := turn(t.Context(), h.rt, h.rt.adopting, a.UID)
	if err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Start(t.Context(), h.spec(b, 0)); err != nil {
		t.Error(err)
	}
	<-h.events // that it has begun
	if x := h.exit(); x.Reason != runtime.ReasonStatusUnknown {
		t.Errorf("exit is %+v", x)
	}
	if err := h.rt.Remove(t.Context(), b.UID); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithCancel(t.Context())
	waits := make(chan error, 1)
	go func() { waits <- h.rt.Start(short, h.spec(a, 0)) }()
	cancel()
	if err := <-waits; !errors.Is(err, context.Canceled) {
		t.Errorf("it waits for %v", err)
	}
	over()
	// Nor is a shim that does not answer given up, and killed, because nobody waits any more.
	lock, err := os.Create(filepath.Join(h.rt.dir(id), shim.LockFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Start(short, h.spec(a, 0)); err == nil {
		t.Error("it is taken over, and nobody waits for that")
	}
	if _, err := h.rt.find(id); !errors.Is(err, runtime.ErrNotFound) {
		t.Errorf("it is taken over: %v", err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}

// A cgroup that cannot be removed is removed by the next agent.
func TestCgroupIsFoundAgain(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	p := pod("p", shell("true"))
	id := h.start(p, 0)
	h.exit()
	letGo := h.holdCgroup(id)
	err := h.rt.Remove(t.Context(), p.UID)
	h.rt.Close()
	letGo()
	if err != nil || !h.cgroupIsThere(id) {
		t.Fatalf("the pod is not gone without its cgroup: %v", err)
	}
	if h = h.reopen(); len(h.found) != 0 {
		t.Errorf("found %+v", h.found)
	}
	eventually(t, "its cgroup is gone", func() bool { return !h.cgroupIsThere(id) })
	h.emptyRoot()
}

// A path that is relative is so to the root, as with other runtimes.
func TestRelativeMountPath(t *testing.T) {
	h := open(t, Options{})
	if !h.rt.bind {
		t.Skip("this host has no mount namespaces for us")
	}
	host := t.TempDir()
	if err := os.WriteFile(filepath.Join(host, "file"), []byte("here\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "a", "data")
	spec := h.spec(pod("p", shell("cat "+target+"/file; echo $BERTH_VOLUME_V")), 0)
	spec.Mounts = []runtime.Mount{{Volume: "v", Source: host, Target: strings.TrimPrefix(target, "/")}}
	id := h.startSpec(spec)
	h.exit()
	if got, want := h.logs(id, runtime.LogOptions{}), "here\n"+target+"\n"; got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
