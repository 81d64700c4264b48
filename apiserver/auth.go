package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	authgroup "k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/noderights"
	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
)

// newAuthenticator tells who makes a request: a part of this process, the bearer of a certificate or
// of a token, or nobody.
func newAuthenticator(users *users.Users) authenticator.Request {
	known := authgroup.NewAuthenticatedGroupAdder(union.New(authenticator.RequestFunc(byCertificate), users.Tokens))
	return union.NewFailOnError(authenticator.RequestFunc(byProcess), known, users.Anonymous)
}

// newLocalAuthenticator tells whose certificate or token it is as far as this server can by itself.
func newLocalAuthenticator(users *users.Users) authenticator.Request {
	return authgroup.NewAuthenticatedGroupAdder(union.New(authenticator.RequestFunc(byCertificate), users.Here))
}

// byCertificate believes the certificate that the TLS handshake has verified, as long as it is good: a connection may
// last longer.
func byCertificate(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.VerifiedChains) == 0 {
		return nil, false, nil
	}
	id, err := pki.PeerIdentity(req.TLS.VerifiedChains, time.Now())
	if err != nil {
		return nil, false, err
	}
	who := &user.DefaultInfo{Name: id.User, Groups: id.Groups}
	// Whoever is a node to those who ask what it may: of more groups, the certificate is that of a client.
	if _, isNode := noderights.NodeOf(who); isNode {
		who.Extra = map[string][]string{issuedExtra: {id.Issued.UTC().Format(time.RFC3339)}}
	}
	return &authenticator.Response{User: who}, true, nil
}

// issuedExtra says of a node when its certificate was made.
const issuedExtra = "berth.dev/certificate-issued"

// isRevoked: the user is a node by a certificate that counts no more.
func isRevoked(v *fsm.View, who user.Info) bool {
	node, ok := noderights.NodeOf(who)
	if !ok {
		return false
	}
	until, revoked := v.NodeRevoked(node)
	issued := who.GetExtra()[issuedExtra]
	if !revoked || len(issued) == 0 { // who acts as the node is somebody else
		return false
	}
	at, err := time.Parse(time.RFC3339, issued[0])
	return err != nil || !at.After(until)
}

// rights say who may do what: it is the API's authorizer. The table of package access is
// asked first, then the cluster's roles.
type rights struct {
	view  func() *fsm.View
	roles *roles.Authorizer
	nodes *noderights.Authorizer
	log   hclog.Logger
}

func newRights(backend Backend, log hclog.Logger) *rights {
	before := func(a authorizer.Attributes) bool {
		return access.MayAsk(groupsOf(a.GetUser()), false, tableRequest(a))
	}
	return &rights{backend.View, roles.New(backend, before), noderights.New(backend.View), log}
}

func groupsOf(who user.Info) []string {
	if who == nil {
		return nil
	}
	return who.GetGroups()
}

// isController says whether whoever asks is one of this server's controllers.
func isController(who user.Info) bool { return slices.Contains(groupsOf(who), access.Controllers) }

func tableRequest(a authorizer.Attributes) access.Request {
	if !a.IsResourceRequest() {
		return access.Request{Verb: a.GetVerb(), Path: a.GetPath()}
	}
	return access.Request{
		Verb: a.GetVerb(), Group: a.GetAPIGroup(), Resource: a.GetResource(), Subresource: a.GetSubresource(),
		Namespace: a.GetNamespace(),
	}
}

// Authorize implements authorizer.Authorizer. That it cannot be told is noted with the request, too.
func (r *rights) Authorize(ctx context.Context, a authorizer.Attributes) (decision authorizer.Decision, why string, err error) {
	if decision, why, err = r.authorize(ctx, a); err != nil && decision != authorizer.DecisionAllow {
		noteUntold(ctx, a, err)
	}
	return decision, why, err
}

func (r *rights) authorize(ctx context.Context, a authorizer.Attributes) (decision authorizer.Decision, why string, err error) {
	groups := groupsOf(a.GetUser())
	impersonation := a.IsResourceRequest() && strings.HasPrefix(a.GetVerb(), "impersonate")
	switch {
	case isRevoked(r.view(), a.GetUser()):
		return authorizer.DecisionDeny, "the certificate of this node is revoked", nil
	case impersonation && access.IsReserved(a.GetName()):
		return authorizer.DecisionDeny, "Berth's own parts are nobody's to impersonate", nil
	case access.MayAsk(groups, true, tableRequest(a)):
		decision = authorizer.DecisionAllow
	case access.IsMachine(groups):
		return authorizer.DecisionNoOpinion, "the certificates of servers and workers are not for the API", nil
	default:
		if decision, why, err = r.nodes.Authorize(ctx, a); decision != authorizer.DecisionAllow {
			decision, why, err = r.byRoles(ctx, a)
		}
	}
	if impersonation && decision == authorizer.DecisionAllow {
		r.tellImpersonation(ctx, a)
	}
	return decision, why, err
}

// byRoles asks the cluster's roles. A node has those alone that are given to it, or to all nodes by their group: it
// is none of those for whom roles are given to everybody who is known.
func (r *rights) byRoles(ctx context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if _, isNode := noderights.NodeOf(a.GetUser()); !isNode {
		return r.roles.Authorize(ctx, a)
	}
	decision, why, err := r.roles.Authorize(ctx, ofNode{a})
	if decision == authorizer.DecisionAllow {
		return decision, why, err
	}
	// Roles refuse on the newest state alone, so the node's pods are asked again: one may have come a moment ago.
	decision, why, _ = r.nodes.Authorize(ctx, a)
	return decision, why, err
}

// ofNode is a request as roles are asked about it.
type ofNode struct{ authorizer.Attributes }

// GetUser implements authorizer.Attributes.
func (n ofNode) GetUser() user.Info { return justNode(n.Attributes.GetUser()) }

// justNode leaves out the group of everybody who is known.
func justNode(who user.Info) user.Info {
	return &user.DefaultInfo{
		Name: who.GetName(), UID: who.GetUID(), Extra: who.GetExtra(),
		Groups: slices.DeleteFunc(slices.Clone(who.GetGroups()), func(g string) bool { return g == access.Authenticated }),
	}
}

// tellImpersonation: whoever acts as somebody else is named beside them. What is written is
// logged; what is only looked at, if somebody wants to know.
func (r *rights) tellImpersonation(ctx context.Context, a authorizer.Attributes) {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || strings.HasSuffix(info.Resource, "reviews") { // who asks whether they may does not do it
		return
	}
	tell := r.log.Info
	if slices.Contains([]string{"get", "list", "watch", "head"}, info.Verb) {
		tell = r.log.Debug
	}
	tell("a user acts as another", "user", a.GetUser().GetName(), "as", a.GetResource(), "name", a.GetName(),
		"verb", info.Verb, "path", info.Path)
}

// RulesFor implements authorizer.RuleResolver.
func (r *rights) RulesFor(
	ctx context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, r := range access.RulesFor(who.GetGroups(), r.view().HasRoles()) {
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
	if access.IsMachine(who.GetGroups()) {
		return resources, paths, false, nil
	}
	_, isNode := noderights.NodeOf(who)
	if isNode {
		who = justNode(who)
	}
	more, morePaths, incomplete, err := r.roles.RulesFor(ctx, who, namespace)
	return append(resources, more...), append(paths, morePaths...), incomplete || isNode, err // what a node may depends on its pods
}

// rightsKey is the key of a request's context that holds the server's rights.
type rightsKey struct{}

// rightsOf are those of the server that a request was made to.
func rightsOf(ctx context.Context) authorizer.Authorizer {
	if r, ok := ctx.Value(rightsKey{}).(authorizer.Authorizer); ok {
		return r
	}
	return authorizerfactory.NewAlwaysDenyAuthorizer()
}

// may says whether whoever makes a request may do something else too. An error says that it cannot be told now: that is no refusal, and
// whoever asks is answered with it. A plan has no turn meanwhile, since who is asked may take his time.
func may(ctx context.Context, q authorizer.AttributesRecord) (yes bool, err error) {
	who, ok := request.UserFrom(ctx)
	if !ok {
		return false, nil
	}
	q.User, q.ResourceRequest = who, true
	gone := withoutTurn(ctx, func() {
		var decision authorizer.Decision
		decision, _, err = rightsOf(ctx).Authorize(ctx, q)
		yes = decision == authorizer.DecisionAllow
	})
	switch {
	case gone != nil:
		return false, readError(gone)
	case yes || err == nil:
		return yes, nil
	}
	return false, cannotBeTold(q, err)
}

// MayReadPods says whether whoever makes a request may read the pods of a
// namespace: what names them elsewhere is shown to nobody else (PR20). An error says that it cannot be told now.
func MayReadPods(ctx context.Context, namespace string) (bool, error) {
	return may(ctx, authorizer.AttributesRecord{Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: namespace})
}

// MayReadBudgets says the same of disruption budgets.
func MayReadBudgets(ctx context.Context, namespace string) (bool, error) {
	return may(ctx, authorizer.AttributesRecord{
		Verb: "get", APIGroup: "policy", APIVersion: "v1", Resource: "poddisruptionbudgets", Namespace: namespace,
	})
}

// mayReadSecrets says the same of secrets.
func mayReadSecrets(ctx context.Context, namespace string) (bool, error) {
	return may(ctx, authorizer.AttributesRecord{Verb: "get", APIVersion: "v1", Resource: "secrets", Namespace: namespace})
}
