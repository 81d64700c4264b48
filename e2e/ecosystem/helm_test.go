package ecosystem

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// kube is an administrator's client.
func kube() *kubernetes.Clientset { return shared.Fleet.Reader().Kube }

// localClass is a class whose volumes are directories of the nodes.
func localClass(t *testing.T) {
	t.Helper()
	mode := storagev1.VolumeBindingWaitForFirstConsumer
	_, err := kube().StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "berth.dev/local", VolumeBindingMode: &mode}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
}

// TestHelm: a chart with the usual kinds, by both majors of Helm.
func TestHelm(t *testing.T) {
	for _, one := range []struct{ helm, atomic string }{
		{"helm3", "--atomic"},
		{"helm4", "--rollback-on-failure"},
	} {
		t.Run(one.helm, func(t *testing.T) {
			localClass(t)
			h := release{t: t, helm: one.helm, namespace: one.helm}
			h.run("install", "shop", "testdata/chart", "--create-namespace", "--wait", "--timeout", "5m")
			t.Run("installed", func(t *testing.T) { h.on(t).installed() })
			t.Run("told", func(t *testing.T) { h.on(t).told() })
			t.Run("upgraded", func(t *testing.T) {
				h := h.on(t)
				h.run("upgrade", "shop", "testdata/chart", "--set", "greeting=two", "--wait", "--timeout", "5m")
				h.says("two")
				h.shelf("one", "two")
				h.crier("two")
			})
			t.Run("an upgrade that fails is rolled back", func(t *testing.T) {
				h := h.on(t)
				refused(t, "failed", h.helm, h.args("upgrade", "shop", "testdata/chart", "--set", "greeting=three,broken=true", one.atomic, "--timeout", "5m")...)
				h.history("1 superseded", "2 superseded", "3 failed", "4 deployed")
				h.says("two")
				h.shelf("one", "two", "three", "two")
				h.crier("two")
			})
			t.Run("rolled back", func(t *testing.T) {
				h := h.on(t)
				h.run("rollback", "shop", "1", "--wait", "--timeout", "5m")
				h.history("1 superseded", "2 superseded", "3 failed", "4 superseded", "5 deployed")
				h.says("one")
				h.shelf("one", "two", "three", "two", "one")
				h.crier("one")
			})
			t.Run("a template is applied", func(t *testing.T) { h.on(t).templated() })
			t.Run("uninstalled", func(t *testing.T) { h.on(t).uninstalled() })
		})
	}
}

// release is one of Helm's, in a namespace of its own.
type release struct {
	t               *testing.T
	helm, namespace string
}

func (h release) on(t *testing.T) release {
	h.t = t
	return h
}

func (h release) args(args ...string) []string {
	return append([]string{"--namespace", h.namespace}, args...)
}

func (h release) run(args ...string) string {
	h.t.Helper()
	return tool(h.t, h.helm, h.args(args...)...)
}

// installed: what was waited for is so, and the hooks ran.
func (h release) installed() {
	ctx := h.t.Context()
	for _, name := range []string{"shop", "shop-store"} {
		d, err := kube().AppsV1().Deployments(h.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			h.t.Fatal(err)
		}
		if d.Status.ReadyReplicas != *d.Spec.Replicas {
			h.t.Errorf("%s: %d of %d are ready after --wait", name, d.Status.ReadyReplicas, *d.Spec.Replicas)
		}
	}
	claim, err := kube().CoreV1().PersistentVolumeClaims(h.namespace).Get(ctx, "shop", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	if claim.Status.Phase != corev1.ClaimBound {
		h.t.Errorf("the claim is %s", claim.Status.Phase)
	}
	events, err := kube().CoreV1().Events(h.namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, hook := range []string{"shop-before", "shop-after"} {
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name == hook && e.Reason == "Completed" }) {
			h.t.Errorf("the hook %s did not complete", hook)
		}
		if _, err := kube().BatchV1().Jobs(h.namespace).Get(ctx, hook, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			h.t.Errorf("the hook %s should have been deleted: %v", hook, err)
		}
	}
	contains(h.t, tool(h.t, "kubectl", "api-resources", "--api-group=shop.example.com"), "orders")
	h.says("one")
	h.shelf("one")
	h.crier("one")
}

// shelf: Helm has waited for every pod of the StatefulSet to be replaced, and each has its volume again, with what was said before.
func (h release) shelf(said ...string) {
	h.t.Helper()
	set, err := kube().AppsV1().StatefulSets(h.namespace).Get(h.t.Context(), "shop-shelf", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	if s := set.Status; s.ReadyReplicas != 2 || s.UpdatedReplicas != 2 || s.CurrentRevision != s.UpdateRevision {
		h.t.Errorf("after --wait the StatefulSet is %+v", s)
	}
	for _, pod := range []string{"shop-shelf-0", "shop-shelf-1"} {
		if got := strings.Fields(tool(h.t, "kubectl", "-n", h.namespace, "logs", pod)); !slices.Equal(got, said) {
			h.t.Errorf("on the shelf of %s is %q, not %q", pod, got, said)
		}
	}
}

// crier: the DaemonSet has a pod on every node, and all say the same. Helm 3 waits for all but as many as may be away.
func (h release) crier(greeting string) {
	h.t.Helper()
	set, err := kube().AppsV1().DaemonSets(h.namespace).Get(h.t.Context(), "shop-crier", metav1.GetOptions{})
	if err != nil {
		h.t.Fatal(err)
	}
	if s := set.Status; s.DesiredNumberScheduled != workers || s.UpdatedNumberScheduled != workers || s.NumberReady < workers-1 {
		h.t.Errorf("after --wait the DaemonSet is %+v", s)
	}
	tool(h.t, "kubectl", "-n", h.namespace, "rollout", "status", "daemonset/shop-crier", "--timeout", "5m")
	list, err := kube().CoreV1().Pods(h.namespace).List(h.t.Context(), metav1.ListOptions{LabelSelector: "app=shop-crier"})
	if err != nil {
		h.t.Fatal(err)
	}
	said := map[string]string{} // by node
	for i := range list.Items {
		if p := &list.Items[i]; p.DeletionTimestamp == nil {
			said[p.Spec.NodeName] = tool(h.t, "kubectl", "-n", h.namespace, "logs", p.Name)
		}
	}
	if len(said) != workers {
		h.t.Errorf("it is on %d nodes", len(said))
	}
	for node, text := range said {
		if text != greeting+"\n" {
			h.t.Errorf("on %s it says %q, not %q", node, text, greeting)
		}
	}
}

// told: what Helm says of a release.
func (h release) told() {
	contains(h.t, h.run("list"), "shop-1.0.0", "deployed")
	contains(h.t, h.run("status", "shop"), "STATUS: deployed", "shop says one.")
	contains(h.t, h.run("get", "manifest", "shop"), "kind: HorizontalPodAutoscaler", "kind: PersistentVolumeClaim", "kind: StatefulSet", "kind: DaemonSet")
	contains(h.t, h.run("get", "hooks", "shop"), "pre-install", "shop-test")
	contains(h.t, h.run("get", "values", "shop", "--all"), "greeting: one")
	contains(h.t, h.run("get", "notes", "shop"), "shop says one.")
	contains(h.t, h.run("get", "metadata", "shop"), "REVISION: 1")
	h.history("1 deployed")
}

// history: Helm keeps it in secrets.
func (h release) history(want ...string) {
	h.t.Helper()
	var entries []struct {
		Revision int
		Status   string
	}
	out, err := command(h.t, h.helm, h.args("history", "shop", "-o", "json")...).Output()
	if err == nil {
		err = json.Unmarshal(out, &entries)
	}
	if err != nil {
		h.t.Fatalf("history: %v\n%s", err, out)
	}
	var got []string
	for _, e := range entries {
		got = append(got, fmt.Sprint(e.Revision, " ", e.Status))
	}
	if !slices.Equal(got, want) {
		h.t.Errorf("the history is %q, not %q", got, want)
	}
}

// says: the chart's own test asks the service for its page, by name.
func (h release) says(greeting string) {
	h.t.Helper()
	out := h.run("test", "shop", "--logs", "--timeout", "5m")
	_, logs, _ := strings.Cut(out, "POD LOGS")
	if !strings.Contains(logs, greeting) {
		h.t.Errorf("the page is not %q:\n%s", greeting, out)
	}
}

// templated: what Helm makes of a chart is applied by kubectl, and deleted again.
func (h release) templated() {
	const namespace = "templated"
	manifest, err := command(h.t, h.helm, "template", "plain", "testdata/chart", "--namespace", namespace, "--no-hooks", "--skip-tests").Output()
	if err != nil {
		h.t.Fatal(err)
	}
	tool(h.t, "kubectl", "create", "namespace", namespace)
	kubectl := func(args ...string) string { return namespaced{h.t, namespace}.input(string(manifest), args...) }
	contains(h.t, kubectl("apply", "-f", "-"), "deployment.apps/plain created", "horizontalpodautoscaler.autoscaling/plain created")
	for _, name := range []string{"deployment/plain", "statefulset/plain-shelf", "daemonset/plain-crier"} {
		namespaced{h.t, namespace}.run("rollout", "status", name, "--timeout", "5m")
	}
	// Of these kubectl never says that they are unchanged: of a secret that is written as text, and of a budget and a StatefulSet, whose selector and
	// templates of claims every patch replaces.
	written := func() string {
		return namespaced{h.t, namespace}.run("get", "secret/plain", "poddisruptionbudget/plain", "statefulset/plain-shelf", "-o",
			`jsonpath={.items[0].metadata.resourceVersion} {.items[1].metadata.generation} {.items[2].metadata.generation}`)
	}
	before := written()
	for line := range strings.Lines(kubectl("apply", "-f", "-")) {
		kind, _, _ := strings.Cut(line, "/")
		if !strings.HasSuffix(line, " unchanged\n") && !slices.Contains([]string{"secret", "poddisruptionbudget.policy", "statefulset.apps"}, kind) {
			h.t.Errorf("applied again, something changed: %s", line)
		}
	}
	if after := written(); after != before {
		h.t.Errorf("applied again, the secret, the budget and the StatefulSet are %s, not %s", after, before)
	}
	kubectl("delete", "-f", "-", "--wait")
	gone(h.t, namespace)
	tool(h.t, "kubectl", "delete", "namespace", namespace, "--wait")
}

// uninstalled: nothing is left, but for the definition, which Helm never deletes, and the pod of the test.
func (h release) uninstalled() {
	h.run("uninstall", "shop", "--wait", "--timeout", "5m")
	tool(h.t, "kubectl", "-n", h.namespace, "delete", "pod", "shop-test", "--wait")
	gone(h.t, h.namespace)
	if list, err := kube().RbacV1().ClusterRoles().List(h.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/instance=shop"}); err != nil || len(list.Items) > 0 {
		h.t.Errorf("cluster roles are left: %v, %v", list.Items, err)
	}
	tool(h.t, "kubectl", "delete", "crd", "orders.shop.example.com", "--wait")
	tool(h.t, "kubectl", "delete", "namespace", h.namespace, "--wait")
}

// gone waits until nothing is in a namespace but what every namespace has.
func gone(t *testing.T, namespace string) {
	t.Helper()
	kinds := strings.Fields(tool(t, "kubectl", "api-resources", "--verbs=list", "--namespaced", "-o", "name"))
	kinds = slices.DeleteFunc(kinds, func(k string) bool {
		return strings.HasPrefix(k, "events") || strings.Contains(k, ".berth.dev") || strings.Contains(k, "metrics.k8s.io")
	})
	eventually(t, namespace+" to be empty", func(context.Context) error {
		out, err := command(t, "kubectl", "get", strings.Join(kinds, ","), "-n", namespace, "-o", "name").Output()
		if err != nil {
			return err
		}
		left := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool {
			return name == "configmap/kube-root-ca.crt" || name == "serviceaccount/default"
		})
		if len(left) > 0 {
			return fmt.Errorf("there are still %s", strings.Join(left, ", "))
		}
		return nil
	})
}
