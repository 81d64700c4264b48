package mounts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// answerPatience is how long a server has to answer whether it is there.
const answerPatience = 10 * time.Second

// Free ends, with an error of theirs, the calls to file systems of nfs below a directory whose servers do not answer: whoever waits for them
// in the kernel goes on, and what was not written by then is lost. Whoever has mounted the same beside it would lose it as well: then it is
// left; those of the same owner have its name above them. It returns what was freed, and an error for what could not be.
func Free(ctx context.Context, dir, owner string) (freed []string, err error) {
	resolved, err := resolve(dir)
	if resolved == "" {
		return nil, err
	}
	all, err := mountinfo.GetMounts(nil)
	if err != nil {
		return nil, err
	}
	var errs []error
	for _, m := range all {
		if !strings.HasPrefix(m.FSType, "nfs") || !strings.HasPrefix(m.Mountpoint, resolved+"/") {
			continue
		}
		if i := slices.IndexFunc(all, func(o *mountinfo.Info) bool {
			return o.Major == m.Major && o.Minor == m.Minor && !strings.Contains(o.Mountpoint, "/"+owner+"/")
		}); i >= 0 {
			errs = append(errs, fmt.Errorf("what waits for %s is left: %s has it mounted, too", m.Source, all[i].Mountpoint))
			continue
		}
		if answers(ctx, m.Mountpoint) { // else who asks waits there, and is freed with the others
			continue
		}
		if err := endCalls(ctx, m.Mountpoint); err != nil {
			errs = append(errs, fmt.Errorf("ending what waits for %s: %w", m.Source, err))
			continue
		}
		freed = append(freed, m.Source)
	}
	return freed, errors.Join(errs...)
}

// answers says whether the server of a file system does.
func answers(ctx context.Context, point string) bool {
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	return Apart(ctx, func() error {
		var st unix.Statx_t
		_ = unix.Statx(unix.AT_FDCWD, point, unix.AT_STATX_FORCE_SYNC, unix.STATX_BASIC_STATS, &st) // a refusal is an answer
		return nil
	}) == nil
}

// endCalls has the kernel end the calls that are under way. Somebody is there meanwhile, so that it stays mounted: the next calls
// of whoever was freed may have to be ended, too.
func endCalls(ctx context.Context, point string) error {
	ctx, cancel := context.WithTimeout(ctx, unmountPatience)
	defer cancel()
	return Apart(ctx, func() error {
		fd, err := unix.Open(point, unix.O_PATH|unix.O_CLOEXEC, 0) // without a call
		if err != nil {
			return err
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Unmount(point, unix.MNT_FORCE|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EBUSY) {
			return err
		}
		return nil
	})
}
