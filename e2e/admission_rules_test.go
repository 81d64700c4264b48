package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// What the policies and webhooks of Kubernetes promise when nobody answers, too late, or by an expression that fails.
func TestAdmissionRules(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 1"))
	c.waitLeader(t)
	t.Run("validating policies", c.validatingPolicies)
	t.Run("mutating policies", c.mutatingPolicies)
	t.Run("sidecars", c.sidecars)
	for _, kind := range []string{"validating", "mutating"} {
		for _, failure := range []admissionv1.FailurePolicyType{admissionv1.Fail, admissionv1.Ignore} {
			t.Run(fmt.Sprintf("a %s webhook with %s", kind, failure), func(t *testing.T) { c.judged(t, kind, failure) })
		}
	}
}

// tried is what would come of a config map.
func tried(ctx context.Context, kube kubernetes.Interface, ns, name string, labels map[string]string) (*corev1.ConfigMap, error) {
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"is": "there"}}}
	for k, v := range labels {
		o.Labels[k] = v
	}
	return kube.CoreV1().ConfigMaps(ns).Create(ctx, o, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
}

// judged asks about config maps by a webhook, when it answers, hangs, and is not there. Config maps named "free" are none of its.
func (c *cluster) judged(t *testing.T, kind string, failure admissionv1.FailurePolicyType) {
	ns := c.namespace(t, strings.ToLower(fmt.Sprintf("%s-%s", kind, failure)))
	hooks, hook, ctx := c.Reader().Kube.AdmissionregistrationV1(), newFar(t, gatekeeper), t.Context()
	none, seconds := admissionv1.SideEffectClassNone, int32(1)
	rules := []admissionv1.RuleWithOperations{creations("configmaps")}
	conditions := []admissionv1.MatchCondition{{Name: "not-free", Expression: "object.metadata.name != 'free'"}}
	var err error
	if kind == "validating" {
		_, err = hooks.ValidatingWebhookConfigurations().Create(ctx, &admissionv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.ValidatingWebhook{{
			Name: "gate.e2e.example.com", ClientConfig: hook.admits("/"), Rules: rules, NamespaceSelector: only(ns), MatchConditions: conditions,
			FailurePolicy: &failure, TimeoutSeconds: &seconds, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}}}, metav1.CreateOptions{})
	} else {
		_, err = hooks.MutatingWebhookConfigurations().Create(ctx, &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.MutatingWebhook{{
			Name: "gate.e2e.example.com", ClientConfig: hook.admits("/label"), Rules: rules, NamespaceSelector: only(ns), MatchConditions: conditions,
			FailurePolicy: &failure, TimeoutSeconds: &seconds, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
		}}}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	kube := c.Reader().Kube
	refused := map[string]string{"refuse": "yes"}
	c.eventually(t, "the webhook to be asked", func(ctx context.Context) error {
		_, err := tried(ctx, kube, ns, "bad", refused)
		return says(err, `admission webhook "gate.e2e.example.com" denied the request: the webhook does not like it`)
	})
	changed := ""
	if kind == "mutating" {
		changed = "yes"
	}
	if o, err := tried(ctx, kube, ns, "good", nil); err != nil || o.Labels["seen"] != changed {
		t.Errorf("what it likes: %v, %v", o, err)
	}
	if o, err := tried(ctx, kube, ns, "free", refused); err != nil || o.Labels["seen"] != "" {
		t.Errorf("what it is not asked about: %v, %v", o, err)
	}
	for what, away := range map[string]func(){"hangs": hook.hang, "is not there": hook.gone} { // the one after the other, in any order
		away()
		o, err := tried(ctx, kube, ns, "good", nil)
		switch {
		case failure == admissionv1.Ignore && (err != nil || o.Labels["seen"] != ""):
			t.Errorf("when it %s, and that is to be ignored: %v, %v", what, o, err)
		case failure == admissionv1.Fail && (!apierrors.IsInternalError(err) || says(err, `failed calling webhook "gate.e2e.example.com"`) != nil || says(err, "timeout=1s") != nil):
			t.Errorf("when it %s, and that is not to be ignored: %v, %v", what, o, err)
		}
		if _, err := tried(ctx, kube, ns, "free", refused); err != nil {
			t.Errorf("when it %s, what it is not asked about: %v", what, err)
		}
		hook.back()
	}
	c.eventually(t, "it to answer again", func(ctx context.Context) error {
		_, err := tried(ctx, kube, ns, "bad", refused)
		return says(err, "the webhook does not like it")
	})
}

// validating is a policy about config maps of a namespace. Those named "free" are none of its; of those with "bounds" it
// reads a number, which it cannot of those of which that is none.
const validating = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: NAME}
spec:
  failurePolicy: FAILURE
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  matchConditions:
  - {name: not-free, expression: "object.metadata.name != 'free'"}
  variables:
  - {name: asked, expression: "'number' in object.metadata.labels ? int(object.metadata.labels.number) : 0"}
  validations:
  - expression: variables.asked <= int(params.data.most)
    messageExpression: "'there may be ' + params.data.most + ', and not ' + string(variables.asked)"
    reason: Forbidden
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME, validationActions: [ACTION], paramRef: {name: free, namespace: NAMESPACE, parameterNotFoundAction: Deny}}
`

// mutating is a policy that labels config maps; from a number it makes a list, which it cannot where it is none.
const mutating = `apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: NAME}
spec:
  failurePolicy: FAILURE
  reinvocationPolicy: IfNeeded
  matchConstraints:
    namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [configmaps]}]
  matchConditions:
  - {name: not-free, expression: "object.metadata.name != 'free'"}
  variables:
  - {name: next, expression: "'number' in object.metadata.labels ? string(int(object.metadata.labels.number) + 1) : 'none'"}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{metadata: Object.metadata{labels: {'next': variables.next, 'by': request.userInfo.username}}}"}
  - patchType: JSONPatch
    jsonPatch: {expression: "[JSONPatch{op: 'add', path: '/data', value: {'seen': 'seen' in object.metadata.labels ? 'yes' : 'no'}}]"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: NAME}
spec: {policyName: NAME}
`

func rules(text, ns, failure, action string) string {
	return strings.NewReplacer("NAMESPACE", ns, "NAME", ns, "FAILURE", failure, "ACTION", action).Replace(text)
}

func (c *cluster) validatingPolicies(t *testing.T) {
	kube := c.Reader().Kube
	for _, one := range []struct{ failure, action string }{{"Fail", "Deny"}, {"Ignore", "Deny"}, {"Fail", "Warn"}} {
		ns := c.namespace(t, strings.ToLower("policy-"+one.failure+"-"+one.action))
		c.berth(t, "create", "configmap", "free", "--from-literal=most=3", "-n", ns)
		c.berthIn(t, rules(validating, ns, one.failure, one.action), "apply", "-f", "-")
		ask := func(number string) error {
			_, err := tried(t.Context(), kube, ns, "bound", map[string]string{"number": number})
			return err
		}
		if one.action == "Warn" {
			c.eventually(t, "the policy to warn", func(context.Context) error {
				r := run(t, c.env, "{apiVersion: v1, kind: ConfigMap, metadata: {name: bound, labels: {number: '4'}}}", "create", "--dry-run=server", "-n", ns, "-f", "-")
				if r.code != 0 || !strings.Contains(r.err, "Warning: Validation failed for ValidatingAdmissionPolicy '"+ns+"'") || !strings.Contains(r.err, "there may be 3, and not 4") {
					return errors.New(r.err)
				}
				return nil
			})
			continue
		}
		c.eventually(t, "the policy to refuse", func(context.Context) error {
			return says(ask("4"), fmt.Sprintf("ValidatingAdmissionPolicy '%s' with binding '%s' denied request: there may be 3, and not 4", ns, ns))
		})
		if err := ask("4"); !apierrors.IsForbidden(err) {
			t.Errorf("its reason is %v", err)
		}
		if err := ask("3"); err != nil {
			t.Error(err)
		}
		if _, err := tried(t.Context(), kube, ns, "free", map[string]string{"number": "4"}); !apierrors.IsAlreadyExists(err) {
			t.Errorf("what the policy is not about: %v", err)
		}
		if err := ask("many"); (err == nil) != (one.failure == "Ignore") {
			t.Errorf("an expression that fails, with %s: %v", one.failure, err)
		}
		c.berth(t, "patch", "configmap", "free", "--type=merge", "-p", `{"data":{"most":"4"}}`, "-n", ns)
		if err := ask("4"); err != nil {
			t.Errorf("by the changed parameter: %v", err)
		}
	}
}

// mutatingPolicies are asked again when a webhook has changed what they saw.
func (c *cluster) mutatingPolicies(t *testing.T) {
	kube, hook := c.Reader().Kube, newFar(t, gatekeeper)
	for _, failure := range []string{"Fail", "Ignore"} {
		ns := c.namespace(t, strings.ToLower("mutated-"+failure))
		c.berthIn(t, rules(mutating, ns, failure, ""), "apply", "-f", "-")
		is := func(name, number string, want map[string]string, data string) func(context.Context) error {
			return func(ctx context.Context) error {
				o, err := tried(ctx, kube, ns, name, map[string]string{"number": number})
				if err != nil {
					return err
				}
				for k, v := range want {
					if o.Labels[k] != v {
						return fmt.Errorf("its labels are %v", o.Labels)
					}
				}
				if o.Data["seen"] != data {
					return fmt.Errorf("its data is %v", o.Data)
				}
				return nil
			}
		}
		c.eventually(t, "the policy to change what is made", is("some", "6", map[string]string{"next": "7", "by": "admin", "is": "there"}, "no"))
		untouched := map[string]string{"next": "", "by": "", "is": "there"}
		if err := is("free", "6", untouched, "")(t.Context()); err != nil {
			t.Error(err)
		}
		// The other one of its mutations is made.
		if err := is("some", "many", untouched, "no")(t.Context()); (err == nil) != (failure == "Ignore") {
			t.Errorf("an expression that fails, with %s: %v", failure, err)
		}
		c.changes(t, hook, ns, "/label", "configmaps")
		c.eventually(t, "the policy to see what the webhook has changed", is("some", "6", map[string]string{"next": "7", "seen": "yes"}, "yes"))
	}
}

// changes has a webhook asked about what is made in a namespace.
func (c *cluster) changes(t *testing.T, hook *far, ns, path, resource string) {
	t.Helper()
	none := admissionv1.SideEffectClassNone
	config := &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: ns}, Webhooks: []admissionv1.MutatingWebhook{{
		Name: "gate.e2e.example.com", ClientConfig: hook.admits(path), NamespaceSelector: only(ns), SideEffects: &none,
		AdmissionReviewVersions: []string{"v1"}, Rules: []admissionv1.RuleWithOperations{creations(resource)},
	}}}
	if _, err := c.Reader().Kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// sidecars that a webhook adds have what every container has: the namespace's defaults, and the account's token.
func (c *cluster) sidecars(t *testing.T) {
	ns, kube := c.namespace(t, "sidecars"), c.Reader().Kube
	c.berthIn(t, "{apiVersion: v1, kind: LimitRange, metadata: {name: some}, spec: {limits: [{type: Container, default: {cpu: 200m}, defaultRequest: {cpu: 100m}}]}}", "create", "-n", ns, "-f", "-")
	c.changes(t, newFar(t, gatekeeper), ns, "/sidecar", "pods")
	c.eventually(t, "a sidecar with all that it needs", func(ctx context.Context) error {
		p, err := kube.CoreV1().Pods(ns).Create(ctx, asked("some", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if n := len(p.Spec.Containers); n != 2 {
			return fmt.Errorf("there are %d containers", n)
		}
		for _, one := range p.Spec.Containers {
			if one.Resources.Requests.Cpu().String() != "100m" || one.Resources.Limits.Cpu().String() != "200m" || len(one.VolumeMounts) != 1 {
				return fmt.Errorf("%s has %+v, %+v", one.Name, one.Resources, one.VolumeMounts)
			}
		}
		if n := len(p.Spec.Volumes); n != 1 {
			return fmt.Errorf("there are %d volumes", n)
		}
		return nil
	})
}
