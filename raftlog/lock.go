package raftlog

import (
	"errors"
	"fmt"
	"time"

	"github.com/berth-dev/berth/disk"
)

// ErrInUse means that another process has the directory.
var ErrInUse = errors.New("it is in use by another process")

// Lock takes a directory for this process until the file is closed; shared, with
// others who share it. It waits for as long as told. The directory itself is
// held: there is no file for it that could be lost.
func Lock(on disk.Disk, dir string, shared bool, wait time.Duration) (disk.File, error) {
	d, err := disk.Open(on, dir)
	if err != nil {
		return nil, err
	}
	for deadline := time.Now().Add(wait); ; {
		err := d.Hold(shared)
		switch {
		case err == nil:
			return d, nil
		case !errors.Is(err, disk.ErrHeld):
			return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
		case time.Now().After(deadline):
			return nil, errors.Join(ErrInUse, d.Close())
		}
		<-time.After(10 * time.Millisecond)
	}
}
