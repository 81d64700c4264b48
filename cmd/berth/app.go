package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kubectl/pkg/cmd/options"
	cmdutil "k8s.io/kubectl/pkg/cmd/util"
	utilcomp "k8s.io/kubectl/pkg/util/completion"
	"k8s.io/kubectl/pkg/util/templates"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/cmd/berth/internal/connect"
	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/config"
)

// The exit statuses.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2
)

// app is one call of the binary.
type app struct {
	in     io.Reader
	out    io.Writer
	errOut io.Writer
	getenv func(string) string
	// exit ends the process from inside kubectl's commands, which do not return
	// their errors.
	exit func(int)
	// silence stops what the Kubernetes libraries log, in the whole process.
	silence func()
	// startAgent starts what `berth agent` runs.
	startAgent func(ctx context.Context, c agent.Config) (runningAgent, error)

	flags  config.Flags
	client *connect.Client
	// warnings counts what servers have warned of; warningsAsErrors: then the command fails.
	warnings         rest.WarningHandler
	warningsAsErrors bool
	// started tells a command that failed from one that was called wrongly.
	started bool
}

// run runs the command line and returns the exit status.
func (a *app) run(args []string) int {
	a.client = connect.New(&a.flags, a.getenv)
	a.client.Notice = a.errOut
	root := a.root()
	root.SetArgs(longFlags(args))
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.errOut)
	cmdutil.BehaviorOnFatal(a.fatal)
	status := a.status(root.ExecuteC())
	if n := a.warned(); n > 0 && status == exitDone {
		fmt.Fprintf(a.errOut, "error: %d warnings received\n", n)
		return exitFailed
	}
	return status
}

// longFlags lets `berth agent` take its flags with one dash, as HashiCorp's
// agents do.
func longFlags(args []string) []string {
	if len(args) == 0 || args[0] != "agent" {
		return args
	}
	out := append([]string{}, args...)
	for i, arg := range out[1:] {
		if strings.HasPrefix(arg, "-config") || strings.HasPrefix(arg, "-join-") {
			out[i+1] = "-" + arg
		}
	}
	return out
}

// status prints an error in one sentence and returns the exit status.
func (a *app) status(cmd *cobra.Command, err error) int {
	var (
		usage   *verb.UsageError
		lost    *connect.NoServerError
		unknown *connect.UnknownOutcomeError
		file    *config.Error
	)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, verb.ErrFailed):
		return exitFailed // it has printed why
	case errors.As(err, &usage) || !a.started:
		fmt.Fprintf(a.errOut, "error: %v\n", err)
		if !strings.Contains(err.Error(), "\n") { // kubectl's errors of flags say this themselves
			fmt.Fprintf(a.errOut, "See '%s --help' for usage.\n", cmd.CommandPath())
		}
		return exitUsage
	case errors.As(err, &lost):
		err = lost
	case errors.As(err, &unknown):
		err = unknown
	case errors.As(err, &file):
		err = file
	}
	msg, ok := cmdutil.StandardErrorMessage(err)
	if !ok {
		msg = "error: " + err.Error()
	}
	fmt.Fprintln(a.errOut, msg)
	return exitFailed
}

// fatal is how kubectl's commands end with an error: they give only its text.
func (a *app) fatal(msg string, code int) {
	if lost := a.client.Lost(); lost != nil {
		msg = "error: " + lost.Error()
	}
	if msg != "" {
		fmt.Fprintln(a.errOut, strings.TrimSuffix(sayServed(msg), "\n"))
	}
	a.exit(code)
}

// sayServed corrects what kubectl says of a kind that is not served: nobody could
// install it here.
func sayServed(msg string) string {
	const hint = `Berth does not serve it; "berth api-resources" lists what it serves`
	if before, ok := strings.CutSuffix(msg, "ensure CRDs are installed first"); ok {
		return before + hint
	}
	if strings.Contains(msg, "the server doesn't have a resource type") {
		return msg + "\n" + hint
	}
	return msg
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "berth",
		Short: "Berth schedules pods on machines",
		Long: templates.LongDesc(`
			Berth is a cluster scheduler in one binary: Raft-replicated servers, workers that
			run pods, Kubernetes' API, priorities and preemption.

			Begin with "berth dev", which starts a cluster on this machine.`),
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
		PersistentPreRun: func(cmd *cobra.Command, _ []string) {
			a.started = true
			a.quietLibraries(cmd)
		},
	}
	a.addConnectionFlags(root.PersistentFlags())

	factory := cmdutil.NewFactory(cmdutil.NewMatchVersionFlags(a.client))
	own := append(verb.Commands(a.verbs()), a.replayCommand())
	for _, c := range own {
		if c.Name() == "why" || c.Name() == "queue" || c.Name() == "evict" {
			c.ValidArgsFunction = utilcomp.ResourceNameCompletionFunc(factory, "pod")
		}
	}
	groups := templates.CommandGroups{
		{Message: "Run Berth:", Commands: a.runCommands()},
		{Message: "Ask Berth:", Commands: own},
	}
	groups = append(groups, a.kubectlCommands(factory)...)
	groups.Add(root)
	globalFlags := options.NewCmdOptions(a.out)
	rename(globalFlags)
	root.AddCommand(a.versionCommand(), globalFlags, configCommand())
	root.SetOut(a.out) // the completion's commands take what is set by now
	completionCommand(root)
	templates.ActsAsRootCommand(root, []string{"options"}, groups...)
	root.SetFlagErrorFunc(flagError(root.FlagErrorFunc()))
	utilcomp.SetFactoryForCompletion(factory)
	a.completeFlags(root, factory)
	return root
}

// runCommands are those that start something or prepare it.
func (a *app) runCommands() []*cobra.Command {
	return []*cobra.Command{a.devCommand(), a.demoCommand(), a.agentCommand(), a.tlsCommand(), a.benchCommand()}
}

func (a *app) verbs() *verb.Env {
	return &verb.Env{
		In: a.in, Out: a.out, ErrOut: a.errOut, Client: a.client, Flags: &a.flags,
		Now: now, InspectSnapshot: inspectSnapshot,
	}
}

func (a *app) addConnectionFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.client.As.UserName, "as", "", "The user to make requests as (impersonation).")
	fs.StringArrayVar(&a.client.As.Groups, "as-group", nil, "A group to make requests as, with --as; may be given several times.")
	fs.StringVar(&a.client.As.UID, "as-uid", "", "The UID to make requests as, with --as.")
	f := &a.flags
	fs.StringVar(&f.CLIConfig, "cli-config", "", "The command line's configuration file.")
	fs.StringVar(&f.Context, "context", "", "The context of that file to use.")
	fs.StringSliceVar(&f.Addresses, "addresses", nil, "Servers, the next being tried when one is down.")
	fs.StringVar(&f.CAFile, "ca-file", "", "The CA that the servers' certificates are from.")
	fs.StringVar(&f.CertFile, "cert-file", "", "Your certificate.")
	fs.StringVar(&f.KeyFile, "key-file", "", "The key of your certificate.")
	fs.StringVar(&f.ServerName, "server-name", "", "The name that the servers' certificates must have.")
	fs.BoolVar(&f.KeepTrying, "keep-trying", false, "Wait until servers can be reached and have a leader, however long it takes. (--wait, of some commands, is kubectl's: it waits for objects.)")
	fs.BoolVar(&f.SkipVerify, "skip-verify", false, "Accept any certificate of a server.")
	fs.StringVar(&f.Token, "token", "", "Your bearer token.")
	fs.StringVar(&a.client.Timeout, "request-timeout", "", "How long a request may take, such as 10s; 0: for ever.")
	fs.BoolVar(&a.warningsAsErrors, "warnings-as-errors", false, "Fail when a server warns.")
	a.addKubectlNames(fs)
	fs.StringVarP(&f.Namespace, "namespace", "n", "", "The namespace of what is named without one.")
	// klog reads its verbosity from a flag of the standard library.
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	v := pflag.PFlagFromGoFlag(klogFlags.Lookup("v"))
	v.Usage = "Show the requests: 6 their URLs, 8 their bodies."
	fs.AddFlag(v)
}

// quietLibraries keeps client-go from logging what the command says itself, and
// shows the API's warnings.
func (a *app) quietLibraries(cmd *cobra.Command) {
	handler := rest.NewWarningWriter(a.errOut, rest.WarningWriterOptions{Deduplicate: true})
	a.warnings = handler
	rest.SetDefaultWarningHandler(handler)
	if !cmd.Flags().Changed("v") {
		a.silence()
	}
}

// warned is how many warnings make a command fail.
func (a *app) warned() int {
	counter, ok := a.warnings.(interface{ WarningCount() int })
	if !ok || !a.warningsAsErrors {
		return 0
	}
	return counter.WarningCount()
}

func (a *app) completeFlags(root *cobra.Command, factory cmdutil.Factory) {
	complete := func(flag string, f func(toComplete string) []string) {
		err := root.RegisterFlagCompletionFunc(flag, func(_ *cobra.Command, _ []string, toComplete string) ([]string, cobra.ShellCompDirective) {
			return f(toComplete), cobra.ShellCompDirectiveNoFileComp
		})
		if err != nil {
			panic(err) // a flag of this function that is not there: a bug
		}
	}
	complete("namespace", func(s string) []string { return utilcomp.CompGetResource(factory, "namespace", s) })
	complete("context", func(s string) []string {
		file, err := config.CLIFile(a.getenv)
		if err != nil {
			return nil
		}
		cli, err := config.LoadCLI(file)
		if err != nil {
			return nil
		}
		var names []string
		for _, c := range cli.Contexts {
			if strings.HasPrefix(c.Name, s) {
				names = append(names, c.Name)
			}
		}
		return names
	})
}
