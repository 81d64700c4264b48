package apiserver

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/cluster/ports"

	"github.com/berth-dev/berth/model"
)

const (
	// nodeAnswerTime bounds how long a worker answers.
	nodeAnswerTime = 30 * time.Second
	// nodeHeaderBytes bounds the head of it.
	nodeHeaderBytes = 16 << 10
)

// nodeProxy serves nodes/proxy: what a worker shows of its node, as a kubelet does.
// It can be read and nothing else.
type nodeProxy struct {
	backend Backend
	nodes   Nodes // nil: there are none
}

var _ rest.Connecter = (*nodeProxy)(nil)

// New implements rest.Storage.
func (p *nodeProxy) New() runtime.Object { return new(core.NodeProxyOptions) }

// Destroy implements rest.Storage.
func (p *nodeProxy) Destroy() {}

// ConnectMethods implements rest.Connecter.
func (p *nodeProxy) ConnectMethods() []string { return []string{http.MethodGet} }

// NewConnectOptions implements rest.Connecter.
func (p *nodeProxy) NewConnectOptions() (runtime.Object, bool, string) {
	return new(core.NodeProxyOptions), true, "path"
}

// Connect implements rest.Connecter. As in Kubernetes a name may say a scheme and a port, too ("https:NODE:10250"), where it is that of the
// node's kubelet: nothing else of a node is led to.
func (p *nodeProxy) Connect(ctx context.Context, id string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	options, ok := opts.(*core.NodeProxyOptions)
	if !ok {
		return nil, badObject("NodeProxyOptions", opts)
	}
	if p.nodes == nil {
		return nil, notImplemented("the proxy to nodes")
	}
	_, name, port, valid := utilnet.SplitSchemeNamePort(id)
	if !valid {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", id))
	}
	if err := p.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	node, ok := p.backend.View().Nodes.Get(name)
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("nodes"), name)
	}
	if own := kubeletPort(node); port != "" && port != own {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("port %q of node %s is not its kubelet's, which is %s", port, name, own))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.answer(w, r, name, options.Path); err != nil {
			responder.Error(readError(err))
		}
	}), nil
}

// kubeletPort is where who asks for a node's kubelet finds it. A worker of Berth's has no port: it is reached by the one that a kubelet has
// which names none, as in Kubernetes.
func kubeletPort(n *corev1.Node) string {
	return strconv.Itoa(int(cmp.Or(n.Status.DaemonEndpoints.KubeletEndpoint.Port, ports.KubeletPort)))
}

// answer asks the worker; an error means that nothing was answered. The worker
// learns of the request its path, its query and what form is wanted.
func (p *nodeProxy) answer(w http.ResponseWriter, r *http.Request, node, path string) error {
	ctx, cancel := context.WithTimeout(r.Context(), nodeAnswerTime)
	defer cancel()
	conn, err := p.nodes.Open(ctx, node)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nobody writes any more
	if len(path) == 0 || path[0] != '/' {
		path = "/" + path
	}
	to := &url.URL{Scheme: "http", Host: node, Path: path, RawQuery: r.URL.RawQuery}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if accept := r.Header.Get("Accept"); accept != "" {
		req.Header.Set("Accept", accept)
	}
	transport := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: nodeHeaderBytes,
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the worker of node %s does not answer: %v", node, err))
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode >= 600 || resp.StatusCode >= 300 && resp.StatusCode < 400 {
		return apierrors.NewServiceUnavailable(fmt.Sprintf("the worker of node %s answers with status %d", node, resp.StatusCode))
	}
	// What a worker says is data, whatever it says that it is.
	w.Header().Set("Content-Type", plainType(resp.Header.Get("Content-Type")))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, io.LimitReader(resp.Body, model.MaxNodeAnswerBytes)) // the client, or the worker, has gone
	return nil
}

// plainType lets through what no browser runs.
func plainType(said string) string {
	for _, known := range []string{"application/json", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores", "text/plain; version=0.0.4; charset=utf-8", "application/vnd.google.protobuf"} {
		if said == known {
			return said
		}
	}
	return "text/plain; charset=utf-8"
}
