package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/record"
)

// besideTimeout is how long a start waits for the end of what an earlier attempt left behind.
const besideTimeout = 2 * time.Second

// recover reads a pod's record. A pod whose record is lost while its containers may run is known by its UID and by the
// names of its containers; lost says so. It returns nil for what is only the rest of a pod.
func (r *Runtime) recover(uid types.UID, ids []runtime.ID) (pod *corev1.Pod, lost bool) {
	pod, err := record.Read(r.podDir(uid), uid)
	if err == nil {
		return pod, false
	}
	if os.IsNotExist(err) {
		alive := false
		for _, id := range ids {
			held, lerr := locked(r.dir(id))
			alive = alive || held || lerr != nil
		}
		if !alive {
			return nil, false // the agent ended before the pod's first container was begun, or while the pod was being removed
		}
	}
	r.log.Error("a pod's record cannot be read; its containers are taken over by what their shims say", "pod", uid, "error", err)
	names := make([]string, len(ids))
	for i, id := range ids {
		names[i] = id.Container
	}
	pod, err = record.Replace(r.podDir(uid), uid, names)
	if err != nil {
		r.log.Error("a damaged record cannot be put aside", "pod", uid, "error", err)
	}
	return pod, true
}

// attempts lists the containers that the pod has directories for.
func (r *Runtime) attempts(pod types.UID) ([]runtime.ID, error) {
	var out []runtime.ID
	base := filepath.Join(r.podDir(pod), containersDir)
	names, err := os.ReadDir(base)
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	for _, n := range names {
		numbers, err := os.ReadDir(filepath.Join(base, n.Name()))
		if err != nil {
			return nil, err
		}
		for _, a := range numbers {
			if i, err := strconv.ParseInt(a.Name(), 10, 32); err == nil {
				out = append(out, runtime.ID{Pod: pod, Container: n.Name(), Attempt: int32(i)})
			}
		}
	}
	return out, nil
}

// alone makes sure that no process of an earlier run of the container may still be there: a container never runs twice.
// What a shim that is gone left behind is killed; a shim that lives, and that nobody could take over, is not.
func (r *Runtime) alone(ctx context.Context, id runtime.ID, earlier []runtime.ID) error {
	ctx, cancel := context.WithTimeout(ctx, besideTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for _, old := range earlier {
		if old.Container != id.Container {
			continue
		}
		for {
			held, err := locked(r.dir(old))
			if err != nil {
				return fmt.Errorf("container %s may still run: %w", old, err)
			}
			if !held {
				break
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("container %s may still run: its shim lives", old)
			}
		}
		if err := r.cgroups.end(ctx, old); err != nil {
			return fmt.Errorf("container %s may still run: %w", old, err)
		}
	}
	return nil
}
