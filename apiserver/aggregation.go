package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/httpstream"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	utilflowcontrol "k8s.io/apiserver/pkg/util/flowcontrol"
	apiserverproxyutil "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/transport"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-aggregator/pkg/controllers/status/remote"

	"github.com/berth-dev/berth/fsm"
)

// aggregation hands requests on to the servers of others that serve parts of the API, with the
// server's own certificate and the user's name: they believe it by what the config map
// extension-apiserver-authentication says. What nobody else serves goes to next.
//
// It must never hand on who has not been asked whether he may.
type aggregation struct {
	view func() *fsm.View
	// certificate is the server's, and its key, in PEM; nil: there is none.
	certificate func() (cert, key []byte)
	next        http.Handler
	discovery   aggregator.DiscoveryAggregationController
	// known are the groups of those that discovery knows, by their names. One goroutine has it.
	known map[string]string

	mu   sync.Mutex
	ways map[string]*way // by the name of an APIService
}

// way is how one of them is reached, as it was described then and with the certificate of then.
type way struct {
	spec apiregistrationv1.APIServiceSpec
	cert []byte
	to   http.RoundTripper
}

func newAggregation(config Config) *aggregation {
	return &aggregation{view: config.Backend.View, certificate: config.ProxyCertificate, known: map[string]string{}, ways: map[string]*way{}}
}

// ServeHTTP implements http.Handler.
func (a *aggregation) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s, ok := a.serves(r.URL.Path); ok {
		a.forward(w, r, s)
		return
	}
	a.next.ServeHTTP(w, r)
}

// serves says who else serves a path: what is below /apis/GROUP/VERSION, and its description.
func (a *aggregation) serves(path string) (*apiregistrationv1.APIService, bool) {
	below, described := strings.CutPrefix(path, openAPIV3Path)
	parts := strings.SplitN(strings.TrimPrefix(below, genericapiserver.APIGroupPrefix+"/"), "/", 3)
	if !strings.HasPrefix(below, genericapiserver.APIGroupPrefix+"/") || len(parts) < 2 || described && len(parts) != 2 {
		return nil, false
	}
	return a.view().Aggregated(parts[0], parts[1])
}

// forward hands a request on.
func (a *aggregation) forward(w http.ResponseWriter, r *http.Request, s *apiregistrationv1.APIService) {
	who, ok := request.UserFrom(r.Context())
	if !ok {
		refuse(apierrors.NewInternalError(fmt.Errorf("nobody asks for %s", r.URL.Path)), w, r)
		return
	}
	if c := apiregistrationhelper.GetAPIServiceConditionByType(s, apiregistrationv1.Available); c == nil || c.Status != apiregistrationv1.ConditionTrue {
		why := "it was not looked at yet"
		if c != nil {
			why = c.Message
		}
		refuse(apierrors.NewServiceUnavailable(fmt.Sprintf("the APIService %s is not available: %s", s.Name, why)), w, r)
		return
	}
	if leadsElsewhere(r.URL.Path) {
		refuse(apierrors.NewBadRequest("the path has \".\" or \"..\" in it: what is asked for must be what is handed on"), w, r)
		return
	}
	to, err := a.wayTo(s)
	if err != nil {
		refuse(apierrors.NewInternalError(fmt.Errorf("the APIService %s: %w", s.Name, err)), w, r)
		return
	}
	at, err := serviceEndpoints{a.view}.ResolveEndpoint(s.Spec.Service.Namespace, s.Spec.Service.Name, servicePort(s))
	if err != nil {
		refuse(apierrors.NewServiceUnavailable(fmt.Sprintf("the APIService %s: %v", s.Name, err)), w, r)
		return
	}
	location := &url.URL{Scheme: "https", Host: at.Host, Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	out, cancel := apiserverproxyutil.NewRequestForProxy(location, r)
	defer cancel()
	dropAliases(out.Header)
	name, uid, groups, extra := who.GetName(), who.GetUID(), who.GetGroups(), who.GetExtra()
	answer, upgrade := &forwarded{w, r}, httpstream.IsUpgradeRequest(r)
	if upgrade { // by a connection of its own, around what writes these
		transport.SetAuthProxyHeaders(out, name, uid, groups, extra)
		ctx, cancel := context.WithTimeoutCause(out.Context(), maxStream, fmt.Errorf("it was open for %s", maxStream))
		defer cancel()
		if to, w, err = alone(ctx, to, w); err != nil {
			refuse(apierrors.NewInternalError(fmt.Errorf("the APIService %s: %w", s.Name, err)), w, r)
			return
		}
	}
	by := pages{transport.NewAuthProxyRoundTripper(name, uid, groups, extra, to), true}
	handler := proxy.NewUpgradeAwareHandler(location, by, true, upgrade, answer)
	handler.RejectForwardingRedirects = true
	utilflowcontrol.RequestDelegated(r.Context())
	handler.ServeHTTP(w, out)
}

// leadsElsewhere: who cleans a path would find another one.
func leadsElsewhere(path string) bool {
	for part := range strings.SplitSeq(path, "/") {
		if part == "." || part == ".." {
			return true
		}
	}
	return false
}

// dropAliases drops headers that some servers take for those that say who asks: they make no difference between _ and -.
func dropAliases(h http.Header) {
	for name := range h {
		if strings.Contains(name, "_") && strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-remote-") {
			delete(h, name)
		}
	}
}

// aggregatedDial is how long a server of others' has to take a connection that is to be taken over; others have as long.
const aggregatedDial = 30 * time.Second

// takenOver says whether a connection is to be taken over by whoever else serves a path.
func (a *aggregation) takenOver(r *http.Request) bool {
	if !httpstream.IsUpgradeRequest(r) {
		return false
	}
	_, others := a.serves(r.URL.Path)
	return others
}

// alone is a way that is of one request, by which a connection is taken over. It ends with its context.
func alone(ctx context.Context, way http.RoundTripper, w http.ResponseWriter) (http.RoundTripper, http.ResponseWriter, error) {
	config, err := utilnet.TLSClientConfig(way)
	if err != nil {
		return nil, w, err
	}
	dial := func(dialing context.Context, network, address string) (net.Conn, error) {
		conn, err := (&net.Dialer{Timeout: aggregatedDial}).DialContext(dialing, network, address)
		if err == nil {
			context.AfterFunc(ctx, func() { _ = conn.Close() }) // nobody may read it any more
		}
		return conn, err
	}
	to := &http.Transport{DialContext: dial, TLSClientConfig: config, DisableKeepAlives: true}
	return to, boundHead(to, w), nil
}

func servicePort(s *apiregistrationv1.APIService) int32 {
	if s.Spec.Service.Port == nil {
		return 443
	}
	return *s.Spec.Service.Port
}

// wayTo is made anew when the APIService is another, or the server's certificate.
func (a *aggregation) wayTo(s *apiregistrationv1.APIService) (http.RoundTripper, error) {
	var cert, key []byte
	if a.certificate != nil {
		cert, key = a.certificate()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if w := a.ways[s.Name]; w != nil && bytes.Equal(w.cert, cert) && sameWay(&w.spec, &s.Spec) {
		return w.to, nil
	}
	to, err := transport.New(remote.BuildTransportConfig(nil, cert, key, s))
	if err != nil {
		return nil, err
	}
	a.ways[s.Name] = &way{s.Spec, cert, to}
	return to, nil
}

func sameWay(a, b *apiregistrationv1.APIServiceSpec) bool {
	return a.Service.Namespace == b.Service.Namespace && a.Service.Name == b.Service.Name &&
		a.InsecureSkipTLSVerify == b.InsecureSkipTLSVerify && bytes.Equal(a.CABundle, b.CABundle)
}

// forwarded tells whoever asks that nobody was reached.
type forwarded struct {
	w http.ResponseWriter
	r *http.Request
}

// Object implements rest.Responder.
func (f *forwarded) Object(status int, obj runtime.Object) {
	responsewriters.WriteRawJSON(status, obj, f.w)
}

// Error implements proxy.ErrorResponder.
func (f *forwarded) Error(_ http.ResponseWriter, _ *http.Request, err error) {
	refuse(apierrors.NewServiceUnavailable(fmt.Sprintf("what serves %s was not reached: %v", f.r.URL.Path, err)), f.w, f.r)
}

// tell has discovery say what an APIService serves, and gives the group in which that is. It is called by one goroutine.
func (a *aggregation) tell(v *fsm.View, name string) (group string) {
	version, group, _ := strings.Cut(name, ".")
	s, ok := v.Aggregated(group, version)
	switch {
	case ok:
		a.known[name] = group
		a.discovery.AddAPIService(s, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if s, ok := a.view().Aggregated(group, version); ok {
				a.forward(&boundedDocument{w, maxDiscoveryDocument}, r, s)
				return
			}
			http.NotFound(w, r)
		}))
	case a.known[name] != "":
		delete(a.known, name)
		a.discovery.RemoveAPIService(name)
		a.mu.Lock()
		delete(a.ways, name)
		a.mu.Unlock()
	}
	return group
}

// mayBeOther names those that discovery knows, and those that there are.
func (a *aggregation) mayBeOther(v *fsm.View) []string {
	names := maps.Clone(a.known)
	v.EachAggregated(func(s *apiregistrationv1.APIService) bool {
		names[s.Name] = s.Spec.Group
		return true
	})
	return slices.Sorted(maps.Keys(names))
}

// maxDiscoveryDocument is how much one of them may say of what it serves.
const maxDiscoveryDocument = 4 << 20

var errLongDocument = errors.New("the document is too long")

// boundedDocument takes so much of an answer, and no more.
type boundedDocument struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (b *boundedDocument) Write(p []byte) (int, error) {
	if b.left -= len(p); b.left < 0 {
		return 0, errLongDocument
	}
	return b.ResponseWriter.Write(p)
}

// run asks others from time to time what they serve.
func (a *aggregation) run(ctx context.Context) { a.discovery.Run(ctx.Done(), nil) }
