package worker

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// What a volume's group may do with its files, and with its directories beside that, as in Kubernetes.
const (
	writableBits  fs.FileMode = 0o660
	readOnlyBits  fs.FileMode = 0o440
	directoryBits             = fs.ModeSetgid | 0o110
)

func fsGroup(pod *corev1.Pod) *int64 {
	if s := pod.Spec.SecurityContext; s != nil {
		return s.FSGroup
	}
	return nil
}

func groupOf(fi fs.FileInfo) int64 {
	if s, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int64(s.Gid)
	}
	return -1
}

// giveToGroup makes all that is in a volume the pod's fsGroup's, and at last the volume itself; nil: nobody's in particular. Somebody may be
// writing there meanwhile: no link leads out, and what vanishes is left. There may be so much that it takes hours: it ends with ctx.
func giveToGroup(ctx context.Context, root *os.Root, group *int64, bits fs.FileMode) error {
	if group == nil {
		return nil
	}
	give := func(path string, fi fs.FileInfo) error {
		mode := fi.Mode() | bits
		if fi.IsDir() {
			mode |= directoryBits
		}
		return errors.Join(root.Lchown(path, -1, int(*group)), root.Chmod(path, mode&(fs.ModePerm|fs.ModeSetgid|fs.ModeSetuid|fs.ModeSticky)))
	}
	err := fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil || path == "." || e.Type()&fs.ModeSymlink != 0 {
			return err
		}
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return give(path, fi)
	})
	if err != nil {
		return err
	}
	fi, err := root.Stat(".")
	if err != nil {
		return err
	}
	return give(".", fi)
}

// memoryOf is which file system in memory an emptyDir is, and its options; empty: it is on the node's disk.
func memoryOf(pod *corev1.Pod, s *corev1.EmptyDirVolumeSource) (kind, options string, err error) {
	switch {
	case s.Medium == corev1.StorageMediumDefault:
		return "", "", nil
	case s.Medium == corev1.StorageMediumMemory:
		kind, options = "tmpfs", "mode=0777"
	case strings.HasPrefix(string(s.Medium), string(corev1.StorageMediumHugePages)):
		size, err := hugepages.OfVolume(pod, s.Medium)
		if err != nil {
			return "", "", err
		}
		kind, options = "hugetlbfs", fmt.Sprintf("mode=0777,pagesize=%d", size)
	default:
		return "", "", fmt.Errorf("there is no medium %q", s.Medium)
	}
	if s.SizeLimit != nil && s.SizeLimit.Sign() > 0 {
		options = fmt.Sprintf("%s,size=%d", options, s.SizeLimit.Value())
	}
	return kind, options, nil
}

// emptyDir makes the volume, once: what the pod does with it afterwards is the pod's. kind is its file system in memory; empty: it has none.
func emptyDir(dir, kind, options string, group *int64) error {
	err := os.Mkdir(dir, 0o777) // #nosec G301 -- whoever the containers run as has to get there
	if err != nil && !os.IsExist(err) {
		return err
	}
	made := err == nil
	if kind != "" {
		mounted, err := isMounted(dir)
		if err != nil {
			return err
		}
		if !mounted {
			if err := unix.Mount("berth", dir, kind, unix.MS_NOSUID|unix.MS_NODEV, options); err != nil {
				return fmt.Errorf("mounting its file system in memory: %w", err)
			}
			made = true
		}
	}
	if !made {
		return nil
	}
	if err := os.Chmod(dir, 0o777); err != nil { // #nosec G302 -- whoever the containers run as
		return err
	}
	root, err := os.OpenRoot(dir) // nothing is in it yet
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written
	return giveToGroup(context.Background(), root, group, writableBits)
}

// isMounted says whether something is mounted at a directory: it is on another device than the one above it.
func isMounted(dir string) (bool, error) {
	var at, above unix.Stat_t
	err := errors.Join(unix.Lstat(dir, &at), unix.Lstat(filepath.Dir(dir), &above))
	return at.Dev != above.Dev, err
}

// use measures what the pod's volumes hold of the node's disk: those that have a limit, and with all also the others.
func (v *Volumes) use(ctx context.Context, pod *corev1.Pod, all bool) (localUse, error) {
	u := localUse{volumes: map[string]int64{}}
	for i := range pod.Spec.Volumes {
		vol := &pod.Spec.Volumes[i]
		onDisk := vol.EmptyDir != nil && vol.EmptyDir.Medium == corev1.StorageMediumDefault
		if diskLimit(vol) == nil && !(all && (onDisk || runtime.ShowsObjects(vol))) {
			continue
		}
		used, err := mounts.Usage(ctx, v.dir(pod.UID, vol.Name))
		if err != nil {
			return u, fmt.Errorf("measuring volume %q: %w", vol.Name, err)
		}
		if onDisk {
			u.volumes[vol.Name] = used.Bytes
		} else {
			u.objects += used.Bytes
		}
		u.inodes += used.Inodes
	}
	return u, nil
}
