// Package quota bounds directories by project quotas, which ext4 and XFS have where they are mounted with prjquota: what all
// files of a project take on the disk has a limit, and files belong to the project of the directory that they are made in.
package quota

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ErrNone: nobody bounds directories there, because the file system has no project quotas or this process may not set them.
var ErrNone = errors.New("the file system has no project quotas")

// Projects that bound directories are those from firstProject on, that many. Others use small numbers, which people give by
// hand.
const firstProject, projects = 0x6265_0000, 1 << 16

// choosing is held by who looks for a project that nobody has.
var choosing sync.Mutex

// Limit bounds what the files below a directory may take on the disk, in bytes, rounded up to KiB. Those that are there count,
// but those that others make just when it is called for the first time need not. Where there are no project quotas it is
// ErrNone.
func Limit(dir string, bytes int64) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	x, err := attributes(d)
	if err != nil {
		return none(err)
	}
	if isOurs(x.project) {
		return none(setLimit(d, x.project, bytes))
	}
	choosing.Lock()
	defer choosing.Unlock()
	project, err := unused(d, dir)
	if err != nil {
		return none(err)
	}
	if err := setLimit(d, project, bytes); err != nil {
		return none(err)
	}
	return enroll(dir, project)
}

// Has says whether directories can be bounded there: nil, or an error that wraps ErrNone.
func Has(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	if _, err := attributes(d); err != nil {
		return none(err)
	}
	_, err = usage(d, firstProject)
	return none(err)
}

func isOurs(project uint32) bool { return project >= firstProject && project < firstProject+projects }

// none tells what says that there are no project quotas from what else may go wrong.
func none(err error) error {
	for _, means := range []error{unix.ENOSYS, unix.ENOTTY, unix.EOPNOTSUPP, unix.ESRCH, unix.EPERM, unix.EINVAL} {
		if errors.Is(err, means) {
			return fmt.Errorf("%w (%w)", ErrNone, err)
		}
	}
	return err
}

// unused finds a project that no file belongs to, beginning at one that follows from the directory's name.
func unused(d *os.File, dir string) (uint32, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(filepath.Base(dir))) // never fails
	for i := range uint32(projects) {
		project := firstProject + (h.Sum32()+i)%projects
		u, err := usage(d, project)
		if err != nil {
			return 0, err
		}
		if u.inodes == 0 {
			return project, nil
		}
	}
	return 0, fmt.Errorf("all of the projects from %d on are used", uint32(firstProject))
}

// enroll makes all that is below a directory the project's, and the directory last: it says that all is done.
func enroll(dir string, project uint32) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // nothing was written
	err = fs.WalkDir(root.FS(), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == "." || !e.IsDir() && !e.Type().IsRegular() {
			return err
		}
		return enrollOne(root, path, project)
	})
	return errors.Join(err, enrollOne(root, ".", project))
}

func enrollOne(root *os.Root, path string, project uint32) error {
	f, err := root.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	x, err := attributes(f)
	if err != nil {
		return err
	}
	x.project = project
	if fi, err := f.Stat(); err != nil {
		return err
	} else if fi.IsDir() {
		x.flags |= flagInherit
	}
	return ioctl(f, setAttributes, &x)
}

// fsxattr is struct fsxattr of linux/fs.h.
type fsxattr struct {
	flags, _, _, project, _ uint32
	_                       [8]byte
}

// Of linux/fs.h: FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR, FS_XFLAG_PROJINHERIT.
const (
	getAttributes = 0x801c581f
	setAttributes = 0x401c5820
	flagInherit   = 0x200
)

func attributes(f *os.File) (x fsxattr, err error) {
	return x, ioctl(f, getAttributes, &x)
}

func ioctl(f *os.File, request uintptr, with *fsxattr) error {
	return control(f, func(fd uintptr) syscall.Errno {
		_, _, e := unix.Syscall(unix.SYS_IOCTL, fd, request, uintptr(unsafe.Pointer(with))) // #nosec G103 -- ioctl takes a struct by its address
		return e
	})
}

// dqblk is struct if_dqblk of linux/quota.h.
type dqblk struct {
	hardBlocks, softBlocks, space  uint64
	hardInodes, softInodes, inodes uint64
	blocksUntil, inodesUntil       uint64
	valid                          uint32
	_                              uint32
}

// Of linux/quota.h: Q_GETQUOTA and Q_SETQUOTA of projects, and the limits of blocks among what is set.
const (
	ofProjects  = 2
	getQuota    = 0x800007<<8 | ofProjects
	setQuota    = 0x800008<<8 | ofProjects
	validBlocks = 1
	blockBytes  = 1024
)

func usage(f *os.File, project uint32) (u dqblk, err error) {
	return u, quotactl(f, getQuota, project, &u)
}

func setLimit(f *os.File, project uint32, bytes int64) error {
	blocks := (uint64(max(bytes, 1)) + blockBytes - 1) / blockBytes // 0 would be none
	return quotactl(f, setQuota, project, &dqblk{hardBlocks: blocks, softBlocks: blocks, valid: validBlocks})
}

func quotactl(f *os.File, command uintptr, project uint32, with *dqblk) error {
	return control(f, func(fd uintptr) syscall.Errno {
		_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, fd, command, uintptr(project), uintptr(unsafe.Pointer(with)), 0, 0) // #nosec G103 -- quotactl takes a struct by its address
		return e
	})
}

// control calls a system call with the file's descriptor.
func control(f *os.File, call func(fd uintptr) syscall.Errno) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var e syscall.Errno
	if err := raw.Control(func(fd uintptr) { e = call(fd) }); err != nil {
		return err
	}
	if e != 0 {
		return &fs.PathError{Op: "project quota", Path: f.Name(), Err: e}
	}
	return nil
}
