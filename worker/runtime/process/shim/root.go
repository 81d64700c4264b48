package shim

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// Home is where a container finds what is its own, in a root of its own: its scratch directory and its last words.
const Home = "/.berth"

// root is a container's view of the file system while it is being made, in the mount namespace that the shim was started
// in: a small file system in memory whose entries are those of the host's root. Mount points that the host does not have
// are made in it, or on a layer over the host's directory. Nothing of it shows on the host, and it goes with the last
// process of the container.
//
// Files are named by descriptors throughout: no symbolic link that a container changes meanwhile leads elsewhere.
type root struct {
	config *Root
	fd     int             // the new root
	own    map[uint64]bool // mounts in which mount points may be made: no directory of the host is below
	layers []int           // their descriptors
}

// source is a volume or file of the host, cut loose from where it is mounted.
type source struct {
	tree *os.File // a detached mount
	dir  bool
}

// enter makes the root and moves the process into it. It needs Linux 5.12.
func (c *Root) enter(mounts []Mount) error {
	// What the host mounts and unmounts from now on is seen here; what is mounted here is not seen there.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("parting from the host's mounts: %w", err)
	}
	mounts = slices.Clone(mounts)
	// Outer ones first, or they would hide the inner ones.
	slices.SortStableFunc(mounts, func(a, b Mount) int {
		return cmp.Compare(len(filepath.Clean(a.Target)), len(filepath.Clean(b.Target)))
	})
	sources := make([]source, len(mounts))
	for i := range mounts {
		var err error
		if sources[i], err = openSource(&mounts[i]); err != nil {
			return fmt.Errorf("volume for %s: %w", mounts[i].Target, err)
		}
		defer sources[i].tree.Close()
	}
	c.dropHidden()
	r := &root{config: c, fd: -1, own: map[uint64]bool{}}
	defer r.close()
	if err := r.assemble(); err != nil {
		return fmt.Errorf("making the container's root: %w", err)
	}
	for i := range mounts {
		if err := r.attach(sources[i], mounts[i].Target); err != nil {
			return fmt.Errorf("mounting a volume at %s: %w", mounts[i].Target, err)
		}
	}
	if c.ReadOnly {
		for _, fd := range append(r.layers, r.fd) {
			if err := setAttr(fd, unix.MOUNT_ATTR_RDONLY, 0, false); err != nil {
				return fmt.Errorf("making the container's root read-only: %w", err)
			}
		}
	}
	return r.pivot()
}

func (r *root) close() {
	for _, fd := range append(r.layers, r.fd) {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

// MayMount says whether the kernel has what a root is made with. The caller's thread is in a mount namespace of its own.
func MayMount() error {
	tree, err := cloneTree(unix.AT_FDCWD, "/")
	if err != nil {
		return fmt.Errorf("open_tree: %w", err)
	}
	defer unix.Close(tree)
	if err := setAttr(tree, unix.MOUNT_ATTR_RDONLY, unix.MS_PRIVATE, true); err != nil {
		return fmt.Errorf("mount_setattr: %w", err)
	}
	return nil
}

// openSource finds what is to be mounted and cuts it loose. A sub path is looked for, and made where there is nothing,
// without ever leaving the volume.
func openSource(m *Mount) (source, error) {
	fd, err := unix.Open(m.Source, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return source{}, err
	}
	defer func() { unix.Close(fd) }()
	if m.SubPath != "" {
		sub, err := openSubPath(fd, m.Source, m.SubPath)
		if err != nil {
			return source{}, fmt.Errorf("sub path %q: %w", m.SubPath, err)
		}
		unix.Close(fd)
		fd = sub
	}
	dir, err := isDir(fd)
	if err != nil {
		return source{}, err
	}
	tree, err := cloneTree(fd, "")
	if err != nil {
		return source{}, err
	}
	s := source{tree: os.NewFile(uintptr(tree), m.Source), dir: dir}
	propagation := uint64(unix.MS_PRIVATE)
	if m.Follow {
		propagation = unix.MS_SLAVE
	}
	if err := setAttr(tree, 0, propagation, true); err != nil {
		s.tree.Close()
		return s, err
	}
	if m.ReadOnly {
		if err := setAttr(tree, unix.MOUNT_ATTR_RDONLY, 0, m.Recursive); err != nil {
			s.tree.Close()
			return s, fmt.Errorf("making it read-only: %w", err)
		}
	}
	return s, nil
}

func openSubPath(volume int, path, sub string) (int, error) {
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	fd, err := unix.Openat2(volume, sub, how)
	if err != unix.ENOENT {
		return fd, err
	}
	if err := mounts.MakeBeneath(path, sub); err != nil {
		return -1, err
	}
	return unix.Openat2(volume, sub, how)
}

func cloneTree(dir int, path string) (int, error) {
	return unix.OpenTree(dir, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_RECURSIVE|unix.AT_EMPTY_PATH|unix.AT_SYMLINK_NOFOLLOW)
}

func setAttr(fd int, attrs, propagation uint64, recursive bool) error {
	flags := uint(unix.AT_EMPTY_PATH)
	if recursive {
		flags |= unix.AT_RECURSIVE
	}
	return unix.MountSetattr(fd, "", flags, &unix.MountAttr{Attr_set: attrs, Propagation: propagation})
}

func isDir(fd int) (bool, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return false, err
	}
	return st.Mode&unix.S_IFMT == unix.S_IFDIR, nil
}

// dropHidden unmounts, in this namespace alone, what is mounted below the directories that the container must not see:
// the volumes in memory of others, which would otherwise live as long as this container.
func (c *Root) dropHidden() {
	for _, dir := range c.Hide {
		below, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
		if err != nil {
			continue // they are covered all the same
		}
		for _, m := range below {
			if m.Mountpoint != dir {
				_ = unix.Unmount(m.Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
			}
		}
	}
}

// assemble makes the new root: the host's entries in a file system of its own.
func (r *root) assemble() error {
	entries, err := os.ReadDir("/")
	if err != nil {
		return err
	}
	type entry struct {
		fs.DirEntry
		tree int
	}
	trees := make([]entry, 0, len(entries))
	for _, e := range entries {
		x := entry{e, -1}
		if e.IsDir() || e.Type().IsRegular() {
			if x.tree, err = cloneTree(unix.AT_FDCWD, "/"+e.Name()); err != nil {
				return fmt.Errorf("/%s: %w", e.Name(), err)
			}
			defer unix.Close(x.tree)
		}
		trees = append(trees, x)
	}
	if err := unix.Mount("berth", r.config.Dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755,size=16m"); err != nil {
		return err
	}
	if r.fd, err = unix.Open(r.config.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return err
	}
	if err := r.claim(r.fd); err != nil {
		return err
	}
	for _, e := range trees {
		if err := r.place(e.DirEntry, e.tree); err != nil {
			return fmt.Errorf("/%s: %w", e.Name(), err)
		}
	}
	for _, dir := range r.config.Hide {
		if err := r.hide(dir); err != nil {
			return fmt.Errorf("hiding %s: %w", dir, err)
		}
	}
	if r.config.Masked {
		if err := r.mask(); err != nil {
			return err
		}
	}
	return unix.Mkdirat(r.fd, Home[1:], 0o755)
}

// place puts one entry of the host's root into the new one.
func (r *root) place(e fs.DirEntry, tree int) error {
	switch {
	case e.Type()&fs.ModeSymlink != 0:
		to, err := os.Readlink("/" + e.Name())
		if err != nil {
			return err
		}
		return unix.Symlinkat(to, r.fd, e.Name())
	case tree < 0 || "/"+e.Name() == Home:
		return nil // a socket or a pipe in the root is nobody's
	case e.IsDir():
		if err := unix.Mkdirat(r.fd, e.Name(), 0o755); err != nil {
			return err
		}
	default:
		if err := touchAt(r.fd, e.Name()); err != nil {
			return err
		}
	}
	if r.config.ReadOnly && !slices.Contains([]string{"dev", "proc"}, e.Name()) {
		if err := setAttr(tree, unix.MOUNT_ATTR_RDONLY, 0, true); err != nil {
			return err
		}
	}
	return unix.MoveMount(tree, "", r.fd, e.Name(), unix.MOVE_MOUNT_F_EMPTY_PATH)
}

func touchAt(dir int, name string) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDONLY|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// hide covers a directory with an empty one that nobody can change.
func (r *root) hide(dir string) error {
	fd, err := r.open(dir)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Mount("berth", procPath(fd), "tmpfs", unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0555,size=4k")
}

// mask takes away what a container has no business with in /proc and /sys: the paths that every runtime masks.
func (r *root) mask() error {
	for _, path := range [...]string{"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys",
		"/proc/latency_stats", "/proc/scsi", "/proc/sched_debug", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware"} {
		if err := r.cover(path, "/dev/null"); err != nil {
			return fmt.Errorf("masking %s: %w", path, err)
		}
	}
	for _, path := range [...]string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"} {
		if err := r.cover(path, path); err != nil {
			return fmt.Errorf("making %s read-only: %w", path, err)
		}
	}
	return nil
}

// cover mounts a file of the host, read-only, over one that is there; a directory is covered by an empty one where it is
// not by itself.
func (r *root) cover(path, with string) error {
	fd, err := r.open(path)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if dir, err := isDir(fd); err != nil {
		return err
	} else if dir && with != path {
		return r.hide(path)
	}
	tree, err := cloneTree(unix.AT_FDCWD, with)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	if err := setAttr(tree, unix.MOUNT_ATTR_RDONLY, 0, true); err != nil {
		return err
	}
	return unix.MoveMount(tree, "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// open finds a path of the new root as the container will.
func (r *root) open(path string) (int, error) {
	return unix.Openat2(r.fd, path, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
}

// claim allows mount points to be made in the mount that fd is in.
func (r *root) claim(fd int) error {
	id, err := mountID(fd)
	if err == nil {
		r.own[id] = true
	}
	return err
}

func mountID(fd int) (uint64, error) {
	var st unix.Statx_t
	err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st)
	return st.Mnt_id, err
}

// pivot makes the new root that of the whole process; the host's is nowhere any more.
func (r *root) pivot() error {
	if err := unix.Chdir(r.config.Dir); err != nil {
		return err
	}
	err := unix.PivotRoot(".", ".")
	if err == unix.EINVAL {
		// The host runs from its initial file system, which cannot be exchanged.
		if err = unix.Mount(".", "/", "", unix.MS_MOVE, ""); err == nil {
			err = unix.Chroot(".")
		}
	} else if err == nil {
		err = unix.Unmount(".", unix.MNT_DETACH)
	}
	if err != nil {
		return fmt.Errorf("entering the container's root: %w", err)
	}
	return unix.Chdir("/")
}
