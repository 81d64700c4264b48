package apiserver

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// planIn is a plan about one object, which is a format with its namespace.
func planIn(ns, object string) berthv1.PlanSpec {
	return berthv1.PlanSpec{Objects: []runtime.RawExtension{{Raw: []byte(strings.ReplaceAll(object, "NS", ns))}}}
}

func plannedSet(name, app string, replicas int) string {
	return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":%q,"namespace":"NS"},"spec":{"replicas":%d,"selector":{"matchLabels":{"app":%q}},
		"template":{"metadata":{"labels":{"app":%q}},"spec":{"containers":[{"name":"main","image":"busybox"}]}}}}`, name, replicas, app, app)
}

// A plan tells no more than the request would that it stands for: who may not make or change something in a namespace is refused, by the
// same words whatever is there, and who may not read its pods is told no names.
func TestPlansTellNothingOfOthers(t *testing.T) {
	s, root := withRolesAnd(t, func(c *Config) { c.Planner = fakePlanner{} })
	ctx := t.Context()
	if _, err := root.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	everybody := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "people"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "berth:status"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "people"}},
	}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, everybody, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for user, rules := range map[string][]rbacv1.PolicyRule{
		"eve": {rule("get list create update", "apps", "replicasets replicasets/scale"), rule("get create", "", "pods"), rule("create", "policy", "poddisruptionbudgets")},
		"bob": {rule("create update", "apps", "replicasets replicasets/scale")}, // reads no pods
	} {
		if err := grant(t, root, user, user, rules...); err != nil {
			t.Fatal(err)
		}
	}
	eve, bob := s.dynamic(t, "eve", "people"), s.dynamic(t, "bob", "people")
	yes := true
	for _, ns := range []string{"team", "other"} {
		newKubectl(t, s, ns).want(replicaSet, []string{"apply"}, "created")
		rs, _ := s.double.View().ReplicaSet(ns, "web")
		pod := testPod("hush")
		pod.Namespace, pod.UID, pod.Labels = ns, types.UID("hush-"+ns), map[string]string{"app": "web"}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: rs.UID, Controller: &yes}}
		s.double.must(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
		quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "hush"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"pods": resource.MustParse("1")}}}
		if _, err := root.CoreV1().ResourceQuotas(ns).Create(ctx, quota, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	pod := func(ns, account string) berthv1.PlanSpec {
		p := testPod("probe")
		p.Namespace, p.Spec.ServiceAccountName = ns, account
		return berthv1.PlanSpec{Pods: []corev1.Pod{*p}}
	}
	scale := func(ns, name string) berthv1.PlanSpec {
		return berthv1.PlanSpec{Scale: &berthv1.PlanScale{Resource: "replicasets", Namespace: ns, Name: name}}
	}
	const (
		budget = `{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"b","namespace":"NS"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"web"}}}}`
		class  = `{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"huge"},"value":900000000}`
	)
	for _, tc := range []struct {
		what    string
		spec    func(ns string) berthv1.PlanSpec
		refused string // everywhere but in team
		team    int    // the code there, if it is refused too
	}{
		{"a pod", func(ns string) berthv1.PlanSpec { return pod(ns, "") }, `resource "pods"`, 0},
		{"a pod of no account", func(ns string) berthv1.PlanSpec { return pod(ns, "none") }, `resource "pods"`, 0},
		{"a ReplicaSet that is there", func(ns string) berthv1.PlanSpec { return planIn(ns, plannedSet("web", "web", 0)) }, `resource "replicasets"`, 0},
		{"one that is not", func(ns string) berthv1.PlanSpec { return planIn(ns, plannedSet("none", "web", 0)) }, `resource "replicasets"`, 0},
		{"one with another selector", func(ns string) berthv1.PlanSpec { return planIn(ns, plannedSet("web", "guess", 0)) }, `resource "replicasets"`, 422},
		{"a scale", func(ns string) berthv1.PlanSpec { return scale(ns, "web") }, `resource "replicasets/scale"`, 0},
		{"a scale of none", func(ns string) berthv1.PlanSpec { return scale(ns, "none") }, `resource "replicasets/scale"`, 404},
		{"a budget", func(ns string) berthv1.PlanSpec { return planIn(ns, budget) }, `resource "poddisruptionbudgets"`, 0},
		{"a class", func(string) berthv1.PlanSpec { return planIn("", class) }, `resource "priorityclasses" at the cluster scope`, 403},
	} {
		_, err := askPlanBy(t, eve, tc.spec("other"))
		wantStatus(t, err, 403, tc.refused)
		if err != nil && (strings.Contains(err.Error(), "hush") || strings.Contains(err.Error(), "found") || strings.Contains(err.Error(), "immutable")) {
			t.Errorf("%s: its refusal tells more: %v", tc.what, err)
		}
		answer, err := askPlanBy(t, eve, tc.spec("team"))
		switch {
		case tc.team != 0:
			wantStatus(t, err, int32(tc.team), "")
		case err != nil:
			t.Errorf("%s in a namespace of one's own: %v", tc.what, err)
		default:
			for _, r := range answer.Status.Removals {
				if r.Pod.Name != "hush" {
					t.Errorf("%s: it would remove %+v", tc.what, r)
				}
			}
		}
	}
	for _, spec := range []berthv1.PlanSpec{planIn("team", plannedSet("web", "web", 0)), scale("team", "web")} {
		answer, err := askPlanBy(t, bob, spec)
		if err != nil {
			t.Fatal(err)
		}
		if r := answer.Status.Removals; len(r) != 1 || r[0] != (berthv1.PlanRemoval{Rule: "first"}) {
			t.Errorf("who may not read pods is told %+v", r)
		}
	}
}

// A plan goes by the classes that whoever asks has the right to use, as the requests do that it stands for: a template may name one that
// is not there also when no pods come of it, and the pods of a template that is there are made by a controller, which nobody asks.
func TestPlansUseClasses(t *testing.T) {
	s, root := withRolesAnd(t, func(c *Config) { c.Planner = fakePlanner{} })
	ctx := t.Context()
	everybody := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "people"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "berth:status"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: "people"}},
	}
	if _, err := root.RbacV1().ClusterRoleBindings().Create(ctx, everybody, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	writes := []rbacv1.PolicyRule{rule("create update", "apps", "replicasets replicasets/scale"), rule("create get", "", "pods")}
	for user, rules := range map[string][]rbacv1.PolicyRule{"bob": writes, "ann": append(writes, rule("use", "scheduling.k8s.io", "priorityclasses", "later"))} {
		if err := grant(t, root, user, user, rules...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := root.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "gold", Annotations: map[string]string{model.RestrictedUseAnnotation: "true"}}, Value: 10,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	golden := testPod("p")
	golden.Namespace, golden.Spec.PriorityClassName = "team", "gold"
	for name, class := range map[string]string{"web": "", "gold": "gold"} {
		spec := testPod("p").Spec
		spec.PriorityClassName = class
		rs, none := replicaSetOf(spec), int32(0)
		rs.Name, rs.Spec.Replicas = name, &none
		if _, err := root.AppsV1().ReplicaSets("team").Create(ctx, rs, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ann, bob := s.dynamic(t, "ann", "people"), s.dynamic(t, "bob", "people")
	for _, name := range []string{"web", "new"} {
		named := planIn("team", strings.Replace(plannedSet(name, "told", 0), `"containers"`, `"priorityClassName":"later","containers"`, 1))
		if _, err := askPlanBy(t, ann, named); err != nil {
			t.Errorf("ReplicaSet %s with a class that is not there, by who may use it: %v", name, err)
		}
		_, err := askPlanBy(t, bob, named)
		wantStatus(t, err, 403, "no PriorityClass with name later was found")
	}
	scale := berthv1.PlanSpec{Scale: &berthv1.PlanScale{Resource: "replicasets", Namespace: "team", Name: "gold", Replicas: 1}}
	if answer, err := askPlanBy(t, bob, scale); err != nil || answer.Status.Placements[0].Node != "n1" {
		t.Errorf("more pods of a template with a class that its writer may use: %+v, %v", answer, err)
	}
	scale.Pods = []corev1.Pod{*golden}
	if answer, err := askPlanBy(t, bob, scale); err != nil || answer.Status.Placements[0].Node != "" {
		t.Errorf("beside that, a pod of one's own: %+v, %v", answer, err)
	}
}
