package main

import (
	"context"
	"fmt"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/cert-manager/cert-manager/internal/webhook"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
	"github.com/cert-manager/cert-manager/pkg/util/cmapichecker"
	"github.com/cert-manager/cert-manager/pkg/webhook/options"
)

// runWebhook serves what is asked about cert-manager's kinds, by a CA of its own.
func runWebhook(ctx context.Context, args []string) error {
	c, err := options.NewWebhookConfiguration()
	if err != nil {
		return err
	}
	fs := flagSet("webhook")
	options.AddConfigFlags(fs, c)
	if err := fs.Parse(args); err != nil {
		return err
	}
	s, err := webhook.NewCertManagerWebhookServer(logf.FromContext(ctx), *c)
	if err != nil {
		return err
	}
	return s.Run(ctx)
}

// runCheck waits until a Certificate would be taken.
func runCheck(ctx context.Context, args []string) error {
	fs := flagSet("startupapicheck")
	wait := fs.Duration("wait", 0, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	// Its rights are those of the namespace that it is in.
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).Namespace()
	if err != nil {
		return err
	}
	checker, err := cmapichecker.New(config, namespace)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, *wait)
	defer cancel()
	for {
		err := checker.Check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the API is not ready: %w", err)
		case <-time.After(time.Second):
		}
	}
}
