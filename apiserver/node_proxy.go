package apiserver

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
)

const (
	// nodeAnswerBytes and nodeAnswerTime bound what a worker answers.
	nodeAnswerBytes = 16 << 20
	nodeAnswerTime  = 30 * time.Second
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

// Connect implements rest.Connecter. Kubernetes lets a name say a port, too
// ("NODE:10250"); a worker has none.
func (p *nodeProxy) Connect(ctx context.Context, name string, opts runtime.Object, responder rest.Responder) (http.Handler, error) {
	options, ok := opts.(*core.NodeProxyOptions)
	if !ok {
		return nil, badObject("NodeProxyOptions", opts)
	}
	if p.nodes == nil {
		return nil, notImplemented("the proxy to nodes")
	}
	if err := p.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	if _, ok := p.backend.View().Nodes.Get(name); !ok {
		return nil, apierrors.NewNotFound(core.Resource("nodes"), name)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := p.answer(w, r, name, options.Path); err != nil {
			responder.Error(readError(err))
		}
	}), nil
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
	_, _ = io.Copy(w, io.LimitReader(resp.Body, nodeAnswerBytes)) // the client, or the worker, has gone
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
