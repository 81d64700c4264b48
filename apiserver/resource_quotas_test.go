package apiserver

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/docs"
)

const quotaManifest = `
apiVersion: v1
kind: ResourceQuota
metadata: {name: team}
spec:
  hard: {pods: "2", requests.cpu: "1", limits.memory: 1Gi, configmaps: "2", count/deployments.apps: "1"}
`

// What a namespace uses is what its quota says, and no more than it allows.
func TestResourceQuotasByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	k.want(quotaManifest, []string{"apply"}, "resourcequota/team created")
	k.want(quotaManifest, []string{"apply"}, "unchanged")
	k.want("", []string{"get", "quota"}, "pods: 0/2", "requests.cpu: 0/1", "configmaps: 1/2")
	pod := func(name, resources string) string {
		return "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + "}\nspec: {containers: [{name: main, image: busybox, resources: " + resources + "}]}"
	}
	k.refused(pod("web", "{}"), []string{"create"}, `pods "web" is forbidden: failed quota: team: must specify limits.memory for: main; requests.cpu for: main`)
	k.want(pod("web", "{requests: {cpu: 600m}, limits: {memory: 512Mi}}"), []string{"create"}, "created")
	k.refused(pod("other", "{requests: {cpu: 600m}, limits: {memory: 600Mi}}"), []string{"create"},
		`pods "other" is forbidden: exceeded quota: team, requested: limits.memory=600Mi,requests.cpu=600m, used: limits.memory=512Mi,requests.cpu=600m, limited: limits.memory=1Gi,requests.cpu=1`)
	k.refused(pod("other", "{requests: {cpu: 600m}, limits: {memory: 100Mi}}"), []string{"create", "--dry-run=server"}, "exceeded quota: team, requested: requests.cpu=600m")
	k.want("", []string{"create", "configmap", "one"}, "created")
	k.refused("", []string{"create", "configmap", "two"}, `configmaps "two" is forbidden: exceeded quota: team, requested: configmaps=1, used: configmaps=2, limited: configmaps=2`)
	k.want("", []string{"describe", "quota", "team"}, "count/deployments.apps  0      1", "limits.memory           512Mi  1Gi", "pods                    1      2")
	k.want("", []string{"patch", "quota", "team", "--subresource=status", "--type=merge", "-p", `{"status":{"used":{"pods":"0"}}}`}, "patched")
	k.want("", []string{"get", "quota", "team", "-o", "jsonpath={.status.used.pods}"}, "1")
	k.want("", []string{"delete", "pod", "web", "--grace-period=0", "--force"}, "deleted")
	k.want("", []string{"get", "quota", "team", "-o", "jsonpath={.status.used.pods} {.status.used.requests\\.cpu}"}, "0 0")
	k.want("", []string{"create", "quota", "urgent", "--hard=pods=1", "--scopes=BestEffort"}, "created")
	k.refused("", []string{"create", "quota", "odd", "--hard=cpu=1", "--scopes=BestEffort"}, "unsupported scope applied to resource")

	ann := newKubectlAs(t, s, k.namespace, "ann", "people")
	ann.want("", []string{"describe", "quota", "team"}, "pods")
	ann.refused("", []string{"delete", "quota", "team"}, "forbidden")
}

// What claims ask for, have been given, and which classes of attributes they have.
func TestQuotasOfClaimsByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	k.want("apiVersion: v1\nkind: ResourceQuota\nmetadata: {name: gold}\nspec: {hard: {requests.storage: 5Gi}, scopeSelector: {matchExpressions: "+
		"[{scopeName: VolumeAttributesClass, operator: In, values: [gold]}]}}", []string{"create"}, "created")
	claim := func(name, size, more string) string {
		return "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: " + name + "}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: " + size + "}}" + more + "}"
	}
	k.want(claim("plain", "9Gi", ""), []string{"create"}, "created")
	k.want(claim("golden", "3Gi", ", volumeAttributesClassName: gold"), []string{"create"}, "created")
	k.refused(claim("more", "3Gi", ", volumeAttributesClassName: gold"), []string{"create"},
		`exceeded quota: gold, requested: requests.storage=3Gi, used: requests.storage=3Gi, limited: requests.storage=5Gi`)
	given := func(size string) []string {
		return []string{"patch", "pvc", "golden", "--subresource=status", "--type=merge", "-p", `{"status":{"allocatedResources":{"storage":"` + size + `"}}}`}
	}
	k.refused("", given("6Gi"), "exceeded quota: gold")
	k.refused("", given("100E"), "must be at most 256Ti")
	k.want("", given("5Gi"), "patched")
	k.want("", []string{"get", "quota", "gold", "-o", "jsonpath={.status.used.requests\\.storage}"}, "5Gi")
}

// quotaBounds are the rows of the table of limits about quotas.
func quotaBounds(t *testing.T, r docs.Row) {
	n := r.Numbers(t, 4)
	s := start(t, newDouble(t), nil)
	fillsNamespace(t, n[0], func(i int64) error {
		q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("q%d", i)}}
		_, err := s.client(t).CoreV1().ResourceQuotas("kube-public").Create(t.Context(), q, metav1.CreateOptions{})
		return err
	})
	quota := func(spec core.ResourceQuotaSpec) runtime.Object { return &core.ResourceQuota{Spec: spec} }
	holds(t, n[1], "spec.hard", func(n int) runtime.Object {
		list := core.ResourceList{}
		for _, name := range many(n, "count/r%d.example.com") {
			list[core.ResourceName(name)] = resource.MustParse("1")
		}
		return quota(core.ResourceQuotaSpec{Hard: list})
	})
	holds(t, n[2], "spec.scopes", func(n int) runtime.Object {
		return quota(core.ResourceQuotaSpec{Scopes: make([]core.ResourceQuotaScope, n)})
	})
	selector := func(n, values int) runtime.Object {
		s := &core.ScopeSelector{MatchExpressions: make([]core.ScopedResourceSelectorRequirement, n)}
		s.MatchExpressions[0].Values = many(values, "v%d")
		return quota(core.ResourceQuotaSpec{ScopeSelector: s})
	}
	holds(t, n[2], "spec.scopeSelector.matchExpressions", func(n int) runtime.Object { return selector(n, 1) })
	holds(t, n[3], "spec.scopeSelector.matchExpressions[0].values", func(n int) runtime.Object { return selector(1, n) })
}
