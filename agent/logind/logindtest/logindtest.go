// Package logindtest is a bus with a stand-in for systemd's logind: what of it matters to who holds up the end of a machine.
package logindtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"
	"github.com/godbus/dbus/v5/prop"
)

const (
	service = "org.freedesktop.login1"
	manager = service + ".Manager"
	path    = dbus.ObjectPath("/org/freedesktop/login1")
)

// StandIn is a logind.
type StandIn struct {
	// Address is the bus's.
	Address string

	t    *testing.T
	conn *dbus.Conn

	mu             sync.Mutex
	held, released int
}

// Start starts a bus and a logind that lets the machine's end wait for so long. Both end with the test.
func Start(t *testing.T, waits time.Duration) *StandIn {
	t.Helper()
	s := &StandIn{t: t, Address: startBus(t)}
	var err error
	if s.conn, err = dbus.Connect(s.Address); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.conn.Close() })
	if err := s.conn.Export(methods{s}, path, manager); err != nil {
		t.Fatal(err)
	}
	properties := prop.Map{manager: {"InhibitDelayMaxUSec": {Value: uint64(waits.Microseconds())}}}
	if _, err := prop.Export(s.conn, path, properties); err != nil {
		t.Fatal(err)
	}
	if _, err := s.conn.RequestName(service, dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
	return s
}

// Prepare tells that the machine is about to end, or that it is not.
func (s *StandIn) Prepare(ends bool) {
	s.t.Helper()
	if err := s.conn.Emit(path, manager+".PrepareForShutdown", ends); err != nil {
		s.t.Fatal(err)
	}
}

// Await waits until the machine's end was held up so many times, and so many of these are over.
func (s *StandIn) Await(held, released int) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); ; <-time.After(5 * time.Millisecond) {
		s.mu.Lock()
		h, r := s.held, s.released
		s.mu.Unlock()
		if h == held && r == released {
			return
		}
		if time.Now().After(deadline) {
			s.t.Fatalf("the machine's end was held up %d times, %d of them are over; want %d, %d", h, r, held, released)
		}
	}
}

// methods are what is called over the bus.
type methods struct{ s *StandIn }

// Inhibit is logind's method of that name.
func (m methods) Inhibit(what, who, _, mode string) (dbus.UnixFD, *dbus.Error) {
	if what != "shutdown" || mode != "delay" || who == "" {
		return -1, dbus.MakeFailedError(fmt.Errorf("%s by %s, %s", what, who, mode))
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return -1, dbus.MakeFailedError(err)
	}
	m.s.mu.Lock()
	m.s.held++
	m.s.mu.Unlock()
	time.AfterFunc(time.Second, func() { _ = theirs.Close() }) // the answer has been sent: who asked has a copy
	go func() {
		one := make([]byte, 1)
		_, _ = ours.Read(one) // nobody writes: it ends when the copy is closed
		_ = ours.Close()
		m.s.mu.Lock()
		defer m.s.mu.Unlock()
		m.s.released++
	}()
	return dbus.UnixFD(theirs.Fd()), nil
}

func startBus(t *testing.T) string {
	t.Helper()
	daemon, err := exec.LookPath("dbus-daemon")
	if err != nil {
		if os.Geteuid() == 0 && os.Getenv("BERTH_WITHOUT_CONTAINERS") == "" {
			t.Fatalf("there is no dbus-daemon (Debian's package dbus-daemon), and without containers is not said: %v", err)
		}
		t.Skip(err)
	}
	dir, err := os.MkdirTemp("", "bus") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	config := filepath.Join(dir, "bus.conf")
	text := `<busconfig><type>custom</type><listen>unix:dir=` + dir + `</listen><policy context="default">` +
		`<allow send_destination="*" eavesdrop="true"/><allow eavesdrop="true"/><allow own="*"/></policy></busconfig>`
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(daemon, "--config-file="+config, "--print-address=1", "--nofork")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it has nothing to say any more
		_ = cmd.Wait()
	})
	address, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(address)
}
