package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/berth/internal/connect"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/worker"
)

// version and commit are set by the linker (-X main.version=... -X main.commit=...).
var (
	version = "dev"
	commit  = ""
)

func now() time.Time { return time.Now() }

// versions is what `berth version` prints.
type versions struct {
	Berth  string `json:"berth"`
	Commit string `json:"commit,omitempty"`
	Go     string `json:"go"`
	// API is the version of the Kubernetes API that this binary serves.
	API string `json:"api"`
	// Server is the version of the API of the server that answers.
	Server string `json:"server,omitempty"`
}

func binaryVersions() versions {
	v := versions{Berth: version, Commit: commit, Go: runtime.Version(), API: worker.KubernetesVersion()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && v.Commit == "" {
			v.Commit = s.Value
		}
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	var (
		clientOnly bool
		output     string
	)
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the versions of this binary and of the cluster",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.printVersion(cmd.Context(), clientOnly, output)
		},
	}
	cmd.Flags().BoolVar(&clientOnly, "client", false, "Do not ask a server.")
	cmd.Flags().StringVarP(&output, "output", "o", "table", "Output format: table, json or yaml.")
	return cmd
}

// printVersion prints what it knows even if no server answers: the question is
// first of all about this binary.
func (a *app) printVersion(ctx context.Context, clientOnly bool, output string) error {
	v := binaryVersions()
	var serverErr error
	if !clientOnly {
		v.Server, serverErr = a.serverVersion(ctx)
	}
	switch output {
	case "table":
		fmt.Fprintf(a.out, "Berth:          %s\n", strings.TrimSpace(v.Berth+" "+v.Commit))
		fmt.Fprintf(a.out, "Kubernetes API: %s\n", v.API)
		fmt.Fprintf(a.out, "Go:             %s\n", v.Go)
		if v.Server != "" {
			fmt.Fprintf(a.out, "Server:         %s\n", v.Server)
		}
	case "json", "yaml":
		format := yaml.Marshal
		if output == "json" {
			format = marshalJSON
		}
		data, err := format(v)
		if err != nil {
			return fmt.Errorf("writing the versions: %w", err)
		}
		if _, err := a.out.Write(data); err != nil {
			return err
		}
	default:
		return &verb.UsageError{Message: fmt.Sprintf("output %q is not known; it can be table, json or yaml", output)}
	}
	if lost := (*connect.NoServerError)(nil); errors.As(serverErr, &lost) {
		fmt.Fprintln(a.errOut, lost)
		return nil
	}
	return serverErr
}

func (a *app) serverVersion(ctx context.Context) (string, error) {
	api, err := a.client.API()
	if err != nil {
		return "", err
	}
	return api.ServerVersion(ctx)
}
