package process

import (
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
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// shimPatience is how long a shim has to say what it runs, or to end, when it is found.
const shimPatience = 5 * time.Second

// exitPatience is how long an end that is written down, and cannot be read, is read again before it is told as one that nobody knows.
const exitPatience = time.Minute

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
	patience, cancel := context.WithTimeout(r.life, exitPatience)
	defer cancel()
	if c.Exit = r.awaitExit(patience, c.ID, w.state); c.Exit == nil {
		return
	}
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
	return err == nil
}

// endLeft ends what a shim that is gone has left behind: one that was killed took its container's command with it, and not what that had
// started. It fails when ctx ends before all of that is known to have ended.
func (r *Runtime) endLeft(ctx context.Context, id runtime.ID, state shim.State) error {
	if _, err := os.Stat(filepath.Join(r.dir(id), shim.ExitFile)); err != nil {
		killGroup(state)
	}
	return r.cgroups.end(ctx, id)
}

// awaitExit is exit, again and again while the end that is written down cannot be read. When patience ends it is not known, and that is written down
// beside: whatever can be read later, this end has no other. Until either can be done it goes on; nil: the agent ends before that.
func (r *Runtime) awaitExit(patience context.Context, id runtime.ID, state shim.State) *runtime.Exit {
	told, unwritten, late := false, false, patience.Done()
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		x, err := r.exit(id, state)
		if err == nil {
			return x
		}
		if !told {
			r.log.Warn("how a container has ended cannot be read; it is tried again", "container", id.String(), "error", err)
			told = true
		}
		if late == nil && r.life.Err() == nil {
			e := unknown(state)
			err := shim.WriteTold(r.dir(id), e)
			if err == nil {
				return r.exitOf(id, e)
			}
			if !unwritten {
				r.log.Error("how a container has ended can neither be read nor be told for good", "container", id.String(), "error", err)
				unwritten = true
			}
		}
		select {
		case <-time.After(pause):
		case <-late:
			late = nil
		case <-r.life.Done():
			return nil
		}
	}
}

// exit reads how the container of a shim that is gone ended. Where nobody knows it, that is written down once: the next agent tells no other end. It
// fails where it is written down and cannot be read now.
func (r *Runtime) exit(id runtime.ID, state shim.State) (*runtime.Exit, error) {
	dir := r.dir(id)
	var e shim.Exit
	err := readJSON(filepath.Join(dir, shim.ToldFile), &e)
	if os.IsNotExist(err) {
		err = readJSON(filepath.Join(dir, shim.ExitFile), &e)
	}
	var unread *fs.PathError
	switch {
	case err == nil:
	case errors.As(err, &unread) && !os.IsNotExist(err) && !errors.Is(err, syscall.EISDIR):
		return nil, err
	default:
		if _, mark := begun(dir); !mark {
			// Its shim found that there is nothing to run, and has taken the mark back. Nothing has ended, so nothing is written down.
			return &runtime.Exit{Code: 128, Reason: runtime.ReasonStartError, Message: "The command could not be run",
				StartedAt: state.StartedAt, FinishedAt: time.Now()}, nil
		}
		// The shim was killed, or the machine went down.
		e = unknown(state)
		if err := shim.WriteExit(dir, e); err != nil {
			r.log.Warn("that the end of a container is not known could not be written down", "container", id.String(), "error", err)
		}
	}
	return r.exitOf(id, e), nil
}

// unknown is the end of a container that nobody saw.
func unknown(state shim.State) shim.Exit {
	return shim.Exit{Code: 128 + int(syscall.SIGKILL), StartedAt: state.StartedAt, FinishedAt: time.Now(), Unknown: true}
}

// exitOf is what the agent is told of an end.
func (r *Runtime) exitOf(id runtime.ID, e shim.Exit) *runtime.Exit {
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

// adopt finds out what became of a container that an earlier agent started; watch is what to do to go on with it. What may have run is found, whatever
// is wrong with it: it counts as running until it is known that it has ended. !ok: it has not come to run, as far as can be seen, or ctx ended before
// that was.
func (r *Runtime) adopt(ctx context.Context, id runtime.ID) (c runtime.Container, watch func(), ok bool) {
	dir := r.dir(id)
	alive, err := locked(dir)
	state, mark := begun(dir)
	for deadline := time.Now().Add(shimPatience); alive && state.PID == 0 && time.Now().Before(deadline) && ctx.Err() == nil; state, mark = begun(dir) {
		// The agent was killed while the shim was starting: it will say in a moment what runs.
		time.Sleep(10 * time.Millisecond)
		alive, err = locked(dir)
	}
	c = runtime.Container{ID: id, StartedAt: state.StartedAt}
	if ctx.Err() != nil {
		return c, nil, false
	}
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
		for deadline := time.Now().Add(shimPatience); alive && time.Now().Before(deadline) && ctx.Err() == nil; alive, err = locked(dir) {
			time.Sleep(10 * time.Millisecond)
		}
		if alive && ctx.Err() != nil {
			return c, nil, false // it is given the time by who looks next
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
	_, mark = begun(dir) // its shim may have taken it back since
	soon, cancel := context.WithTimeout(r.life, besideTimeout)
	defer cancel()
	err = r.endLeft(soon, id, state)
	switch {
	case err != nil && !mark:
		r.log.Error("processes may be left of a container that did not come to run", "container", id.String(), "error", err)
		return c, nil, false // whoever starts or removes it meets them
	case !mark:
		return c, nil, false // it never came to run
	case err != nil:
		return c, r.goOn(c, silent), true
	}
	if c.Exit, err = r.exit(id, state); err != nil {
		return c, r.goOn(c, silent), true // it is read again
	}
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
