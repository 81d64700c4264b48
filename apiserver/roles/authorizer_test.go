package roles

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// cluster is a state that commands are applied to at once.
type cluster struct {
	t     testing.TB
	state *fsm.State
	index uint64
	// behind is what a server sees that has not applied the last entries; nil: it has.
	behind *fsm.View
	cut    bool // nobody answers it
	asked  int
}

func (c *cluster) View() *fsm.View {
	if c.behind != nil {
		return c.behind
	}
	return c.state.View()
}

func (c *cluster) ReadIndex(context.Context) error {
	c.asked++
	if c.cut {
		return errors.New("no leader")
	}
	c.behind = nil
	return nil
}

func newCluster(t testing.TB) *cluster {
	c := &cluster{t: t, state: fsm.NewState()}
	for _, name := range []string{"default", "kube-system", "team"} {
		c.do(&fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}}})
	}
	return c
}

func (c *cluster) do(commands ...fsm.Command) {
	c.t.Helper()
	ps := make([]fsm.Proposal, len(commands))
	for i := range commands {
		ps[i].Command = commands[i]
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: 1_000_000_000_000}, ps)
	if err != nil {
		c.t.Fatal(err)
	}
	c.index++
	results, err := c.state.Apply(c.index, 1, entry)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, r := range results {
		if r.Refused() {
			c.t.Fatal(r.Message)
		}
	}
}

func (c *cluster) put(resource string, o codec.Object) {
	c.t.Helper()
	c.do(create(c.t, resource, o))
}

func create(t testing.TB, resource string, o codec.Object) fsm.Command {
	t.Helper()
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return &fsm.PutObject{Resource: resource, Raw: raw, Create: true}
}

func (c *cluster) reconcile(founded bool) int {
	c.t.Helper()
	n := 0
	commands, err := Reconcile(c.state.View(), founded, func(o *metav1.ObjectMeta) { n++; o.UID = types.UID(fmt.Sprint("u", n)) })
	if err != nil {
		c.t.Fatal(err)
	}
	if len(commands) > 0 {
		c.do(commands...)
	}
	return len(commands)
}

func nothing(authorizer.Attributes) bool { return false }

func subject(text string) rbacv1.Subject {
	kind, name, _ := strings.Cut(text, ":")
	s := rbacv1.Subject{Kind: kind, Name: name, APIGroup: rbacv1.GroupName}
	if kind == rbacv1.ServiceAccountKind {
		s.APIGroup = ""
		s.Namespace, s.Name, _ = strings.Cut(name, "/")
	}
	return s
}

func clusterBinding(name, role string, annotations map[string]string, subjects ...string) *rbacv1.ClusterRoleBinding {
	b := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Annotations: annotations}, RoleRef: clusterRole(role)}
	for _, s := range subjects {
		b.Subjects = append(b.Subjects, subject(s))
	}
	return b
}

// ask is "VERB RESOURCE [NAMESPACE]", or "VERB /PATH".
func ask(who user.Info, text string) authorizer.AttributesRecord {
	f := append(strings.Fields(text), "")
	if strings.HasPrefix(f[1], "/") {
		return authorizer.AttributesRecord{User: who, Verb: f[0], Path: f[1]}
	}
	q := authorizer.AttributesRecord{User: who, Verb: f[0], Namespace: f[2], ResourceRequest: true, APIVersion: "v1"}
	q.Resource, q.Subresource, _ = strings.Cut(f[1], "/")
	q.Resource, q.APIGroup, _ = strings.Cut(q.Resource, ".")
	return q
}

func person(name string, groups ...string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: append(groups, access.Authenticated)}
}

func account(namespace, name string) user.Info {
	return &user.DefaultInfo{Name: "system:serviceaccount:" + namespace + ":" + name, Groups: []string{access.Accounts, access.Accounts + ":" + namespace, access.Authenticated}}
}

func expect(t *testing.T, a *Authorizer, who user.Info, want bool, asks ...string) {
	t.Helper()
	for _, text := range asks {
		decision, why, err := a.Authorize(context.Background(), ask(who, text))
		if err != nil || (decision == authorizer.DecisionAllow) != want {
			t.Errorf("%s: %s: %v, %q, %v; want %v", who.GetName(), text, decision, why, err, want)
		}
	}
}

// TestFounding: a new cluster gives nobody anything but what Kubernetes does.
func TestFounding(t *testing.T) {
	c := newCluster(t)
	if c.reconcile(true) == 0 || c.reconcile(true) != 0 {
		t.Fatal("a cluster's own roles are not made once")
	}
	a := New(c, nothing)
	ann := person("ann")
	expect(t, a, ann, true, "get /api/v1", "create selfsubjectaccessreviews.authorization.k8s.io", "get /version")
	expect(t, a, ann, false, "get pods default", "list pods", "get /berth/v1/status", "create pods default", "get secrets default")
	expect(t, a, person("root", access.Masters), true, "delete nodes", "get /berth/v1/snapshot")
	c.put(fsm.ClusterRoleBindings, clusterBinding("ops", Operator, nil, "User:ann"))
	expect(t, a, ann, true, "post /berth/v1/raft/transfer-leader", "get /berth/v1/status", "delete /berth/v1/raft/servers/s1")
	expect(t, a, ann, false, "get /berth/v1/snapshot", "put /berth/v1/snapshot", "get secrets default")
}

// TestReconcile: rules that are missing come back, those that were added stay, and who opted out is
// left alone.
func TestReconcile(t *testing.T) {
	c := newCluster(t)
	c.reconcile(true)
	status := c.View().Role("", Status).(*rbacv1.ClusterRole).DeepCopy()
	extra := rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}}
	status.Rules = []rbacv1.PolicyRule{extra}
	backup := c.View().Role("", Backup).(*rbacv1.ClusterRole).DeepCopy()
	backup.Rules = nil
	backup.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	for _, o := range []*rbacv1.ClusterRole{status, backup} {
		raw, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c.do(&fsm.PutObject{Resource: fsm.ClusterRoles, Raw: raw})
	}
	c.do(&fsm.DeleteObject{Resource: fsm.ClusterRoles, Name: "view"})
	if n := c.reconcile(true); n != 2 {
		t.Errorf("%d commands, want 2", n)
	}
	if rules := c.View().Role("", Status).(*rbacv1.ClusterRole).Rules; len(rules) < 2 || !slices.ContainsFunc(rules, func(r rbacv1.PolicyRule) bool { return slices.Equal(r.Resources, extra.Resources) }) {
		t.Errorf("%s has %+v", Status, rules)
	}
	if role := c.View().Role("", Backup).(*rbacv1.ClusterRole); len(role.Rules) != 0 {
		t.Errorf("%s was not left alone: %+v", Backup, role)
	}
}

// TestUpgrade: a cluster of before there were roles goes on by roles with what its users might, row by
// row, until its administrator says otherwise; and that is not undone.
func TestUpgrade(t *testing.T) {
	c := newCluster(t)
	before := func(q authorizer.Attributes) bool {
		r := access.Request{Verb: q.GetVerb(), Path: q.GetPath()}
		if q.IsResourceRequest() {
			r = access.Request{Verb: q.GetVerb(), Group: q.GetAPIGroup(), Resource: q.GetResource(), Subresource: q.GetSubresource(), Namespace: q.GetNamespace()}
		}
		return access.MayAsk(q.GetUser().GetGroups(), false, r)
	}
	a := New(c, before)
	users := []user.Info{person("ann"), account("team", "app")}
	var asks []string
	for _, row := range access.Rules() {
		for _, verb := range append([]string{"delete", "get"}, row.Verbs...) {
			for _, r := range append([]string{"secrets", "nodes"}, row.Resources...) {
				for _, ns := range []string{"default", "kube-system", "team"} {
					asks = append(asks, verb+" "+r+" "+ns)
				}
			}
			for _, p := range row.Paths {
				asks = append(asks, verb+" "+p)
			}
		}
	}
	allowed := func() (out []bool) {
		for _, who := range users {
			for _, text := range asks {
				q := ask(who, text)
				decision, _, err := a.Authorize(context.Background(), q)
				if err != nil {
					t.Fatal(err)
				}
				table := access.Request{Verb: q.Verb, Path: q.Path}
				if q.ResourceRequest {
					table = access.Request{Verb: q.Verb, Group: q.APIGroup, Resource: q.Resource, Subresource: q.Subresource, Namespace: q.Namespace}
				}
				out = append(out, decision == authorizer.DecisionAllow || access.MayAsk(who.GetGroups(), true, table))
			}
		}
		return out
	}
	was := allowed()
	c.reconcile(false)
	for i, is := range allowed() {
		if is != was[i] {
			t.Errorf("%s: %s: %v, and before there were roles %v", users[i/len(asks)].GetName(), asks[i%len(asks)], is, was[i])
		}
	}
	c.do(&fsm.DeleteObject{Resource: fsm.ClusterRoleBindings, Name: EditApplications})
	c.reconcile(true)
	c.reconcile(false)
	expect(t, a, users[0], false, "create pods default")
	expect(t, a, users[0], true, "get pods default")
}

// TestExceptions: what narrows a binding, and what is no annotation of it.
func TestExceptions(t *testing.T) {
	c := newCluster(t)
	c.put(fsm.ClusterRoles, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "all", UID: "all"}, Rules: []rbacv1.PolicyRule{
		{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}}, {Verbs: []string{"*"}, NonResourceURLs: []string{"*"}},
	}})
	c.put(fsm.ClusterRoleBindings, clusterBinding("b", "all", map[string]string{
		ExceptNamespacesAnnotation: "kube-system,team", ExceptGroupsAnnotation: "guests," + access.Accounts,
	}, "Group:"+access.Authenticated))
	a := New(c, nothing)
	expect(t, a, person("ann"), true, "get pods default", "delete secrets other")
	expect(t, a, person("ann"), false, "get pods kube-system", "get pods team", "list pods", "get nodes", "get /metrics")
	expect(t, a, person("eve", "guests"), false, "get pods default")
	expect(t, a, account("default", "app"), false, "get pods default")
	for _, tt := range []struct {
		key, value  string
		clusterWide bool
		wrong       bool
	}{
		{ExceptNamespacesAnnotation, "a,b", true, false},
		{ExceptGroupsAnnotation, "system:serviceaccounts,x y", true, false},
		{ExceptNamespacesAnnotation, "a, b", true, true},
		{ExceptNamespacesAnnotation, "", true, true},
		{ExceptGroupsAnnotation, "a,", true, true},
		{ExceptNamespacesAnnotation, strings.Repeat("a,", 64) + "a", true, true},
		{ExceptNamespacesAnnotation, "a", false, true},
		{ExceptGroupsAnnotation, "a", false, true},
		{"other", "?", false, false},
	} {
		if errs := ValidateExceptions(map[string]string{tt.key: tt.value}, tt.clusterWide); (len(errs) > 0) != tt.wrong {
			t.Errorf("%s=%.20q on a cluster-wide binding %v: %v", tt.key, tt.value, tt.clusterWide, errs)
		}
	}
}

// TestFreshness: what a server that is behind allows and refuses.
func TestFreshness(t *testing.T) {
	c := newCluster(t)
	c.reconcile(true)
	c.put(fsm.ClusterRoleBindings, clusterBinding("ann", Status, nil, "User:ann"))
	a := New(c, nothing)
	now := time.Unix(1000, 0)
	a.now = func() time.Time { return now }
	may := func(name string) (bool, error) {
		t.Helper()
		decision, _, err := a.Authorize(context.Background(), ask(person(name), "list nodes"))
		return decision == authorizer.DecisionAllow, err
	}
	want := func(name string, allowed, failed bool, asked int) {
		t.Helper()
		c.asked = 0
		got, err := may(name)
		if got != allowed || (err != nil) != failed || c.asked != asked {
			t.Errorf("%s: %v, %v, asked %d; want %v, an error %v, asked %d", name, got, err, c.asked, allowed, failed, asked)
		}
	}
	want("ann", true, false, 1) // the first time
	want("ann", true, false, 0)
	want("bob", false, false, 1) // always
	c.behind = c.state.View()
	c.put(fsm.ClusterRoleBindings, clusterBinding("bob", Status, nil, "User:bob"))
	c.do(&fsm.DeleteObject{Resource: fsm.ClusterRoleBindings, Name: "ann"})
	want("ann", true, false, 0) // within FreshFor
	want("bob", true, false, 1) // what it would refuse, it makes sure of
	want("ann", false, false, 1)
	c.behind = c.state.View()
	c.do(&fsm.DeleteObject{Resource: fsm.ClusterRoleBindings, Name: "bob"})
	now = now.Add(FreshFor)
	c.cut = true
	want("bob", true, false, 1) // nobody answers, for a while
	want("ann", false, true, 1) // she may have got the right meanwhile
	now = now.Add(StaleFor)
	want("bob", false, true, 1)
	want("ann", false, true, 1)
	c.cut = false
	want("bob", false, false, 1)
	// A request makes sure once, whatever it is refused.
	c.asked = 0
	ctx := OncePerRequest(context.Background())
	for range 5 {
		if d, _, _ := a.Authorize(ctx, ask(person("eve"), "list nodes")); d == authorizer.DecisionAllow {
			t.Error("eve may")
		}
	}
	if c.asked != 1 {
		t.Errorf("asked %d times", c.asked)
	}
}

// everything gives upstream all roles and bindings there are.
type everything struct {
	reader
	view *fsm.View
}

func (e everything) ListRoleBindings(_ context.Context, namespace string) (out []*rbacv1.RoleBinding, _ error) {
	e.view.Objects.Scan(fsm.ObjectKey(fsm.RoleBindings, namespace, ""), func(_ string, o *fsm.Object) bool {
		out = append(out, o.Value.(*rbacv1.RoleBinding))
		return true
	})
	return out, nil
}

func (e everything) ListClusterRoleBindings(context.Context) (out []*rbacv1.ClusterRoleBinding, _ error) {
	e.view.Objects.Scan(fsm.ObjectKey(fsm.ClusterRoleBindings, "", ""), func(_ string, o *fsm.Object) bool {
		out = append(out, o.Value.(*rbacv1.ClusterRoleBinding))
		return true
	})
	return out, nil
}

// TestLikeUpstream: the index finds what looking at every binding does.
func TestLikeUpstream(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		pick := func(of ...string) string { return of[r.IntN(len(of))] }
		c := newCluster(t)
		namespaces := []string{"default", "kube-system", "team"}
		who := []string{"User:ann", "User:bob", "Group:ops", "Group:ann", "ServiceAccount:team/app", "ServiceAccount:default/app", "ServiceAccount:/app", "User:system:serviceaccount:team:app"}
		for i := range 4 {
			rules := []rbacv1.PolicyRule{{
				Verbs: []string{pick("get", "list", "*")}, APIGroups: []string{pick("", "apps", "*")},
				Resources: []string{pick("pods", "pods/log", "*", "*/log", "deployments")},
			}}
			c.put(fsm.ClusterRoles, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("c", i), UID: "c"}, Rules: rules})
			ns := pick(namespaces...)
			c.put(fsm.Roles, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprint("r", i), UID: "r"}, Rules: rules})
		}
		for i := range 12 {
			name := fmt.Sprint("b", i)
			if r.IntN(3) == 0 {
				c.put(fsm.ClusterRoleBindings, clusterBinding(name, pick("c0", "c1", "c2", "gone"), nil, pick(who...), pick(who...)))
				continue
			}
			b := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: pick(namespaces...), Name: name, UID: "b"}, RoleRef: clusterRole(pick("c0", "c3"))}
			if r.IntN(2) == 0 {
				b.RoleRef.Kind, b.RoleRef.Name = "Role", pick("r0", "r1", "r2", "r3")
			}
			for range r.IntN(3) {
				b.Subjects = append(b.Subjects, subject(pick(who...)))
			}
			c.put(fsm.RoleBindings, b)
		}
		all := everything{reader{c}, c.View()}
		oracle, a := rbac.New(all, all, all, all), New(c, nothing)
		for _, someone := range []user.Info{person("ann"), person("bob", "ops"), person("eve", "ann"), account("team", "app"), account("default", "app")} {
			for _, text := range []string{"get pods", "list pods/log", "get deployments.apps", "delete pods"} {
				for _, ns := range append(namespaces, "") {
					q := ask(someone, text+" "+ns)
					want, _, _ := oracle.Authorize(context.Background(), q)
					got, _, _ := a.Authorize(context.Background(), q)
					if got != want {
						t.Fatalf("seed %d: %s: %s in %q: %v, want %v", seed, someone.GetName(), text, ns, got, want)
					}
				}
			}
		}
	}
}

// BenchmarkAuthorize decides among 10,000 bindings.
func BenchmarkAuthorize(b *testing.B) {
	const bindings = 10_000
	c := newCluster(b)
	c.reconcile(true)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "developer", UID: "developer"}}
	for _, r := range []string{"configmaps", "services", "pods/log", "pods"} {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{"get", "list", "watch", "create"}, APIGroups: []string{""}, Resources: []string{r}})
	}
	c.put(fsm.ClusterRoles, role)
	var commands []fsm.Command
	for i := range bindings {
		if i%10 == 0 {
			commands = append(commands, create(b, fsm.ClusterRoleBindings, clusterBinding(fmt.Sprint("b", i), "developer", nil, fmt.Sprint("User:u", i))))
			continue
		}
		rb := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: fmt.Sprint("b", i), UID: "b"}, RoleRef: clusterRole("developer"),
			Subjects: []rbacv1.Subject{subject(fmt.Sprint("User:u", i)), subject(fmt.Sprint("Group:g", i%100))},
		}
		commands = append(commands, create(b, fsm.RoleBindings, rb))
	}
	c.do(commands...)
	a := New(c, nothing)
	a.now = func() time.Time { return time.Unix(1, 0) }
	ctx := OncePerRequest(context.Background())
	for name, tt := range map[string]struct {
		who  user.Info
		text string
		want authorizer.Decision
	}{
		"user":    {person("u5001", "a", "b", "c"), "get pods team", authorizer.DecisionAllow},
		"cluster": {person("u5000", "a", "b", "c"), "list pods other", authorizer.DecisionAllow},
		"refused": {person("nobody", "a", "b", "c"), "get pods team", authorizer.DecisionNoOpinion},
	} {
		b.Run(name, func(b *testing.B) {
			q := ask(tt.who, tt.text)
			for b.Loop() {
				if d, _, err := a.Authorize(ctx, q); d != tt.want {
					b.Fatal(d, err)
				}
			}
		})
	}
	b.Run("upstream", func(b *testing.B) {
		all := everything{reader{c}, c.View()}
		u := rbac.New(all, all, all, all)
		q := ask(person("u5001", "a", "b", "c"), "get pods team")
		for b.Loop() {
			if d, _, err := u.Authorize(ctx, q); d != authorizer.DecisionAllow {
				b.Fatal(d, err)
			}
		}
	})
}

// TestPreemptionsAreNotOfOneNamespace: a preemption names pods of any namespace, so whoever may see one
// namespace does not see it (PR20).
func TestPreemptionsAreNotOfOneNamespace(t *testing.T) {
	for _, role := range ClusterRoles() {
		for label := range role.Labels {
			if !strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-") {
				continue
			}
			for _, rule := range role.Rules {
				if slices.Contains(rule.APIGroups, "berth.dev") && slices.Contains(rule.Resources, "preemptions") {
					t.Errorf("%s gives preemptions to who may see one namespace (%s)", role.Name, label)
				}
			}
		}
	}
}
