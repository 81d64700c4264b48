package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/api/ledger"
)

// What others have waiting, and whom they would push out, is theirs to know.
func (a *attacked) whyAndPlanOfOthers(t *testing.T) {
	emil, ns := a.editor(t, "emil")
	for _, path := range []string{
		ledger.PathWhy + "?namespace=" + a.ns + "&pod=bystander",
		"/apis/berth.dev/v1/queueentries", "/apis/berth.dev/v1/preemptions",
		"/apis/berth.dev/v1/namespaces/" + a.ns + "/queueentries", "/apis/berth.dev/v1/namespaces/" + a.ns + "/preemptions",
		"/api/v1/namespaces/" + a.ns + "/pods?fieldSelector=metadata.name%3Dnone",
	} {
		if status := statusAs(t, emil, http.MethodGet, path, ""); status != http.StatusForbidden {
			t.Errorf("GET %s answers %d", path, status)
		}
	}
	around := "/api/v1/namespaces/" + ns + "/pods/../../" + a.ns + "/pods/bystander"
	if status := statusAs(t, emil, http.MethodGet, around, ""); status != http.StatusForbidden && status != http.StatusNotFound && status != http.StatusMovedPermanently {
		t.Errorf("GET %s answers %d", around, status)
	}
	a.berth(t, "create", "clusterrolebinding", "emil-status", "--clusterrole=berth:status", "--user=emil")
	a.whyOfOthers(t, ns)
	a.plansOfOthers(t, emil, ns)
	a.planThatEvictsOthers(t, emil, ns)
}

// Who may ask why is told of his own pods, at every server; of others' the same, whether they are there or not.
func (a *attacked) whyOfOthers(t *testing.T, ns string) {
	t.Helper()
	create(t, a.Reader().Kube, pod(ns, "own", "true", on("w2")))
	for _, s := range a.Servers() {
		emil := a.userOf(t, s, "emil", "people")
		why := func(namespace, pod string) (int, string) {
			return answerAs(t, emil, http.MethodGet, ledger.PathWhy+"?namespace="+namespace+"&pod="+pod, "")
		}
		a.eventually(t, "emil to be told by "+s.Name+" of his own", func(context.Context) error {
			if status, said := why(ns, "own"); status != http.StatusOK {
				return fmt.Errorf("%d: %s", status, said)
			}
			return nil
		})
		_, unknown := why(a.ns, "nobody")
		for _, pod := range []string{"bystander", string(a.bystander.UID), "nobody"} {
			status, said := why(a.ns, pod)
			if status != http.StatusForbidden || !strings.Contains(said, "you may not read the pods of namespace "+a.ns) || said != unknown {
				t.Errorf("%s tells why of %s: %d, %s", s.Name, pod, status, said)
			}
		}
	}
}

// planAs is a plan as somebody.
func planAs(t *testing.T, kube kubernetes.Interface, spec string) (status int, said string) {
	t.Helper()
	return answerAs(t, kube, http.MethodPost, "/apis/berth.dev/v1/plans", `{"apiVersion":"berth.dev/v1","kind":"Plan","spec":`+spec+`}`)
}

// Nobody plans what he may not do.
func (a *attacked) plansOfOthers(t *testing.T, emil kubernetes.Interface, ns string) {
	t.Helper()
	const containers = `"spec":{"containers":[{"name":"c","image":"busybox"}]}`
	pod := func(ns string) string {
		return `{"pods":[{"metadata":{"name":"probe","namespace":"` + ns + `"},` + containers + `}]}`
	}
	set := func(ns string) string {
		return `{"objects":[{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"none","namespace":"` + ns + `"},"spec":{"replicas":0,
			"selector":{"matchLabels":{"app":"x"}},"template":{"metadata":{"labels":{"app":"x"}},` + containers + `}}}]}`
	}
	a.eventually(t, "emil to plan what is his", func(context.Context) error {
		one, _ := planAs(t, emil, pod(ns))
		other, _ := planAs(t, emil, set(ns))
		if one != http.StatusCreated || other != http.StatusCreated {
			return fmt.Errorf("a pod answers %d, a ReplicaSet %d", one, other)
		}
		return nil
	})
	for what, spec := range map[string]string{
		"a pod":        pod(a.ns),
		"a ReplicaSet": set(a.ns),
		"a scale":      `{"scale":{"resource":"replicasets","namespace":"` + a.ns + `","name":"none","replicas":5}}`,
		"a budget": `{"objects":[{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"none","namespace":"` + a.ns + `"},
			"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"x"}}}}]}`,
		"a class": `{"objects":[{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"huge"},"value":900000000}]}`,
	} {
		if status, said := planAs(t, emil, spec); status != http.StatusForbidden {
			t.Errorf("a plan of %s answers %d: %s", what, status, said)
		}
	}
}

// hushed are a pod that a louder one would evict, its ReplicaSet and its budget, in a namespace of somebody else.
const hushed = `
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: loud}
value: 1000
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: low}
value: 7
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: hush-budget, namespace: hush}
spec: {minAvailable: 1, selector: {matchLabels: {app: hush-app}}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: hush-set, namespace: hush}
spec:
  replicas: 1
  selector: {matchLabels: {app: hush-app}}
  template:
    metadata: {labels: {app: hush-app}}
    spec:
      priorityClassName: low
      nodeSelector: {kubernetes.io/hostname: w2}
      containers: [{name: c, image: none, resources: {requests: {cpu: %dm}}}]
`

// A plan that somebody may make says that it evicts, and of a pod that he may not read not more than its UID.
func (a *attacked) planThatEvictsOthers(t *testing.T, emil kubernetes.Interface, ns string) {
	t.Helper()
	kube := a.Reader().Kube
	node, err := kube.CoreV1().Nodes().Get(t.Context(), "w2", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	most := node.Status.Allocatable.Cpu().MilliValue() * 3 / 4 // of which there is no room for two
	a.namespace(t, "hush")
	a.berthIn(t, fmt.Sprintf(hushed, most), "create", "-f", "-")
	t.Cleanup(func() {
		if err := kube.AppsV1().ReplicaSets("hush").Delete(context.Background(), "hush-set", metav1.DeleteOptions{}); err != nil { // else it makes others
			t.Error(err)
		}
	})
	var victim corev1.Pod
	a.eventually(t, "the victim to run, and its budget to know", func(ctx context.Context) error {
		pods, err := kube.CoreV1().Pods("hush").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		budget, err := kube.PolicyV1().PodDisruptionBudgets("hush").Get(ctx, "hush-budget", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning || budget.Status.CurrentHealthy != 1 {
			return fmt.Errorf("there are %d pods, the budget is %+v", len(pods.Items), budget.Status)
		}
		victim = pods.Items[0]
		return nil
	})
	spec := fmt.Sprintf(`{"pods":[{"metadata":{"name":"top","namespace":%q},"spec":{"priorityClassName":"loud","nodeSelector":{"kubernetes.io/hostname":"w2"},
		"containers":[{"name":"c","image":"none","resources":{"requests":{"cpu":"%dm"}}}]}}]}`, ns, most)
	evicting := func(who kubernetes.Interface) (said string, plan berthv1.PlanStatus) {
		t.Helper()
		status, said := planAs(t, who, spec)
		var answer berthv1.Plan
		if err := json.Unmarshal([]byte(said), &answer); status != http.StatusCreated || err != nil {
			t.Fatalf("%d, %v: %s", status, err, said)
		}
		plan = answer.Status
		if len(plan.Placements) != 1 || len(plan.Placements[0].Victims) != 1 || len(plan.Replacements) != 1 || len(plan.Budgets) != 1 {
			t.Fatalf("it is to evict one, whose set makes another, and a budget is against it: %s", said)
		}
		return said, plan
	}
	// An administrator is told who it is.
	_, all := evicting(a.waitLeader(t).Kube)
	if v := all.Placements[0].Victims[0]; v.Name != victim.Name || v.Priority != 7 || all.Budgets[0].Name != "hush-budget" || all.Replacements[0].Of.Name != victim.Name {
		t.Errorf("an administrator is told %+v", all)
	}
	said, plan := evicting(emil)
	v, b, r := plan.Placements[0].Victims[0], plan.Budgets[0], plan.Replacements[0]
	if v.UID != victim.UID || v.Name != "" || v.Namespace != "" || v.Priority != 0 || b != (berthv1.PlanBudget{}) || r.Message != "" || r.Of.Name != "" || r.Of.Namespace != "" || r.Of.Priority != 0 {
		t.Errorf("emil is told %+v", plan)
	}
	if strings.Contains(said, "hush") {
		t.Errorf("emil is told of hush: %s", said)
	}
	a.stillThere(t, &victim)
}

// stillThere: nobody has done anything to a pod.
func (a *attacked) stillThere(t *testing.T, p *corev1.Pod) {
	t.Helper()
	now, err := a.Reader().Kube.CoreV1().Pods(p.Namespace).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err == nil && (now.UID != p.UID || now.DeletionTimestamp != nil || now.Status.Phase != corev1.PodRunning) {
		err = errors.New("it is another one")
	}
	if err != nil {
		t.Errorf("the pod %s: %v: %+v", p.Name, err, now)
	}
}
