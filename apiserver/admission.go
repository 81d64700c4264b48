package apiserver

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/initializer"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
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
	security admission.ValidationInterface // PodSecurity
	client   *later
	ended    chan struct{} // closed when run ends
}

// newAdmissionChain makes the chain. Its informers are told of changes while run lasts.
func newAdmissionChain(config Config, rights authorizer.Authorizer) (*admissionChain, error) {
	c := &admissionChain{backend: config.Backend, feed: informers.NewLiveFeed(config.Backend), client: &later{}, ended: make(chan struct{})}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: "http://apiserver", Transport: c.client, QPS: -1})
	if err != nil {
		return nil, err
	}
	plugins := initializer.New(client, nil, c.factory(), rights, utilfeature.DefaultFeatureGate, newServedVersion(), c.ended, nil)
	if c.security, err = newPodSecurity(config.Admission.PodSecurity, plugins); err != nil {
		return nil, err
	}
	view := config.Backend.View
	c.Interface = admission.NewChainHandler(append([]admission.Interface{
		namespaceGuard{c}, limitRanges{view}, volumeAdmission{view}, c.security, secretGuard{}, externalGuard{}, revisionGuard{}, classGuard{view},
	}, certificateGuards(rights)...)...)
	return c, nil
}

// factory gives the informers that Kubernetes' plugins ask for.
func (c *admissionChain) factory() clientinformers.SharedInformerFactory {
	factory := clientinformers.NewSharedInformerFactory(nil, 0)
	for _, k := range []struct {
		object runtime.Object
		rows   *informers.Rows
	}{
		{&corev1.Namespace{}, informers.Typed("namespaces", func(v *fsm.View) fsm.Table[*corev1.Namespace] { return v.Namespaces })},
		{&corev1.Pod{}, informers.Typed("pods", func(v *fsm.View) fsm.Table[*corev1.Pod] { return v.Pods })},
	} {
		i := c.feed.Add(k.rows)
		factory.InformerFor(k.object, func(kubernetes.Interface, time.Duration) cache.SharedIndexInformer { return i })
	}
	return factory
}

// admissionPause is how long is waited until the state is asked for again.
const admissionPause = 100 * time.Millisecond

// run tells the plugins of changes until ctx ends, and says when they may go by the state: when it is
// as new as it was anywhere when this server began.
func (c *admissionChain) run(ctx context.Context) {
	go func() {
		for c.fresh(ctx) != nil {
			select {
			case <-ctx.Done():
				return
			case <-time.After(admissionPause):
			}
		}
	}()
	defer close(c.ended)
	c.feed.Run(ctx)
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

// admitTemplate asks about the pods of a ReplicaSet's template.
func (c *admissionChain) admitTemplate(ctx context.Context, pod *core.Pod) error {
	return c.security.Validate(ctx, askedPod(pod), nil)
}

// templatePods is who pods of ReplicaSets are made by, as Kubernetes says it.
var templatePods = &user.DefaultInfo{
	Name:   "system:controller:replicaset-controller",
	Groups: []string{user.AllAuthenticated, access.Controllers, access.ControllerGroup("replicaset-controller")},
}

// askedPod is what admission plugins are told of the pods of a template.
func askedPod(pod *core.Pod) admission.Attributes {
	return admission.NewAttributesRecord(pod, nil, corev1.SchemeGroupVersion.WithKind("Pod"), pod.Namespace, pod.Name,
		corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, nil, false, templatePods)
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
