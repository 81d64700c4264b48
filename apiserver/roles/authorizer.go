// Package roles is role-based access control: what roles and their bindings, which are
// objects of the state, allow whom. Whether a role allows a request is upstream's to say;
// which bindings are asked is found in the state's index by who asks.
//
// It must never allow what no role does: what is allowed by the table of package access is
// asked before. It keeps no copy of a role or a binding.
package roles

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac/validation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

const (
	// FreshFor is how long a server that has made sure that its state is the newest
	// allows by it without making sure again.
	FreshFor = time.Second
	// StaleFor is how long it allows by it when nobody can be asked.
	StaleFor = 5 * time.Second
	// confirmTimeout bounds how long a request waits for the newest state.
	confirmTimeout = 3 * time.Second
)

// State is what the authorizer looks at.
type State interface {
	// View is this server's latest state.
	View() *fsm.View
	// ReadIndex returns when the state is at least as new as every write that was
	// acknowledged before the call.
	ReadIndex(ctx context.Context) error
}

// Authorizer says what roles allow.
type Authorizer struct {
	state State
	// before says what is allowed in a cluster of before there were roles.
	before   func(authorizer.Attributes) bool
	upstream *rbac.RBACAuthorizer
	rules    *rbacregistry.DefaultRuleResolver
	now      func() time.Time
	// confirmed is when the state was last known to be the newest.
	confirmed atomic.Pointer[time.Time]
}

var (
	_ authorizer.Authorizer                  = (*Authorizer)(nil)
	_ authorizer.RuleResolver                = (*Authorizer)(nil)
	_ rbacregistry.AuthorizationRuleResolver = (*Resolver)(nil)
)

// New gives the authorizer of a server. before says what is allowed as long as the cluster has no
// roles.
func New(state State, before func(authorizer.Attributes) bool) *Authorizer {
	r := reader{state}
	return &Authorizer{
		state: state, before: before, upstream: rbac.New(r, r, r, r), rules: rbacregistry.NewDefaultRuleResolver(r, r, r, r), now: time.Now,
	}
}

// Authorize implements authorizer.Authorizer. A server that would refuse by its own state
// makes sure first that this is the newest, once for a request, and says so if it cannot; one
// that would allow does so at most FreshFor after it has.
func (a *Authorizer) Authorize(ctx context.Context, q authorizer.Attributes) (authorizer.Decision, string, error) {
	if q.GetUser() == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	view := a.state.View()
	decision, why, err := a.decide(ctx, view, q)
	began := a.now()
	sure := sureOf(ctx)
	if allowed := decision == authorizer.DecisionAllow; allowed && a.within(began, FreshFor) || !allowed && sure.Load() {
		return decision, why, err
	}
	if !a.confirm(ctx, began) {
		if decision != authorizer.DecisionAllow || !a.within(began, StaleFor) {
			return authorizer.DecisionNoOpinion, "", errStale
		}
		return decision, why, err
	}
	sure.Store(true)
	if now := a.state.View(); now.Revision() != view.Revision() {
		return a.decide(ctx, now, q)
	}
	return decision, why, err
}

var errStale = errors.New("this server cannot make sure that the roles it knows are the newest: no leader of the cluster answers it; nothing was done, try again")

func (a *Authorizer) decide(ctx context.Context, view *fsm.View, q authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case view.HasRoles():
		return a.upstream.Authorize(pin(ctx, view, q.GetUser(), q.GetNamespace()), q)
	case a.before(q):
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// within: the state was the newest no longer ago than that.
func (a *Authorizer) within(now time.Time, d time.Duration) bool {
	at := a.confirmed.Load()
	return at != nil && now.Sub(*at) < d
}

// confirm makes sure that the state is at least as new as it was anywhere at a time.
func (a *Authorizer) confirm(ctx context.Context, began time.Time) bool {
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	if a.state.ReadIndex(ctx) != nil {
		return false
	}
	if at := a.confirmed.Load(); at == nil || began.After(*at) {
		a.confirmed.CompareAndSwap(at, &began)
	}
	return true
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizer) RulesFor(
	ctx context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return a.upstream.RulesFor(pin(ctx, a.state.View(), who, namespace), who, namespace)
}

// Resolver gives the rules that whoever writes a role must have themselves.
type Resolver struct{ of *Authorizer }

// Resolver gives the authorizer's.
func (a *Authorizer) Resolver() *Resolver { return &Resolver{a} }

// GetRoleReferenceRules implements rbacregistry.AuthorizationRuleResolver.
func (r *Resolver) GetRoleReferenceRules(ctx context.Context, ref rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	return r.of.rules.GetRoleReferenceRules(ctx, ref, namespace)
}

// RulesFor implements rbacregistry.AuthorizationRuleResolver.
func (r *Resolver) RulesFor(ctx context.Context, who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	return r.of.rules.RulesFor(pin(ctx, r.of.state.View(), who, namespace), who, namespace)
}

// VisitRulesFor implements rbacregistry.AuthorizationRuleResolver.
func (r *Resolver) VisitRulesFor(
	ctx context.Context, who user.Info, namespace string, visit func(fmt.Stringer, *rbacv1.PolicyRule, error) bool,
) {
	r.of.rules.VisitRulesFor(pin(ctx, r.of.state.View(), who, namespace), who, namespace, visit)
}

// sureKey is the key of a request's context that holds whether the state was made sure of
// for it.
type sureKey struct{}

// OncePerRequest lets a request make sure of the state once, whatever it is refused.
func OncePerRequest(ctx context.Context) context.Context {
	return context.WithValue(ctx, sureKey{}, new(atomic.Bool))
}

func sureOf(ctx context.Context) *atomic.Bool {
	if b, ok := ctx.Value(sureKey{}).(*atomic.Bool); ok {
		return b
	}
	return new(atomic.Bool)
}

// pinned is what one decision is made on.
type pinned struct {
	view      *fsm.View
	who       user.Info
	namespace string
}

type pinKey struct{}

func pin(ctx context.Context, view *fsm.View, who user.Info, namespace string) context.Context {
	return context.WithValue(ctx, pinKey{}, &pinned{view, who, namespace})
}

// reader gives upstream the roles of the view that is pinned, and of the bindings those that
// can be about who asks.
type reader struct{ state State }

func (r reader) view(ctx context.Context) *fsm.View {
	if p, ok := ctx.Value(pinKey{}).(*pinned); ok {
		return p.view
	}
	return r.state.View()
}

// GetRole implements rbacregistry.RoleGetter.
func (r reader) GetRole(ctx context.Context, namespace, name string) (*rbacv1.Role, error) {
	if role, ok := r.view(ctx).Role(namespace, name).(*rbacv1.Role); ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource(fsm.Roles), name)
}

// GetClusterRole implements rbacregistry.ClusterRoleGetter.
func (r reader) GetClusterRole(ctx context.Context, name string) (*rbacv1.ClusterRole, error) {
	if role, ok := r.view(ctx).Role("", name).(*rbacv1.ClusterRole); ok {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource(fsm.ClusterRoles), name)
}

var errNobody = errors.New("bindings are looked up for somebody")

// ListRoleBindings implements rbacregistry.RoleBindingLister.
func (r reader) ListRoleBindings(ctx context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	p, ok := ctx.Value(pinKey{}).(*pinned)
	if !ok {
		return nil, errNobody
	}
	return bindings(p, namespace, func(*rbacv1.RoleBinding) bool { return true }), nil
}

// ListClusterRoleBindings implements rbacregistry.ClusterRoleBindingLister.
func (r reader) ListClusterRoleBindings(ctx context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	p, ok := ctx.Value(pinKey{}).(*pinned)
	if !ok {
		return nil, errNobody
	}
	return bindings(p, "", func(b *rbacv1.ClusterRoleBinding) bool { return counts(b.Annotations, p) }), nil
}

// bindings are those that count for whom a decision is about, each once.
func bindings[B interface {
	codec.Object
	comparable
}](p *pinned, namespace string, counts func(B) bool) (out []B) {
	seen := map[B]bool{}
	p.view.BindingsOf(namespace, p.who.GetName(), p.who.GetGroups(), func(o codec.Object) {
		if b, ok := o.(B); ok && !seen[b] && counts(b) {
			seen[b] = true
			out = append(out, b)
		}
	})
	return out
}

// Annotations that make a ClusterRoleBinding narrower than a role can say.
const (
	// ExceptNamespacesAnnotation, names with commas between them: the binding counts for what is in any
	// namespace but those, and for nothing that is in no namespace or asked for across all.
	ExceptNamespacesAnnotation = "berth.dev/except-namespaces"
	// ExceptGroupsAnnotation, names with commas between them: the binding does not count for members of those
	// groups.
	ExceptGroupsAnnotation = "berth.dev/except-groups"
)

func counts(annotations map[string]string, p *pinned) bool {
	if list, ok := annotations[ExceptNamespacesAnnotation]; ok && (p.namespace == "" || slices.Contains(names(list), p.namespace)) {
		return false
	}
	list, ok := annotations[ExceptGroupsAnnotation]
	return !ok || !slices.ContainsFunc(names(list), func(g string) bool { return slices.Contains(p.who.GetGroups(), g) })
}
