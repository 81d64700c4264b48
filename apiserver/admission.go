package apiserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	webhookinitializer "k8s.io/apiserver/pkg/admission/plugin/webhook/initializer"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/dynamic"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/informers"
)

// Admission says what is asked of everybody's objects, beyond what the objects of the
// cluster say themselves.
type Admission struct {
	PodSecurity PodSecurity
}

// admissionUser is who Kubernetes' admission plugins are where they ask the API.
const admissionUser = "system:apiserver"

// admissionChain is what every request that writes is asked by.
type admissionChain struct {
	admission.Interface
	backend  Backend
	feed     *informers.LiveFeed
	names    *kindNames
	security admission.ValidationInterface // PodSecurity
	client   *later
	flows    *later // flowUser's way to the API
	flow     flowControl
	events   *eventShare
	ended    chan struct{} // closed when nothing is asked any more
}

// newAdmissionChain makes the chain. Its informers are told of changes while run lasts.
func newAdmissionChain(config Config, rights authorizer.Authorizer, speed *pace) (*admissionChain, error) {
	c := &admissionChain{backend: config.Backend, feed: informers.NewLiveFeed(config.Backend), client: &later{}, flows: &later{}, events: newEventShare(time.Now), ended: make(chan struct{})}
	view := config.Backend.View
	c.names = newKindNames(view)
	local := &rest.Config{Host: "http://apiserver", Transport: c.client, QPS: -1}
	client, err := kubernetes.NewForConfig(local)
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(local)
	if err != nil {
		return nil, err
	}
	flows, err := kubernetes.NewForConfig(&rest.Config{Host: "http://apiserver", Transport: c.flows, QPS: -1})
	if err != nil {
		return nil, err
	}
	factory := c.factory(objects)
	c.flow = newFlowControl(factory, flows, config.MaxRequests, speed)
	plugins := admission.PluginInitializers{
		initializer.New(withLateSchemas(client, c.names), objects, factory, rights, utilfeature.DefaultFeatureGate, newServedVersion(), c.ended, c.names),
		webhookinitializer.NewPluginInitializer(boundedWebhooks, serviceEndpoints{view}),
	}
	if c.security, err = newPodSecurity(config.Admission.PodSecurity, plugins); err != nil {
		return nil, err
	}
	mutating, validating, err := newHooks(plugins)
	if err != nil {
		return nil, err
	}
	ofNodes, err := nodeGuards(plugins, view)
	if err != nil {
		return nil, err
	}
	ofIngresses, err := newIngressClassDefault(plugins)
	if err != nil {
		return nil, err
	}
	ofResizes, err := newResizeGuard(plugins)
	if err != nil {
		return nil, err
	}
	// What is asked a second time where somebody has changed what those before had seen.
	changing := admission.NewChainHandler(slices.Concat(
		[]admission.Interface{namespaceGuard{c}, limitRanges{view}, podDefaults{view}, volumeAdmission{view}, ofIngresses}, ofNodes, mutating,
	)...)
	c.Interface = admission.NewChainHandler(slices.Concat(
		[]admission.Interface{bounds{speed}, c.events, again{changing}},
		// From here on nothing is changed any more.
		[]admission.Interface{newCustomErrors(view), c.security, secretGuard{}, externalGuard{}, revisionGuard{}, classGuard{view}, ofResizes}, certificateGuards(rights, view), validating,
	)...)
	return c, nil
}

// kubernetesPlugin is one of Kubernetes' admission plugins, with its configuration; nil: it has none.
func kubernetesPlugin(register func(*admission.Plugins), name string, config io.Reader, with admission.PluginInitializer) (admission.Interface, error) {
	all := admission.NewPlugins()
	register(all)
	return all.InitPlugin(name, config, with)
}

// factory gives the informers that Kubernetes' plugins ask for.
func (c *admissionChain) factory(client dynamic.Interface) clientinformers.SharedInformerFactory {
	factory := clientinformers.NewSharedInformerFactory(nil, 0)
	nodes, accounts, claims, volumes := nodeRows()
	for _, k := range []struct {
		object runtime.Object
		rows   *informers.Rows
	}{
		{&corev1.Namespace{}, informers.Typed("namespaces", func(v *fsm.View) fsm.Table[*corev1.Namespace] { return v.Namespaces })},
		{&corev1.Node{}, nodes},
		{&corev1.ServiceAccount{}, accounts},
		{&corev1.PersistentVolumeClaim{}, claims},
		{&corev1.PersistentVolume{}, volumes},
		{&networkingv1.IngressClass{}, informers.InNoNamespace(fsm.IngressClasses)},
		{&flowcontrolv1.FlowSchema{}, informers.InNoNamespace(fsm.FlowSchemas)},
		{&flowcontrolv1.PriorityLevelConfiguration{}, informers.InNoNamespace(fsm.PriorityLevels)},
		{&corev1.Pod{}, informers.Typed("pods", func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })},
		{&admissionv1.ValidatingAdmissionPolicy{}, informers.InNoNamespace(fsm.ValidatingPolicies)},
		{&admissionv1.ValidatingAdmissionPolicyBinding{}, informers.InNoNamespace(fsm.ValidatingPolicyBindings)},
		{&admissionv1.MutatingAdmissionPolicy{}, informers.InNoNamespace(fsm.MutatingPolicies)},
		{&admissionv1.MutatingAdmissionPolicyBinding{}, informers.InNoNamespace(fsm.MutatingPolicyBindings)},
		{&admissionv1.ValidatingWebhookConfiguration{}, informers.InNoNamespace(fsm.ValidatingWebhooks)},
		{&admissionv1.MutatingWebhookConfiguration{}, informers.InNoNamespace(fsm.MutatingWebhooks)},
	} {
		i := c.feed.Add(k.rows)
		factory.InformerFor(k.object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return i })
	}
	return stateFactory{factory, c.feed, c.backend.View, client}
}

// admissionPause is how long is waited until the state is asked for again.
const admissionPause = 100 * time.Millisecond

// run tells the plugins of changes until ctx ends, and says when they may go by the state: when it is
// as new as it was anywhere when this server began.
func (c *admissionChain) run(ctx context.Context) {
	guard.Together(ctx, c.freshen, c.feed.Run)
}

// freshen asks for the state until it is fresh.
func (c *admissionChain) freshen(ctx context.Context) {
	for c.fresh(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(admissionPause):
		}
	}
}

// fresh makes sure once that the state is not one of long ago.
func (c *admissionChain) fresh(ctx context.Context) error {
	if c.feed.IsReady() {
		return nil
	}
	if err := c.backend.ReadIndex(ctx); err != nil {
		return readError(err)
	}
	c.feed.Ready()
	return nil
}

// later is a way to the API of this process from before there is one.
type later struct {
	to atomic.Pointer[http.RoundTripper]
}

var errTooEarly = errors.New("the API is not set up yet")

// RoundTrip implements http.RoundTripper.
func (l *later) RoundTrip(r *http.Request) (*http.Response, error) {
	to := l.to.Load()
	if to == nil {
		return nil, errTooEarly
	}
	return (*to).RoundTrip(r)
}

func (l *later) lead(to http.RoundTripper) { l.to.Store(&to) }
