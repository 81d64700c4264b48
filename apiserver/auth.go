package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authgroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/pki"
)

// publicPaths are what anybody may ask: whether the server is well, and what it
// is.
var publicPaths = []string{"/healthz", "/livez", "/readyz", "/version"}

// newAuthenticator tells who makes a request, by certificate or token.
func newAuthenticator(tokenFile string) (authenticator.Request, error) {
	ways := []authenticator.Request{authenticator.RequestFunc(byCertificate)}
	if tokenFile != "" {
		tokens, err := tokenfile.NewCSV(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("reading the token file: %w", err)
		}
		ways = append(ways, bearertoken.New(tokens))
	}
	conditions := make([]apiserver.AnonymousAuthCondition, len(publicPaths))
	for i, p := range publicPaths {
		conditions[i].Path = p
	}
	known := authgroup.NewAuthenticatedGroupAdder(union.New(ways...))
	return union.NewFailOnError(known, anonymous.NewAuthenticator(conditions)), nil
}

// byCertificate believes the certificate that the TLS handshake has verified.
func byCertificate(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.VerifiedChains) == 0 {
		return nil, false, nil
	}
	id, err := pki.PeerIdentity(req.TLS.VerifiedChains)
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: &user.DefaultInfo{Name: id.User, Groups: id.Groups}}, true, nil
}

// authorize lets everybody act who is known, and anybody ask for the server's
// health. To act as somebody else is for administrators: the system classes are
// reserved for users by name (AD5).
func authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if strings.HasPrefix(a.GetVerb(), "impersonate") && !slices.Contains(a.GetUser().GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionDeny, "only members of " + user.SystemPrivilegedGroup + " may act as somebody else", nil
	}
	if a.GetUser() != nil && slices.Contains(a.GetUser().GetGroups(), user.AllAuthenticated) {
		return authorizer.DecisionAllow, "", nil
	}
	if !a.IsResourceRequest() && a.IsReadOnly() && slices.Contains(publicPaths, a.GetPath()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionDeny, "only authenticated users may do this", nil
}

// MayReadPods says whether whoever makes a request may read the pods of a
// namespace: what names them elsewhere is shown to nobody else (PR20).
func MayReadPods(ctx context.Context, namespace string) bool {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return false
	}
	decision, _, err := authorize(ctx, authorizer.AttributesRecord{
		User: who, Verb: "get", Namespace: namespace, Resource: "pods", APIVersion: "v1", ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}
