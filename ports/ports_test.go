package ports

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

func free(t *testing.T, n int) *Claim {
	t.Helper()
	c, err := Free(n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Release)
	return c
}

// Free ports are below those that the kernel gives away, differ, and are nobody's.
func TestFree(t *testing.T) {
	c := free(t, 50)
	end := ephemeral()
	for i, p := range c.Ports {
		if p < first || p >= end || slices.Contains(c.Ports[:i], p) {
			t.Errorf("port %d of %v", p, c.Ports)
		}
	}
	tcp, err := net.Listen("tcp", c.Addr(0))
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp", c.Addr(1))
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	c.Release()
	for i := range 2 {
		if again := new(Claim); again.claims(c.Ports[i]) {
			t.Errorf("a port that is listened on is free: %d", c.Ports[i])
		}
	}
	if again := new(Claim); !again.claims(c.Ports[2]) {
		t.Errorf("a port that was released is not free: %d", c.Ports[2])
	}
	if _, err := Free(1 << 20); err == nil {
		t.Error("there are more ports than there are")
	}
}

// TestFreeWhereTheKernelHasAll: ports are found also where the kernel gives away nearly all.
func TestFreeWhereTheKernelHasAll(t *testing.T) {
	c, err := freeBelow(1024, 3)
	if err != nil || len(c.Ports) != 3 {
		t.Fatalf("%v, %v", c, err)
	}
	c.Release()
}

// claims takes a port for a moment, if it can be had.
func (c *Claim) claims(port int) bool {
	c.take(port)
	defer c.Release()
	return len(c.Ports) == 1
}

// claimed is how another process is told which ports it is to try.
const claimed = "BERTH_TEST_CLAIMED"

// TestClaimed: nobody is given what another has claimed and does not listen on yet, in this process or in another one.
func TestClaimed(t *testing.T) {
	if port := os.Getenv(claimed); port != "" {
		var p int
		if _, err := fmt.Sscan(port, &p); err != nil {
			t.Fatal(err)
		}
		fmt.Println("can be had:", new(Claim).claims(p))
		return
	}
	c := free(t, 1)
	ask := func() string {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestClaimed$")
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", claimed, c.Ports[0]))
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return string(out)
	}
	if new(Claim).claims(c.Ports[0]) {
		t.Error("a claimed port can be had")
	}
	if out := ask(); !strings.Contains(out, "can be had: false") {
		t.Errorf("another process: %s", out)
	}
	c.Release()
	if out := ask(); !strings.Contains(out, "can be had: true") {
		t.Errorf("another process, when it is released: %s", out)
	}
}
