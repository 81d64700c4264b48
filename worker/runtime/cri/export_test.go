package cri

import (
	"context"
	"os"
	"testing"

	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// testDaemon is what containerdtest.Daemon is to these tests, which it cannot be imported by.
type testDaemon interface {
	Endpoint() string
	Run(ctx context.Context) error
	Kill()
	Freeze() error
	Thaw() error
	Import(ctx context.Context, images ...*imagepack.Image) error
	RemoveImage(ctx context.Context, names ...string) error
}

// The daemon that the tests share, and why there is none.
var shared struct {
	daemon  testDaemon
	missing string
}

// UseDaemon gives the tests their daemon.
func UseDaemon(d testDaemon, missing string) { shared.daemon, shared.missing = d, missing }

// The images that every daemon has (containerdtest).
const (
	busybox = "registry.test/busybox:1"
	nonroot = "registry.test/nonroot:1"
	named   = "registry.test/named:1"
)

// daemon is that of the tests. They are left out where nobody could install one, and fail where root could.
func daemon(t *testing.T) testDaemon {
	t.Helper()
	switch {
	case shared.missing == "":
	case os.Geteuid() != 0 || os.Getenv("BERTH_WITHOUT_CONTAINERS") != "":
		t.Skipf("real containers need %s", shared.missing)
	default:
		t.Fatalf("real containers need %s: `make containers` installs it on Debian; BERTH_WITHOUT_CONTAINERS=1 leaves these tests out", shared.missing)
	}
	return shared.daemon
}
