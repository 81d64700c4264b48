package raftlog

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
)

// ErrInUse means that another process has the directory.
var ErrInUse = errors.New("it is in use by another process")

// Lock takes a directory for this process until the file is closed; shared, with
// others who share it. It waits for as long as told. The directory itself is
// held: there is no file for it that could be lost.
func Lock(dir string, shared bool, wait time.Duration) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	how := syscall.LOCK_EX
	if shared {
		how = syscall.LOCK_SH
	}
	for deadline := time.Now().Add(wait); ; {
		err := syscall.Flock(int(d.Fd()), how|syscall.LOCK_NB)
		switch {
		case err == nil:
			return d, nil
		case errors.Is(err, syscall.EWOULDBLOCK) && time.Now().Before(deadline):
			<-time.After(10 * time.Millisecond)
		case errors.Is(err, syscall.EWOULDBLOCK):
			return nil, errors.Join(ErrInUse, d.Close())
		case !errors.Is(err, syscall.EINTR):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
		}
	}
}
