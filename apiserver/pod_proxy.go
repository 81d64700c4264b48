package apiserver

import (
	"context"
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	podregistry "k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/berth-dev/berth/fsm"
)

const (
	// proxyPatience is how long a request waits for its turn where the node, or the pod, has as many connections as it may;
	// it asks every proxyRetry.
	proxyPatience = 10 * time.Second
	proxyRetry    = 50 * time.Millisecond
)

// podProxy serves pods/proxy and services/proxy: a request goes on to what listens in a pod, by upstream's handler, over a
// connection that the pod's worker makes. Servers need no way to the pods' network.
type podProxy struct {
	backend Backend
	streams Streams // nil: there are none
	options func() runtime.Object
	// locate finds the pod, and where in it the request goes to.
	locate func(ctx context.Context, v *fsm.View, name string) (*corev1.Pod, *url.URL, error)
}

var _ rest.Connecter = (*podProxy)(nil)

func proxyToPods(b Backend, s Streams) *podProxy {
	return &podProxy{backend: b, streams: s, options: func() runtime.Object { return new(core.PodProxyOptions) }, locate: locatePod}
}

func proxyToServices(b Backend, s Streams) *podProxy {
	return &podProxy{backend: b, streams: s, options: func() runtime.Object { return new(core.ServiceProxyOptions) }, locate: locateService}
}

// New implements rest.Storage.
func (p *podProxy) New() runtime.Object { return p.options() }

// Destroy implements rest.Storage.
func (p *podProxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *podProxy) ConnectMethods() []string {
	return []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodHead, http.MethodOptions}
}

// NewConnectOptions implements rest.Connecter.
func (p *podProxy) NewConnectOptions() (runtime.Object, bool, string) {
	return p.options(), true, "path"
}

// Connect implements rest.Connecter. The name may be "scheme:name:port", as in Kubernetes.
func (p *podProxy) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	if p.streams == nil {
		return nil, notImplemented("the proxy to pods")
	}
	if err := p.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	pod, location, err := p.locate(ctx, p.backend.View(), name)
	if err != nil {
		return nil, err
	}
	switch o := opts.(type) {
	case *core.PodProxyOptions:
		location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, o.Path)
	case *core.ServiceProxyOptions:
		location.Path = utilnet.JoinPreservingTrailingSlash(location.Path, o.Path)
	default:
		return nil, badObject("proxy options", opts)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeoutCause(r.Context(), maxStream, fmt.Errorf("it was open for %s", maxStream))
		defer cancel() // and with it the connections to the worker
		to := p.transport(ctx, pod)
		if httpstream.IsUpgradeRequest(r) {
			w = boundHead(to, w)
		}
		proxy.NewUpgradeAwareHandler(location, pages{to, false}, true, false, proxy.NewErrorResponder(responder)).ServeHTTP(w, r.WithContext(ctx))
	}), nil
}

// transport connects to ports of the pod. Nobody has vouched for the names in pods' certificates: as in Kubernetes they are not looked at.
func (p *podProxy) transport(ctx context.Context, pod *corev1.Pod) *http.Transport {
	return &http.Transport{
		// The dialer's own context ends before the connection does.
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			_, text, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			port, err := strconv.ParseUint(text, 10, 16)
			if err != nil {
				return nil, err
			}
			return p.dial(ctx, pod, uint16(port))
		},
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // #nosec G402 -- as in Kubernetes nobody knows whose certificate a pod has; the way to it is the tunnel of its worker, who is known
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: proxyHeadBytes,
	}
}

// dial waits for its turn.
func (p *podProxy) dial(ctx context.Context, pod *corev1.Pod, port uint16) (net.Conn, error) {
	patience := time.NewTimer(proxyPatience)
	defer patience.Stop()
	for {
		conn, err := p.streams.Dial(ctx, pod, port)
		if err == nil || !apierrors.IsTooManyRequests(err) {
			return conn, err
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-patience.C:
			return nil, err
		case <-time.After(proxyRetry):
		}
	}
}

// onePod is where upstream reads the pod that it is asked for.
type onePod struct {
	view *fsm.View
	pod  *corev1.Pod
}

// Get implements upstream's getter of pods.
func (o *onePod) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	pod, ok := o.view.Pods.Get(fsm.PodKey(request.NamespaceValue(ctx), name))
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("pods"), name)
	}
	o.pod = pod
	return versioned[core.Pod](pod)
}

func locatePod(ctx context.Context, v *fsm.View, name string) (*corev1.Pod, *url.URL, error) {
	found := &onePod{view: v}
	location, _, err := podregistry.ResourceLocation(ctx, found, nil, name)
	return found.pod, location, err
}

// locateService finds one of the ready pods of a service, any of them. Addresses that are no pod's are not gone to: whoever may write
// endpoints could name any.
func locateService(ctx context.Context, v *fsm.View, id string) (*corev1.Pod, *url.URL, error) {
	scheme, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", id))
	}
	namespace := request.NamespaceValue(ctx)
	row, ok := v.Objects.Get(fsm.ObjectKey("services", namespace, name))
	if !ok {
		return nil, nil, apierrors.NewNotFound(core.Resource("services"), name)
	}
	if number, err := strconv.ParseInt(port, 10, 32); err == nil {
		named := false
		for _, p := range row.Value.(*corev1.Service).Spec.Ports {
			if int64(p.Port) == number {
				port, named = p.Name, true
				break
			}
		}
		if !named {
			return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %d found for service %q", number, name))
		}
	}
	if row, ok = v.Objects.Get(fsm.ObjectKey("endpoints", namespace, name)); ok {
		if pod, at := anyEndpoint(v, namespace, row.Value.(*corev1.Endpoints), port); pod != nil {
			return pod, &url.URL{Scheme: scheme, Host: at}, nil
		}
	}
	return nil, nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", id))
}

// anyEndpoint chooses among the pods that have the port.
func anyEndpoint(v *fsm.View, namespace string, e *corev1.Endpoints, port string) (chosen *corev1.Pod, at string) {
	seen := 0
	for i := range e.Subsets {
		for _, p := range e.Subsets[i].Ports {
			if p.Name != port {
				continue
			}
			for _, address := range e.Subsets[i].Addresses {
				if address.TargetRef == nil || address.TargetRef.Kind != "Pod" {
					continue
				}
				pod, ok := v.Pods.Get(fsm.PodKey(namespace, address.TargetRef.Name))
				if !ok || !hasIP(pod, address.IP) {
					continue
				}
				if seen++; rand.IntN(seen) == 0 { // #nosec G404 -- no secret: it only spreads what is asked over time, servers or places
					chosen, at = pod, net.JoinHostPort(address.IP, strconv.Itoa(int(p.Port)))
				}
			}
		}
	}
	return chosen, at
}

func hasIP(pod *corev1.Pod, ip string) bool {
	for i := range pod.Status.PodIPs {
		if pod.Status.PodIPs[i].IP == ip {
			return true
		}
	}
	return false
}
