package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxFiles is how many descriptors come with a message at most.
	maxFiles = 3
	// hangUpGrace is what a command has, told that who asked for it has gone, until it is killed.
	hangUpGrace = 2 * time.Second
)

// receive reads one request, with the descriptors that come with it. They are the caller's, also after an error. What comes
// after the request is read by rest.
func receive(conn *net.UnixConn) (req Request, rest *json.Decoder, files []*os.File, err error) {
	first, rights := make([]byte, 4<<10), make([]byte, unix.CmsgSpace(4*maxFiles))
	n, oob, _, _, err := conn.ReadMsgUnix(first, rights)
	if err != nil {
		return req, nil, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:oob])
	if err != nil {
		return req, nil, nil, err
	}
	for i := range messages {
		fds, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return req, nil, files, err
		}
		for _, fd := range fds {
			files = append(files, os.NewFile(uintptr(fd), "stream"))
		}
	}
	rest = json.NewDecoder(io.MultiReader(bytes.NewReader(first[:n]), conn))
	return req, rest, files, rest.Decode(&req)
}

// stream runs a command beside the container's, with streams that the agent made. When the agent goes away, the command
// is told as by a terminal that hangs up, and then killed.
func (s *shim) stream(conn net.Conn, req Request, files []*os.File) Answer {
	if len(req.Command) == 0 {
		return Answer{Error: "no command"}
	}
	path, err := lookPath(req.Command[0], s.config.Env, s.config.WorkDir)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	p := child{path: path, argv: req.Command, terminal: req.TTY}
	if err := p.take(&req, files); err != nil {
		return Answer{Error: err.Error()}
	}
	if err := s.give(files); err != nil {
		return Answer{Error: err.Error()}
	}
	done := make(chan syscall.WaitStatus, 1)
	pid, ans := s.startExec(p, done)
	for _, f := range files {
		f.Close() // or the agent would never read their end
	}
	if pid == 0 {
		return ans
	}
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		close(gone)
	}()
	var ws syscall.WaitStatus
	select {
	case ws = <-done:
	case <-gone:
		ws = s.hangUp(pid, done)
	}
	return Answer{Code: exitOf(ws).Code}
}

// take puts the descriptors to their places.
func (p *child) take(req *Request, files []*os.File) error {
	if req.TTY {
		if len(files) != 1 {
			return errors.New("a terminal is one descriptor")
		}
		p.in, p.out, p.errs = files[0], files[0], files[0]
		return nil
	}
	for _, to := range []struct {
		wanted bool
		file   **os.File
	}{{req.Stdin, &p.in}, {req.Stdout, &p.out}, {req.Stderr, &p.errs}} {
		if !to.wanted {
			continue
		}
		if len(files) == 0 {
			return errors.New("a descriptor is missing")
		}
		*to.file, files = files[0], files[1:]
	}
	return nil
}

// give makes the container's user the owner of pipes and of a terminal, or it could not open them again by their names.
func (s *shim) give(files []*os.File) error {
	if s.config.UID == nil {
		return nil
	}
	for _, f := range files {
		if err := f.Chown(int(*s.config.UID), -1); err != nil {
			return fmt.Errorf("giving a stream to the container's user: %w", err)
		}
	}
	return nil
}

func (s *shim) hangUp(pid int, done <-chan syscall.WaitStatus) syscall.WaitStatus {
	tell := func(sig syscall.Signal) {
		s.mu.Lock()
		defer s.mu.Unlock()
		if _, ok := s.waiting[pid]; ok {
			signalSession(pid, sig)
		}
	}
	tell(syscall.SIGHUP)
	select {
	case ws := <-done:
		return ws
	case <-time.After(hangUpGrace):
	}
	tell(syscall.SIGKILL)
	return <-done
}
