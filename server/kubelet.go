package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	genericrest "k8s.io/apiserver/pkg/registry/generic/rest"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/pki"
)

const (
	// kubeletDial bounds how long it may take until a connection to a kubelet is there, and
	// kubeletBegin until the kubelet says whether it does what it was asked for.
	kubeletDial  = 10 * time.Second
	kubeletBegin = 30 * time.Second
	// kubeletHeaderBytes bounds the head of what a kubelet answers.
	kubeletHeaderBytes = 64 << 10
)

// kubelet is where the kubelet of a node listens. Workers of Berth's have no port: they are reached
// by the connections that they make themselves.
type kubelet struct {
	node, host string
	port       int32
}

// addressOrder is which of a node's addresses is tried: that of the inner network first, as every
// installer of Kubernetes sets it (--kubelet-preferred-address-types). Few resolve the names of hosts.
func addressOrder() []corev1.NodeAddressType {
	return []corev1.NodeAddressType{
		corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeInternalDNS, corev1.NodeExternalDNS, corev1.NodeHostName,
	}
}

// kubeletOf finds the kubelet of a node; nil: it has none.
func (s *Server) kubeletOf(node string) (*kubelet, error) {
	n, ok := s.state.View().Nodes.Get(node)
	if !ok || n.Status.DaemonEndpoints.KubeletEndpoint.Port == 0 {
		return nil, nil
	}
	for _, kind := range addressOrder() {
		for _, a := range n.Status.Addresses {
			if a.Type == kind && a.Address != "" {
				return &kubelet{node, a.Address, n.Status.DaemonEndpoints.KubeletEndpoint.Port}, nil
			}
		}
	}
	return nil, unreachable(node, errNoAddress)
}

// errNoAddress: nobody has written where the node is.
var errNoAddress = errors.New("its node has no address")

func unreachable(node string, err error) error {
	return apierrors.NewServiceUnavailable(fmt.Sprintf("the kubelet of node %s does not answer: %v", node, err))
}

// dialKubelet connects to a kubelet, as this server, and returns when each knows who the other is.
// The connection ends with ctx.
func (s *Server) dialKubelet(ctx context.Context, k *kubelet) (net.Conn, error) {
	within, cancel := context.WithTimeout(ctx, kubeletDial)
	defer cancel()
	address, err := proxyable(within, k.host)
	if err != nil {
		return nil, unreachable(k.node, err)
	}
	bound := &boundConn{node: k.node, began: time.Now()}
	accept := func(id *pki.Identity) error {
		bound.id = id
		return s.checkRevoked(id)
	}
	to := tls.Dialer{Config: s.config.TLS.KubeletConfig(k.node, k.host, s.config.SignedKubelets, accept)}
	conn, err := to.DialContext(within, "tcp", net.JoinHostPort(address, strconv.Itoa(int(k.port))))
	if err != nil {
		return nil, unreachable(k.node, err)
	}
	bound.Conn = conn
	forget := s.kubelets.Add(k.node, bound)
	over := context.AfterFunc(ctx, func() { _ = bound.end() }) // whoever reads or writes is told
	bound.forget = func() {
		over()
		forget()
	}
	if err := bound.refused(s.checkRevoked); err != nil { // since it was accepted
		_ = bound.Close() // the first error is the one that matters
		return nil, unreachable(k.node, err)
	}
	return bound, nil
}

// reachKubelet is dialKubelet for what kubeletOf has found.
func (s *Server) reachKubelet(ctx context.Context, k *kubelet, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	return s.dialKubelet(ctx, k)
}

// proxyable resolves a node's address. A node writes it, so nothing is gone to that is this
// machine's own, as upstream has it.
func proxyable(ctx context.Context, host string) (string, error) {
	found, err := net.DefaultResolver.LookupIPAddr(ctx, host)
	if err != nil {
		return "", err
	}
	for _, a := range found {
		if !a.IP.IsGlobalUnicast() {
			return "", fmt.Errorf("address %s is not allowed", a.IP)
		}
	}
	if len(found) == 0 {
		return "", fmt.Errorf("no address is known of %q", host)
	}
	return found[0].String(), nil
}

// boundConn is a connection that ends with a context, which need not remember it any longer than it is open. It may be closed
// twice: by who has it, and by who has streams on it.
type boundConn struct {
	net.Conn
	node   string
	began  time.Time
	id     *pki.Identity // the kubelet's; nil: it shows a certificate of somebody else's
	forget func()
	once   sync.Once
}

// refused says why a connection is not good any more that was. One to a kubelet of which nobody knows whose it is was good as long as its
// node has not been revoked since it began.
func (c *boundConn) refused(refuse func(id *pki.Identity) error) error {
	if c.id == nil {
		return refuse(&pki.Identity{Kind: pki.Worker, Name: c.node, Issued: c.began})
	}
	return refuse(c.id)
}

// Close implements net.Conn.
func (c *boundConn) Close() error {
	c.forget()
	return c.end()
}

func (c *boundConn) end() (err error) {
	c.once.Do(func() { err = c.Conn.Close() })
	return err
}

// endRevokedKubelets ends the connections to node's kubelet of which checkRevoked says no; of an empty name those to all kubelets.
func (s *Server) endRevokedKubelets(node string) {
	for _, c := range s.kubelets.Of(node) {
		if c.refused(s.checkRevoked) != nil {
			go func() { _ = guard.Caught(c.end) }() // whoever reads or writes is told; TLS may say goodbye for seconds
		}
	}
}

// kubeletLog asks a kubelet for a container's log.
func (s *Server) kubeletLog(
	ctx context.Context, k *kubelet, pod *corev1.Pod, container string, options *corev1.PodLogOptions,
) (io.ReadCloser, error) {
	query, err := scheme.ParameterCodec.EncodeParameters(options, corev1.SchemeGroupVersion)
	if err != nil {
		return nil, err
	}
	query.Del("container") // it is in the path
	to := url.URL{
		Scheme: "http", Host: k.node, RawQuery: query.Encode(), // on a connection that is secured already
		Path: "/containerLogs/" + url.PathEscape(pod.Namespace) + "/" + url.PathEscape(pod.Name) + "/" + url.PathEscape(container),
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, to.String(), nil)
	if err != nil {
		return nil, err
	}
	conn, err := s.dialKubelet(ctx, k)
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{
		DialContext:       func(context.Context, string, string) (net.Conn, error) { return conn, nil },
		DisableKeepAlives: true, DisableCompression: true,
		ResponseHeaderTimeout: kubeletBegin, MaxResponseHeaderBytes: kubeletHeaderBytes,
	}
	resp, err := transport.RoundTrip(r)
	if err != nil {
		_ = conn.Close() // the first error is the one that matters
		return nil, unreachable(k.node, err)
	}
	check := genericrest.NewGenericHttpResponseChecker(corev1.Resource("pods/log"), pod.Name)
	if err := check.Check(resp); err != nil {
		return nil, err // which has closed the body
	}
	return resp.Body, nil
}
