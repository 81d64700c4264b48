package cri

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/worker/runtime/cri/containerdtest"
	"github.com/berth-dev/berth/worker/runtime/cri/criotest"
	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

var crioPrograms = flag.String("crio", "", "a folder with crio and pinns: the tests' daemon is a CRI-O, not a containerd")

// ofCRIO says that the tests' daemon is a CRI-O.
func ofCRIO() bool { return *crioPrograms != "" }

// testDaemon is a containerd or a CRI-O.
type testDaemon interface {
	Endpoint() string
	Run(ctx context.Context) error
	Kill()
	Freeze() error
	Thaw() error
	Import(ctx context.Context, images ...*imagepack.Image) error
	RemoveImage(ctx context.Context, names ...string) error
	KillShim(ctx context.Context, podUID string) error
	Left(ctx context.Context) (string, error)
	Close() error
}

// The daemon that the tests share, and why there is none.
var shared struct {
	daemon  testDaemon
	missing string
}

// startShared starts the tests' daemon, where the machine has what it needs.
func startShared() (err error) {
	ctx, number := context.Background(), uint16(os.Getpid())
	if programs := *crioPrograms; programs != "" {
		if shared.missing = criotest.Missing(programs); shared.missing == "" {
			shared.daemon, err = criotest.Start(ctx, programs, "", number, criotest.TellingEvents)
		}
		return err
	}
	if shared.missing = containerdtest.Missing(); shared.missing == "" {
		shared.daemon, err = containerdtest.Start(ctx, "", number)
	}
	return err
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(func() int {
		if err := startShared(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if shared.missing != "" {
			return code
		}
		if left, err := shared.daemon.Left(context.Background()); left != "" || err != nil {
			fmt.Fprintf(os.Stderr, "left behind: %s %v\n", left, err)
			code = max(code, 1)
		}
		if err := shared.daemon.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		if err := goleak.Find(); code == 0 && err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		return code
	}())
}

// The images that every daemon has.
const (
	busybox = daemontest.Busybox
	nonroot = daemontest.Nonroot
	named   = daemontest.Named
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
