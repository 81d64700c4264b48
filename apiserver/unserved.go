package apiserver

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/emicklei/go-restful/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/routes"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/access"
)

// unserved answers requests for kinds that are not served: it says so, and which
// are.
type unserved struct {
	served string          // "pods, replicasets.apps, …"
	inOne  map[string]bool // of each of those: whether its objects are in a namespace
	paths  http.Handler    // for what is no resource
}

func newUnserved(s *genericapiserver.GenericAPIServer, infos []genericapiserver.APIGroupInfo) *unserved {
	u := &unserved{inOne: map[string]bool{}, paths: routes.IndexLister{StatusCode: http.StatusNotFound, PathProvider: s}}
	for _, info := range infos {
		for _, resources := range info.VersionedResourcesStorageMap {
			for name, storage := range resources {
				if strings.Contains(name, "/") {
					continue
				}
				scoped, ok := storage.(rest.Scoper) // or it could not be installed
				u.inOne[access.Resource(info.PrioritizedVersions[0].Group, name, "")] = ok && scoped.NamespaceScoped()
			}
		}
	}
	u.served = strings.Join(slices.Sorted(maps.Keys(u.inOne)), ", ")
	return u
}

// serveElsewhere has a handler answer where nothing else does.
func serveElsewhere(s *genericapiserver.GenericAPIServer, h http.Handler) {
	s.Handler.NonGoRestfulMux.NotFoundHandler(h)
	s.Handler.GoRestfulContainer.ServiceErrorHandler(func(err restful.ServiceError, r *restful.Request, w *restful.Response) {
		if err.Code == http.StatusNotFound {
			h.ServeHTTP(w, r.Request)
			return
		}
		refuse(apierrors.NewGenericServerResponse(err.Code, "", schema.GroupResource{}, "", err.Message, 0, false), w, r.Request)
	})
}

// ServeHTTP implements http.Handler.
func (u *unserved) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	info, ok := request.RequestInfoFrom(r.Context())
	if !ok || !info.IsResourceRequest {
		u.paths.ServeHTTP(w, r)
		return
	}
	what := access.Resource(info.APIGroup, info.Resource, info.Subresource)
	why := fmt.Sprintf("Berth does not serve %s in version %s; it serves %s", what, info.APIVersion, u.served)
	switch inOne, known := u.inOne[access.Resource(info.APIGroup, info.Resource, "")]; {
	case !known:
	case inOne && info.Namespace == "" && info.Name != "":
		why = fmt.Sprintf("%s are in namespaces, and the path %s names none", what, info.Path)
	case !inOne && info.Namespace != "":
		why = fmt.Sprintf("%s are in no namespace, and the path %s names one", what, info.Path)
	}
	refuse(&apierrors.StatusError{ErrStatus: metav1.Status{
		Status: metav1.StatusFailure, Code: http.StatusNotFound, Reason: metav1.StatusReasonNotFound,
		Details: &metav1.StatusDetails{Group: info.APIGroup, Kind: info.Resource},
		Message: "the server could not find the requested resource: " + why,
	}}, w, r)
}

func refuse(err error, w http.ResponseWriter, r *http.Request) {
	responsewriters.ErrorNegotiated(err, legacyscheme.Codecs, schema.GroupVersion{Version: "v1"}, w, r)
}
