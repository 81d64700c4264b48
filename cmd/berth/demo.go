package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/cmd/berth/internal/demo"
)

func (a *app) demoCommand() *cobra.Command {
	var keep bool
	var dataDir string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Show a preemption, and the leader killed in its middle",
		Long: `Start three servers and three workers as separate processes on this machine, fill them with work, submit an urgent
pod, kill the leader while its victims are still ending, and check that nothing is lost and nothing is done twice. The exit
status is 0 only if everything held.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return a.runDemo(ctx, dataDir, keep)
		},
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "Leave the cluster running at the end.")
	cmd.Flags().StringVar(&dataDir, "data-dir", "", "An empty directory for everything; empty: a temporary one.")
	return cmd
}

func (a *app) runDemo(ctx context.Context, dir string, keep bool) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("finding this program: %w", err)
	}
	temporary := dir == ""
	if temporary {
		if dir, err = os.MkdirTemp("", "berth-demo-"); err != nil {
			return fmt.Errorf("making a data directory: %w", err)
		}
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	err = demo.Run(ctx, demo.Options{Binary: binary, Dir: dir, Keep: keep, Out: a.out})
	if err == nil && temporary && !keep {
		return os.RemoveAll(dir)
	}
	if err != nil && temporary {
		fmt.Fprintf(a.errOut, "The logs are in %s.\n", dir)
	}
	return err
}
