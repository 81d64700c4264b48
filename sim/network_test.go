package sim

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// inNetwork gives a test two machines, with a connection from a to b.
func inNetwork(t *testing.T, f func(t *testing.T, n *network, a, b *host, here, there net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, &story{})
		a, b := n.start("10.0.0.1"), n.start("10.0.0.2")
		l, err := b.listen(80)
		if err != nil {
			t.Fatal(err)
		}
		here, err := a.dial(t.Context(), "10.0.0.2:80")
		if err != nil {
			t.Fatal(err)
		}
		there, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		f(t, n, a, b, here, there)
	})
}

func TestBytesComeInOrderAndLater(t *testing.T) {
	inNetwork(t, func(t *testing.T, n *network, a, b *host, here, there net.Conn) {
		n.set(a.ip, b.ip, link{delay: time.Second, loss: 0.3})
		began := time.Now()
		want := strings.Repeat("abcdefg", 100)
		for _, c := range want {
			if _, err := here.Write([]byte(string(c))); err != nil {
				t.Fatal(err)
			}
		}
		if err := here.Close(); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(there)
		if err != nil || string(got) != want {
			t.Errorf("there came %d bytes, %v", len(got), err)
		}
		if time.Since(began) < time.Second/2 {
			t.Errorf("they took %s", time.Since(began))
		}
	})
}

// A cut in one direction holds up what goes there, and nothing else.
func TestCutLink(t *testing.T) {
	inNetwork(t, func(t *testing.T, n *network, a, b *host, here, there net.Conn) {
		n.set(a.ip, b.ip, link{cut: true})
		if _, err := here.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := there.Write([]byte("y")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(here, make([]byte, 1)); err != nil {
			t.Errorf("the other direction: %v", err)
		}
		_ = there.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := there.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("over a cut link came %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := a.dial(ctx, "10.0.0.2:80"); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("a connection over a cut link: %v", err)
		}
		_ = there.SetReadDeadline(time.Time{})
		n.set(a.ip, b.ip, calm())
		if _, err := io.ReadFull(there, make([]byte, 1)); err != nil {
			t.Errorf("after its end: %v", err)
		}
	})
}

// What remains of a process reaches nobody; its machine says so, unless it has no
// power.
func TestEndOfAProcess(t *testing.T) {
	for _, power := range []bool{false, true} {
		inNetwork(t, func(t *testing.T, n *network, a, b *host, here, there net.Conn) {
			n.end(b, power)
			if _, err := there.Write([]byte("x")); !errors.Is(err, syscall.ENETDOWN) {
				t.Errorf("it wrote: %v", err)
			}
			_ = here.SetReadDeadline(time.Now().Add(time.Minute))
			want, refusal := syscall.ECONNRESET, error(syscall.ECONNREFUSED)
			_, err := here.Read(make([]byte, 1))
			if power {
				refusal = os.ErrDeadlineExceeded
				if !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("a machine without power told %v", err)
				}
			} else if !errors.Is(err, want) {
				t.Errorf("the other side reads %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, err := a.dial(ctx, "10.0.0.2:80"); !errors.Is(err, refusal) {
				t.Errorf("power lost %v: a new connection: %v", power, err)
			}
			if _, err := b.dial(ctx, "10.0.0.1:80"); err == nil {
				t.Error("the remains of a process have connected")
			}
		})
	}
}

// A side that does not read holds the other up, and not for ever.
func TestWindow(t *testing.T) {
	inNetwork(t, func(t *testing.T, _ *network, _, _ *host, here, there net.Conn) {
		if _, err := here.Write(make([]byte, window)); err != nil {
			t.Fatal(err)
		}
		_ = here.SetWriteDeadline(time.Now().Add(time.Second))
		if _, err := here.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("beyond the window: %v", err)
		}
		_ = here.SetWriteDeadline(time.Time{})
		done := make(chan error)
		go func() { _, err := here.Write([]byte("x")); done <- err }()
		if _, err := io.ReadFull(there, make([]byte, window+1)); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// Packets are lost and come twice.
func TestPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(1, &story{})
		a, err := n.start("10.0.0.1").openGossip()
		if err != nil {
			t.Fatal(err)
		}
		b, err := n.start("10.0.0.2").openGossip()
		if err != nil {
			t.Fatal(err)
		}
		n.set("10.0.0.1", "10.0.0.2", link{delay: time.Second, loss: 0.2, twice: 0.2})
		for i := range 200 {
			if _, err := a.WriteTo([]byte{byte(i)}, "10.0.0.2:7946"); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		var got []byte
		for len(b.packets) > 0 {
			got = append(got, (<-b.packets).Buf...)
		}
		inOrder := slices.Clone(got)
		slices.Sort(inOrder)
		distinct := len(slices.Compact(slices.Clone(inOrder)))
		if slices.Equal(got, inOrder) || distinct == len(got) || distinct > 190 || distinct < 130 {
			t.Errorf("of 200 packets came %d, %d of them once", len(got), distinct)
		}
		for _, g := range []*gossip{a, b} {
			if err := g.Shutdown(); err != nil {
				t.Error(err)
			}
		}
	})
}
