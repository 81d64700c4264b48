package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/fleet"
)

// admissionWorld is a cluster without workers: what is asked about is whether pods are made.
type admissionWorld struct{ *cluster }

// Whatever makes a pod, a request or a ReplicaSet: pod security, policies and webhooks are asked,
// on every server, and no way leads around them.
func TestAdmission(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 3"), server("s2", "bootstrap_expect = 3"), server("s3", "bootstrap_expect = 3"))
	c.waitLeader(t)
	w := &admissionWorld{c}
	t.Run("pod security", w.podSecurity)
	t.Run("policies", w.policies)
	t.Run("webhooks", w.webhooks)
}

func (w *admissionWorld) podSecurity(t *testing.T) {
	ns := w.namespace(t, "secure")
	kube, ctx := w.Reader().Kube, t.Context()
	label := func(level string) {
		patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
		if _, err := kube.CoreV1().Namespaces().Patch(ctx, ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("restricted")
	w.everywhere(t, "pod security refuses a pod", func(ctx context.Context, p *fleet.Process) error {
		_, err := p.Kube.CoreV1().Pods(ns).Create(ctx, asked("wild", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return says(err, `violates PodSecurity "restricted:latest"`)
	})
	w.replicaSet(t, ns, "web", nil)
	w.failure(t, ns, "web", `violates PodSecurity "restricted:latest"`)
	label("baseline")
	w.made(t, ns, "web", 3)
}

func (w *admissionWorld) policies(t *testing.T) {
	ns := w.namespace(t, "ruled")
	hooks, ctx := w.Reader().Kube.AdmissionregistrationV1(), t.Context()
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: &admissionv1.MatchResources{
			NamespaceSelector: only(ns),
			ResourceRules:     []admissionv1.NamedRuleWithOperations{{RuleWithOperations: creations("pods")}},
		},
		Validations: []admissionv1.Validation{{Expression: "has(object.metadata.labels) && 'team' in object.metadata.labels", Message: "it is nobody's"}},
	}}
	if _, err := hooks.ValidatingAdmissionPolicies().Create(ctx, policy, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: "named"}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: "named", ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}}
	if _, err := hooks.ValidatingAdmissionPolicyBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.everywhere(t, "the policy refuses a pod", func(ctx context.Context, p *fleet.Process) error {
		_, err := p.Kube.CoreV1().Pods(ns).Create(ctx, asked("wild", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return says(err, "it is nobody's")
	})
	w.eventually(t, "the policy's types to be checked", func(ctx context.Context) error {
		p, err := hooks.ValidatingAdmissionPolicies().Get(ctx, "named", metav1.GetOptions{})
		if err == nil && p.Status.ObservedGeneration != p.Generation {
			err = errors.New("they are not")
		}
		return err
	})
	w.replicaSet(t, ns, "web", nil)
	w.replicaSet(t, ns, "ours", map[string]string{"team": "us"})
	w.made(t, ns, "ours", 3)
	w.failure(t, ns, "web", "it is nobody's")
	if err := hooks.ValidatingAdmissionPolicyBindings().Delete(ctx, "named", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.made(t, ns, "web", 3)
}

func (w *admissionWorld) webhooks(t *testing.T) {
	ns := w.namespace(t, "hooked")
	hooks, ctx := w.Reader().Kube.AdmissionregistrationV1(), t.Context()
	far := newFar(t, gatekeeper)
	none, seconds, open := admissionv1.SideEffectClassNone, int32(2), admissionv1.Ignore
	config := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "labels"}, Webhooks: []admissionv1.MutatingWebhook{{
		Name: "labels.e2e.example.com", NamespaceSelector: only(ns), Rules: []admissionv1.RuleWithOperations{creations("pods")}, SideEffects: &none,
		ClientConfig:   far.admits("/label"),
		TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
	}}}
	if _, err := hooks.MutatingWebhookConfigurations().Create(ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.everywhere(t, "the webhook changes a pod", func(ctx context.Context, p *fleet.Process) error {
		pod, err := p.Kube.CoreV1().Pods(ns).Create(ctx, asked("tame", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Labels["seen"] != "yes" {
			err = errors.New("it was not asked")
		}
		return err
	})
	w.replicaSet(t, ns, "web", nil)
	for _, p := range w.made(t, ns, "web", 3) {
		if p.Labels["seen"] != "yes" {
			t.Errorf("the webhook was not asked about %s", p.Name)
		}
	}
	w.replicaSet(t, ns, "bad", map[string]string{"refuse": "yes"})
	w.failure(t, ns, "bad", "the webhook does not like it")
	far.Close() // and what is closed lets nothing in
	w.replicaSet(t, ns, "late", nil)
	w.failure(t, ns, "late", "failed calling webhook")
	free := w.namespace(t, "free") // where nobody is asked
	w.replicaSet(t, free, "others", nil)
	w.made(t, free, "others", 3)
	config, err := hooks.MutatingWebhookConfigurations().Get(ctx, "labels", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config.Webhooks[0].FailurePolicy = &open
	if _, err := hooks.MutatingWebhookConfigurations().Update(ctx, config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.made(t, ns, "late", 3)
}

// gatekeeper is a webhook that refuses what is labelled so; by the path /label it labels all else, and by /sidecar it gives pods
// another container.
func gatekeeper(w http.ResponseWriter, r *http.Request) {
	exchange(w, r, func(review *admissionreview.AdmissionReview) bool {
		var o metav1.PartialObjectMetadata
		if review.Request == nil || json.Unmarshal(review.Request.Object.Raw, &o) != nil {
			return false
		}
		kind, patches := admissionreview.PatchTypeJSONPatch, map[string]string{
			"/label":   `[{"op":"add","path":"/metadata/labels/seen","value":"yes"}]`,
			"/sidecar": `[{"op":"add","path":"/spec/containers/-","value":{"name":"sidecar","image":"busybox"}}]`,
		}
		answer := &admissionreview.AdmissionResponse{UID: review.Request.UID, Allowed: o.Labels["refuse"] == "", Result: &metav1.Status{Message: "the webhook does not like it"}}
		if patch := patches[r.URL.Path]; answer.Allowed && patch != "" {
			answer.PatchType, answer.Patch = &kind, []byte(patch)
		}
		review.Response, review.Request = answer, nil
		return true
	})
}

// creations are what a policy or webhook is asked about that is about new objects of a resource.
func creations(resource string) admissionv1.RuleWithOperations {
	return admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create}, Rule: admissionv1.Rule{
		APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{resource},
	}}
}

func only(namespace string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
}

func asked(name string, labels map[string]string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
	for k, v := range labels {
		p.Labels[k] = v
	}
	return p
}

func says(err error, part string) error {
	if err == nil {
		return errors.New("it was taken")
	}
	if !strings.Contains(err.Error(), part) {
		return fmt.Errorf("not for %q: %w", part, err)
	}
	return nil
}

// everywhere waits until it is so at every server.
func (w *admissionWorld) everywhere(t *testing.T, what string, is func(ctx context.Context, p *fleet.Process) error) {
	t.Helper()
	for i, p := range w.Servers() {
		w.eventually(t, fmt.Sprintf("%s at server %d", what, i+1), func(ctx context.Context) error { return is(ctx, p) })
	}
}

func (w *admissionWorld) replicaSet(t *testing.T, ns, name string, labels map[string]string) {
	t.Helper()
	replicas, pod := int32(3), asked(name, labels)
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels}, Spec: pod.Spec},
	}}
	sets := w.Reader().Kube.AppsV1().ReplicaSets(ns)
	if _, err := sets.Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the pods of the namespace, which it would make again
		background := metav1.DeletePropagationBackground
		if err := sets.Delete(context.Background(), name, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
			t.Error(err)
		}
	})
}

// failure waits until a ReplicaSet says why it has no pods, and looks whether it has none.
func (w *admissionWorld) failure(t *testing.T, ns, name, why string) {
	t.Helper()
	w.eventually(t, name+" to have no pods", func(ctx context.Context) error {
		set, err := w.Reader().Kube.AppsV1().ReplicaSets(ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range set.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && strings.Contains(c.Message, why) {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", set.Status)
	})
	if pods := w.made(t, ns, name, 0); len(pods) > 0 {
		t.Errorf("%s has the pod %s", name, pods[0].Name)
	}
}

// made waits until a ReplicaSet has so many pods.
func (w *admissionWorld) made(t *testing.T, ns, name string, n int) []corev1.Pod {
	t.Helper()
	var list *corev1.PodList
	w.eventually(t, fmt.Sprintf("%s to have %d pods", name, n), func(ctx context.Context) (err error) {
		if list, err = w.Reader().Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name}); err == nil && len(list.Items) != n {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
	return list.Items
}
