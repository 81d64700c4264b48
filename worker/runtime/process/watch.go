package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// shimPatience is how long a shim has to say what it runs, or to end, when it is found.
const shimPatience = 5 * time.Second

// watched is a running container.
type watched struct {
	end   io.ReadCloser // comes to its end when the shim does, or before: a pipe to an own one, else a connection
	state shim.State
	shim  *exec.Cmd // nil when an earlier agent started it: it is not this process's child
}

// connect opens the connection by which the shim's end is noticed.
func connect(dir string, state shim.State) (*watched, error) {
	conn, err := dial(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(conn).Encode(shim.Request{Op: shim.OpWatch}); err != nil {
		conn.Close()
		return nil, fmt.Errorf("talking to the shim: %w", err)
	}
	return &watched{end: conn, state: state}, nil
}

func dial(ctx context.Context, dir string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", shim.SocketPath(d))
	if err != nil {
		return nil, fmt.Errorf("connecting to the shim: %w", err)
	}
	return conn, nil
}

// ask makes one request to the shim in dir.
func ask(ctx context.Context, dir string, req shim.Request) (shim.Answer, error) {
	var ans shim.Answer
	conn, err := dial(ctx, dir)
	if err != nil {
		if alive, lerr := locked(dir); !alive && lerr == nil {
			return shim.Answer{Error: "the container has ended", NotFound: true}, nil
		}
		return ans, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	if err := json.NewEncoder(conn).Encode(req); err != nil {
		return ans, err
	}
	if err := json.NewDecoder(conn).Decode(&ans); err != nil {
		if ctx.Err() != nil {
			return ans, ctx.Err()
		}
		if errors.Is(err, io.EOF) {
			return shim.Answer{Error: "the container has ended", NotFound: true}, nil
		}
		return ans, err
	}
	return ans, nil
}

// begin takes note of a container that runs and watches it.
func (r *Runtime) begin(id runtime.ID, w *watched, state shim.State) {
	started := runtime.Container{ID: id, StartedAt: state.StartedAt}
	if watch := r.goOn(started, w); watch != nil {
		r.notify(started)
		watch()
	}
}

// follow waits for the shim's end and reports the container's.
func (r *Runtime) follow(c runtime.Container, w *watched) {
	_, _ = io.Copy(io.Discard, w.end)
	w.end.Close()
	r.mu.Lock()
	closed := r.closed
	r.mu.Unlock()
	if closed {
		return // the agent ends, not the container
	}
	if w.shim != nil {
		_ = w.shim.Wait()
	} else if !r.awaitUnlocked(c.ID) {
		return
	}
	if !r.awaitEnded(c.ID, w.state) {
		return
	}
	c.Exit = r.exit(c.ID, w.state)
	r.mu.Lock()
	delete(r.running, c.ID)
	r.mu.Unlock()
	r.notify(c)
}

// awaitUnlocked waits for the end of a shim that is not this process's child: its connection ends a moment before it, and one that could not be
// looked at or talked to has none. false: the agent ends before that.
func (r *Runtime) awaitUnlocked(id runtime.ID) bool {
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if held, err := locked(r.dir(id)); !held && err == nil {
			return true
		}
		select {
		case <-time.After(pause):
		case <-r.life.Done():
			return false
		}
	}
}

// awaitEnded waits until nothing is left of a container whose shim is gone, and kills it; false: the agent ends before that.
func (r *Runtime) awaitEnded(id runtime.ID, state shim.State) bool {
	soon, cancel := context.WithTimeout(r.life, besideTimeout)
	defer cancel()
	err := r.endLeft(soon, id, state)
	if soon.Err() != nil && r.life.Err() == nil {
		r.log.Warn("a container does not count as ended while processes of it are left", "container", id.String(), "error", err)
		err = r.endLeft(r.life, id, state)
	}
	if r.life.Err() != nil {
		return false
	}
	if err != nil {
		r.log.Error("whether processes of a container are left is not known", "container", id.String(), "error", err)
	}
	return true
}

// endLeft ends what a shim that is gone has left behind: one that was killed took its container's command with it, and not what that had
// started. It fails when ctx ends before all of that has ended.
func (r *Runtime) endLeft(ctx context.Context, id runtime.ID, state shim.State) error {
	if _, err := os.Stat(filepath.Join(r.dir(id), shim.ExitFile)); err != nil {
		killGroup(state)
	}
	return r.cgroups.end(ctx, id)
}

// exit reads how the container of a shim that is gone ended. Where nobody knows it, that is written down once: the next agent tells no other end.
func (r *Runtime) exit(id runtime.ID, state shim.State) *runtime.Exit {
	dir := r.dir(id)
	var e shim.Exit
	if err := readJSON(filepath.Join(dir, shim.ExitFile), &e); err != nil {
		// The shim was killed, or the machine went down.
		e = shim.Exit{Code: 128 + int(syscall.SIGKILL), StartedAt: state.StartedAt, FinishedAt: time.Now(), Unknown: true}
		var unread *fs.PathError
		if !errors.As(err, &unread) || os.IsNotExist(err) { // else it may be read yet
			if err := shim.WriteExit(dir, e); err != nil {
				r.log.Warn("that the end of a container is not known could not be written down", "container", id.String(), "error", err)
			}
		}
	}
	x := &runtime.Exit{Code: int32(e.Code), Signal: int32(e.Signal), Reason: runtime.ReasonCompleted,
		StartedAt: e.StartedAt, FinishedAt: e.FinishedAt}
	if e.Unknown {
		x.Reason, x.Message = runtime.ReasonStatusUnknown, "The container ended while nobody watched it"
		return x
	}
	if e.Code != 0 {
		x.Reason = runtime.ReasonError
		if r.cgroups.outOfMemory(id) {
			x.Reason = runtime.ReasonOOMKilled
		}
	}
	x.Message = r.terminationMessage(id, e.Code != 0)
	return x
}

// killGroup ends the process group that a container's command leads, or has led, if it is certain that it is that: since the machine was started
// anew, or the command has ended, its number may be somebody else's.
func killGroup(s shim.State) {
	if s.PID <= 1 {
		return
	}
	start, err := shim.PIDStart(s.PID)
	boot, berr := shim.BootID()
	switch {
	case err == nil && start != s.PIDStart:
		return
	case s.BootID == "" && err != nil: // an earlier version did not say when the machine was started
		return
	case s.BootID != "" && (berr != nil || boot != s.BootID):
		return
	}
	_ = syscall.Kill(-s.PID, syscall.SIGKILL)
}

// destroy kills a shim that does not answer. The end of its connection brings about the rest.
func (w *watched) destroy(r *Runtime, id runtime.ID) error {
	if w.shim != nil {
		if err := w.shim.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			return fmt.Errorf("killing the shim of container %s: %w", id, err)
		}
		return nil
	}
	// Only while the lock is held is the number the shim's.
	if alive, err := locked(r.dir(id)); err != nil || !alive {
		return err
	}
	pid := w.state.ShimPID
	if pid <= 1 { // what it left of itself cannot be read
		if pid = shim.Find(r.dir(id)); pid <= 1 {
			return fmt.Errorf("killing the shim of container %s: its number is not known", id)
		}
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && err != syscall.ESRCH {
		return fmt.Errorf("killing the shim of container %s: %w", id, err)
	}
	return nil
}

// locked says whether a shim lives in the directory.
func locked(dir string) (bool, error) {
	f, err := os.Open(filepath.Join(dir, shim.LockFile))
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	err = unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
	if err == unix.EWOULDBLOCK {
		return true, nil
	}
	return false, err
}

func readJSON(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// Open implements runtime.Runtime.
func (r *Runtime) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	r.notify = notify
	entries, err := os.ReadDir(r.opts.Root)
	if err != nil {
		return nil, fmt.Errorf("looking for containers from before: %w", err)
	}
	var out []runtime.Pod
	var adopted []func()
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), asidePrefix) {
			r.sweep()
			continue
		}
		uid := types.UID(e.Name())
		ids, err := r.attempts(uid)
		if err != nil {
			// Whoever starts one of its containers meets the same error, and starts none beside them.
			r.log.Error("a pod's containers cannot be looked at", "pod", uid, "error", err)
			continue
		}
		pod, lost := r.recover(uid, ids)
		if pod == nil {
			if err := r.discard(r.life, uid); err != nil {
				r.log.Warn("what is left of a pod could not be removed", "pod", uid, "error", err)
			}
			r.sweep()
			continue
		}
		rp := runtime.Pod{Pod: pod, Lost: lost}
		slices.SortFunc(ids, func(a, b runtime.ID) int {
			return cmp.Or(cmp.Compare(a.Container, b.Container), cmp.Compare(a.Attempt, b.Attempt))
		})
		for _, id := range ids {
			c, watch, ok := r.adopt(id)
			if !ok {
				continue
			}
			rp.Containers = append(rp.Containers, c)
			if watch != nil {
				adopted = append(adopted, watch)
			}
		}
		out = append(out, rp)
	}
	for _, watch := range adopted {
		watch()
	}
	return out, nil
}

// adopt finds out what became of a container that an earlier agent started; watch is what to do to go on with it. What may have run is found, whatever
// is wrong with it: it counts as running until it is known that it has ended. !ok: it has not come to run, as far as can be seen.
func (r *Runtime) adopt(id runtime.ID) (c runtime.Container, watch func(), ok bool) {
	dir := r.dir(id)
	alive, err := locked(dir)
	state, mark := begun(dir)
	for deadline := time.Now().Add(shimPatience); alive && state.PID == 0 && time.Now().Before(deadline); state, mark = begun(dir) {
		// The agent was killed while the shim was starting: it will say in a moment what runs.
		time.Sleep(10 * time.Millisecond)
		alive, err = locked(dir)
	}
	c = runtime.Container{ID: id, StartedAt: state.StartedAt}
	var config struct{ Image string }
	if err := readJSON(filepath.Join(dir, shim.ConfigFile), &config); err == nil { // else it is not known
		c.Image = config.Image
	}
	if alive && state.BootID == "" { // an earlier version did not say it: what runs was started since the machine was
		state.BootID, _ = shim.BootID()
	}
	silent := &watched{end: io.NopCloser(strings.NewReader("")), state: state}
	if alive {
		w, cerr := connect(dir, state)
		if cerr == nil {
			return c, r.goOn(c, w), true
		}
		// It is just ending, the lock goes last; or it is in no state to be talked to.
		for deadline := time.Now().Add(shimPatience); alive && time.Now().Before(deadline); alive, err = locked(dir) {
			time.Sleep(10 * time.Millisecond)
		}
		if alive {
			r.log.Error("a container's shim does not answer; killing both", "container", id.String(), "error", cerr)
			if err := silent.destroy(r, id); err != nil {
				r.log.Error("a container from before cannot be taken over", "container", id.String(), "error", err)
			}
			return c, r.goOn(c, silent), true
		}
	}
	if err != nil {
		r.log.Error("a container from before cannot be looked at", "container", id.String(), "error", err)
		if !mark {
			return c, nil, false // whoever starts or removes it meets the same
		}
		return c, r.goOn(c, silent), true
	}
	ctx, cancel := context.WithTimeout(r.life, besideTimeout)
	defer cancel()
	err = r.endLeft(ctx, id, state)
	switch {
	case err != nil && !mark:
		r.log.Error("processes may be left of a container that did not come to run", "container", id.String(), "error", err)
		return c, nil, false // whoever starts or removes it meets them
	case !mark:
		return c, nil, false // it never came to run
	case err != nil:
		return c, r.goOn(c, silent), true
	}
	c.Exit = r.exit(id, state)
	return c, nil, true
}

// goOn takes note of a container of which something runs, and returns what to do to watch it; nil: the agent ends.
func (r *Runtime) goOn(c runtime.Container, w *watched) (watch func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		w.end.Close()
		return nil
	}
	r.running[c.ID] = w
	r.watch.Add(1)
	return func() {
		go func() {
			defer r.watch.Done()
			r.follow(c, w)
		}()
	}
}
