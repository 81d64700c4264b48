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

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/config"
)

// shutdownTimeout is how long an agent may take to hand over leadership and end.
const shutdownTimeout = 30 * time.Second

// runningAgent is an agent that was started.
type runningAgent interface {
	// Fatal tells why the agent can not go on.
	Fatal() <-chan error
	// Stop ends it: a leader hands over, a worker leaves its pods running.
	Stop(ctx context.Context) error
}

// startAgent starts a real one.
func startAgent(ctx context.Context, c agent.Config) (runningAgent, error) {
	logLibraries(c.Logger)
	return agent.Start(ctx, c)
}

func (a *app) agentCommand() *cobra.Command {
	var (
		paths            []string
		token, tokenFile string
	)
	cmd := &cobra.Command{
		Use:   "agent -config FILE|DIR",
		Short: "Run a server, a worker or both",
		Example: `  berth agent -config /etc/berth/berth.hcl
  berth agent -config /etc/berth.d
  berth agent -config /etc/berth.d -join-token-file /run/token`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if len(paths) == 0 {
				return &verb.UsageError{Message: "-config is missing: where is the agent's configuration?"}
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			// After the first signal the next one ends the process at once.
			context.AfterFunc(ctx, stop)
			return a.runAgent(ctx, paths, func(c *config.Config) error { return c.JoinBy(token, tokenFile) })
		},
	}
	cmd.Flags().StringArrayVar(&paths, "config", nil, "File, or directory of *.hcl files; may be repeated.")
	cmd.Flags().StringVar(&token, "join-token", "", "The token by which a worker without certificates joins (berth token create); others on this machine can see it.")
	cmd.Flags().StringVar(&tokenFile, "join-token-file", "", "The file that has it.")
	return cmd
}

// runAgent runs until the context ends, or the agent by itself.
func (a *app) runAgent(ctx context.Context, paths []string, change func(c *config.Config) error) error {
	c, err := config.Load(paths...)
	if err != nil {
		return err
	}
	if err := change(c); err != nil {
		return err
	}
	if err := usable(c); err != nil {
		return err
	}
	flooded := newFloods()
	log := hclog.New(&hclog.LoggerOptions{
		Name: "berth", Level: hclog.LevelFromString(c.LogLevel), JSONFormat: c.LogJSON, Output: a.errOut, Exclude: flooded.exclude,
	})
	go flooded.tell(ctx, log)
	addrs, err := reachableAddresses()
	if err != nil {
		return fmt.Errorf("listing this machine's addresses: %w", err)
	}
	settings, err := agentConfig(c, addrs)
	if err != nil {
		return err
	}
	settings.Logger = log
	if settings.Server != nil {
		defer easeCollector(a.getenv)()
	} else {
		tightenCollector(a.getenv)
	}
	running, err := a.startAgent(ctx, settings)
	if err != nil {
		return fmt.Errorf("starting the agent: %w", err)
	}
	if settings.Server == nil { // a server's many calls would touch them again
		defer letGoOfStart(log)()
	}
	select {
	case err = <-running.Fatal():
		err = fmt.Errorf("the agent had to end: %w", err)
	case <-ctx.Done():
		log.Info("shutting down")
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	if stopErr := running.Stop(grace); stopErr != nil {
		err = errors.Join(err, fmt.Errorf("shutting down: %w", stopErr))
	}
	return err
}

// reachableAddresses are this machine's, but for those of its loopback interface: nobody else reaches
// them there, such as the one at which a worker answers for names.
func reachableAddresses() ([]net.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, err
	}
	var out []net.Addr
	for i := range interfaces {
		if interfaces[i].Flags&net.FlagLoopback != 0 {
			continue
		}
		addrs, err := interfaces[i].Addrs()
		if err != nil {
			return nil, err
		}
		out = append(out, addrs...)
	}
	return out, nil
}
