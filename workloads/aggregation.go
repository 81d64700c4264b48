package workloads

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	aggregatorinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	aggregatorlisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	local "k8s.io/kube-aggregator/pkg/controllers/status/local"
	availabilitymetrics "k8s.io/kube-aggregator/pkg/controllers/status/metrics"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/informers"
)

// Aggregation says how the servers of others' are reached that serve parts of the API, and what they
// are told of who asks them.
type Aggregation struct {
	// Resolve finds what is behind a service.
	Resolve func(namespace, name string, port int32) (*url.URL, error)
	// Certificate is this server's, and its key, in PEM.
	Certificate func() (cert, key []byte)
	// Authority is the PEM of the cluster's CA. Users are those whose certificates the servers
	// show: nobody else may say who asks.
	Authority string
	Users     func() []string
}

const (
	availability = "apiservice-status-remote-available-controller"
	// authentication keeps the config map by which servers of others' know who asks them.
	authentication = "cluster-authentication-trust"
	// availabilityWorkers is how many are asked at a time, availabilityAgain how often each is
	// asked again whatever happens.
	availabilityWorkers, availabilityAgain = 5, 30 * time.Second
	// authenticationAgain is how often it is looked whether the config map is as it should be.
	authenticationAgain = 5 * time.Second

	authenticationMap    = "extension-apiserver-authentication"
	authenticationReader = "extension-apiserver-authentication-reader"
)

// newAvailability makes Kubernetes' own controllers that say which servers of others' answer, and of what has no service that it is
// served here.
func newAvailability(config *rest.Config, f factory, feed *informers.Feed, o Aggregation) (begun, error) {
	client, err := aggregatorclient.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", availability, err)
	}
	services := &apiServices{events: feed.Add(informers.InNoNamespace(fsm.APIServices))}
	measured := availabilitymetrics.New()
	others, err := remote.New(services, f.Core().V1().Services(), f.Discovery().V1().EndpointSlices(), client.ApiregistrationV1(),
		nil, o.Certificate, resolving(o.Resolve), measured)
	if err != nil {
		return nil, fmt.Errorf("controller %s: %w", availability, err)
	}
	own, err := local.New(services, client.ApiregistrationV1(), measured)
	if err != nil {
		return nil, fmt.Errorf("controller %s, of what is served here: %w", availability, err)
	}
	return func(ctx context.Context) {
		guard.Together(ctx, services.again,
			func(ctx context.Context) { others.Run(availabilityWorkers, ctx.Done()) },
			func(ctx context.Context) { own.Run(availabilityWorkers, ctx.Done()) })
	}, nil
}

type resolving func(namespace, name string, port int32) (*url.URL, error)

// ResolveEndpoint implements remote.ServiceResolver.
func (r resolving) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	return r(namespace, name, port)
}

// apiServices is the informer of APIServices, whose handlers are told of each from time to time: who does not answer
// any more tells nobody.
type apiServices struct {
	events   *informers.Informer
	handlers []cache.ResourceEventHandler
}

var _ aggregatorinformers.APIServiceInformer = (*apiServices)(nil)

// Informer implements aggregatorinformers.APIServiceInformer.
func (a *apiServices) Informer() cache.SharedIndexInformer { return toldAgain{a.events, a} }

// Lister implements aggregatorinformers.APIServiceInformer.
func (a *apiServices) Lister() aggregatorlisters.APIServiceLister {
	return aggregatorlisters.NewAPIServiceLister(a.events.GetIndexer())
}

type toldAgain struct {
	*informers.Informer
	of *apiServices
}

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer.
func (t toldAgain) AddEventHandlerWithResyncPeriod(h cache.ResourceEventHandler, period time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	t.of.handlers = append(t.of.handlers, h)
	return t.Informer.AddEventHandlerWithResyncPeriod(h, period)
}

func (a *apiServices) again(ctx context.Context) {
	guard.Every(ctx, availabilityAgain, func(time.Time) {
		for _, o := range a.events.GetIndexer().List() {
			for _, h := range a.handlers {
				h.OnUpdate(o, o)
			}
		}
	})
}

// newAuthentication makes what keeps the config map that tells servers of others' by which certificates they know
// this cluster's, and its clients, and the role of who may read it.
func newAuthentication(config *rest.Config, state State, o Aggregation) (begun, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", authentication, err)
	}
	return func(ctx context.Context) {
		ticker := time.NewTicker(authenticationAgain)
		defer ticker.Stop()
		for ctx.Err() == nil {
			if state.View().Version() >= fsm.SinceAPIServices {
				if err := keepAuthentication(ctx, client, o); err != nil && ctx.Err() == nil {
					klog.FromContext(ctx).Error(err, "what servers of others' authenticate by is not as it should be")
				}
			}
			select {
			case <-ctx.Done():
			case <-ticker.C:
			}
		}
	}, nil
}

func keepAuthentication(ctx context.Context, client kubernetes.Interface, o Aggregation) error {
	wanted, err := authenticationData(o)
	if err != nil {
		return err
	}
	kept := client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	switch is, err := kept.Get(ctx, authenticationMap, metav1.GetOptions{}); {
	case apierrors.IsNotFound(err):
		is = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: authenticationMap}, Data: wanted}
		if _, err := kept.Create(ctx, is, metav1.CreateOptions{}); err != nil {
			return err
		}
	case err != nil:
		return err
	case !maps.Equal(is.Data, wanted):
		is = is.DeepCopy()
		is.Data = wanted
		if _, err := kept.Update(ctx, is, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	readers := client.RbacV1().Roles(metav1.NamespaceSystem)
	if _, err := readers.Get(ctx, authenticationReader, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err = readers.Create(ctx, &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: authenticationReader},
		Rules: []rbacv1.PolicyRule{{
			Verbs: []string{"get", "list", "watch"}, APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{authenticationMap},
		}},
	}, metav1.CreateOptions{})
	return err
}

// authenticationData is what the config map says: as kube-apiserver's.
func authenticationData(o Aggregation) (map[string]string, error) {
	out := map[string]string{"client-ca-file": o.Authority, "requestheader-client-ca-file": o.Authority}
	for key, names := range map[string][]string{
		"requestheader-allowed-names":        o.Users(),
		"requestheader-username-headers":     {"X-Remote-User"},
		"requestheader-uid-headers":          {"X-Remote-Uid"},
		"requestheader-group-headers":        {"X-Remote-Group"},
		"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
	} {
		raw, err := json.Marshal(names)
		if err != nil {
			return nil, err
		}
		out[key] = string(raw)
	}
	return out, nil
}
