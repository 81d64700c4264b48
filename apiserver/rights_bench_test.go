package apiserver

import (
	"context"
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/apiserver/roles"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// manyBindings is a cluster with so many bindings, nine of ten in the namespace team: to users u0, u1 and so on one each, but to u5 and the service
// account app of team five.
func manyBindings(b *testing.B, n int) *double {
	d := newDouble(b)
	made := 0
	commands, err := roles.Reconcile(d.View(), true, func(o *metav1.ObjectMeta) { made++; o.UID = types.UID(fmt.Sprint("role-", made)) })
	if err != nil {
		b.Fatal(err)
	}
	put := func(resource string, o codec.Object) {
		raw, err := o.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		commands = append(commands, &fsm.PutObject{Resource: resource, Raw: raw, Create: true})
	}
	commands = append(commands, &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", UID: "team"}}}})
	put(fsm.ClusterRoles, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "developer", UID: "developer"}, Rules: []rbacv1.PolicyRule{
		rule("get list watch create", "", "configmaps services pods/log pods")}})
	developer := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "developer"}
	for i := range n {
		name := fmt.Sprint("b", i)
		subjects := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: fmt.Sprint("u", i)}}
		switch {
		case i%10 == 0:
			put(fsm.ClusterRoleBindings, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, RoleRef: developer, Subjects: subjects})
			continue
		case i < 10 && i%2 == 1:
			subjects = []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "u5"}, {Kind: rbacv1.ServiceAccountKind, Namespace: "team", Name: "app"}}
		}
		put(fsm.RoleBindings, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name, UID: types.UID(name)}, RoleRef: developer, Subjects: subjects})
	}
	d.must(b, commands...)
	return d
}

// BenchmarkRights asks all that a request is asked about who may do it, in a context of its own, of 10,000 bindings: the table, the node's own
// rights, the roles, and whether they are the newest, though not what it takes the leader to answer that. cpu-ns/op is processor time, on which other
// work of the machine tells less.
func BenchmarkRights(b *testing.B) {
	d := manyBindings(b, 10_000)
	r := newRights(d, hclog.NewNullLogger())
	person := func(name string, groups ...string) user.Info {
		return &user.DefaultInfo{Name: name, Groups: append(groups, "system:authenticated")}
	}
	pods := authorizer.AttributesRecord{Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: "team", Name: "web", ResourceRequest: true, Path: "/api/v1/namespaces/team/pods/web"}
	for _, of := range []struct {
		name string
		who  user.Info
		want authorizer.Decision
	}{
		{"few", person("u5", "a", "b", "c"), authorizer.DecisionAllow},
		{"none", person("nobody", "a", "b", "c"), authorizer.DecisionNoOpinion},
		{"account", person("system:serviceaccount:team:app", "system:serviceaccounts", "system:serviceaccounts:team"), authorizer.DecisionAllow},
		{"masters", person("root", "system:masters"), authorizer.DecisionAllow},
	} {
		b.Run(of.name, func(b *testing.B) {
			b.ReportAllocs()
			began := processorTime(b)
			for b.Loop() {
				ctx := withUntold(roles.OncePerRequest(context.WithValue(b.Context(), rightsKey{}, r)))
				q := pods
				q.User = of.who
				if decision, _, err := r.Authorize(ctx, q); decision != of.want || err != nil {
					b.Fatal(decision, err)
				}
			}
			b.ReportMetric(float64(processorTime(b)-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

// processorTime is what this process has taken until now.
func processorTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
