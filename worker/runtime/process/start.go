package process

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/naming"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
	"github.com/berth-dev/berth/worker/runtime/record"
)

const (
	// defaultPath is a container's PATH where its spec has none.
	defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	// startTimeout bounds the time from a shim's start to its answer.
	startTimeout = 30 * time.Second
)

// Start implements runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, spec runtime.Spec) error {
	if err := r.seen(spec.ID.Pod); err != nil {
		return fmt.Errorf("preparing container %s: %w", spec.ID, err)
	}
	if _, mark := begun(r.dir(spec.ID)); mark {
		return r.resume(ctx, spec.ID)
	}
	command := slices.Concat(spec.Command, spec.Args)
	if len(command) == 0 {
		return &runtime.StartError{Err: errors.New("the container has no command; images are ignored, so it must have one of its own")}
	}
	config, err := r.configure(ctx, &spec, command)
	if err != nil {
		return &runtime.ConfigError{Err: err}
	}
	dir := r.dir(spec.ID)
	earlier, err := r.attempts(spec.ID.Pod)
	if err == nil {
		err = r.alone(ctx, spec.ID, append(earlier, spec.ID)) // also what is left of this very run, if a start of it was cut off
	}
	if err == nil {
		err = r.prepare(&spec, config, earlier)
	}
	if err != nil {
		return fmt.Errorf("preparing container %s: %w", spec.ID, err)
	}
	r.keepCgroup(spec.ID)
	if err := r.cgroups.forContainer(&spec, config); err != nil {
		return fmt.Errorf("preparing container %s: %w", spec.ID, err)
	}
	w, started, err := r.launch(dir, config)
	if err != nil {
		return r.undo(spec.ID, err)
	}
	if spec.Attempt == 0 && spec.Container.Image != "" && r.opts.Event != nil {
		r.opts.Event(spec.Pod, corev1.EventTypeWarning, "ImageIgnored", fmt.Sprintf(
			"Container %s runs as a process of the node: its image %q is not used", spec.Container.Name, spec.Container.Image))
	}
	r.begin(spec.ID, w, started)
	return nil
}

// resume takes over a run that was made already, and of which nothing was seen when this runtime was opened: it is not made again.
func (r *Runtime) resume(ctx context.Context, id runtime.ID) error {
	over, err := turn(ctx, r, r.adopting, id.Pod) // nobody adopts what another does
	if err != nil {
		return fmt.Errorf("container %s: waiting for who looks at its pod: %w", id, err)
	}
	defer over()
	if _, err := r.find(id); err == nil {
		return fmt.Errorf("container %s runs already", id)
	}
	c, watch, ok := r.adopt(ctx, id)
	if !ok {
		return fmt.Errorf("container %s: what has become of it is not known", id)
	}
	if c.Exit == nil && watch == nil { // the agent ends
		return nil
	}
	r.notify(runtime.Container{ID: id, StartedAt: c.StartedAt})
	if watch != nil {
		watch()
	} else {
		r.notify(c)
	}
	return nil
}

// undo takes away what a start that failed has left: its shim has ended, and the command has not run.
func (r *Runtime) undo(id runtime.ID, err error) error {
	ctx, cancel := context.WithTimeout(r.life, besideTimeout)
	defer cancel()
	if lerr := r.cgroups.end(ctx, id); lerr != nil {
		// The directory stays: by it whoever starts or removes the container finds what is left.
		return fmt.Errorf("starting container %s: %w", id, errors.Join(err, lerr))
	}
	r.removeCgroup(id)
	var se *runtime.StartError
	if errors.As(err, &se) {
		// A shim that could not take its mark back has left one of a command that was not run.
		if merr := os.Remove(filepath.Join(r.dir(id), shim.StateFile)); merr != nil && !os.IsNotExist(merr) {
			r.log.Warn("the mark of a command that was not run is left", "container", id.String(), "error", merr)
		}
		return err
	}
	_ = r.putAside(r.dir(id), id.Pod)
	r.sweep()
	return fmt.Errorf("starting container %s: %w", id, err)
}

// Directories and files of a container, beside those of its shim.
const (
	workDir    = "work"   // what it works in
	rootDir    = "root"   // where its root is made
	hostsFile  = "hosts"  // its /etc/hosts
	resolvFile = "resolv" // its /etc/resolv.conf, where the pod's is another one than the host's
)

// prepare makes the container's directory and the pod's record.
func (r *Runtime) prepare(spec *runtime.Spec, config *shim.Config, earlier []runtime.ID) error {
	dir := r.dir(spec.ID)
	if err := r.putAside(dir, spec.ID.Pod); err != nil { // of an attempt that did not come to run
		return err
	}
	for _, name := range [...]string{workDir, rootDir} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil { // #nosec G301 -- whoever the containers run as has to get there
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(dir, shim.TerminationFile), nil, 0o644); err != nil { // #nosec G306 -- the container writes it as its user, who owns it
		return err
	}
	if config.UID != nil { // and a group
		for _, name := range [...]string{workDir, shim.TerminationFile} {
			if err := os.Chown(filepath.Join(dir, name), int(*config.UID), int(*config.GID)); err != nil {
				return err
			}
		}
	}
	if err := r.hostFiles(spec, dir); err != nil {
		return err
	}
	if err := record.Write(r.podDir(spec.Pod.UID), spec.Pod); err != nil {
		return err
	}
	// The attempt before this one is kept for its logs and its exit code; older ones are not.
	for _, old := range earlier {
		if old.Container == spec.ID.Container && old.Attempt < spec.Attempt {
			r.removeCgroup(old)
			if old.Attempt < spec.Attempt-1 {
				if err := r.putAside(r.dir(old), old.Pod); err != nil {
					return err
				}
			}
		}
	}
	r.sweep()
	return nil
}

// configure says what the shim is to do.
func (r *Runtime) configure(ctx context.Context, spec *runtime.Spec, command []string) (*shim.Config, error) {
	dir := r.dir(spec.ID)
	hostname, err := naming.HostFQDN(spec.Pod, r.opts.Domain)
	if err != nil {
		return nil, err
	}
	c := &shim.Config{Command: command, WorkDir: spec.Container.WorkingDir, StopSignal: int(stopSignal(spec.Container)),
		Stdin: spec.Container.Stdin, StdinOnce: spec.Container.StdinOnce, TTY: spec.Container.TTY,
		LogBytes: r.opts.LogBytes, LogFiles: r.opts.LogFiles, Image: spec.Container.Image}
	work, termination := filepath.Join(dir, workDir), filepath.Join(dir, shim.TerminationFile)
	if r.bind {
		c.Root = &shim.Root{Dir: filepath.Join(dir, rootDir), Hide: r.opts.Hide,
			ReadOnly: readOnlyRoot(spec.Container), Masked: masked(spec.Container)}
		last := spec.Container.TerminationMessagePath
		if last == "" {
			last = shim.Home + "/" + shim.TerminationFile
		}
		c.Mounts = []shim.Mount{{Source: work, Target: shim.Home + "/" + workDir}, {Source: termination, Target: last}}
		work, termination = c.Mounts[0].Target, last
		if !spec.Pod.Spec.HostNetwork {
			c.Hostname = hostname
		}
	}
	if c.WorkDir == "" {
		c.WorkDir = work
	}
	env := []string{"PATH=" + defaultPath, "HOSTNAME=" + hostname, TerminationEnv + "=" + termination}
	volumes := slices.Clone(spec.Mounts)
	for i := range volumes {
		volumes[i].Target = filepath.Join("/", volumes[i].Target) // one that is relative is so to the root, as with a kubelet
	}
	for _, m := range volumes {
		name := strings.ToUpper(strings.ReplaceAll(m.Volume, "-", "_"))
		if !r.bind {
			if err := mounts.Apart(ctx, func() error { return mounts.MakeBeneath(m.Source, m.SubPath) }); err != nil {
				return nil, fmt.Errorf("volume %q: %w", m.Volume, err)
			}
			env = append(env, VolumeEnv+name+"="+filepath.Join(m.Source, m.SubPath))
			continue
		}
		env = append(env, VolumeEnv+name+"="+m.Target)
		c.Mounts = append(c.Mounts, shim.Mount{Source: m.Source, SubPath: m.SubPath, Target: m.Target, ReadOnly: m.ReadOnly,
			Recursive: m.Recursive, Follow: m.Follow})
	}
	if r.bind {
		for _, f := range r.hostMounts(spec.Pod) {
			// A volume over the file is what the pod wants there.
			if !slices.ContainsFunc(volumes, func(m runtime.Mount) bool { return m.Target == f.Target }) {
				c.Mounts = append(c.Mounts, shim.Mount{Source: filepath.Join(dir, f.Source), Target: f.Target})
			}
		}
	}
	if err := r.devices(&spec.Devices, c); err != nil {
		return nil, err
	}
	c.Env = unique(append(env, spec.Env...))
	if err := r.identity(spec, c); err != nil {
		return nil, err
	}
	return c, r.lessen(spec.Container.SecurityContext, spec.Pod.Spec.SecurityContext, &c.Privileges)
}

// devices mounts what the plugins of the container's devices want it to have. It sees the host's devices where they are.
func (r *Runtime) devices(d *runtime.Devices, c *shim.Config) error {
	if len(d.CDI) > 0 {
		return fmt.Errorf("its devices %s are of the container device interface, which processes of the host do not have", strings.Join(d.CDI, ", "))
	}
	wanted := slices.Clone(d.Mounts)
	for _, n := range d.Nodes {
		if n.HostPath != n.Path {
			wanted = append(wanted, runtime.Mount{Source: n.HostPath, Target: n.Path})
		}
	}
	for _, m := range wanted {
		switch {
		case r.bind:
			c.Mounts = append(c.Mounts, shim.Mount{Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly})
		case m.Source != m.Target:
			return fmt.Errorf("%s of the host is to be at %s: %s", m.Source, m.Target, needsBind)
		}
	}
	return nil
}

func readOnlyRoot(c *corev1.Container) bool {
	s := c.SecurityContext
	return s != nil && s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem
}

// unique keeps the last value of each variable, at the place of the first.
func unique(env []string) []string {
	at := map[string]int{}
	out := env[:0:0]
	for _, e := range env {
		name, _, _ := strings.Cut(e, "=")
		if i, ok := at[name]; ok {
			out[i] = e
			continue
		}
		at[name] = len(out)
		out = append(out, e)
	}
	return out
}

// identity is whom the container runs as: its own security context before the pod's.
func (r *Runtime) identity(spec *runtime.Spec, c *shim.Config) error {
	var nonRoot *bool
	if p := spec.Pod.Spec.SecurityContext; p != nil {
		c.UID, c.GID, nonRoot = p.RunAsUser, p.RunAsGroup, p.RunAsNonRoot
		c.Groups = append(c.Groups, p.SupplementalGroups...)
		if p.FSGroup != nil {
			c.Groups = append(c.Groups, *p.FSGroup)
		}
	}
	if s := spec.Container.SecurityContext; s != nil {
		if s.RunAsUser != nil {
			c.UID = s.RunAsUser
		}
		if s.RunAsGroup != nil {
			c.GID = s.RunAsGroup
		}
		if s.RunAsNonRoot != nil {
			nonRoot = s.RunAsNonRoot
		}
	}
	if os.Geteuid() == 0 {
		// Said even where it changes nothing: the agent's groups are not the container's.
		zero := int64(0)
		c.UID, c.GID = cmp.Or(c.UID, &zero), cmp.Or(c.GID, &zero)
	}
	root := c.UID == nil && os.Geteuid() == 0 || c.UID != nil && *c.UID == 0
	if nonRoot != nil && *nonRoot && root {
		return fmt.Errorf("container %s has securityContext.runAsNonRoot, and would run as root", spec.Container.Name)
	}
	if os.Geteuid() == 0 {
		return nil
	}
	// Only root can be another user, and be in other groups. Whoever is the agent's user is that already: there is nothing to change.
	other := func(id *int64, own int) bool { return id != nil && *id != int64(own) }
	if other(c.UID, os.Getuid()) || other(c.GID, os.Getgid()) || len(c.Groups) > 0 {
		return errors.New(needsRoot)
	}
	c.UID, c.GID = nil, nil
	return nil
}

func stopSignal(c *corev1.Container) syscall.Signal {
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if s := unix.SignalNum(string(*c.Lifecycle.StopSignal)); s != 0 {
			return s
		}
	}
	return syscall.SIGTERM
}

// launch starts the shim and waits until the command runs. It fails only where the command has not run, and will not: a shim that comes to no good
// after it has left its mark is a container that has ended.
func (r *Runtime) launch(dir string, config *shim.Config) (*watched, shim.State, error) {
	var none shim.State
	b, err := json.Marshal(config)
	if err != nil {
		return nil, none, err
	}
	// The environment may hold secrets.
	if err := os.WriteFile(filepath.Join(dir, shim.ConfigFile), b, 0o600); err != nil {
		return nil, none, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, shim.LockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, none, err
	}
	defer lock.Close() // the shim has it too, and the lock with it
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, none, fmt.Errorf("locking the container's directory: %w", err)
	}
	stderr, err := os.OpenFile(filepath.Join(dir, "shim.err"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, none, err
	}
	defer stderr.Close()
	pr, pw, err := os.Pipe()
	if err != nil {
		return nil, none, err
	}
	cmd := exec.Command(r.shim)
	cmd.Args = []string{"berth-shim", shim.Arg, dir}
	cmd.Env = []string{"GOMAXPROCS=2", "GOGC=50"} // one for every container: small before fast
	for _, name := range [...]string{"GORACE", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(name); ok { // what Go's tools tell an instrumented binary
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	cmd.Dir = "/"
	cmd.Stderr = stderr
	cmd.ExtraFiles = []*os.File{pw, lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if config.Root != nil {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWNS
	}
	if config.Hostname != "" {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUTS
	}
	err = cmd.Start()
	pw.Close()
	if err != nil {
		pr.Close()
		return nil, none, fmt.Errorf("starting the shim %s: %w", r.shim, err)
	}
	ready, err := awaitReady(pr)
	if err == nil && ready.Error == "" {
		return &watched{end: pr, state: ready.State, shim: cmd}, ready.State, nil
	}
	pr.Close()
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	switch state, mark := begun(dir); {
	case err == nil && ready.Command:
		return nil, none, &runtime.StartError{Err: errors.New(ready.Error)}
	case err == nil:
		return nil, none, errors.New(ready.Error)
	case mark:
		r.log.Warn("a container's shim ended, or was killed, while it started the command", "directory", dir, "error", err)
		return &watched{end: pr, state: state, shim: cmd}, state, nil
	}
	return nil, none, err
}

// begun says whether the command of a container's run may have been run: its shim leaves its state as a mark before that, and takes it back where
// there is no command to run. A mark that cannot be read is one, too; of its state only the time is known then.
func begun(dir string) (state shim.State, mark bool) {
	path := filepath.Join(dir, shim.StateFile)
	fi, err := os.Lstat(path)
	if err != nil {
		return state, !os.IsNotExist(err)
	}
	if readJSON(path, &state) != nil {
		state = shim.State{StartedAt: fi.ModTime()}
	}
	return state, true
}

// awaitReady waits for no other end than the shim's, or startTimeout: an agent that ends does not take the container with it that it has just begun.
func awaitReady(pr *os.File) (shim.Ready, error) {
	if err := pr.SetReadDeadline(time.Now().Add(startTimeout)); err != nil {
		return shim.Ready{}, err
	}
	var ready shim.Ready
	if err := json.NewDecoder(pr).Decode(&ready); err != nil {
		return ready, fmt.Errorf("the shim did not say that the command runs: %w", err)
	}
	return ready, pr.SetReadDeadline(time.Time{})
}
