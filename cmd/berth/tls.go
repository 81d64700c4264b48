package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/pki"
)

func marshalJSON(v any) ([]byte, error) {
	data, err := json.MarshalIndent(v, "", "  ")
	return append(data, '\n'), err
}

// tlsOptions are the flags that the tls commands share.
type tlsOptions struct {
	dir   string
	days  int
	force bool
}

func (o *tlsOptions) add(cmd *cobra.Command, days time.Duration) *cobra.Command {
	f := cmd.Flags()
	f.StringVarP(&o.dir, "dir", "d", ".", "The directory of the CA, where certificates are written as well.")
	f.IntVar(&o.days, "days", int(days/(24*time.Hour)), "How many days it is valid.")
	f.BoolVar(&o.force, "force", false, "Replace what is there.")
	return cmd
}

func (o *tlsOptions) validity() (time.Duration, error) {
	if o.days < 1 {
		return 0, &verb.UsageError{Message: "--days must be at least 1"}
	}
	return time.Duration(o.days) * 24 * time.Hour, nil
}

func (a *app) tlsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "tls",
		Short: "Make a private CA and certificates for servers, workers and people",
		Example: `  berth tls ca
  berth tls server server-1 --ip 10.0.0.1
  berth tls worker worker-1
  berth tls client ada --group system:masters`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return &verb.UsageError{Message: "berth tls needs one of: ca, server, worker, client"}
		},
	}
	cmd.AddCommand(a.tlsCA(), a.tlsServer(), a.tlsWorker(), a.tlsClient())
	return cmd
}

func (a *app) tlsCA() *cobra.Command {
	var o tlsOptions
	return o.add(&cobra.Command{
		Use:   "ca",
		Short: "Make a CA; keep its key where no agent runs",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			validity, err := o.validity()
			if err != nil {
				return err
			}
			if _, err := pki.CreateCA(o.dir, validity, o.force); err != nil {
				return unforced(err)
			}
			fmt.Fprintf(a.out, "CA written to %s and %s in %s\n", pki.CAFile, pki.CAKeyFile, o.dir)
			return nil
		},
	}, pki.DefaultCAValidity)
}

func (a *app) tlsServer() *cobra.Command {
	var (
		o   tlsOptions
		dns []string
		ips []net.IP
	)
	cmd := o.add(&cobra.Command{
		Use:   "server NAME",
		Short: "Make a server's certificate",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			for _, name := range dns {
				if problems := validation.IsDNS1123Subdomain(strings.TrimPrefix(name, "*.")); len(problems) > 0 {
					return &verb.UsageError{Message: fmt.Sprintf("--dns %q is no host name: %s", name, problems[0])}
				}
			}
			return a.issue(&o, pki.Request{Kind: pki.Server, Name: args[0], DNSNames: dns, IPs: ips})
		},
	}, pki.DefaultValidity)
	cmd.Flags().StringSliceVar(&dns, "dns", nil, "Host names that plain kubectl reaches the server at.")
	cmd.Flags().IPSliceVar(&ips, "ip", nil, "Addresses that plain kubectl reaches the server at.")
	return cmd
}

func (a *app) tlsWorker() *cobra.Command {
	var o tlsOptions
	return o.add(&cobra.Command{
		Use:   "worker NAME",
		Short: "Make a worker's certificate",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.issue(&o, pki.Request{Kind: pki.Worker, Name: args[0]})
		},
	}, pki.DefaultValidity)
}

func (a *app) tlsClient() *cobra.Command {
	var (
		o      tlsOptions
		groups []string
	)
	cmd := o.add(&cobra.Command{
		Use:   "client USER",
		Short: "Make a person's or a program's certificate",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.issue(&o, pki.Request{Kind: pki.Client, Name: args[0], Groups: groups})
		},
	}, pki.DefaultValidity)
	cmd.Flags().StringSliceVar(&groups, "group", nil, "Groups that the user belongs to; system:masters may do everything (docs/security.md).")
	return cmd
}

// unforced says what replaces a key that is there.
func unforced(err error) error {
	if errors.Is(err, pki.ErrExists) {
		return fmt.Errorf("%w; --force replaces it", err)
	}
	return err
}

func (a *app) issue(o *tlsOptions, r pki.Request) error {
	validity, err := o.validity()
	if err != nil {
		return err
	}
	r.Validity = validity
	files, err := pki.Issue(o.dir, r, o.force)
	if err != nil {
		return unforced(err)
	}
	fmt.Fprintf(a.out, "certificate of %s %s written to\n  ca_file   = %q\n  cert_file = %q\n  key_file  = %q\n", r.Kind, r.Name, files.CA, files.Cert, files.Key)
	return nil
}
