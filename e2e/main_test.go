package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// binary is the program under test, root the directory of everything. TestMain
// sets both, once.
var binary, root string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if what := os.Getenv(holdVariable); what != "" {
			if err := holdConnections(what); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
		var err error
		if root, err = os.MkdirTemp("", "berth-e2e-"); err == nil {
			defer func() { _ = os.RemoveAll(root) }() // the tests are over
			err = build()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		// Those that run beside others wait, mostly. The command line's -parallel comes after it.
		if err := flag.Set("test.parallel", "4"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		for _, err := range []error{stopShared(), stopRealContainers(), leftBehind(root)} {
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				code = max(code, 1)
			}
		}
		return code
	}())
}

// build makes the binary. BERTH_E2E_BINARY names one that is there already.
func build() error {
	if binary = os.Getenv("BERTH_E2E_BINARY"); binary != "" {
		return nil
	}
	binary = filepath.Join(root, "berth")
	cmd := exec.Command("go", "build", "-o", binary, "../cmd/berth")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the binary: %w", err)
	}
	return nil
}
