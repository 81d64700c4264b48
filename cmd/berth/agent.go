package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/config"
)

// shutdownTimeout is how long an agent may take to hand over leadership and end.
const shutdownTimeout = 30 * time.Second

// runningAgent is an agent that was started.
type runningAgent interface {
	// Done is closed when the agent has ended, for whatever reason.
	Done() <-chan struct{}
	// Err is why it ended; nil after Shutdown.
	Err() error
	// Shutdown ends it: a leader hands over, a worker leaves its pods running.
	Shutdown(ctx context.Context) error
}

func (a *app) agentCommand() *cobra.Command {
	var paths []string
	cmd := &cobra.Command{
		Use:   "agent -config FILE|DIR",
		Short: "Run a server, a worker or both",
		Example: `  berth agent -config /etc/berth/berth.hcl
  berth agent -config /etc/berth.d`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(paths) == 0 {
				return &verb.UsageError{Message: "-config is missing: where is the agent's configuration?"}
			}
			signals := make(chan os.Signal, 2)
			signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
			defer signal.Stop(signals)
			return a.runAgent(cmd.Context(), paths, signals)
		},
	}
	cmd.Flags().StringArrayVar(&paths, "config", nil, "File, or directory of *.hcl files; may be repeated.")
	return cmd
}

// runAgent runs until the agent ends or a signal ends it. A second signal does
// not wait for the end.
func (a *app) runAgent(ctx context.Context, paths []string, signals <-chan os.Signal) error {
	c, err := config.Load(paths...)
	if err != nil {
		return err
	}
	log := a.logger(c)
	logLibraries(log)
	agent, err := a.startAgent(ctx, c, log)
	if err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	select {
	case <-agent.Done():
		if err := agent.Err(); err != nil {
			return fmt.Errorf("the agent ended: %w", err)
		}
		return nil
	case s := <-signals:
		log.Info("shutting down", "signal", s.String())
	}
	ctx, cancel := context.WithTimeout(ctx, shutdownTimeout)
	defer cancel()
	go func() {
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	if err := agent.Shutdown(ctx); err != nil {
		return fmt.Errorf("shutting down: %w", err)
	}
	return nil
}

func (a *app) logger(c *config.Config) hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{
		Name: "berth", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogJSON, Output: a.errOut,
	})
}

// advertise is the address that others reach the agent at: the one it is told,
// or the one it listens on, or this machine's first private one.
func advertise(c *config.Config, addrs []net.Addr) (string, error) {
	if c.AdvertiseAddr != "" {
		return c.AdvertiseAddr, nil
	}
	if ip := net.ParseIP(c.BindAddr); !ip.IsUnspecified() {
		return c.BindAddr, nil
	}
	for _, addr := range addrs {
		ipNet, ok := addr.(*net.IPNet)
		if ok && ipNet.IP.IsPrivate() {
			return ipNet.IP.String(), nil
		}
	}
	return "", errors.New("this machine has no private address; set advertise_addr")
}
