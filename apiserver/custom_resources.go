package apiserver

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apiextensions-apiserver/pkg/controller/establish"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
	aggregator "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/berth-dev/berth/fsm"
)

// customResources serves the kinds that users define: their objects by upstream's
// handler, which is made of a definition when somebody first asks for one of them, and
// what is said of the kinds to whoever looks around.
type customResources struct {
	registry    *registry
	definitions *definitions
	builtIn     map[string]bool // groups
	discovery   discoveryManagers
	shown       map[string]map[string][]metav1.APIResource // what discovery says of groups, by version
	objects     http.Handler
	next        http.Handler // for what is not defined
	others      *aggregation
}

// newCustomResources adds custom kinds to a server that serves all others. types are the
// schemas of Kubernetes' types, by which fields are merged.
func newCustomResources(
	g *registry, s *genericapiserver.GenericAPIServer, c *genericapiserver.Config, builtIn map[string]bool, types map[string]*spec.Schema, next http.Handler,
	others *aggregation,
) (*customResources, error) {
	out := &customResources{
		registry: g, definitions: newDefinitions(g.backend), builtIn: builtIn, discovery: newDiscoveryManagers(s), next: next, others: others,
		shown: map[string]map[string][]metav1.APIResource{},
	}
	out.definitions.changed = out.discover
	others.discovery = aggregator.NewDiscoveryManager(s.AggregatedDiscoveryGroupManager.WithSource(aggregated.AggregatorSource))
	out.definitions.services = others.mayBeOther
	out.definitions.aggregated = func(v *fsm.View, name string) { out.discover(v, others.tell(v, name)) }
	// Kinds are established by the leader alone: what is queued here is never looked at.
	idle := establish.NewEstablishingController(out.definitions, nil)
	ended, end := context.WithCancel(context.Background())
	end()
	idle.RunWithContext(ended)
	objects, err := apiextensionsserver.NewCustomResourceDefinitionHandler(
		nil, nil, out.definitions, next, out, c.AdmissionControl, idle,
		serviceEndpoints{g.backend.View}, boundedConversions, 1, c.Authorization.Authorizer,
		c.RequestTimeout, time.Duration(c.MinRequestTimeout)*time.Second, types, c.MaxRequestBodyBytes,
	)
	out.objects = objects
	return out, err
}

// ServeHTTP implements http.Handler.
func (c *customResources) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !strings.HasPrefix(r.URL.Path, genericapiserver.APIGroupPrefix+"/") {
		c.next.ServeHTTP(w, r)
		return
	}
	if !info.IsResourceRequest {
		c.serveDiscovery(w, r)
		return
	}
	crd, ok := c.definitions.view().Definition(info.Resource + "." + info.APIGroup)
	if !ok || c.builtIn[info.APIGroup] {
		c.next.ServeHTTP(w, r)
		return
	}
	if revision, err := strconv.ParseInt(crd.ResourceVersion, 10, 64); err == nil {
		if err := c.definitions.await(r.Context(), revision); err != nil {
			refuse(readError(err), w, r)
			return
		}
	}
	c.objects.ServeHTTP(w, r)
}
