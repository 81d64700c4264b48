package shim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// attach mounts a source where the container expects it.
func (r *root) attach(s source, target string) error {
	target = filepath.Clean(target)
	if !filepath.IsAbs(target) || target == "/" {
		return errors.New("the path must be absolute and not the root")
	}
	fd, err := r.open(target)
	if errors.Is(err, unix.ENOENT) {
		fd, err = r.makePoint(target, s.dir)
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	dir, err := isDir(fd)
	if err != nil {
		return err
	}
	if dir != s.dir {
		return fmt.Errorf("the volume is %s and the path is %s", kindOf(s.dir), kindOf(dir))
	}
	if err := unix.MoveMount(int(s.tree.Fd()), "", fd, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH); err != nil {
		return err
	}
	at, err := r.open(target)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return r.claim(at)
}

func kindOf(dir bool) string {
	if dir {
		return "a directory"
	}
	return "a file"
}

// makePoint makes a mount point that the host does not have.
func (r *root) makePoint(target string, dir bool) (int, error) {
	above, fd, err := r.nearest(target)
	if err != nil {
		return -1, err
	}
	defer func() { unix.Close(fd) }()
	id, err := mountID(fd)
	if err != nil {
		return -1, err
	}
	if !r.own[id] {
		if err := r.layer(above, fd); err != nil {
			return -1, fmt.Errorf("%s is not on this node, and no layer can be laid over %s to make it in: %w", target, above, err)
		}
		unix.Close(fd)
		if fd, err = r.open(above); err != nil {
			return -1, err
		}
	}
	missing, err := filepath.Rel(above, target)
	if err != nil {
		return -1, err
	}
	names := strings.Split(missing, "/")
	for i, name := range names {
		if !dir && i == len(names)-1 {
			err = touchAt(fd, name)
		} else {
			err = unix.Mkdirat(fd, name, 0o755)
		}
		if err != nil {
			return -1, fmt.Errorf("making %s: %w", target, err)
		}
		next, err := unix.Openat(fd, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		unix.Close(fd)
		fd = next
	}
	point := fd
	fd = -1
	return point, nil
}

// nearest is the directory above target that is there.
func (r *root) nearest(target string) (string, int, error) {
	for above := filepath.Dir(target); ; above = filepath.Dir(above) {
		fd, err := r.open(above)
		if errors.Is(err, unix.ENOENT) && above != "/" {
			continue
		}
		return above, fd, err
	}
}

// layer lays a writable layer over a directory of the host. What is mounted below it is mounted there again.
func (r *root) layer(path string, fd int) error {
	resolved, err := os.Readlink(procPath(fd))
	if err != nil {
		return err
	}
	inner, err := r.innerMounts(resolved)
	if err != nil {
		return err
	}
	defer func() {
		for _, m := range inner {
			unix.Close(m.tree)
		}
	}()
	base := fmt.Sprintf("%s/layer-%d", Home[1:], len(r.layers))
	for _, dir := range [...]string{base, base + "/upper", base + "/work"} {
		if err := unix.Mkdirat(r.fd, dir, 0o700); err != nil {
			return err
		}
	}
	// The directory looks as it did.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	upper := filepath.Join(r.config.Dir, base, "upper")
	if err := errors.Join(os.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777)); err != nil {
		return err
	}
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s/%s/upper,workdir=%s/%s/work", procPath(fd), procPath(r.fd), base, procPath(r.fd), base)
	if err := unix.Mount("berth", procPath(fd), "overlay", 0, options); err != nil {
		return err
	}
	over, err := r.open(path)
	if err != nil {
		return err
	}
	r.layers = append(r.layers, over)
	for _, m := range inner {
		if err := unix.MoveMount(m.tree, "", over, m.below, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
			return fmt.Errorf("mounting %s again: %w", m.below, err)
		}
	}
	return r.claim(over)
}

type innerMount struct {
	below string // relative to the directory
	tree  int
}

// innerMounts are the mounts below a directory, without those below another one of them.
func (r *root) innerMounts(dir string) ([]innerMount, error) {
	all, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return nil, err
	}
	var points []string
	for _, m := range all {
		if m.Mountpoint != dir && strings.HasPrefix(m.Mountpoint, dir+"/") {
			points = append(points, m.Mountpoint)
		}
	}
	slices.Sort(points)
	var out []innerMount
	last := ""
	for _, p := range points {
		if last != "" && (p == last || strings.HasPrefix(p, last+"/")) {
			continue
		}
		tree, err := cloneTree(unix.AT_FDCWD, p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p, err)
		}
		last = p
		out = append(out, innerMount{strings.TrimPrefix(p, dir+"/"), tree})
	}
	return out, nil
}
