package shim

import (
	"errors"
	"os"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// Size is that of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// OpenTerminal makes a terminal whose own end can be waited for with a deadline, and closed meanwhile.
func OpenTerminal() (ours, theirs *os.File, err error) {
	blocking, theirs, err := pty.Open()
	if err != nil {
		return nil, nil, err
	}
	defer blocking.Close()
	if ours, err = pollable(blocking); err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// pollable is the same file, whose reads and writes end at a deadline, and when it is closed.
func pollable(f *os.File) (*os.File, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// SetSize leaves a terminal that is closed meanwhile alone.
func SetSize(terminal *os.File, s Size) error {
	raw, err := terminal.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		failed = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: s.Height, Col: s.Width})
	})
	return errors.Join(err, failed)
}
