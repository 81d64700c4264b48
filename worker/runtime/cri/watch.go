package cri

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/record"
)

const (
	// listInterval is how often what runs is listed where the runtime tells of no events; listAnyway where it does.
	listInterval = time.Second
	listAnyway   = 10 * time.Second
	// eventsAgain is how long a stream of events that broke is waited for.
	eventsAgain = time.Second
	// rotateInterval is how often the sizes of logs are looked at.
	rotateInterval = 10 * time.Second
	// openTimeout is how long what was left from before is taken over, and openEach how much longer for each container and sandbox of it.
	openTimeout, openEach = time.Minute, 2 * time.Second
)

// Open implements runtime.Runtime. Its error satisfies runtime.ErrUnavailable where the runtime does not answer.
func (r *Runtime) Open(notify func(runtime.Event)) ([]runtime.Pod, error) {
	r.opening.Lock()
	defer r.opening.Unlock()
	var boxes []*criv1.PodSandbox
	var containers []*criv1.Container
	err := r.meet(r.ctx)
	if err == nil {
		boxes, containers, err = r.list(r.ctx)
	}
	if err != nil {
		// Whatever it says: one that is starting, or that does not serve the interface yet, says all kinds of things.
		return nil, fmt.Errorf("%w: %w", runtime.ErrUnavailable, err)
	}
	found, err := r.findPods(boxes, containers)
	if err != nil {
		return nil, fmt.Errorf("looking for pods from before: %w", err)
	}
	r.notify = notify
	ctx, cancel := context.WithTimeout(r.ctx, openTimeout+time.Duration(len(boxes)+len(containers))*openEach)
	defer cancel()
	out, err := r.adoptAll(ctx, found)
	if err != nil {
		return nil, err
	}
	if err := r.sweepViews(ctx); err != nil {
		r.log.Warn("views of images that pods from before may have left could not be removed", "error", err)
	}
	r.mu.Lock()
	r.listedAt = time.Now()
	r.mu.Unlock()
	r.loops.Go(r.watch)
	r.loops.Go(r.keepLogs)
	r.loops.Go(r.follow)
	r.loops.Go(r.collect)
	r.loops.Go(r.removeRests)
	return out, nil
}

// left is what there is of a pod from before.
type left struct {
	boxes      []*criv1.PodSandbox // the newest first
	containers []*criv1.Container
}

func sortedPods(found map[types.UID]*left) []types.UID {
	uids := make([]types.UID, 0, len(found))
	for uid := range found {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}

func (r *Runtime) findPods(boxes []*criv1.PodSandbox, containers []*criv1.Container) (map[types.UID]*left, error) {
	found := map[types.UID]*left{}
	of := func(uid string) *left {
		l := found[types.UID(uid)]
		if l == nil {
			l = &left{}
			found[types.UID(uid)] = l
		}
		return l
	}
	entries, err := os.ReadDir(r.opts.Root)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.IsDir() {
			of(e.Name())
		}
	}
	for _, b := range boxes {
		l := of(b.Labels[labelPodUID])
		l.boxes = append(l.boxes, b)
	}
	for _, c := range containers {
		l := of(c.Labels[labelPodUID])
		l.containers = append(l.containers, c)
	}
	for _, l := range found {
		newestFirst(l.boxes)
	}
	return found, nil
}

// adoptAll takes over several pods at a time: what the runtime hangs on of one keeps few of the others waiting.
func (r *Runtime) adoptAll(ctx context.Context, found map[types.UID]*left) (out []runtime.Pod, err error) {
	uids := sortedPods(found)
	adopted := make([]*runtime.Pod, len(uids))
	calls := make([]func() error, len(uids))
	var failed atomic.Bool
	for i, uid := range uids {
		calls[i] = func() (err error) {
			if failed.Load() {
				return nil // all of it is done again
			}
			if adopted[i], err = r.adopt(ctx, uid, found[uid]); err != nil {
				failed.Store(true)
				return fmt.Errorf("taking over pod %s: %w", uid, err)
			}
			return nil
		}
	}
	err = severalAtOnce(calls)
	for _, p := range adopted {
		if p != nil {
			out = append(out, *p)
		}
	}
	return out, err
}

// adopt takes over what an earlier agent left of a pod; nil where there was only its rest.
func (r *Runtime) adopt(ctx context.Context, uid types.UID, l *left) (*runtime.Pod, error) {
	if r.adoptRest(uid, l) {
		return nil, nil
	}
	pod, err := record.Read(r.podDir(uid), uid)
	lost := err != nil
	switch {
	case lost && len(l.boxes) == 0 && len(l.containers) == 0, !lost && len(l.boxes) == 0:
		// The agent ended before the pod's sandbox was made, or while the pod was being removed.
		if err := r.Remove(ctx, uid); err != nil {
			r.log.Warn("what is left of a pod could not be removed", "pod", uid, "error", err)
		}
		return nil, nil
	case lost:
		r.log.Error("a pod's record cannot be read; its containers are taken over by what the container runtime says", "pod", uid, "error", err)
		names := make([]string, len(l.containers))
		for i, c := range l.containers {
			names[i] = c.GetMetadata().GetName()
		}
		if pod, err = record.Replace(r.podDir(uid), uid, names); err != nil {
			r.log.Error("a damaged record cannot be put aside", "pod", uid, "error", err)
		}
	}
	out := &runtime.Pod{Pod: pod, Lost: lost}
	if groups := r.podCgroups(); groups != nil {
		if err := r.weigh(groups, pod); err != nil {
			r.log.Warn("a pod's class could not be given its weight", "pod", uid, "error", err)
		}
	}
	current := ""
	// One that was made while the agent was ended, and not seen to its end, is taken over when the pod is to have one: nothing runs in it.
	whole := len(l.containers) > 0 || exists(filepath.Join(r.podDir(uid), hostsFile))
	if b := l.boxes; len(b) > 0 && b[0].State == criv1.PodSandboxState_SANDBOX_READY && whole {
		box, err := r.statusOf(ctx, b[0].Id, b[0].GetMetadata().GetAttempt())
		switch {
		case errors.Is(err, runtime.ErrNotFound): // it is not there any more
		case errors.Is(err, runtime.ErrUnavailable) && r.answers() != nil:
			return nil, err
		default:
			if err != nil {
				// The runtime hangs on this one, or refuses it: that keeps nobody from being taken over. Its addresses are asked for again.
				r.log.Error("which addresses a pod from before has cannot be asked", "pod", uid, "error", err)
				box = sandbox{id: b[0].Id, attempt: b[0].GetMetadata().GetAttempt(), unknown: true}
			}
			s := r.hasSandbox(uid, box)
			current, out.Sandbox = b[0].Id, &s
		}
	}
	out.Owing = r.recallEmptied(uid, l.boxes, current)
	slices.SortFunc(l.containers, func(a, b *criv1.Container) int {
		return cmp.Or(cmp.Compare(a.GetMetadata().GetName(), b.GetMetadata().GetName()), cmp.Compare(a.GetMetadata().GetAttempt(), b.GetMetadata().GetAttempt()))
	})
	for _, c := range l.containers {
		one, err := r.adoptContainer(ctx, c, pod)
		if err != nil {
			return nil, err
		}
		if one != nil {
			one.Earlier = current == "" || c.PodSandboxId != current
			out.Containers = append(out.Containers, *one)
		}
	}
	return out, nil
}

func idOf(c *criv1.Container) runtime.ID {
	return runtime.ID{Pod: types.UID(c.Labels[labelPodUID]), Container: c.GetMetadata().GetName(), Attempt: int32(c.GetMetadata().GetAttempt())}
}

// adoptContainer takes over one run; nil where it never came to run.
func (r *Runtime) adoptContainer(ctx context.Context, c *criv1.Container, pod *corev1.Pod) (*runtime.Container, error) {
	id := idOf(c)
	s, err := r.status(ctx, c.Id)
	switch {
	case notFound(err):
		return nil, nil
	case errors.Is(asked(err), runtime.ErrUnavailable) && !(deadline(err) && r.answers() == nil): // else it hangs on this one
		return nil, asked(err)
	case err != nil && c.State == criv1.ContainerState_CONTAINER_CREATED:
		return nil, nil // as below
	case err != nil:
		// One that cannot be asked for keeps nobody from being taken over, and is not forgotten: it counts as running until it is known what it is.
		r.log.Error("what has become of a container from before cannot be asked", "container", id.String(), "error", unwrapped(err))
		s = &criv1.ContainerStatus{Id: c.Id, State: criv1.ContainerState_CONTAINER_RUNNING, StartedAt: c.CreatedAt, ImageRef: c.ImageRef, Annotations: c.Annotations}
	case s.State == criv1.ContainerState_CONTAINER_CREATED:
		// It may be about to begin: whoever starts or removes the pod looks at it again.
		return nil, nil
	}
	out := &runtime.Container{ID: id, StartedAt: time.Unix(0, s.StartedAt), Ref: s.Id, ImageID: s.ImageRef, Image: s.Annotations[imageAnnotation],
		User: userOf(s)}
	if s.State == criv1.ContainerState_CONTAINER_EXITED {
		out.Exit = r.exitOf(id, s, pod)
		out.StartedAt = out.Exit.StartedAt
		return out, nil
	}
	r.mu.Lock()
	r.running[id] = running{ref: s.Id, startedAt: out.StartedAt, imageID: s.ImageRef}
	r.mu.Unlock()
	return out, nil
}

// list is everything that is this agent's.
func (r *Runtime) list(ctx context.Context) ([]*criv1.PodSandbox, []*criv1.Container, error) {
	mine := map[string]string{labelNode: r.opts.Node}
	one, cancel := asking(ctx)
	defer cancel()
	boxes, err := r.runtime.ListPodSandbox(one, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{LabelSelector: mine}})
	if err != nil {
		return nil, nil, fmt.Errorf("listing sandboxes: %w", asked(err))
	}
	containers, err := r.listContainers(ctx, mine)
	if err != nil {
		return nil, nil, err
	}
	return boxes.Items, containers, nil
}

// look asks for a listing soon.
func (r *Runtime) look() {
	select {
	case r.kick <- struct{}{}:
	default:
	}
}

// watch lists what runs, again and again, and tells what has ended.
func (r *Runtime) watch() {
	tick := time.NewTimer(listInterval)
	defer tick.Stop()
	failed := 0
	for {
		select {
		case <-r.ctx.Done():
			return
		case <-r.kick:
		case <-tick.C:
		}
		err := r.compare(r.ctx)
		if err != nil && r.ctx.Err() == nil {
			if failed++; failed&(failed-1) == 0 {
				r.log.Warn("what runs cannot be listed", "error", err)
			}
		} else {
			failed = 0
		}
		every := listInterval
		if r.eventful() && err == nil {
			every = listAnyway
		}
		tick.Reset(every)
	}
}

// keepLogs rotates logs, again and again. The runtime has to help with each: listing does not wait for that.
func (r *Runtime) keepLogs() {
	guard.Every(r.ctx, rotateInterval, func(time.Time) { r.rotateLogs(r.ctx) })
}

// compare tells what a listing shows that was not known. Each call that it makes is bounded by itself, so what the runtime is slow with, or hangs
// on, takes nothing from the others; and what is not over in a while goes on beside the next listings.
func (r *Runtime) compare(ctx context.Context) error {
	// What is known is looked at first: what comes up meanwhile is not held against an older listing.
	r.mu.Lock()
	known := make(map[runtime.ID]running, len(r.running))
	for id, c := range r.running {
		known[id] = c
	}
	current := make(map[types.UID]string, len(r.sandboxes))
	unknown := map[types.UID]sandbox{}
	for uid, s := range r.sandboxes {
		if current[uid] = s.id; s.unknown {
			unknown[uid] = s
		}
	}
	unwanted := make([]string, 0, len(r.unwanted))
	for ref := range r.unwanted {
		unwanted = append(unwanted, ref)
	}
	r.mu.Unlock()
	boxes, containers, err := r.list(ctx)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.listedAt = time.Now()
	r.mu.Unlock()
	state := make(map[string]criv1.ContainerState, len(containers))
	for _, c := range containers {
		state[c.Id] = c.State
	}
	ready := map[string]bool{}
	for _, b := range boxes {
		ready[b.Id] = b.State == criv1.PodSandboxState_SANDBOX_READY
	}
	r.forgetFailed(known, current, unwanted)
	verify := r.mayBeWrong()
	var begun []*look
	of := map[types.UID][]*look{}
	for id, c := range known {
		s, there := state[c.ref]
		runs := there && s == criv1.ContainerState_CONTAINER_RUNNING
		if runs && !verify {
			continue
		}
		l := r.begin(c.ref, nil, func() error {
			if runs {
				if lives, err := r.lives(ctx, c.ref); lives || err != nil {
					return err
				}
			}
			return r.lookAt(ctx, id, c)
		})
		begun, of[id.Pod] = append(begun, l), append(of[id.Pod], l)
	}
	for _, ref := range unwanted {
		begun = append(begun, r.begin(ref, nil, func() error { return r.removeUnwanted(ctx, ref) }))
	}
	for uid, box := range unknown {
		if ready[box.id] {
			begun = append(begun, r.begin(box.id, nil, func() error { return r.askAgain(ctx, uid, box) }))
		}
	}
	for uid, id := range current {
		if !ready[id] {
			// How the containers have ended comes before that what they were in is gone: one more listing is waited for where that is not known.
			begun = append(begun, r.begin(id, of[uid], func() error { r.lost(uid, id); return nil }))
		}
	}
	return awaitLooks(ctx, begun) // what cannot be looked at hides nothing of the others
}

// lost tells that a pod's sandbox is not ready any more, if it is the pod's still.
func (r *Runtime) lost(pod types.UID, id string) {
	r.mu.Lock()
	still := r.sandboxes[pod].id == id
	r.mu.Unlock()
	if still {
		r.notify(runtime.Event{ID: runtime.ID{Pod: pod}})
	}
}

// removeUnwanted removes a container that is to go, unless it has come to run nevertheless: then whoever starts or removes its pod finds it.
func (r *Runtime) removeUnwanted(ctx context.Context, ref string) error {
	ctx, cancel := asking(ctx)
	defer cancel()
	s, err := r.status(ctx, ref)
	if err != nil && !notFound(err) {
		return asked(err)
	}
	r.mu.Lock()
	unwanted := r.unwanted[ref] // else it was taken meanwhile
	r.mu.Unlock()
	if err == nil && unwanted && !hasRun(s) {
		if err := r.removeContainer(ctx, ref); err != nil {
			return err
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unwanted, ref)
	return nil
}

// lookAt finds out what has become of a container that does not seem to run any more.
func (r *Runtime) lookAt(ctx context.Context, id runtime.ID, c running) error {
	s, err := r.status(ctx, c.ref)
	switch {
	case notFound(err):
		s = &criv1.ContainerStatus{Id: c.ref, State: criv1.ContainerState_CONTAINER_EXITED, ExitCode: 137, ImageRef: c.imageID,
			Reason: runtime.ReasonStatusUnknown, Message: "The container was removed by others", StartedAt: c.startedAt.UnixNano()}
	case err != nil:
		return asked(err)
	}
	switch s.State {
	case criv1.ContainerState_CONTAINER_EXITED:
		r.ended(id, s)
	case criv1.ContainerState_CONTAINER_UNKNOWN:
		// The runtime has lost track of it. What may be left of it is ended, so that it never runs twice.
		ctx, cancel := asking(ctx)
		defer cancel()
		if _, err := r.runtime.StopContainer(ctx, &criv1.StopContainerRequest{ContainerId: c.ref}); err != nil {
			return asked(err)
		}
	}
	return nil
}

// began takes note of a container that runs, and tells it.
func (r *Runtime) began(id runtime.ID, s *criv1.ContainerStatus) {
	c := running{ref: s.Id, startedAt: time.Unix(0, s.StartedAt), imageID: s.ImageRef}
	r.mu.Lock()
	r.running[id] = c
	r.mu.Unlock()
	r.notify(runtime.Container{ID: id, StartedAt: c.startedAt, Ref: c.ref, ImageID: c.imageID, User: userOf(s)})
}

// userOf is who a container's first process was, where the runtime tells it.
func userOf(s *criv1.ContainerStatus) *corev1.ContainerUser {
	if s.User == nil {
		return nil
	}
	user := &corev1.ContainerUser{}
	if l := s.User.Linux; l != nil {
		user.Linux = &corev1.LinuxContainerUser{UID: l.Uid, GID: l.Gid, SupplementalGroups: l.SupplementalGroups}
	}
	return user
}

// ended tells the end of a container, once.
func (r *Runtime) ended(id runtime.ID, s *criv1.ContainerStatus) {
	x := r.exitOf(id, s, nil)
	r.mu.Lock()
	c, ok := r.running[id]
	if ok = ok && c.ref == s.Id; ok {
		delete(r.running, id)
	}
	r.mu.Unlock()
	if ok {
		r.notify(runtime.Container{ID: id, StartedAt: x.StartedAt, Exit: x, Ref: s.Id, ImageID: s.ImageRef})
	}
}

// follow reads the runtime's events, each of which asks for a listing. A runtime that has none is listed more often.
func (r *Runtime) follow() {
	for r.ctx.Err() == nil {
		stream, err := r.runtime.GetContainerEvents(r.ctx, &criv1.GetEventsRequest{})
		for err == nil {
			if _, err = stream.Recv(); err == nil {
				r.setEventful(true)
				r.look()
			}
		}
		r.setEventful(false)
		if unimplemented(err) {
			return
		}
		timer := time.NewTimer(eventsAgain)
		select {
		case <-r.ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (r *Runtime) eventful() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events
}

func (r *Runtime) setEventful(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = yes
}
