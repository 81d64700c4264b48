package config

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// OptionError is what others found wrong with the value of an option.
type OptionError struct {
	Option string
	Err    error
}

// Usable finds what this machine, as it is now, does not let the agent have of what it is configured to use, before anything is made. It says
// what others have found in the same words: each with the place where the option is written. The error is an *Error.
func (c *Config) Usable(found ...OptionError) error {
	var ps problems
	k := checker{ps: &ps, src: c.src}
	for _, f := range found {
		k.fail(f.Option, "%v", f.Err)
	}
	for _, part := range []struct {
		dir  string
		used bool
	}{{"server", c.Server.Enabled}, {"worker", c.Worker.Enabled}} {
		if err := writable(filepath.Join(string(c.DataDir), part.dir)); part.used && err != nil {
			k.fail("data_dir", "%v", err)
			break
		}
	}
	// What else there is to say of an address is said of the ports that are used.
	if l, err := net.Listen("tcp", net.JoinHostPort(c.BindAddr, "0")); err == nil {
		_ = l.Close() // nothing was served on it
	} else if errors.Is(err, syscall.EADDRNOTAVAIL) {
		k.fail("bind_addr", "no interface of this machine has the address %s; \"0.0.0.0\" is every address of this machine", c.BindAddr)
	}
	return ps.err()
}

// writable: a directory can be written to, or made.
func writable(dir string) error {
	for {
		info, err := os.Stat(dir)
		if errors.Is(err, os.ErrNotExist) && dir != filepath.Dir(dir) {
			dir = filepath.Dir(dir)
			continue
		}
		if err != nil {
			return err
		}
		if !info.IsDir() {
			return &os.PathError{Op: "use", Path: dir, Err: syscall.ENOTDIR}
		}
		if err := unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS); err != nil {
			return &os.PathError{Op: "write to", Path: dir, Err: err}
		}
		return nil
	}
}
