// Package quota bounds directories by project quotas, which ext4 and XFS have where they are mounted with prjquota: what all
// files of a project take on the disk has a limit, and files belong to the project of the directory that they are made in.
package quota

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// ErrNone: nobody bounds directories there, because the file system has no project quotas or this process may not set them.
var ErrNone = errors.New("the file system has no project quotas")

// Projects that bound directories are those from firstProject on, that many. Others use small numbers, which people give by
// hand.
const firstProject, projects = 0x6265_0000, 1 << 16

// chosen are the projects that somebody has begun to use, and the directories that somebody bounds: to make all of one a project's may take long, and
// others choose meanwhile.
var chosen struct {
	sync.Mutex
	taken map[uint32]bool
	dirs  map[fileID]chan struct{} // closed when it is over
}

// fileID is which directory it is, whatever it is called.
type fileID struct{ dev, ino uint64 }

// alone waits until nobody else bounds a directory: two who began with it would each choose a project, and its files would belong to both.
func alone(d *os.File) (over func(), err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return nil, err
	}
	id, mine := fileID{uint64(st.Dev), st.Ino}, make(chan struct{})
	for {
		chosen.Lock()
		other := chosen.dirs[id]
		if other == nil {
			break
		}
		chosen.Unlock()
		<-other
	}
	defer chosen.Unlock()
	if chosen.dirs == nil {
		chosen.dirs = map[fileID]chan struct{}{}
	}
	chosen.dirs[id] = mine
	return func() {
		chosen.Lock()
		defer chosen.Unlock()
		delete(chosen.dirs, id)
		close(mine)
	}, nil
}

// Limit bounds what the files below a directory may take on the disk, in bytes, rounded up to KiB. Those that are there count,
// but those that others make just when it is called for the first time need not. Where there are no project quotas it is
// ErrNone.
func Limit(dir string, bytes int64) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	over, err := alone(d)
	if err != nil {
		return err
	}
	defer over()
	x, err := attributes(int(d.Fd()))
	if err != nil {
		return none(err)
	}
	if isOurs(x.project) {
		return none(setLimit(int(d.Fd()), x.project, bytes))
	}
	project, err := choose(d, dir)
	if err != nil {
		return none(err)
	}
	defer func() {
		chosen.Lock()
		defer chosen.Unlock()
		delete(chosen.taken, project)
	}()
	if err := setLimit(int(d.Fd()), project, bytes); err != nil {
		return none(err)
	}
	return enroll(d, project)
}

// choose takes a project that nobody has.
func choose(d *os.File, dir string) (uint32, error) {
	chosen.Lock()
	defer chosen.Unlock()
	project, err := unused(d, dir, chosen.taken)
	if err != nil {
		return 0, err
	}
	if chosen.taken == nil {
		chosen.taken = map[uint32]bool{}
	}
	chosen.taken[project] = true
	return project, nil
}

// Has says whether directories can be bounded there: nil, or an error that wraps ErrNone.
func Has(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }() // nothing was written
	if _, err := attributes(int(d.Fd())); err != nil {
		return none(err)
	}
	_, err = usage(int(d.Fd()), firstProject)
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

// unused finds a project that no file belongs to, and that is not taken, beginning at one that follows from the directory's name.
func unused(d *os.File, dir string, taken map[uint32]bool) (uint32, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(filepath.Base(dir))) // never fails
	for i := range uint32(projects) {
		project := firstProject + (h.Sum32()+i)%projects
		if taken[project] {
			continue
		}
		u, err := usage(int(d.Fd()), project)
		if err != nil {
			return 0, err
		}
		if u.inodes == 0 {
			return project, nil
		}
	}
	return 0, fmt.Errorf("all of the projects from %d on are used", uint32(firstProject))
}

// enroll makes all that is below a directory the project's, and the directory last: it says that all is done. What is mounted there is not the project's.
func enroll(dir *os.File, project uint32) error {
	w := mounts.Walk{Enter: func(e *mounts.Entry) error {
		return e.Hold(func(fd int, is *unix.Stat_t) error {
			switch {
			case is.Mode&unix.S_IFMT == unix.S_IFREG:
			case e.FD >= 0:
				return enrollOne(fd, project, flagInherit)
			default:
				return nil
			}
			// What is held is opened, whatever has its name by now: a device would do something.
			file, err := os.OpenFile(mounts.PathOf(fd), os.O_RDONLY|unix.O_NONBLOCK, 0)
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // nothing was written
			return enrollOne(int(file.Fd()), project, 0)
		})
	}}
	if err := w.Below(context.Background(), int(dir.Fd())); err != nil {
		return err
	}
	return enrollOne(int(dir.Fd()), project, flagInherit)
}

func enrollOne(fd int, project, flags uint32) error {
	x, err := attributes(fd)
	if err != nil {
		return err
	}
	x.project, x.flags = project, x.flags|flags
	return ioctl(fd, setAttributes, &x)
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

func attributes(fd int) (x fsxattr, err error) {
	return x, ioctl(fd, getAttributes, &x)
}

func ioctl(fd int, request uintptr, with *fsxattr) error {
	_, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(unsafe.Pointer(with))) // #nosec G103 -- ioctl takes a struct by its address
	return failed(e)
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

func usage(fd int, project uint32) (u dqblk, err error) {
	return u, quotactl(fd, getQuota, project, &u)
}

func setLimit(fd int, project uint32, bytes int64) error {
	blocks := (uint64(max(bytes, 1)) + blockBytes - 1) / blockBytes // 0 would be none
	return quotactl(fd, setQuota, project, &dqblk{hardBlocks: blocks, softBlocks: blocks, valid: validBlocks})
}

func quotactl(fd int, command uintptr, project uint32, with *dqblk) error {
	_, _, e := unix.Syscall6(unix.SYS_QUOTACTL_FD, uintptr(fd), command, uintptr(project), uintptr(unsafe.Pointer(with)), 0, 0) // #nosec G103 -- quotactl takes a struct by its address
	return failed(e)
}

// failed is what a system call says.
func failed(e syscall.Errno) error {
	if e == 0 {
		return nil
	}
	return fmt.Errorf("project quota: %w", e)
}
