package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

func (s *shim) serve(l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			return
		}
		go s.talk(conn)
	}
}

func (s *shim) talk(conn net.Conn) {
	defer conn.Close()
	req, rest, files, err := receive(conn.(*net.UnixConn))
	defer func() {
		for _, f := range files {
			f.Close()
		}
	}()
	if err != nil {
		return
	}
	var ans Answer
	switch req.Op {
	case OpWatch:
		_, _ = io.Copy(io.Discard, conn) // until either side is gone
		return
	case OpStop:
		ans = s.signal(syscall.Signal(s.config.StopSignal), false)
	case OpKill:
		ans = s.signal(syscall.SIGKILL, true)
	case OpExec:
		ans = s.exec(conn, req.Command)
	case OpStream:
		ans = s.stream(conn, req, files)
	case OpAttach:
		ans = s.attach(rest, req, files)
	default:
		ans.Error = fmt.Sprintf("unknown request %q", req.Op)
	}
	_ = json.NewEncoder(conn).Encode(ans)
}

// signal reaches the command itself and nobody else: it is a child that is not waited for yet, so its number is its own. With all it reaches
// what the command has started, too, for as long as anything of that is left: until then the container has not ended.
func (s *shim) signal(sig syscall.Signal, all bool) Answer {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ended {
		if err := syscall.Kill(s.main, sig); err != nil {
			return Answer{Error: err.Error()}
		}
	}
	if all {
		killChildren()
	}
	return Answer{}
}

// exec runs a command beside the container's. When the one who asked goes away, so does the command.
func (s *shim) exec(conn net.Conn, command []string) Answer {
	if len(command) == 0 {
		return Answer{Error: "no command"}
	}
	path, err := lookPath(command[0], s.config.Env, s.config.WorkDir)
	if err != nil {
		return Answer{Error: err.Error()}
	}
	r, w, err := os.Pipe()
	if err != nil {
		return Answer{Error: err.Error()}
	}
	defer r.Close()
	done := make(chan syscall.WaitStatus, 1)
	pid, ans := s.startExec(child{path: path, argv: command, out: w, errs: w}, done)
	w.Close()
	if pid == 0 {
		return ans
	}
	asked := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, conn)
		close(asked)
	}()
	output, drained := &beginning{most: maxExecB}, make(chan struct{})
	go func() {
		_, _ = io.Copy(output, r)
		close(drained)
	}()
	var ws syscall.WaitStatus
	select {
	case ws = <-done:
	case <-asked:
		s.mu.Lock()
		if _, ok := s.waiting[pid]; ok {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
		s.mu.Unlock()
		ws = <-done
	}
	ans.Code = exitOf(ws).Code
	select {
	case <-drained:
	case <-time.After(100 * time.Millisecond): // it left something running that holds the pipe
	}
	ans.Output = output.bytes()
	return ans
}

// beginning keeps the first bytes of what is written to it.
type beginning struct {
	most int

	mu   sync.Mutex
	held []byte
}

func (b *beginning) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.held = append(b.held, p[:min(len(p), b.most-len(b.held))]...)
	return len(p), nil
}

func (b *beginning) bytes() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.held)
}

func (s *shim) startExec(p child, done chan<- syscall.WaitStatus) (int, Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return 0, Answer{Error: "the container has ended", NotFound: true}
	}
	var pid int
	var err error
	onThread(false, func() { pid, err = s.spawn(p) })
	if err != nil {
		return 0, Answer{Error: fmt.Sprintf("exec: %q: %v", p.argv[0], err)}
	}
	s.waiting[pid] = done
	return pid, Answer{}
}
