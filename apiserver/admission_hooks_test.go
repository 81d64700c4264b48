package apiserver

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	admissionreview "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/apiserver/replies"
	"github.com/berth-dev/berth/fsm"
)

// hook is a webhook that refuses what is labelled "refuse" and labels all else, or hangs.
type hook struct {
	*httptest.Server
	asked  atomic.Int64
	hangs  atomic.Bool
	floods atomic.Bool
	ended  chan struct{}
}

func newHook(t *testing.T) *hook {
	h := &hook{ended: make(chan struct{})}
	h.Server = httptest.NewTLSServer(h)
	t.Cleanup(func() {
		close(h.ended)
		h.Close()
	})
	return h
}

func (h *hook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.asked.Add(1)
	if h.hangs.Load() {
		select {
		case <-h.ended:
		case <-r.Context().Done():
		}
		return
	}
	body, _ := io.ReadAll(r.Body)
	var review admissionreview.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer := &admissionreview.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	raw := review.Request.Object.Raw
	if review.Request.Operation == admissionreview.Delete {
		raw = review.Request.OldObject.Raw
	}
	var o metav1.PartialObjectMetadata
	_ = json.Unmarshal(raw, &o) // of a connection there is no object
	switch {
	case o.Labels["refuse"] != "":
		answer.Allowed = false
		answer.Result = &metav1.Status{Message: "the hook does not like it"}
	case strings.HasSuffix(r.URL.Path, "/mutate"):
		kind := admissionreview.PatchTypeJSONPatch
		answer.PatchType = &kind
		patch := `[{"op":"add","path":"/metadata/labels/hooked","value":"yes"}]`
		if len(o.Labels) == 0 {
			patch = `[{"op":"add","path":"/metadata/labels","value":{"hooked":"yes"}}]`
		}
		answer.Patch = []byte(patch)
		answer.Warnings = []string{"hooked"}
	}
	if h.floods.Load() {
		answer.Warnings = []string{strings.Repeat("x", maxWebhookAnswer)}
	}
	review.Response, review.Request = answer, nil
	_ = json.NewEncoder(w).Encode(&review) // the server may be gone
}

func (h *hook) client(path string) admissionv1.WebhookClientConfig {
	url := h.URL + path
	return admissionv1.WebhookClientConfig{URL: &url, CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.Certificate().Raw})}
}

func rulesFor(resource string, operations ...admissionv1.OperationType) []admissionv1.RuleWithOperations {
	return []admissionv1.RuleWithOperations{{Operations: operations, Rule: admissionv1.Rule{
		APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{resource},
	}}}
}

func validatingHook(h *hook, name string, policy admissionv1.FailurePolicyType, rules []admissionv1.RuleWithOperations) *admissionv1.ValidatingWebhookConfiguration {
	none, seconds := admissionv1.SideEffectClassNone, int32(1)
	return &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: name}, Webhooks: []admissionv1.ValidatingWebhook{{
		Name: name + ".example.com", ClientConfig: h.client("/validate"), Rules: rules, FailurePolicy: &policy, SideEffects: &none,
		TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
	}}}
}

func labelled(name string, labels ...string) *corev1.ConfigMap {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{}}}
	for _, l := range labels {
		o.Labels[l] = "x"
	}
	return o
}

var dryRunAll = metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}

// TestWebhooks change and refuse what is written, and deletions, one by one and of collections; where
// they do not answer, it is for their failurePolicy to say what that means.
func TestWebhooks(t *testing.T) {
	s := start(t, newDouble(t), nil)
	client, h, ctx := s.client(t), newHook(t), context.Background()
	maps, hooks := client.CoreV1().ConfigMaps("default"), client.AdmissionregistrationV1()
	none, seconds := admissionv1.SideEffectClassNone, int32(5)
	if _, err := hooks.MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "changes"}, Webhooks: []admissionv1.MutatingWebhook{{
			Name: "changes.example.com", ClientConfig: h.client("/mutate"), Rules: rulesFor("configmaps", admissionv1.Create), SideEffects: &none,
			TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
		}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the webhook is asked", func() bool {
		o, err := maps.Create(ctx, labelled("probe"), dryRunAll)
		return err == nil && o.Labels["hooked"] == "yes"
	})
	for _, o := range []*corev1.ConfigMap{labelled("a"), labelled("b", "keep")} {
		if _, err := maps.Create(ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	held := validatingHook(h, "checks", admissionv1.Fail, rulesFor("*", admissionv1.Create, admissionv1.Update, admissionv1.Delete))
	held.Webhooks[0].MatchConditions = []admissionv1.MatchCondition{{Name: "maps", Expression: "request.resource.resource == 'configmaps'"}}
	if _, err := hooks.ValidatingWebhookConfigurations().Create(ctx, held, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the webhook refuses", func() bool {
		_, err := maps.Create(ctx, labelled("probe", "refuse"), dryRunAll)
		return err != nil && strings.Contains(err.Error(), "the hook does not like it")
	})
	_, err := maps.Patch(ctx, "a", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"refuse":"x"}}}`), metav1.PatchOptions{})
	wantStatus(t, err, 400, `admission webhook "checks.example.com" denied the request: the hook does not like it`)

	h.hangs.Store(true)
	_, err = maps.Create(ctx, labelled("c"), metav1.CreateOptions{})
	wantStatus(t, err, 500, "failed calling webhook")
	h.hangs.Store(false)
	h.floods.Store(true)
	_, err = maps.Create(ctx, labelled("c"), metav1.CreateOptions{})
	wantStatus(t, err, 500, replies.ErrTooLong.Error())
	h.floods.Store(false)

	// What is labelled now cannot be deleted, in no way.
	if err := hooks.ValidatingWebhookConfigurations().Delete(ctx, "checks", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "nothing is refused", func() bool {
		_, err := maps.Patch(ctx, "b", "application/merge-patch+json", []byte(`{"metadata":{"labels":{"refuse":"x"}}}`), metav1.PatchOptions{})
		return err == nil
	})
	if _, err := hooks.ValidatingWebhookConfigurations().Create(ctx,
		validatingHook(h, "deletions", admissionv1.Ignore, rulesFor("configmaps", admissionv1.Delete)), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deletions are asked about", func() bool {
		return maps.Delete(ctx, "b", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}) != nil
	})
	err = maps.Delete(ctx, "b", metav1.DeleteOptions{})
	wantStatus(t, err, 400, "the hook does not like it")
	err = maps.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "refuse"})
	wantStatus(t, err, 400, "the hook does not like it")
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
	h.hangs.Store(true) // and who is not to be waited for is not
	if err := maps.Delete(ctx, "b", metav1.DeleteOptions{}); err != nil {
		t.Error(err)
	}
}

const replicaPolicy = `
apiVersion: v1
kind: ConfigMap
metadata: {name: bounds}
data: {most: "3"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: bounds}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints: {resourceRules: [{apiGroups: [apps], apiVersions: [v1], operations: [CREATE, UPDATE], resources: [replicasets, replicasets/scale]}]}
  validations:
  - expression: "object.spec.replicas <= int(params.data.most)"
    messageExpression: "'there may be ' + params.data.most"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: bounds}
spec: {policyName: bounds, validationActions: [Deny], paramRef: {name: bounds, namespace: %s, parameterNotFoundAction: Deny}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: owner}
spec:
  matchConstraints: {resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]}
  failurePolicy: Fail
  reinvocationPolicy: Never
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'told': request.userInfo.username.split(':')[0]}}}"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: owner}
spec: {policyName: owner}
`

// TestAdmissionPolicies refuse and change what is written, by parameters that are looked up when
// they are asked.
func TestAdmissionPolicies(t *testing.T) {
	s := start(t, newDouble(t), nil)
	k, client, ctx := newKubectl(t, s, "default"), s.client(t), context.Background()
	k.want(fmt.Sprintf(replicaPolicy, "default"), []string{"apply"}, "validatingadmissionpolicy.admissionregistration.k8s.io/bounds created", "owner created")
	set := fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"%s"},"spec":{"replicas":%d,
		"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, "web", 4)
	eventually(t, "the policy refuses", func() bool {
		_, err := k.run(set, "create", "--dry-run=server")
		return err != nil && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'bounds' with binding 'bounds' denied request: there may be 3")
	})
	k.want(strings.Replace(set, `"replicas":4`, `"replicas":3`, 1), []string{"create"}, "created")
	k.refused("", []string{"scale", "rs", "web", "--replicas=5"}, "there may be 3")
	k.want("", []string{"patch", "cm", "bounds", "--type=merge", "-p", `{"data":{"most":"5"}}`}, "patched")
	k.want("", []string{"scale", "rs", "web", "--replicas=5"}, "scaled") // at once
	k.want("", []string{"delete", "cm", "bounds"}, "deleted")
	k.refused("", []string{"scale", "rs", "web", "--replicas=1"}, "no params found")
	k.refused("", []string{"patch", "validatingadmissionpolicy", "bounds", "--type=json", "-p", `[{"op":"replace","path":"/spec/validations/0/expression","value":"object."}]`}, "compilation failed")

	eventually(t, "the policy changes pods", func() bool {
		p, err := client.CoreV1().Pods("default").Create(ctx, testPod("probe"), dryRunAll)
		return err == nil && p.Labels["told"] == "root"
	})
	// Pods of templates are asked about one by one, and those that are equal are made at once.
	template := testPod("")
	template.Namespace, template.GenerateName = "default", "web-"
	finished, err := s.FinishTemplate(template)
	if err != nil || !s.AsksAboutPods() {
		t.Fatal(err, "nobody is asked")
	}
	commands, err := s.AskAboutPods(ctx, &fsm.AdmitPods{Template: fsm.PodWire{Object: finished}, Count: 100})
	if err != nil || len(commands) != 1 || commands[0].Count != podsAskedAbout || commands[0].Template.Object.Labels["told"] != "system" || commands[0].Template.Object.Name != "" {
		t.Errorf("%+v (%v)", commands, err)
	}
}

// TestWebhooksOfTemplates: a webhook is asked about every pod that a template makes.
func TestWebhooksOfTemplates(t *testing.T) {
	s := start(t, newDouble(t), nil)
	h, ctx := newHook(t), context.Background()
	template := testPod("")
	template.Namespace, template.GenerateName, template.Labels = "default", "web-", map[string]string{"refuse": "x"}
	command := &fsm.AdmitPods{Template: fsm.PodWire{Object: template}, Count: 3}
	if s.AsksAboutPods() {
		t.Error("somebody is asked, and nobody is there")
	}
	create(t, s.client(t), validatingHook(h, "pods", admissionv1.Fail, rulesFor("pods", admissionv1.Create)))
	if !s.AsksAboutPods() {
		t.Error("nobody is asked")
	}
	eventually(t, "the webhook refuses", func() bool {
		commands, err := s.AskAboutPods(ctx, command)
		return len(commands) == 0 && err != nil && RefusalOf(err).Code == 400
	})
	if n := h.asked.Load(); n < 3 {
		t.Errorf("it was asked %d times", n)
	}
}

func create(t *testing.T, client kubernetes.Interface, c *admissionv1.ValidatingWebhookConfiguration) {
	t.Helper()
	if _, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(context.Background(), c, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}
