package worker

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// Volumes that are not below Volumes.Root: another machine may have what is in them, also in a directory of this one, and whoever looks into
// them may wait in the kernel for good. So nobody does who has something that others wait for.

const (
	// asideAfter is how long a call is among those of which only so many are under way, while it waits for a volume.
	asideAfter = time.Second
	// mostReaching bounds what waits in the kernel: each has a thread. mostOfOne bounds what of that waits for the same server, or for the same path
	// of the host: one that is gone takes no places from the others.
	mostReaching, mostOfOne = 256, 32
)

type asideKey struct{}

// withAside has aside called, as often as it likes, when the call turns out to wait for another machine.
func withAside(ctx context.Context, aside func()) context.Context {
	return context.WithValue(ctx, asideKey{}, aside)
}

// stepAside calls it, unless it is stopped before.
func stepAside(ctx context.Context) (stop func() bool) {
	aside, ok := ctx.Value(asideKey{}).(func())
	if !ok {
		return func() bool { return true }
	}
	return time.AfterFunc(asideAfter, aside).Stop
}

// outside prepares a volume that is not below Root, or is another machine's, and says whether it may only be read.
func (v *Volumes) outside(ctx context.Context, r *resolver, vol *corev1.Volume) (source string, readOnly bool, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, callTimeout, errors.New("it does not answer"))
	defer cancel()
	ctx, r.giveUp = context.WithCancelCause(ctx)
	defer r.giveUp(nil)
	type found struct {
		source   string
		readOnly bool
	}
	defer stepAside(ctx)()
	var pv *corev1.PersistentVolume
	owner := func() (_ string, err error) {
		if vol.HostPath == nil && vol.NFS == nil {
			pv, err = r.claimed(ctx, vol)
		}
		if err != nil {
			return "", err
		}
		return whose(vol, pv), nil
	}
	result := make(chan found, 1)
	err = v.reach(ctx, r.pod.UID, owner, func(kept *podVolumes) error {
		var f found
		var err error
		switch {
		case vol.HostPath != nil:
			f.source, err = vol.HostPath.Path, hostPath(vol.HostPath)
		case vol.NFS != nil:
			f.readOnly = vol.NFS.ReadOnly
			f.source, err = v.nfs(ctx, r, vol.Name, vol.NFS, nil, f.readOnly)
		default:
			f.source, f.readOnly, err = v.persistent(ctx, r, vol, pv, kept)
			kept.given[vol.Name] = kept.given[vol.Name] || err == nil
		}
		result <- f
		return err
	})
	if err != nil {
		return "", false, err
	}
	f := <-result
	return f.source, f.readOnly, nil
}

// whose is who has to answer for a volume: a server, or a path of the host.
func whose(vol *corev1.Volume, pv *corev1.PersistentVolume) string {
	path := ""
	switch {
	case vol.NFS != nil:
		return serverOf(vol.NFS.Server)
	case vol.HostPath != nil:
		path = vol.HostPath.Path
	case pv.Spec.NFS != nil:
		return serverOf(pv.Spec.NFS.Server)
	case pv.Spec.Local != nil:
		path = pv.Spec.Local.Path
	case pv.Spec.HostPath != nil:
		path = pv.Spec.HostPath.Path
	default:
		return "volume " + pv.Name
	}
	if server := mounts.ServerOf(path); server != "" {
		return serverOf(server)
	}
	return "path " + filepath.Clean(path)
}

func serverOf(name string) string { return "server " + strings.Trim(name, "[]") }

// reach calls f, and gives it up when ctx ends; for one pod it is called by one at a time, whether anybody still waits for it or not. It is told
// before whom f will wait for.
func (v *Volumes) reach(ctx context.Context, pod types.UID, owner func() (string, error), f func(kept *podVolumes) error) error {
	kept := v.of(pod)
	for {
		select {
		case kept.reaching <- struct{}{}:
		case <-ctx.Done():
			v.leave(pod, kept)
			return context.Cause(ctx) // as who has the token would say
		}
		now := v.of(pod)
		if now == kept {
			break
		}
		<-kept.reaching // the pod's volumes were removed meanwhile
		kept = now
	}
	over := func() {
		<-kept.reaching
		v.leave(pod, kept)
	}
	if ctx.Err() != nil { // of a pod that nobody waits for any more
		over()
		return context.Cause(ctx)
	}
	whose, err := owner()
	if err == nil {
		err = v.mayReach(whose)
	}
	if err != nil {
		over()
		return err
	}
	return mounts.Apart(ctx, func() error {
		defer over()
		defer v.reached(whose)
		return f(kept)
	})
}

// mayReach takes a place for one more that waits.
func (v *Volumes) mayReach(whose string) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := 0
	// order does not matter: it is a sum.
	for _, n := range v.reaching {
		all += n
	}
	switch {
	case v.reaching[whose] >= mostOfOne:
		return fmt.Errorf("%d volumes of the %s already do not answer", mostOfOne, whose)
	case all >= mostReaching:
		return fmt.Errorf("there are %d volumes already that do not answer", mostReaching)
	}
	if v.reaching == nil {
		v.reaching = map[string]int{}
	}
	v.reaching[whose]++
	return nil
}

// reached gives the place back.
func (v *Volumes) reached(whose string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reaching[whose]--; v.reaching[whose] == 0 {
		delete(v.reaching, whose)
	}
}

// free has those containers of the pod go on, to their end, that wait in the kernel for a server of nfs that does not answer. It does
// nothing while another one does it for the pod.
func (v *Volumes) free(ctx context.Context, pod *corev1.Pod, tell func(pod *corev1.Pod, eventType, reason, message string)) error {
	kept := v.of(pod.UID)
	if !kept.freeing.TryLock() {
		return nil
	}
	defer v.leave(pod.UID, kept)
	defer kept.freeing.Unlock()
	freed, err := mounts.Free(ctx, filepath.Join(v.Root, string(pod.UID)), string(pod.UID))
	for _, what := range freed {
		if tell != nil && !kept.told[what] {
			kept.told[what] = true
			tell(pod, corev1.EventTypeWarning, "FailedKillPod",
				fmt.Sprintf("What was killed waits for %s, which does not answer: what it has not written there is given up", what))
		}
	}
	return err
}
