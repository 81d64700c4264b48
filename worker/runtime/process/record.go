package process

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// recordFile is a pod's object as its first container was started with it: a CRC-32C, then its protobuf.
	recordFile = "pod.record"
	// damagedFile is a record that could not be read, kept for whoever wants to know why.
	damagedFile = "pod.record.damaged"
	// besideTimeout is how long a start waits for the end of what an earlier attempt left behind.
	besideTimeout = 2 * time.Second
)

var errDamaged = errors.New("the record is damaged")

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// writeRecord keeps the pod's object, unless it is kept already.
func (r *Runtime) writeRecord(pod *corev1.Pod) error {
	path := filepath.Join(r.podDir(pod.UID), recordFile)
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		return err
	}
	b, err := pod.Marshal()
	if err != nil {
		return err
	}
	b = append(binary.LittleEndian.AppendUint32(nil, checksum(b)), b...)
	return atomicfile.Write(path, b, 0o600)
}

// readRecord returns errors that satisfy os.IsNotExist where there is no record, and errDamaged for one that is not the
// pod's.
func (r *Runtime) readRecord(uid types.UID) (*corev1.Pod, error) {
	b, err := os.ReadFile(filepath.Join(r.podDir(uid), recordFile))
	if err != nil {
		return nil, err
	}
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != checksum(b[4:]) {
		return nil, errDamaged
	}
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(b[4:]); err != nil {
		return nil, fmt.Errorf("%w: %w", errDamaged, err)
	}
	if pod.UID != uid {
		return nil, fmt.Errorf("%w: it is that of pod %s", errDamaged, pod.UID)
	}
	return pod, nil
}

// recover reads a pod's record. A pod whose record is lost while its containers may run is known by its UID and by the
// names of its containers; lost says so. It returns nil for what is only the rest of a pod.
func (r *Runtime) recover(uid types.UID, ids []runtime.ID) (pod *corev1.Pod, lost bool) {
	pod, err := r.readRecord(uid)
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
	path := filepath.Join(r.podDir(uid), recordFile)
	if err := os.Rename(path, filepath.Join(r.podDir(uid), damagedFile)); err != nil && !os.IsNotExist(err) {
		r.log.Error("a damaged record cannot be put aside", "pod", uid, "error", err)
	}
	pod = &corev1.Pod{}
	pod.UID = uid
	names := map[string]bool{}
	for _, id := range ids {
		if !names[id.Container] {
			names[id.Container] = true
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: id.Container})
		}
	}
	return pod, true
}

// attempts lists the containers that the pod has directories for.
func (r *Runtime) attempts(pod types.UID) ([]runtime.ID, error) {
	var out []runtime.ID
	base := filepath.Join(r.podDir(pod), "containers")
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
		for old.Container == id.Container {
			held, err := locked(r.dir(old))
			if err != nil {
				return fmt.Errorf("container %s may still run: %w", old, err)
			}
			left := r.cgroups.processes(old)
			if !held && len(left) == 0 {
				break
			}
			if !held {
				for _, pid := range left {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return fmt.Errorf("container %s may still run: its shim lives: %v, processes in its cgroup: %d", old, held, len(left))
			}
		}
	}
	return nil
}
