package apiserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

const webBudget = `
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web, labels: {app: web}}
spec:
  minAvailable: 2
  selector: {matchLabels: {app: web}}
`

func TestBudgetsByKubectl(t *testing.T) {
	s := share(t)
	k := newKubectl(t, s, s.namespace(t))
	k.want(webBudget, []string{"apply", "--dry-run=server"}, "poddisruptionbudget.policy/web created (server dry run)")
	k.want(webBudget, []string{"apply"}, "poddisruptionbudget.policy/web created")
	// kubectl replaces the selector each time, which changes nothing.
	k.want(webBudget, []string{"apply"}, "poddisruptionbudget.policy/web")
	k.want("", []string{"get", "pdb", "web", "-o", "jsonpath={.metadata.generation}"}, "1")
	k.want(webBudget, []string{"apply", "--server-side", "--force-conflicts"}, "serverside-applied")
	k.want("", []string{"get", "pdb"}, "NAME", "MIN AVAILABLE", "MAX UNAVAILABLE", "ALLOWED DISRUPTIONS", "AGE", "web", "2", "N/A", "0")
	k.want("", []string{"describe", "pdb", "web"}, "Min available:  2", "Allowed disruptions:  0", "Current:              0", "Desired:              2", "NoPods", "No matching pods found")
	k.want("", []string{"create", "pdb", "half", "--selector=app=web", "--max-unavailable=50%"}, "poddisruptionbudget.policy/half created")
	k.want("", []string{"get", "poddisruptionbudgets", "half", "--no-headers"}, "half", "N/A", "50%")
	k.want("", []string{"patch", "pdb", "web", "--type=merge", "-p", `{"spec":{"minAvailable":"30%"}}`}, "patched")
	k.want("", []string{"get", "pdb", "web", "-o", "jsonpath={.metadata.generation} {.status.observedGeneration} {.spec.minAvailable}"}, "2 2 30%")
	k.want("", []string{"explain", "pdb.spec.unhealthyPodEvictionPolicy"}, "FIELD: unhealthyPodEvictionPolicy <string>")
	k.want("", []string{"api-resources", "--api-group=policy"}, "poddisruptionbudgets", "pdb", "policy/v1")
	k.refused("", []string{"patch", "pdb", "web", "--type=merge", "-p", `{"spec":{"maxUnavailable":1}}`}, "minAvailable and maxUnavailable cannot be both set")
	k.refused("", []string{"patch", "pdb", "web", "--type=merge", "-p", `{"spec":{"minAvailable":"130%"}}`}, "must not be greater than 100%")
	k.refused("", []string{"annotate", "pdb", "web", "berth.dev/allow-disruption-by-priority-greater-than-or-equal=2000000001"},
		`metadata.annotations[berth.dev/allow-disruption-by-priority-greater-than-or-equal]: Invalid value: "2000000001": must not be above 2000000000`)
	k.want("", []string{"annotate", "pdb", "web", "berth.dev/allow-disruption-by-priority-greater-than-or-equal=1000"}, "annotated")
	k.want("", []string{"delete", "pdb", "--all"}, `poddisruptionbudget.policy "half" deleted`, `poddisruptionbudget.policy "web" deleted`)
	k.refused("", []string{"get", "pdb", "web"}, `poddisruptionbudgets.policy "web" not found`)
}

// runReady binds pods and lets them be ready.
func runReady(t testing.TB, pods typedcorev1.PodInterface, node string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := bind(pods, name, node); err != nil {
			t.Fatal(err)
		}
		setReady(t, pods, name, true)
	}
}

func setReady(t testing.TB, pods typedcorev1.PodInterface, name string, ready bool) {
	t.Helper()
	status := map[bool]string{true: "True", false: "False"}[ready]
	patch := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q}]}}`, status)
	if _, err := pods.Patch(context.Background(), name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func minAvailable(name string, n intstr.IntOrString) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &n, Selector: &metav1.LabelSelector{}}}
}

// TestBudgetStatus: the status is exact when the request is answered, and what
// users write into it is taken as far as it is theirs.
func TestBudgetStatus(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a", "b", "c")
	budgets, ctx := s.client(t).PolicyV1().PodDisruptionBudgets(ns), context.Background()
	b, err := budgets.Create(ctx, minAvailable("b", intstr.FromInt32(1)), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if b.Status.ExpectedPods != 3 || b.Status.ObservedGeneration != 1 || b.Status.DesiredHealthy != 1 || len(b.Status.Conditions) != 1 {
		t.Fatalf("created with %+v", b.Status)
	}
	runReady(t, pods, node, "a", "b", "c")
	if b, err = budgets.Get(ctx, "b", metav1.GetOptions{}); err != nil || b.Status.DisruptionsAllowed != 2 || b.Status.CurrentHealthy != 3 {
		t.Fatalf("got %+v, %v", b.Status, err)
	}
	b.Status.DisruptedPods = map[string]metav1.Time{"a": metav1.NewTime(time.Now())}
	b.Status.DisruptionsAllowed = 77
	b.Status.Conditions = append(b.Status.Conditions, metav1.Condition{
		Type: "example.com/Seen", Status: metav1.ConditionTrue, Reason: "Seen", LastTransitionTime: metav1.Now()})
	b.Spec.MinAvailable = &intstr.IntOrString{IntVal: 3}
	if b, err = budgets.UpdateStatus(ctx, b, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, kept := b.Status.DisruptedPods["a"]; !kept || b.Status.DisruptionsAllowed != 1 || len(b.Status.Conditions) != 2 || b.Spec.MinAvailable.IntVal != 1 {
		t.Fatalf("got %+v", b.Status)
	}
	b, err = budgets.Patch(ctx, "b", types.MergePatchType, []byte(`{"status":{"disruptedPods":null}}`), metav1.PatchOptions{}, "status")
	if err != nil || len(b.Status.DisruptedPods) != 0 || b.Status.DisruptionsAllowed != 2 {
		t.Fatalf("got %+v, %v", b.Status, err)
	}
}

// TestEvictionAsksBudgets: PD6, PD8, PD9.
func TestEvictionAsksBudgets(t *testing.T) {
	s := share(t)
	pods, ns, node := podsOn(t, s, "a", "b", "c", "waiting")
	budgets, ctx := s.client(t).PolicyV1().PodDisruptionBudgets(ns), context.Background()
	for name, n := range map[string]int32{"two": 2, "one": 1} {
		if _, err := budgets.Create(ctx, minAvailable(name, intstr.FromInt32(n)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	runReady(t, pods, node, "a", "b", "c")
	evict := func(name string, options metav1.DeleteOptions) error {
		return pods.EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}, DeleteOptions: &options})
	}
	other, stale := types.UID("other"), "1"
	wantStatus(t, evict("a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &other}}), 409, "Precondition failed: UID")
	wantStatus(t, evict("a", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &stale}}), 409, "has been modified")
	dry := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	for range 2 {
		if err := evict("a", dry); err != nil {
			t.Fatal(err)
		}
	}
	if err := evict("a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, options := range []metav1.DeleteOptions{dry, {}} {
		err := evict("b", options)
		wantStatus(t, err, 429, "Cannot evict pod as it would violate the pod's disruption budget.")
		var status apierrors.APIStatus
		if !errors.As(err, &status) || !apierrors.HasStatusCause(err, policyv1.DisruptionBudgetCause) {
			t.Fatalf("no cause in %v", err)
		}
		causes := status.Status().Details.Causes
		if len(causes) != 1 || causes[0].Message != "The disruption budget two needs 2 healthy pods and has 2 currently" || status.Status().Details.RetryAfterSeconds != 0 {
			t.Fatalf("got %+v", status.Status().Details)
		}
	}
	if err := evict("waiting", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	setReady(t, pods, "c", false)
	wantStatus(t, evict("c", metav1.DeleteOptions{}), 429, "disruption budget")
	always := `{"spec":{"unhealthyPodEvictionPolicy":"AlwaysAllow"}}`
	if _, err := budgets.Patch(ctx, "two", types.MergePatchType, []byte(always), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := evict("c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TestDisruptionPolicy: the annotation goes from the class to the pod, and
// nonsense goes nowhere.
func TestDisruptionPolicy(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	class := `{apiVersion: scheduling.k8s.io/v1, kind: PriorityClass, metadata: {name: POLICY-` + ns + `, annotations: {berth.dev/disruption-policy: POLICY}}, value: 5}`
	k.refused(strings.ReplaceAll(class, "POLICY", "sometimes"), []string{"create"}, `metadata.annotations[berth.dev/disruption-policy]: Unsupported value: "sometimes"`)
	k.want(strings.Replace(strings.Replace(class, "POLICY", "strict", 1), "POLICY", "Strict", 1), []string{"create"}, "created")
	pod := func(name, annotations string) string {
		return fmt.Sprintf(`{apiVersion: v1, kind: Pod, metadata: {name: %s, annotations: {%s}}, spec: {priorityClassName: strict-%s, containers: [{name: c, image: i}]}}`, name, annotations, ns)
	}
	k.want(pod("heir", ""), []string{"create"}, "created")
	k.want(pod("free", "berth.dev/disruption-policy: BestEffort"), []string{"create"}, "created")
	k.refused(pod("bad", "berth.dev/disruption-policy: never"), []string{"create"}, `metadata.annotations[berth.dev/disruption-policy]: Unsupported value: "never"`)
	k.refused("", []string{"annotate", "pod", "free", "berth.dev/disruption-policy=never", "--overwrite"}, "Unsupported value")
	for name, want := range map[string]string{"heir": "Strict", "free": "BestEffort"} {
		p, err := s.client(t).CoreV1().Pods(ns).Get(context.Background(), name, metav1.GetOptions{})
		if err != nil || p.Annotations["berth.dev/disruption-policy"] != want {
			t.Errorf("%s: %v, %v", name, p.Annotations, err)
		}
	}
}
