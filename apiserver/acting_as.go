package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/apiserver/roles"
)

// actingPrefix is what the headers begin with by which a request is made as somebody else.
var actingPrefix = textproto.CanonicalMIMEHeaderKey("Impersonate-")

// actingAs is what a request says of whom it acts as; nil: nobody but who makes it. Upstream takes it out once it is allowed.
func actingAs(header http.Header) http.Header {
	var out http.Header
	for name, values := range header {
		if strings.HasPrefix(textproto.CanonicalMIMEHeaderKey(name), actingPrefix) {
			if out == nil {
				out = http.Header{}
			}
			out[name] = values
		}
	}
	return out
}

// mayActAs asks once more, by upstream's own filter, whether who has made a request may act as he does; nil: he acts as himself.
func (s *standing) mayActAs(req *http.Request) func(ctx context.Context) error {
	shows, ok := req.Context().Value(shownKey{}).(*shown)
	info, known := request.RequestInfoFrom(req.Context())
	if !ok || !known || shows.who == nil || len(shows.actsAs) == 0 {
		return nil
	}
	return func(ctx context.Context) error {
		var unknown error
		rights := authorizer.AuthorizerFunc(func(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			decision, why, err := s.rights.Authorize(ctx, a)
			if decision != authorizer.DecisionAllow && err != nil {
				unknown = err
			}
			return decision, why, err
		})
		allowed := false
		// One is made each time: it remembers what it has allowed.
		filter := impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { allowed = true }), rights, legacyscheme.Codecs)
		again := req.Clone(roles.OncePerRequest(request.WithRequestInfo(request.WithUser(bare{ctx}, shows.who), info)))
		again.Header, again.Body = shows.actsAs.Clone(), http.NoBody
		filter.ServeHTTP(&unheard{header: http.Header{}}, again)
		switch {
		case allowed:
			return nil
		case unknown != nil:
			return fmt.Errorf("whether %s may act as somebody else is not known: %w", shows.who.GetName(), unknown)
		}
		return apierrors.NewForbidden(schema.GroupResource{Resource: "users"}, again.Header.Get("Impersonate-User"),
			errors.New("User "+shows.who.GetName()+" may not act as this one any more"))
	}
}

// bare is a context of which nothing is known but its end: what upstream notes of a request is not noted again.
type bare struct{ context.Context }

// Value implements context.Context.
func (bare) Value(any) any { return nil }

// unheard is where a refusal goes that is made for nobody.
type unheard struct{ header http.Header }

// Header implements http.ResponseWriter.
func (u *unheard) Header() http.Header { return u.header }

// WriteHeader implements http.ResponseWriter.
func (u *unheard) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (u *unheard) Write(b []byte) (int, error) { return len(b), nil }
