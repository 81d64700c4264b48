package roles

import (
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/api/operator"
)

// Berth's own cluster roles.
const (
	Status           = "berth:status"
	Operator         = "berth:operator"
	Backup           = "berth:backup"
	ViewApplications = "berth:applications:view"
	EditApplications = "berth:applications:edit"
	Account          = "berth:account"
)

// kubernetesRoles are those of Kubernetes' that there is a use for here. Those of its components are not: what
// Berth's parts may is in the table of package access.
func kubernetesRoles() []string {
	return []string{
		"cluster-admin", "admin", "edit", "view", "system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view",
		"system:discovery", "system:basic-user", "system:public-info-viewer", "system:monitoring", "system:auth-delegator",
		"system:service-account-issuer-discovery",
	}
}

// ClusterRoles are the cluster roles that every cluster has.
func ClusterRoles() []rbacv1.ClusterRole {
	out := slices.DeleteFunc(bootstrappolicy.ClusterRoles(), func(r rbacv1.ClusterRole) bool { return !slices.Contains(kubernetesRoles(), r.Name) })
	return append(out, ownRoles()...)
}

// ClusterRoleBindings are the bindings that every cluster has.
func ClusterRoleBindings() []rbacv1.ClusterRoleBinding {
	return slices.DeleteFunc(bootstrappolicy.ClusterRoleBindings(), func(b rbacv1.ClusterRoleBinding) bool {
		return !slices.Contains(kubernetesRoles(), b.RoleRef.Name)
	})
}

func ownRoles() []rbacv1.ClusterRole {
	read := []string{"get", "list", "watch"}
	paths := func(verbs []string, urls ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, NonResourceURLs: urls}
	}
	on := func(verbs []string, group string, resources ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{Verbs: verbs, APIGroups: []string{group}, Resources: resources}
	}
	status := paths([]string{"get"}, operator.PathMembers, operator.PathStatus, ledger.PathWhy)
	// Not preemptions: they are in the preemptor's namespace, and name victims of others (PR20).
	view := ownRole("berth:aggregate-to-view", on(read, "berth.dev", "queueentries"), on(read, "metrics.k8s.io", "pods"))
	view.Labels["rbac.authorization.k8s.io/aggregate-to-view"] = "true"
	views, edits, accounts := rulesBefore()
	return []rbacv1.ClusterRole{
		view,
		ownRole(Status, status,
			on(read, "", "nodes", "namespaces"), on(read, "metrics.k8s.io", "nodes"), on(read, "scheduling.k8s.io", "priorityclasses"), on(read, "node.k8s.io", "runtimeclasses"),
			on(read, "berth.dev", "schedulerconfigurations"), on([]string{"create"}, "berth.dev", "plans"),
		),
		ownRole(Operator, status,
			paths([]string{"get"}, operator.PathRaftConfiguration, operator.PathClassDrift, operator.PathEncryption, "/metrics"),
			paths([]string{"delete"}, operator.PathRaftServers+"/*"),
			paths([]string{"post"}, operator.PathTransferLeader, operator.PathVerify, operator.PathSigningKey, operator.PathEncryptionRewrite),
		),
		ownRole(Backup, paths([]string{"get"}, operator.PathSnapshot)),
		ownRole(ViewApplications, views...),
		ownRole(EditApplications, edits...),
		ownRole(Account, accounts...),
	}
}

func ownRole(name string, rules ...rbacv1.PolicyRule) rbacv1.ClusterRole {
	return rbacv1.ClusterRole{ObjectMeta: bootstrapMeta(name), Rules: rules}
}

// bootstrapMeta is what upstream's own objects of this kind have.
func bootstrapMeta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Labels: map[string]string{"kubernetes.io/bootstrapping": "rbac-defaults"},
		Annotations: map[string]string{rbacv1.AutoUpdateAnnotationKey: "true"},
	}
}

// rulesBefore are the rows of the table that hold without roles, as rules: what everybody
// might see, and write, and what a service account might see in its namespace.
func rulesBefore() (view, edit, account []rbacv1.PolicyRule) {
	for _, row := range access.Rules() {
		if !row.Before {
			continue
		}
		into := &view
		switch {
		case row.Home:
			into = &account
		case row.OwnNamespaces:
			into = &edit
		}
		if len(row.Paths) > 0 {
			*into = append(*into, rbacv1.PolicyRule{Verbs: row.Verbs, NonResourceURLs: row.Paths})
		}
		groups, names := row.Everywhere()
		for i, group := range groups {
			*into = append(*into, rbacv1.PolicyRule{Verbs: row.Verbs, APIGroups: []string{group}, Resources: names[i]})
		}
	}
	return view, edit, account
}

// BindingsBefore are what lets everybody who is authenticated go on as before there were roles: made once, when a
// cluster that has none gets them, and left to its administrators then.
func BindingsBefore(namespaces []string) (wide []rbacv1.ClusterRoleBinding, accounts []rbacv1.RoleBinding) {
	bind := func(role string, annotations map[string]string) rbacv1.ClusterRoleBinding {
		annotations[ExceptGroupsAnnotation] = access.Accounts
		return rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role, Annotations: annotations},
			RoleRef:    clusterRole(role),
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: access.Authenticated}},
		}
	}
	wide = []rbacv1.ClusterRoleBinding{
		bind(ViewApplications, map[string]string{}),
		bind(EditApplications, map[string]string{ExceptNamespacesAnnotation: strings.Join(access.SystemNamespaces(), ",")}),
	}
	for _, namespace := range namespaces {
		accounts = append(accounts, rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Account},
			RoleRef:    clusterRole(Account),
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: access.Accounts + ":" + namespace}},
		})
	}
	return wide, accounts
}

func clusterRole(name string) rbacv1.RoleRef {
	return rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name}
}
