package cri_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/berth-dev/berth/worker/runtime/cri"
	"github.com/berth-dev/berth/worker/runtime/cri/containerdtest"
)

// The daemon is made here, since what makes it uses this package.
func TestMain(m *testing.M) {
	os.Exit(func() int {
		if missing := containerdtest.Missing(); missing != "" {
			cri.UseDaemon(nil, missing)
			return m.Run()
		}
		d, err := containerdtest.Start(context.Background(), "", uint16(os.Getpid()))
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		cri.UseDaemon(d, "")
		code := m.Run()
		if left, err := d.Left(context.Background()); left != "" || err != nil {
			fmt.Fprintf(os.Stderr, "left behind: %s %v\n", left, err)
			code = max(code, 1)
		}
		if err := d.Close(); err != nil {
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
