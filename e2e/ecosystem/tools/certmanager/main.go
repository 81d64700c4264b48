// Certmanager is cert-manager's programs in one: its controllers, cainjector, webhook and the check that its chart makes after an
// installation. All that they do is cert-manager's own code; here it is started.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/pflag"
	ctrl "sigs.k8s.io/controller-runtime"

	logf "github.com/cert-manager/cert-manager/pkg/logs"
)

func main() {
	programs := map[string]func(context.Context, []string) error{
		"controller": runController, "cainjector": runInjector, "webhook": runWebhook, "startupapicheck": runCheck,
	}
	if len(os.Args) < 2 || programs[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "certmanager: which program: controller, cainjector, webhook or startupapicheck?")
		os.Exit(2)
	}
	logf.InitLogs()
	ctrl.SetLogger(logf.Log)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := programs[os.Args[1]](logf.NewContext(ctx, logf.Log, os.Args[1]), os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "certmanager %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// flagSet takes what it knows of the flags that charts give.
func flagSet(name string) *pflag.FlagSet {
	fs := pflag.NewFlagSet(name, pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	return fs
}
