package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/berth/internal/verb"
)

// addKubectlNames lets the connection's flags be given by the names that kubectl has for them. Help shows ours.
func (a *app) addKubectlNames(fs *pflag.FlagSet) {
	f := &a.flags
	fs.StringSliceVarP(&f.Addresses, "server", "s", nil, "kubectl's name for --addresses.")
	fs.StringVar(&f.CAFile, "certificate-authority", "", "kubectl's name for --ca-file.")
	fs.StringVar(&f.CertFile, "client-certificate", "", "kubectl's name for --cert-file.")
	fs.StringVar(&f.KeyFile, "client-key", "", "kubectl's name for --key-file.")
	fs.StringVar(&f.ServerName, "tls-server-name", "", "kubectl's name for --server-name.")
	fs.BoolVar(&f.SkipVerify, "insecure-skip-tls-verify", false, "kubectl's name for --skip-verify.")
	for _, name := range []string{"server", "certificate-authority", "client-certificate", "client-key", "tls-server-name", "insecure-skip-tls-verify"} {
		fs.Lookup(name).Hidden = true
	}
}

// instead are kubectl's other flags for all commands, and what there is here in their place.
func instead(flag string) string {
	const context = "berth has contexts of its own, in ~/.config/berth/cli.hcl: choose one with --context, or another file with --cli-config"
	switch flag {
	case "kubeconfig", "kuberc":
		return "a kubeconfig is kubectl's; " + context
	case "cluster", "user":
		return "a cluster and a user are one context here; " + context
	case "username", "password":
		return "there are no passwords: give --token, or --cert-file and --key-file"
	case "as-user-extra":
		return "requests are made as another user with --as, --as-group and --as-uid"
	case "cache-dir":
		return "nothing of the API is kept between commands"
	case "match-server-version":
		return "`berth version` shows both versions"
	case "disable-compression", "profile", "profile-output", "log-flush-frequency", "vmodule":
		return "kubectl has it, and it would have no effect here"
	}
	return ""
}

// flagError says of a flag of kubectl's that is not there what is; of others what is said of them otherwise.
func flagError(otherwise func(*cobra.Command, error) error) func(*cobra.Command, error) error {
	return func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			if why := instead(unknown.GetSpecifiedName()); why != "" {
				return &verb.UsageError{Message: fmt.Sprintf("--%s: %s", unknown.GetSpecifiedName(), why)}
			}
		}
		return otherwise(cmd, err)
	}
}

// configCommand is there for who looks for kubectl's.
func configCommand() *cobra.Command {
	return &cobra.Command{
		Use: "config", Hidden: true, DisableFlagParsing: true,
		Short: "Say where berth has its contexts",
		RunE: func(_ *cobra.Command, args []string) error {
			return &verb.UsageError{Message: strings.TrimSpace("config "+strings.Join(args, " ")) + ": " + instead("kubeconfig")}
		},
	}
}

// completionCommand is cobra's, which shows its help and says that all is well when it is asked for a shell that it does not know.
func completionCommand(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		if c.Name() != "completion" {
			continue
		}
		var shells []string
		for _, s := range c.Commands() {
			shells = append(shells, s.Name())
		}
		c.RunE = func(*cobra.Command, []string) error {
			return &verb.UsageError{Message: "completion needs one of: " + strings.Join(shells, ", ")}
		}
	}
}
