package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/logfile"
	"github.com/berth-dev/berth/worker/runtime/mounts"
	"github.com/berth-dev/berth/worker/runtime/record"
)

const (
	terminationFile        = "termination.log"
	defaultTerminationPath = "/dev/termination-log"

	// termWait is how long a refusal of TERM is waited for.
	termWait = time.Second
	// killTimeout bounds one try to kill.
	killTimeout = 30 * time.Second
	// execSlack is what a command may take beyond its time until the runtime has ended it; then the runtime is asked whether it is there.
	execSlack = 2 * time.Second
	// execPatience is how much longer one is waited for that is there: it may be slow to start a command, and counts its time from then on.
	// What has still not ended its output is taken for a command that has not ended. A kubelet waits for two minutes.
	execPatience = 30 * time.Second
	// maxExecBytes is what of a command's output is kept.
	maxExecBytes = 4 << 10
	// maxExecAnswerBytes bounds what it may write: a probe that writes more fails. The interface hands over all of it.
	maxExecAnswerBytes = 1 << 20
	// timedOutCode is what CRI-O tells of a command that it has ended at its time; none can end with it.
	timedOutCode = -1
	// never is the time after which the runtime itself would kill what was asked to end: that is not its to decide.
	never = int64(math.MaxInt32)
)

// Start implements runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, spec runtime.Spec) error {
	defer r.rests.hold()()
	r.mu.Lock()
	box, ok := r.sandboxes[spec.ID.Pod]
	r.mu.Unlock()
	if !ok {
		return fmt.Errorf("starting container %s: the pod has no sandbox", spec.ID)
	}
	config, err := r.containerConfig(ctx, &spec)
	if err != nil {
		return err
	}
	if begun, err := r.makeRoom(ctx, &spec); err != nil {
		return fmt.Errorf("starting container %s: %w", spec.ID, err)
	} else if begun != nil {
		r.take(spec.ID, begun)
		return nil
	}
	if err := r.prepare(ctx, &spec, config); err != nil {
		return fmt.Errorf("preparing container %s: %w", spec.ID, err)
	}
	pod, err := r.sandboxConfig(ctx, spec.Pod, box.attempt)
	if err != nil {
		return err
	}
	made, err := r.runtime.CreateContainer(ctx, &criv1.CreateContainerRequest{PodSandboxId: box.id, Config: config, SandboxConfig: pod})
	if err != nil {
		return asked(err)
	}
	_, err = r.runtime.StartContainer(ctx, &criv1.StartContainerRequest{ContainerId: made.ContainerId})
	after, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
	defer cancel()
	s, serr := r.status(after, made.ContainerId)
	switch {
	case err == nil, serr == nil && hasRun(s): // the answer was lost
	case serr != nil:
		return asked(err) // nothing is known of it: the next try finds it
	default:
		if s.State == criv1.ContainerState_CONTAINER_EXITED && s.StartedAt == 0 {
			return &runtime.StartError{Err: errors.New(cmp.Or(s.Message, unwrapped(err).Error()))}
		}
		if errors.Is(asked(err), runtime.ErrUnavailable) {
			return asked(err) // it may yet be started, and whoever removed it then would end a run: the next try looks at it
		}
		// It is not started, and must not be without anybody knowing.
		if rerr := r.removeContainer(after, made.ContainerId); rerr != nil {
			r.mu.Lock()
			r.unwanted[made.ContainerId] = true
			r.mu.Unlock()
		}
		return asked(err)
	}
	if serr != nil {
		s = &criv1.ContainerStatus{Id: made.ContainerId, StartedAt: time.Now().UnixNano(), State: criv1.ContainerState_CONTAINER_RUNNING}
	}
	r.take(spec.ID, s)
	return nil
}

// take takes note of a container that was started.
func (r *Runtime) take(id runtime.ID, s *criv1.ContainerStatus) {
	r.mu.Lock()
	delete(r.unwanted, s.Id)
	r.mu.Unlock()
	r.began(id, s)
	if s.State == criv1.ContainerState_CONTAINER_EXITED {
		r.ended(id, s)
	}
}

// reasonStartError is why a container of containerd's ended that never came to run.
const reasonStartError = "StartError"

// hasRun: the container runs, or did. One that ended while its runtime was being killed may have an end and no beginning.
func hasRun(s *criv1.ContainerStatus) bool {
	switch s.State {
	case criv1.ContainerState_CONTAINER_RUNNING:
		return true
	case criv1.ContainerState_CONTAINER_EXITED:
		return s.StartedAt != 0 || s.FinishedAt != 0 && s.Reason != reasonStartError
	}
	return false
}

// makeRoom forgets what is left of earlier runs of the container. The attempt before this one is kept for its logs and its
// exit code. It fails where one may still run: a container never runs twice. The attempt itself may have been started before, by a call that
// nobody answered: then it is that one.
func (r *Runtime) makeRoom(ctx context.Context, spec *runtime.Spec) (begun *criv1.ContainerStatus, err error) {
	id := spec.ID
	all, err := r.containersOf(ctx, id.Pod, id.Container)
	if err != nil {
		return nil, err
	}
	for _, c := range all {
		attempt := int32(c.GetMetadata().GetAttempt())
		if attempt == id.Attempt && c.GetImage().GetImage() == spec.Image {
			if begun, err = r.status(ctx, c.Id); err != nil && !notFound(err) {
				return nil, asked(err)
			}
			if _, ferr := r.find(id); err == nil && ferr != nil && hasRun(begun) {
				return begun, nil
			}
		}
		switch c.State {
		case criv1.ContainerState_CONTAINER_RUNNING, criv1.ContainerState_CONTAINER_UNKNOWN:
			if _, err := r.find(id); attempt != id.Attempt || err == nil {
				return nil, fmt.Errorf("attempt %d of it may still run", attempt)
			}
		}
		if attempt == id.Attempt-1 {
			continue
		}
		if err := r.removeContainer(ctx, c.Id); err != nil {
			return nil, err
		}
	}
	for attempt := range id.Attempt - 1 {
		old := runtime.ID{Pod: id.Pod, Container: id.Container, Attempt: attempt}
		if err := r.forget(ctx, old); err != nil {
			return nil, err
		}
	}
	return nil, r.forget(ctx, id) // of an attempt that did not come to run
}

// forget removes what is kept on disk of a run.
func (r *Runtime) forget(ctx context.Context, id runtime.ID) error {
	if _, err := os.Stat(r.dir(id)); os.IsNotExist(err) {
		return nil
	}
	var errs []error
	for i := range r.opts.LogFiles {
		errs = append(errs, os.RemoveAll(logfile.Name(r.logFile(id), i)))
	}
	return errors.Join(append(errs, mounts.RemoveAll(ctx, r.dir(id)))...)
}

// containersOf lists the containers of a pod, or the runs of one of them.
func (r *Runtime) containersOf(ctx context.Context, pod types.UID, name string) ([]*criv1.Container, error) {
	labels := map[string]string{labelNode: r.opts.Node, labelPodUID: string(pod)}
	if name != "" {
		labels[labelContainer] = name
	}
	return r.listContainers(ctx, labels)
}

// listContainers lists those that have the labels.
func (r *Runtime) listContainers(ctx context.Context, labels map[string]string) ([]*criv1.Container, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	list, err := r.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{LabelSelector: labels}})
	if err != nil {
		return nil, fmt.Errorf("listing containers: %w", asked(err))
	}
	return list.Containers, nil
}

func (r *Runtime) removeContainer(ctx context.Context, ref string) error {
	if _, err := r.runtime.RemoveContainer(ctx, &criv1.RemoveContainerRequest{ContainerId: ref}); err != nil && !notFound(err) {
		return fmt.Errorf("removing container %s: %w", ref, asked(err))
	}
	return nil
}

func (r *Runtime) status(ctx context.Context, ref string) (*criv1.ContainerStatus, error) {
	ctx, cancel := asking(ctx)
	defer cancel()
	s, err := r.runtime.ContainerStatus(ctx, &criv1.ContainerStatusRequest{ContainerId: ref})
	if err != nil {
		return nil, err
	}
	out := s.GetStatus()
	if out != nil { // CRI-O tells a moment that has not come as one long before all others
		out.StartedAt, out.FinishedAt = max(out.StartedAt, 0), max(out.FinishedAt, 0)
	}
	return out, nil
}

// prepare makes the container's directory and what is mounted from it.
func (r *Runtime) prepare(ctx context.Context, spec *runtime.Spec, config *criv1.ContainerConfig) error {
	dir := r.dir(spec.ID)
	if err := os.MkdirAll(dir, 0o755); err != nil { // #nosec G301 -- whoever the containers run as has to get there
		return err
	}
	if err := record.Write(r.podDir(spec.ID.Pod), spec.Pod); err != nil { // containers may have been added
		return fmt.Errorf("keeping the pod's object: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(r.logFile(spec.ID)), 0o755); err != nil { // #nosec G301 -- whoever the containers run as has to get there
		return err
	}
	last := filepath.Join(dir, terminationFile)
	if err := os.WriteFile(last, nil, 0o666); err != nil { // #nosec G306 -- whoever the containers run as has to get there
		return err
	}
	if err := os.Chmod(last, 0o666); err != nil { // #nosec G302 -- whoever the container runs as
		return err
	}
	volumes, err := r.mounts(ctx, spec)
	if err != nil {
		return err
	}
	config.Mounts = append(config.Mounts, volumes...)
	for _, m := range spec.Devices.Mounts {
		config.Mounts = append(config.Mounts, &criv1.Mount{HostPath: m.Source, ContainerPath: m.Target, Readonly: m.ReadOnly})
	}
	return nil
}

func (r *Runtime) containerConfig(ctx context.Context, spec *runtime.Spec) (*criv1.ContainerConfig, error) {
	c := spec.Container
	security, err := r.security(ctx, spec)
	if err != nil {
		return nil, err
	}
	labels := r.labels(spec.Pod)
	labels[labelContainer] = c.Name
	config := &criv1.ContainerConfig{
		Metadata: &criv1.ContainerMetadata{Name: c.Name, Attempt: uint32(spec.Attempt)},
		Image:    &criv1.ImageSpec{Image: spec.Image, UserSpecifiedImage: c.Image},
		Command:  spec.Command, Args: spec.Args, WorkingDir: c.WorkingDir,
		Labels: labels, Annotations: map[string]string{imageAnnotation: c.Image}, LogPath: logPath(spec.ID),
		Stdin: c.Stdin, StdinOnce: c.StdinOnce, Tty: c.TTY,
		Linux: &criv1.LinuxContainerConfig{Resources: r.resources(spec.Pod, c), SecurityContext: security},
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		config.StopSignal = criv1.Signal(criv1.Signal_value[string(*l.StopSignal)]) // of a pod with another one nothing is started
	}
	for _, e := range spec.Env {
		name, value, _ := strings.Cut(e, "=")
		config.Envs = append(config.Envs, &criv1.KeyValue{Key: name, Value: []byte(value)})
	}
	return config, r.devices(&spec.Devices, config)
}

// devices gives a container the devices that its plugins want it to have.
func (r *Runtime) devices(d *runtime.Devices, config *criv1.ContainerConfig) error {
	if a := r.known(); len(d.CDI) > 0 && a.name == containerd && oldContainerd.MatchString(a.version) {
		return &runtime.ConfigError{Err: fmt.Errorf("its devices %s are of the container device interface, which %s %s does not have",
			strings.Join(d.CDI, ", "), a.name, a.version)}
	}
	for _, n := range d.Nodes {
		config.Devices = append(config.Devices, &criv1.Device{HostPath: n.HostPath, ContainerPath: n.Path, Permissions: n.Permissions})
	}
	for _, name := range d.CDI {
		config.CDIDevices = append(config.CDIDevices, &criv1.CDIDevice{Name: name})
	}
	for name, value := range d.Annotations {
		if _, own := config.Annotations[name]; !own {
			config.Annotations[name] = value
		}
	}
	return nil
}

// oldContainerd are the versions that pass over what they do not know of devices.
var oldContainerd = regexp.MustCompile(`^v?1\.[0-6]\.`)

func (r *Runtime) find(id runtime.ID) (running, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.running[id]; ok {
		return c, nil
	}
	return running{}, fmt.Errorf("container %s: %w", id, runtime.ErrNotFound)
}

// Signal implements runtime.Runtime.
func (r *Runtime) Signal(ctx context.Context, id runtime.ID, signal runtime.Signal) error {
	defer r.rests.hold()()
	c, err := r.find(id)
	if err != nil {
		return err
	}
	if signal == runtime.Kill {
		ctx, cancel := context.WithTimeout(ctx, killTimeout)
		defer cancel()
		_, err := r.runtime.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: c.ref})
		r.stopped(id, c, err)
		return r.settled(err)
	}
	// The interface has no signals, only a way to end within a time. The call is left open until the container has ended: a
	// runtime sends the signal and waits.
	told := make(chan error, 1)
	r.loops.Go(func() {
		_, err := r.runtime.StopContainer(r.ctx, &criv1.StopContainerRequest{ContainerId: c.ref, Timeout: never})
		told <- err
		r.stopped(id, c, err)
	})
	timer := time.NewTimer(termWait)
	defer timer.Stop()
	select {
	case err := <-told:
		return r.settled(err)
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return nil
	}
}

// stopped looks at a container that was to end, or, where the runtime does not say that it has ended, at all.
func (r *Runtime) stopped(id runtime.ID, c running, err error) {
	if err == nil {
		err = r.lookAt(r.ctx, id, c)
	}
	if _, ferr := r.find(id); err != nil || ferr == nil {
		r.look()
	}
}

// execAnswer is what came of a command.
type execAnswer struct {
	res *criv1.ExecSyncResponse
	err error
}

// Exec implements runtime.Runtime. The interface does not tell when a command has ended, but when its output has: what the command leaves
// running may hold that open.
func (r *Runtime) Exec(ctx context.Context, id runtime.ID, command []string) (runtime.ExecResult, error) {
	c, err := r.find(id)
	if err != nil {
		return runtime.ExecResult{}, err
	}
	var seconds int64 // 0: as long as it takes
	if at, ok := ctx.Deadline(); ok {
		seconds = int64(max(math.Ceil(time.Until(at).Seconds()), 1))
	}
	// The runtime ends the command at its time, and needs somebody to tell.
	asks := ctx
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	defer context.AfterFunc(asks, func() {
		if errors.Is(asks.Err(), context.Canceled) {
			cancel()
		}
	})()
	answered := make(chan execAnswer, 1)
	r.loops.Go(func() {
		res, err := r.runtime.ExecSync(ctx, &criv1.ExecSyncRequest{ContainerId: c.ref, Cmd: command, Timeout: seconds},
			grpc.MaxCallRecvMsgSize(maxExecAnswerBytes))
		answered <- execAnswer{res, err}
	})
	a, err := r.awaitExec(answered, seconds)
	if err != nil {
		return runtime.ExecResult{}, fmt.Errorf("running a command in container %s: %w", id, err)
	}
	switch err := a.err; {
	case err == nil:
	case tooLarge(err):
		return runtime.ExecResult{}, fmt.Errorf("the command wrote more than %d bytes", maxExecAnswerBytes)
	case ctx.Err() != nil:
		return runtime.ExecResult{}, fmt.Errorf("running a command in container %s: %w", id, ctx.Err())
	case deadline(err):
		return runtime.ExecResult{}, fmt.Errorf("command timed out: %w", unwrapped(err))
	default:
		return runtime.ExecResult{}, r.settled(err)
	}
	if a.res.ExitCode == timedOutCode {
		return runtime.ExecResult{}, fmt.Errorf("command timed out: %s", a.res.Stderr)
	}
	output := slices.Concat(a.res.Stdout, a.res.Stderr)
	return runtime.ExecResult{Code: int(a.res.ExitCode), Output: output[:min(len(output), maxExecBytes)]}, nil
}

// awaitExec waits for what comes of a command that has so many seconds; 0: as long as it takes. Of a runtime that does not answer it is not known;
// what one that does has no end of is taken for a command that does not end.
func (r *Runtime) awaitExec(answered <-chan execAnswer, seconds int64) (execAnswer, error) {
	if seconds == 0 {
		return <-answered, nil
	}
	for _, more := range [...]time.Duration{time.Duration(seconds)*time.Second + execSlack, r.execPatience} {
		timer := time.NewTimer(more)
		select {
		case a := <-answered:
			timer.Stop()
			return a, nil
		case <-timer.C:
		}
		if err := r.answers(); err != nil {
			return execAnswer{}, err
		}
	}
	return execAnswer{}, errors.New("neither the command nor its output ended in time")
}

// exitOf is how a container ended.
func (r *Runtime) exitOf(id runtime.ID, s *criv1.ContainerStatus, pod *corev1.Pod) *runtime.Exit {
	x := &runtime.Exit{Code: s.ExitCode, Reason: s.Reason, StartedAt: time.Unix(0, s.StartedAt), FinishedAt: time.Unix(0, s.FinishedAt)}
	if s.FinishedAt == 0 {
		x.FinishedAt = time.Now()
	}
	switch {
	case x.Reason == "" && x.Code == 0:
		x.Reason = runtime.ReasonCompleted
	case x.Reason == "":
		x.Reason = runtime.ReasonError
	}
	if s.StartedAt == 0 || x.StartedAt.After(x.FinishedAt) {
		x.StartedAt = x.FinishedAt // containerd takes note of a start when the command may have ended already
	}
	if x.Message = r.terminationMessage(id, pod, x.Code != 0); x.Message == "" {
		x.Message = s.Message
	}
	return x
}
