package shim

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"
)

// What is kept for a client that takes nothing is bounded, also where it comes in pieces of a byte, and is given in order.
func TestWhatIsKeptForASlowClient(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	full := 0
	for { // until nothing more fits into the pipe
		if err := w.SetWriteDeadline(time.Now().Add(10 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		n, err := w.Write(make([]byte, 4096))
		if full += n; err != nil {
			break
		}
	}
	var a audience
	c := &seat{out: w, left: make(chan struct{})}
	a.join(c)
	a.hurry()
	const some = 10_000
	for range some {
		a.tell("stdout", []byte("x"))
	}
	if len(c.kept) != 1 || c.keptBytes != some {
		t.Errorf("%d bytes are kept in %d pieces", c.keptBytes, len(c.kept))
	}
	got := make(chan []byte)
	go func() {
		b, _ := io.ReadAll(r)
		got <- b
	}()
	a.end()
	if b := <-got; string(b[full:]) != strings.Repeat("x", some) {
		t.Errorf("the client has got %d bytes, the first %d of them from before", len(b), full)
	}
	// Beyond its bound the client is left out.
	r2, w2, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r2.Close()
	a = audience{}
	a.hurry()
	c = &seat{out: w2, left: make(chan struct{})}
	a.join(c)
	for range mostLeft/4096 + 1 {
		a.tell("stdout", make([]byte, 4096))
	}
	if <-c.left; c.keptBytes > mostLeft || !c.slow {
		t.Errorf("%d bytes are kept", c.keptBytes)
	}
}
