// Package probes makes the requests of probes and of lifecycle hooks as the kubelet does, by its own library. It must never decide
// what follows from an answer.
package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/component-base/version"
	"k8s.io/kubernetes/pkg/probe"
	httpprobe "k8s.io/kubernetes/pkg/probe/http"
)

// What a request calls itself, unless its headers say something else.
const (
	probeAgent = "probe"
	hookAgent  = "lifecycle"
)

// UserAgent is what the requests of probes call themselves.
func UserAgent() string { return userAgent(probeAgent) }

func userAgent(purpose string) string {
	return "kube-" + purpose + "/" + version.DefaultKubeBinaryVersion
}

// hookBodyBytes is how much of the answer to a hook is read, so that who serves it can finish.
const hookBodyBytes = 10 << 10

// HTTP asks containers. It asks no proxy of the node's, looks at no names in certificates, and follows redirects only on the host that it was
// sent to, ten at most. The zero value is ready to use, by any number of goroutines.
type HTTP struct {
	once   sync.Once
	client *http.Client
}

// made is the client, which a worker that asks nobody does without.
func (h *HTTP) made() *http.Client {
	h.once.Do(func() {
		h.client = &http.Client{
			CheckRedirect: httpprobe.RedirectChecker(false),
			Transport: utilnet.SetTransportDefaults(&http.Transport{
				TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true, DisableCompression: true, // #nosec G402 -- as in Kubernetes: a probe asks whether something answers, not who
				Proxy: http.ProxyURL(nil), DialContext: probe.ProbeDialer().DialContext,
			}),
		}
	})
	return h.client
}

// Probe asks a container; podIP is the host that is meant where the action names none. failure says why the answer is no good one; empty:
// it is, and warning, where it is not empty, says what is wrong all the same. An error says that nothing could be asked.
func (h *HTTP) Probe(ctx context.Context, get *corev1.HTTPGetAction, c *corev1.Container, podIP string) (warning, failure string, err error) {
	req, err := request(ctx, get, c, podIP, probeAgent)
	if err != nil {
		return "", "", err
	}
	result, output, err := httpprobe.DoHTTPProbe(req, h.made())
	switch {
	case err != nil:
		return "", "", err
	case result == probe.Warning:
		return output, "", nil
	case result == probe.Success:
		return "", "", nil
	}
	return "", output, nil
}

// Hook asks a container for a lifecycle hook: any answer is a good one. Where TLS is asked for and not spoken the request is made without,
// and plain is true.
func (h *HTTP) Hook(ctx context.Context, get *corev1.HTTPGetAction, c *corev1.Container, podIP string) (plain bool, err error) {
	req, err := request(ctx, get, c, podIP, hookAgent)
	if err != nil {
		return false, err
	}
	err = h.send(req)
	if !errors.Is(err, http.ErrSchemeMismatch) {
		return false, err
	}
	again := req.Clone(ctx)
	again.URL.Scheme = "http"
	again.Header.Del("Authorization")
	if h.send(again) != nil {
		return false, err
	}
	return true, nil
}

func (h *HTTP) send(req *http.Request) error {
	res, err := h.made().Do(req)
	if err != nil {
		return err
	}
	_, _ = io.CopyN(io.Discard, res.Body, hookBodyBytes) // what it says is nobody's concern
	return res.Body.Close()
}

func request(ctx context.Context, get *corev1.HTTPGetAction, c *corev1.Container, podIP, purpose string) (*http.Request, error) {
	req, err := httpprobe.NewRequestForHTTPGetAction(get, c, podIP, purpose)
	if err != nil {
		return nil, err
	}
	own := false
	for _, header := range get.HTTPHeaders {
		own = own || http.CanonicalHeaderKey(header.Name) == "User-Agent"
	}
	if !own {
		req.Header.Set("User-Agent", userAgent(purpose)) // the library knows the version only in a build with the linker's flags
	}
	return req.WithContext(ctx), nil
}

// TCP connects to a container.
func TCP(ctx context.Context, action *corev1.TCPSocketAction, c *corev1.Container, podIP string) (failure string, err error) {
	port, err := probe.ResolveContainerPort(action.Port, c)
	if err != nil {
		return "", err
	}
	host := action.Host
	if host == "" {
		host = podIP
	}
	conn, err := probe.ProbeDialer().DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return err.Error(), nil
	}
	_ = conn.Close() // it was there
	return "", nil
}
