package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// What a volume's group may do with its files, and with its directories beside that, as in Kubernetes.
const (
	writableBits  uint32 = 0o660
	readOnlyBits  uint32 = 0o440
	directoryBits uint32 = unix.S_ISGID | 0o110
	permissions   uint32 = 0o7777
	everybodys    uint32 = 0o777 // whoever the containers run as has to get there
)

// unfinished is the mode of a volume's directory that has yet to be given away: whoever made it may have ended in between.
const unfinished uint32 = unix.S_ISVTX | 0o700

func fsGroup(pod *corev1.Pod) *int64 {
	if s := pod.Spec.SecurityContext; s != nil {
		return s.FSGroup
	}
	return nil
}

// giveToGroup makes all that is in a volume the pod's fsGroup's, and at last the volume itself; nil: nobody's in particular. Somebody may be
// writing there meanwhile: each file is held while its mode is read and set, and what vanishes is left, as is what is mounted there. There may be so much
// that it takes hours: it ends with ctx.
func giveToGroup(ctx context.Context, dir *os.File, group *int64, bits uint32) error {
	if group == nil {
		return nil
	}
	give := func(fd int, is *unix.Stat_t) error {
		mode := is.Mode&permissions | bits
		switch is.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			return nil
		case unix.S_IFDIR:
			mode |= directoryBits
		}
		return giveAway(fd, group, mode)
	}
	w := mounts.Walk{Enter: func(e *mounts.Entry) error { return e.Hold(give) }}
	if err := w.Below(ctx, int(dir.Fd())); err != nil {
		return err
	}
	var is unix.Stat_t
	if err := unix.Fstat(int(dir.Fd()), &is); err != nil {
		return err
	}
	return give(int(dir.Fd()), &is)
}

// giveAway makes a file a group's, if there is one, and sets its mode, whatever has its name by now.
func giveAway(fd int, group *int64, mode uint32) error {
	if group != nil {
		if err := unix.Fchownat(fd, "", -1, int(*group), unix.AT_EMPTY_PATH); err != nil {
			return fmt.Errorf("giving it to group %d: %w", *group, err)
		}
	}
	if err := unix.Fchmodat(unix.AT_FDCWD, mounts.PathOf(fd), mode, 0); err != nil { // no later kernel is needed for that
		return fmt.Errorf("setting its mode: %w", err)
	}
	return nil
}

// openVolume opens the directory of a volume.
func openVolume(dir string) (*os.File, error) {
	return os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
}

// finish gives a volume that nothing is in yet to its pod, if that was not done: once, as what the pod makes of it afterwards is the pod's. before is
// called before anybody can write there; nil: nothing is. mode is the directory's, beside what is its group's.
func finish(dir string, mode uint32, group *int64, before func() error) error {
	var is unix.Stat_t
	if err := unix.Lstat(dir, &is); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	if is.Mode&unix.S_IFMT == unix.S_IFDIR && is.Mode&permissions != unfinished { // and perhaps not to be opened by this process
		return nil
	}
	d, err := openVolume(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	if group != nil {
		mode |= writableBits | directoryBits
	}
	if before != nil {
		if err := before(); err != nil {
			return err
		}
	}
	return giveAway(int(d.Fd()), group, mode)
}

// memoryOf is which file system in memory an emptyDir is, and its options; empty: it is on the node's disk. alloc is what the node has for pods.
func memoryOf(pod *corev1.Pod, s *corev1.EmptyDirVolumeSource, alloc corev1.ResourceList) (kind, options string, err error) {
	limit := int64(0)
	if s.SizeLimit != nil {
		limit = s.SizeLimit.Value()
	}
	switch {
	case s.Medium == corev1.StorageMediumDefault:
		return "", "", nil
	case s.Medium == corev1.StorageMediumMemory:
		kind, options = "tmpfs", fmt.Sprintf("mode=%o", unfinished)
		// As in Kubernetes: it has no room for more than the pod, or all pods, may have.
		all := runtime.LimitsOf(pod)
		limit = leastLimit(limit, all.Memory().Value(), alloc.Memory().Value())
	case strings.HasPrefix(string(s.Medium), string(corev1.StorageMediumHugePages)):
		size, err := hugepages.OfVolume(pod, s.Medium)
		if err != nil {
			return "", "", err
		}
		kind, options = "hugetlbfs", fmt.Sprintf("mode=%o,pagesize=%d", unfinished, size)
	default:
		return "", "", fmt.Errorf("there is no medium %q", s.Medium)
	}
	if limit > 0 {
		options = fmt.Sprintf("%s,size=%d", options, limit)
	}
	return kind, options, nil
}

// leastLimit is the least of limits that are set; 0: none is.
func leastLimit(limits ...int64) (least int64) {
	for _, l := range limits {
		if l > 0 && (least == 0 || l < least) {
			least = l
		}
	}
	return least
}

// emptyDir makes the volume, once: what the pod does with it afterwards is the pod's. kind is its file system in memory; empty: it has none.
func emptyDir(dir, kind, options string, group *int64) error {
	if err := unix.Mkdir(dir, unfinished); err != nil && !errors.Is(err, unix.EEXIST) {
		return &os.PathError{Op: "mkdir", Path: dir, Err: err}
	}
	if kind != "" {
		mounted, err := isMounted(dir)
		if err != nil {
			return err
		}
		if !mounted {
			if err := unix.Mount("berth", dir, kind, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
				return fmt.Errorf("mounting its file system in memory: %w", err)
			}
		}
	}
	mode := everybodys
	if kind == "tmpfs" {
		mode |= unix.S_ISVTX // as the kernel makes one, and a kubelet leaves it: nobody removes what others have made
	}
	return finish(dir, mode, group, nil)
}

// isMounted says whether something is mounted at a directory: it is on another device than the one above it.
func isMounted(dir string) (bool, error) {
	var at, above unix.Stat_t
	err := errors.Join(unix.Lstat(dir, &at), unix.Lstat(filepath.Dir(dir), &above))
	return at.Dev != above.Dev, err
}

// use measures what the pod's volumes hold of the node's disk: those that have a limit, and with all also the others. With an error it is what they
// hold in any case.
func (v *Volumes) use(ctx context.Context, pod *corev1.Pod, all bool) (localUse, error) {
	u := localUse{volumes: map[string]int64{}, memory: map[string]Disk{}}
	var errs []error
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		if all && vol.EmptyDir != nil && vol.EmptyDir.Medium == corev1.StorageMediumMemory {
			dir := v.dir(pod.UID, vol.Name)
			if mounted, err := isMounted(dir); err == nil && mounted { // else no container has asked for it yet
				if d, err := ReadDisk(dir); err == nil {
					u.memory[vol.Name] = d
				}
			}
			continue
		}
		onDisk := vol.EmptyDir != nil && vol.EmptyDir.Medium == corev1.StorageMediumDefault
		if diskLimit(vol) == nil && !(all && (onDisk || runtime.ShowsObjects(vol))) {
			continue
		}
		used, err := mounts.Usage(ctx, v.dir(pod.UID, vol.Name))
		if err != nil {
			errs = append(errs, fmt.Errorf("measuring volume %q: %w", vol.Name, err))
		}
		if onDisk {
			u.volumes[vol.Name] = used.Bytes
		} else {
			u.objects += used.Bytes
		}
		u.inodes += used.Inodes
	}
	return u, errors.Join(errs...)
}
