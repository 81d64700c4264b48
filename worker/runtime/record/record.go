// Package record keeps a pod's object on the node's disk, as its first container was started with it, so that a worker
// that is started again knows the pods that it finds. It must never hand out an object of which it is not sure.
package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/atomicfile"
)

const (
	// File is the record in the pod's directory: a CRC-32C, then the object's protobuf.
	File = "pod.record"
	// damagedFile is a record that could not be read, kept for whoever wants to know why.
	damagedFile = "pod.record.damaged"
)

// ErrDamaged is a record that is not that of the pod.
var ErrDamaged = errors.New("the record is damaged")

func checksum(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// Write keeps the pod's object in dir, unless one of the same spec is kept there already.
func Write(dir string, pod *corev1.Pod) error {
	path := filepath.Join(dir, File)
	if old, err := Read(dir, pod.UID); err == nil && equality.Semantic.DeepEqual(old.Spec, pod.Spec) {
		return nil
	}
	b, err := pod.Marshal()
	if err != nil {
		return err
	}
	b = append(binary.LittleEndian.AppendUint32(nil, checksum(b)), b...)
	return atomicfile.Write(path, b, 0o600)
}

// Read returns errors that satisfy os.IsNotExist where there is no record, and ErrDamaged for one that is not the pod's.
func Read(dir string, uid types.UID) (*corev1.Pod, error) {
	b, err := os.ReadFile(filepath.Join(dir, File))
	if err != nil {
		return nil, err
	}
	if len(b) < 4 || binary.LittleEndian.Uint32(b) != checksum(b[4:]) {
		return nil, ErrDamaged
	}
	pod := &corev1.Pod{}
	if err := pod.Unmarshal(b[4:]); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if pod.UID != uid {
		return nil, fmt.Errorf("%w: it is that of pod %s", ErrDamaged, pod.UID)
	}
	return pod, nil
}

// Replace puts a record that cannot be read aside, and returns what is known of the pod without it: its UID, and the
// names of its containers, some of them perhaps several times.
func Replace(dir string, uid types.UID, containers []string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	pod.UID = uid
	known := map[string]bool{}
	for _, name := range containers {
		if !known[name] {
			known[name] = true
			pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name})
		}
	}
	err := atomicfile.Rename(filepath.Join(dir, File), filepath.Join(dir, damagedFile))
	if os.IsNotExist(err) {
		err = nil
	}
	return pod, err
}

// Remove forgets the pod's object, with what a write that was cut off has left, and the directory where nothing else is in it.
// Nobody may be writing the record.
func Remove(dir string) error {
	if err := atomicfile.Sweep(dir); err != nil {
		return err
	}
	for _, name := range [...]string{File, damagedFile, File + ".tmp"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	_ = os.Remove(dir) // others may keep something there
	return nil
}
