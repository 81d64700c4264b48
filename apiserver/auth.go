package apiserver

import (
	"context"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authgroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/pki"
)

// newAuthenticator tells who makes a request, by certificate or token. file may
// be nil.
func newAuthenticator(file *tokenFile, accounts *tokens.Accounts) authenticator.Request {
	ways := []authenticator.Request{authenticator.RequestFunc(byCertificate)}
	if file != nil {
		ways = append(ways, bearertoken.New(file))
	}
	ways = append(ways, bearertoken.New(accounts.Authenticator()))
	var conditions []apiserver.AnonymousAuthCondition
	for _, p := range access.PublicPaths() {
		conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: p})
	}
	known := authgroup.NewAuthenticatedGroupAdder(union.New(ways...))
	return union.NewFailOnError(authenticator.RequestFunc(byProcess), known, anonymous.NewAuthenticator(conditions))
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

// accessTable asks package access: it is the API's authorizer, and tells who may what.
type accessTable struct{}

// Authorize implements authorizer.Authorizer.
func (accessTable) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	var groups []string
	if a.GetUser() != nil {
		groups = a.GetUser().GetGroups()
	}
	r := access.Request{Verb: a.GetVerb(), Path: a.GetPath()}
	if a.IsResourceRequest() {
		r = access.Request{
			Verb: a.GetVerb(), Group: a.GetAPIGroup(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
			Namespace: a.GetNamespace(),
		}
	}
	switch {
	case access.MayAsk(groups, r):
		return authorizer.DecisionAllow, "", nil
	case access.IsMachine(groups):
		return authorizer.DecisionNoOpinion, "the certificates of servers and workers are not for the API", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// RulesFor implements authorizer.RuleResolver.
func (accessTable) RulesFor(
	_ context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, r := range access.RulesFor(who.GetGroups()) {
		groups, names := r.ResourcesIn(namespace)
		for i, group := range groups {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: slices.Clone(r.Verbs), APIGroups: []string{group}, Resources: names[i],
			})
		}
		urls := slices.Clone(r.Paths) // the table is everybody's
		if len(r.Resources) > 0 && r.Resources[0] == "*" {
			urls = []string{"*"}
		}
		if len(urls) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{Verbs: slices.Clone(r.Verbs), NonResourceURLs: urls})
		}
	}
	return resources, paths, false, nil
}

// MayReadPods says whether whoever makes a request may read the pods of a
// namespace: what names them elsewhere is shown to nobody else (PR20).
func MayReadPods(ctx context.Context, namespace string) bool {
	who, ok := request.UserFrom(ctx)
	return ok && access.MayAsk(who.GetGroups(), access.Request{Verb: "get", Resource: "pods", Namespace: namespace})
}

// mayReadSecrets says the same of secrets.
func mayReadSecrets(ctx context.Context, namespace string) bool {
	who, ok := request.UserFrom(ctx)
	return ok && access.MayAsk(who.GetGroups(), access.Request{Verb: "get", Resource: "secrets", Namespace: namespace})
}
