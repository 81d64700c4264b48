package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	config "github.com/cert-manager/cert-manager/internal/apis/config/controller"
	configscheme "github.com/cert-manager/cert-manager/internal/apis/config/controller/scheme"
	defaults "github.com/cert-manager/cert-manager/internal/apis/config/controller/v1alpha1"
	"github.com/cert-manager/cert-manager/pkg/apis/config/controller/v1alpha1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/acme" // issuers register themselves
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/vault"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/venafi"
)

// runController runs the controllers that cert-manager runs if nobody says otherwise, while it leads.
func runController(ctx context.Context, args []string) error {
	c, err := controllerDefaults()
	if err != nil {
		return err
	}
	fs := flagSet("controller")
	fs.StringVar(&c.KubeConfig, "kubeconfig", c.KubeConfig, "")
	fs.StringVar(&c.ClusterResourceNamespace, "cluster-resource-namespace", c.ClusterResourceNamespace, "")
	fs.StringVar(&c.LeaderElectionConfig.Namespace, "leader-election-namespace", c.LeaderElectionConfig.Namespace, "")
	if err := fs.Parse(args); err != nil {
		return err
	}
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: c.KubeConfig, KubernetesAPIQPS: c.KubernetesAPIQPS, KubernetesAPIBurst: c.KubernetesAPIBurst,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: c.ClusterResourceNamespace},
		CertificateOptions: controller.CertificateOptions{CopiedAnnotationPrefixes: c.CopiedAnnotationPrefixes,
			CertificateRequestMinimumBackoffDuration: c.CertificateRequestMinimumBackoffDuration},
		SchedulerOptions: controller.SchedulerOptions{MaxConcurrentChallenges: c.MaxConcurrentChallenges},
	})
	if err != nil {
		return err
	}
	base, err := factory.Build()
	if err != nil {
		return err
	}
	health, err := serveHealth(c.HealthzListenAddress)
	if err != nil {
		return err
	}
	defer func() { _ = health.Close() }() // the program ends
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	lock, err := resourcelock.New(resourcelock.LeasesResourceLock, c.LeaderElectionConfig.Namespace, "cert-manager-controller",
		base.Client.CoreV1(), base.Client.CoordinationV1(), resourcelock.ResourceLockConfig{Identity: host})
	if err != nil {
		return err
	}
	var led error
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{Lock: lock, ReleaseOnCancel: true,
		LeaseDuration: c.LeaderElectionConfig.LeaseDuration, RenewDeadline: c.LeaderElectionConfig.RenewDeadline,
		RetryPeriod: c.LeaderElectionConfig.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				if led = runControllers(ctx, factory, base, c.NumberOfConcurrentWorkers); led != nil {
					fmt.Fprintln(os.Stderr, "certmanager controller:", led)
					os.Exit(1)
				}
			},
			OnStoppedLeading: func() {},
		}})
	return nil
}

func controllerDefaults() (*config.ControllerConfiguration, error) {
	scheme, _, err := configscheme.NewSchemeAndCodecs()
	if err != nil {
		return nil, err
	}
	versioned, out := &v1alpha1.ControllerConfiguration{}, &config.ControllerConfiguration{}
	scheme.Default(versioned)
	return out, scheme.Convert(versioned, out, nil)
}

// runControllers runs every controller until the context ends.
func runControllers(ctx context.Context, factory *controller.ContextFactory, base *controller.Context, workers int) error {
	var all []controller.Interface
	for _, name := range defaults.DefaultEnabledControllers {
		construct := controller.Known()[name]
		if construct == nil {
			return fmt.Errorf("there is no controller %s", name)
		}
		one, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, one)
	}
	base.SharedInformerFactory.Start(ctx.Done())
	base.KubeSharedInformerFactory.Start(ctx.Done())
	base.HTTP01ResourceMetadataInformersFactory.Start(ctx.Done())
	errs := make([]error, len(all))
	var running sync.WaitGroup
	for i, one := range all {
		running.Go(func() { errs[i] = one.Run(workers, ctx) })
	}
	running.Wait()
	return errors.Join(errs...)
}

func serveHealth(address string) (*http.Server, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })}
	go func() { _ = s.Serve(l) }() // until it is closed
	return s, nil
}
