// Operator is one as others write them, on controller-runtime, which knows nothing of Berth: a custom kind in two versions, a
// controller of its objects, and webhooks that fill in, check and convert them. The tests run it outside of a cluster and inside.
package main

import (
	"flag"
	"fmt"
	"os"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/conversion"
)

type options struct {
	certs, host, probes, election string
	port                          int
}

func main() {
	var o options
	flag.StringVar(&o.certs, "certs", "", "A folder with tls.crt and tls.key, which the webhooks are served by.")
	flag.StringVar(&o.host, "host", "", "The address that the webhooks are served at; empty: all.")
	flag.IntVar(&o.port, "port", 9443, "The port that the webhooks are served at.")
	flag.StringVar(&o.probes, "probes", ":8081", "Where it says that it is well.")
	flag.StringVar(&o.election, "election", "", "The namespace of the lease; empty: its own.")
	flag.Parse() // controller-runtime adds -kubeconfig
	ctrl.SetLogger(zap.New(zap.UseDevMode(true)))
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "operator:", err)
		os.Exit(1)
	}
}

func run(o options) error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return err
	}
	addToScheme(scheme)
	config, err := ctrl.GetConfig()
	if err != nil {
		return err
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"}, HealthProbeBindAddress: o.probes,
		LeaderElection: true, LeaderElectionID: "gardener", LeaderElectionNamespace: o.election, LeaderElectionReleaseOnCancel: true,
		WebhookServer: webhook.NewServer(webhook.Options{Host: o.host, Port: o.port, CertDir: o.certs}),
	})
	if err != nil {
		return err
	}
	g := &gardener{Client: mgr.GetClient(), events: mgr.GetEventRecorder("gardener")}
	if err := ctrl.NewControllerManagedBy(mgr).For(&Plot{}).Owns(&appsv1.Deployment{}).Owns(&corev1.ConfigMap{}).Complete(g); err != nil {
		return err
	}
	hooks := ctrl.NewWebhookManagedBy(mgr, &Plot{}).WithDefaulter(rules{}).WithValidator(rules{}).
		WithConverter(conversion.NewHubSpokeConverter(&Plot{}, conversion.NewSpokeConverter(&OldPlot{}, fromPlot, toPlot)))
	if err := hooks.Complete(); err != nil {
		return err
	}
	if err := mgr.AddHealthzCheck("alive", healthz.Ping); err != nil {
		return err
	}
	if err := mgr.AddReadyzCheck("webhooks", mgr.GetWebhookServer().StartedChecker()); err != nil {
		return err
	}
	return mgr.Start(ctrl.SetupSignalHandler())
}
