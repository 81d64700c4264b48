package shim

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// shim is one running shim.
type shim struct {
	config Config
	dir    *os.Root
	log    *logFile
	exit   *reserved
	bootID string
	pumps  sync.WaitGroup

	audience audience
	input    input
	terminal *os.File // the shim's end of the container's terminal; nil: it has none
	held     *os.File // the other end, kept open while the container runs

	// The cgroups' files, opened on the host's file system.
	tasks, home, cgroup []*os.File

	// mu is held while a process is started and taken note of, so that its end cannot come first.
	mu      sync.Mutex
	main    int
	ended   bool
	waiting map[int]chan<- syscall.WaitStatus // execs
}

// Main is the shim's whole life; it returns the exit status of its process.
func Main(args []string) int {
	closeForeign()
	unix.CloseOnExec(readyFD)
	unix.CloseOnExec(lockFD)
	ready := os.NewFile(readyFD, "ready")
	// The agent's end is not the container's. Caught and not ignored, since the command would inherit the ignoring.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM, syscall.SIGPIPE)
	s, state, err := start(args[2])
	msg := Ready{State: state}
	if err != nil {
		msg.Error = err.Error()
		var ce *commandError
		msg.Command = errors.As(err, &ce)
	}
	// Nobody may be listening any more: the agent was killed meanwhile. The container runs all the same. The pipe stays
	// open: its end is how the agent learns of the shim's.
	_ = json.NewEncoder(ready).Encode(msg)
	defer ready.Close()
	if err != nil {
		return 1
	}
	debug.FreeOSMemory() // what the binary's other parts took at their initialization is garbage here
	exit := s.reap()
	exit.StartedAt = state.StartedAt
	s.finish(exit)
	return 0
}

// commandError is the fault of the container's command.
type commandError struct{ err error }

func (e *commandError) Error() string { return e.err.Error() }
func (e *commandError) Unwrap() error { return e.err }

func start(dir string) (*shim, State, error) {
	s := &shim{waiting: map[int]chan<- syscall.WaitStatus{}}
	b, err := os.ReadFile(filepath.Join(dir, ConfigFile))
	if err != nil {
		return nil, State{}, err
	}
	if err := json.Unmarshal(b, &s.config); err != nil {
		return nil, State{}, fmt.Errorf("reading %s: %w", ConfigFile, err)
	}
	// What the command leaves behind must come to the shim, or it could not be ended with it.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, State{}, fmt.Errorf("becoming a subreaper: %w", err)
	}
	// The directory stays open, as mounts may hide it.
	if s.dir, err = os.OpenRoot(dir); err != nil {
		return nil, State{}, err
	}
	listener, err := listen(dir)
	if err != nil {
		return nil, State{}, err
	}
	if s.log, err = openLog(s.dir, s.config.LogBytes, s.config.LogFiles); err != nil {
		return nil, State{}, err
	}
	if s.exit, err = reserve(s.dir, ExitFile); err != nil {
		return nil, State{}, err
	}
	if s.bootID, err = BootID(); err != nil {
		return nil, State{}, err
	}
	if err := s.surround(); err != nil {
		return nil, State{}, err
	}
	state, err := s.startMain()
	if err != nil {
		return nil, State{}, err
	}
	go s.serve(listener)
	return s, state, nil
}

// surround makes what the container sees of the host. What the shim itself needs of the host is opened before.
func (s *shim) surround() error {
	c := &s.config
	for _, f := range c.TasksV1 {
		if err := keepOpen(&s.tasks, f, os.O_WRONLY); err != nil {
			return fmt.Errorf("the container's cgroup: %w", err)
		}
	}
	for _, f := range c.HomeV1 {
		if err := keepOpen(&s.home, f, os.O_WRONLY); err != nil {
			return fmt.Errorf("the shim's cgroup: %w", err)
		}
	}
	if c.CgroupV2 != "" {
		if err := keepOpen(&s.cgroup, c.CgroupV2, os.O_RDONLY); err != nil {
			return fmt.Errorf("the container's cgroup: %w", err)
		}
	}
	if c.Hostname != "" {
		if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
			return fmt.Errorf("setting the host name %q: %w", c.Hostname, err)
		}
	}
	if c.Root == nil {
		return nil
	}
	return c.Root.enter(c.Mounts)
}

func keepOpen(to *[]*os.File, path string, flag int) error {
	f, err := os.OpenFile(path, flag, 0)
	if err == nil {
		*to = append(*to, f)
	}
	return err
}

// listen makes the control socket. Its path goes through /proc, since the length of a socket's path is limited.
func listen(dir string) (net.Listener, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	path := SocketPath(d)
	_ = os.Remove(path)
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("making the control socket: %w", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	return l, nil
}

// SocketPath is a short path of the control socket in the open directory.
func SocketPath(dir *os.File) string {
	return fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), SocketFile)
}

func (s *shim) startMain() (State, error) {
	c := &s.config
	if fi, err := os.Stat(c.WorkDir); err != nil || !fi.IsDir() {
		if err == nil {
			err = syscall.ENOTDIR
		}
		return State{}, &commandError{fmt.Errorf("the working directory %q: %w", c.WorkDir, cause(err))}
	}
	path, err := lookPath(c.Command[0], c.Env, c.WorkDir)
	if err != nil {
		return State{}, &commandError{err}
	}
	p := child{path: path, argv: c.Command, terminal: c.TTY, mortal: true}
	if err := s.connect(&p); err != nil {
		return State{}, err
	}
	defer p.close(s.held)
	s.mu.Lock()
	defer s.mu.Unlock()
	state := State{ShimPID: os.Getpid(), StartedAt: time.Now(), BootID: s.bootID}
	// The mark comes before the command: whenever this process or the machine ends, what may have run is known to have.
	if err := writeJSON(s.dir, StateFile, state); err != nil {
		return State{}, err
	}
	// Pdeathsig goes by thread: the one that starts the command must live as long as the shim.
	onThread(true, func() {
		state.PID, err = s.spawn(p)
	})
	if err != nil {
		if rerr := s.dir.Remove(StateFile); rerr != nil {
			fmt.Fprintln(os.Stderr, "taking back that the command runs:", rerr)
		}
		return State{}, &commandError{fmt.Errorf("exec: %q in %q: %w", c.Command[0], c.WorkDir, err)}
	}
	s.main = state.PID
	state.PIDStart, _ = PIDStart(state.PID)
	if err := writeJSON(s.dir, StateFile, state); err != nil { // it runs all the same, and the agent is told of it
		fmt.Fprintln(os.Stderr, "writing down what runs:", err)
	}
	return state, nil
}

// connect makes what the container reads and writes.
func (s *shim) connect(p *child) error {
	c := &s.config
	if c.TTY {
		ours, theirs, err := OpenTerminal()
		if err != nil {
			return fmt.Errorf("making a terminal: %w", err)
		}
		s.terminal, s.held = ours, theirs
		if c.Stdin {
			s.input.to = ours
		}
		p.in, p.out, p.errs = theirs, theirs, theirs
		s.follow(ours, "stdout")
		return s.give([]*os.File{theirs})
	}
	var err error
	if c.Stdin {
		if p.in, s.input.to, err = os.Pipe(); err != nil {
			return err
		}
		s.input.once = c.StdinOnce
	}
	if p.out, err = s.pump("stdout"); err != nil {
		return err
	}
	if p.errs, err = s.pump("stderr"); err != nil {
		return err
	}
	return s.give(p.files())
}

// cause is an error without the path that it was met at.
func cause(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// child is a process of the container's.
type child struct {
	path          string
	argv          []string
	in, out, errs *os.File // nil: nothing
	terminal      bool     // in is the terminal that controls it
	mortal        bool     // it ends with the thread that starts it
}

func (p *child) files() []*os.File {
	return slices.DeleteFunc([]*os.File{p.in, p.out, p.errs}, func(f *os.File) bool { return f == nil })
}

// close closes the shim's copies of what the process has, but for one.
func (p *child) close(but *os.File) {
	for _, f := range p.files() {
		if f != but {
			f.Close()
		}
	}
}

// spawn starts a process in the container's cgroup, session of its own. The caller is locked to its thread.
func (s *shim) spawn(p child) (int, error) {
	c := &s.config
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	attr := &syscall.ProcAttr{Dir: c.WorkDir, Env: c.Env, Sys: &syscall.SysProcAttr{Setsid: true, Setctty: p.terminal}}
	for _, f := range [...]*os.File{p.in, p.out, p.errs} {
		attr.Files = append(attr.Files, cmp.Or(f, null).Fd())
	}
	if p.terminal {
		attr.Env = append(slices.Clip(attr.Env), "TERM=xterm")
	}
	if p.mortal {
		attr.Sys.Pdeathsig = syscall.SIGKILL
	}
	if c.UID != nil || c.GID != nil || len(c.Groups) > 0 {
		cred := &syscall.Credential{Uid: uint32(os.Getuid()), Gid: uint32(os.Getgid())}
		if c.UID != nil {
			cred.Uid = uint32(*c.UID)
		}
		if c.GID != nil {
			cred.Gid = uint32(*c.GID)
		}
		for _, g := range c.Groups {
			cred.Groups = append(cred.Groups, uint32(g))
		}
		attr.Sys.Credential = cred
	}
	if len(s.cgroup) > 0 {
		attr.Sys.UseCgroupFD, attr.Sys.CgroupFD = true, int(s.cgroup[0].Fd())
	}
	if len(s.tasks) > 0 {
		// cgroup v1 has no way to start a process in a group. But there a thread can be in one, and what it starts is
		// in it from its first instruction.
		if err := enter(s.tasks); err != nil {
			return 0, err
		}
		defer enter(s.home)
	}
	if err := c.Privileges.take(); err != nil {
		return 0, err
	}
	return syscall.ForkExec(p.path, p.argv, attr)
}

// onThread runs f on a thread of its own that is not the process's first: to the memory controller of cgroup v1, the
// first thread is the process. With stay, the thread lives as long as the process; else it ends with f, for what f took
// from it is not given back.
func onThread(stay bool, f func()) {
	done := make(chan struct{})
	var run func(stay bool)
	run = func(stay bool) {
		goruntime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			go run(stay) // while this thread is taken
			<-done
			goruntime.UnlockOSThread()
			return
		}
		f()
		close(done)
		if stay {
			select {}
		}
	}
	go run(stay)
	<-done
}

func enter(tasks []*os.File) error {
	tid := []byte(fmt.Sprint(unix.Gettid()))
	for _, f := range tasks {
		if _, err := f.WriteAt(tid, 0); err != nil {
			return fmt.Errorf("entering a cgroup: %w", err)
		}
	}
	return nil
}

// lookPath finds the command as execvp would, by the container's own PATH and in its working directory.
func lookPath(name string, env []string, dir string) (string, error) {
	list := ""
	for _, e := range env {
		if len(e) > 5 && e[:5] == "PATH=" {
			list = e[5:]
		}
	}
	at := func(p string) string {
		if !filepath.IsAbs(p) {
			return filepath.Join(dir, p)
		}
		return p
	}
	if filepath.Base(name) != name {
		return at(name), nil // what is wrong with it, the kernel says
	}
	for _, d := range filepath.SplitList(list) {
		p := filepath.Join(at(d), name)
		if fi, err := os.Stat(p); err == nil && !fi.IsDir() && unix.Access(p, unix.X_OK) == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("exec: %q: %w", name, exec.ErrNotFound)
}

// reap waits for the command's end, then ends everything else that it started, as the end of a container would.
func (s *shim) reap() Exit {
	var exit Exit
	for {
		// First wait, then take the number out of use with the lock held: signals go to nobody else.
		err := unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return exit // nothing is left
		}
		s.mu.Lock()
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			s.mu.Unlock()
			continue
		}
		if pid == s.main {
			exit = exitOf(ws)
			exit.FinishedAt = time.Now()
			s.ended = true
			if s.held != nil {
				s.held.Close() // what reads the terminal comes to its end
			}
		} else if ch, ok := s.waiting[pid]; ok {
			delete(s.waiting, pid)
			ch <- ws
		}
		ended := s.ended
		s.mu.Unlock()
		if ended {
			killChildren()
		}
	}
}

func exitOf(ws syscall.WaitStatus) Exit {
	if ws.Signaled() {
		return Exit{Code: 128 + int(ws.Signal()), Signal: int(ws.Signal())}
	}
	return Exit{Code: ws.ExitStatus()}
}

// finish writes down how it ended. Whoever asks before that is answered: the socket goes after it, and the lock with the process.
func (s *shim) finish(exit Exit) {
	s.audience.hurry()
	drained := make(chan struct{})
	go func() {
		s.pumps.Wait()
		close(drained)
	}()
	select {
	case <-drained:
	case <-time.After(time.Second): // somebody outside the container holds the other end
	}
	s.log.close()
	if err := s.exit.write(exit); err != nil {
		fmt.Fprintln(os.Stderr, "writing down the exit code:", err)
	}
	s.audience.end()
	_ = s.dir.Remove(SocketFile)
}
