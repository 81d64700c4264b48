package fsm

import (
	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/berth-dev/berth/codec"
)

// SinceAdmission is the version of the rules that brought policies and webhooks that are
// asked about what is written.
const SinceAdmission = 15

// The resources of policies, of where they hold, and of webhooks that are asked.
const (
	ValidatingPolicies       = "validatingadmissionpolicies"
	ValidatingPolicyBindings = "validatingadmissionpolicybindings"
	MutatingPolicies         = "mutatingadmissionpolicies"
	MutatingPolicyBindings   = "mutatingadmissionpolicybindings"
	ValidatingWebhooks       = "validatingwebhookconfigurations"
	MutatingWebhooks         = "mutatingwebhookconfigurations"
)

// Every write is held against all of them, so there may not be any number.
const (
	MaxAdmissionPolicies = 512
	MaxPolicyBindings    = 2048
	MaxWebhooks          = 256
)

func admissionKinds() []ObjectKind {
	kind := func(resource, kind string, most int, made func() codec.Object) ObjectKind {
		return ObjectKind{
			Group: admissionv1.GroupName, Resource: resource, Kind: kind, ClusterScoped: true, Since: SinceAdmission, MostInNamespace: most, New: made,
		}
	}
	return []ObjectKind{
		kind(ValidatingPolicies, "ValidatingAdmissionPolicy", MaxAdmissionPolicies, func() codec.Object { return new(admissionv1.ValidatingAdmissionPolicy) }),
		kind(ValidatingPolicyBindings, "ValidatingAdmissionPolicyBinding", MaxPolicyBindings, func() codec.Object { return new(admissionv1.ValidatingAdmissionPolicyBinding) }),
		kind(MutatingPolicies, "MutatingAdmissionPolicy", MaxAdmissionPolicies, func() codec.Object { return new(admissionv1.MutatingAdmissionPolicy) }),
		kind(MutatingPolicyBindings, "MutatingAdmissionPolicyBinding", MaxPolicyBindings, func() codec.Object { return new(admissionv1.MutatingAdmissionPolicyBinding) }),
		kind(ValidatingWebhooks, "ValidatingWebhookConfiguration", MaxWebhooks, func() codec.Object { return new(admissionv1.ValidatingWebhookConfiguration) }),
		kind(MutatingWebhooks, "MutatingWebhookConfiguration", MaxWebhooks, func() codec.Object { return new(admissionv1.MutatingWebhookConfiguration) }),
	}
}

// AdmissionRules calls f with the rules of every policy that is bound and of every webhook, until it
// returns false: with nil for one that is asked about everything.
func (v *View) AdmissionRules(f func(rules []admissionv1.RuleWithOperations) bool) {
	more := true
	each := func(resource string, rules func(o codec.Object) [][]admissionv1.RuleWithOperations) {
		if !more {
			return
		}
		v.Objects.Scan(ObjectKey(resource, "", ""), func(_ string, o *Object) bool {
			for _, r := range rules(o.Value) {
				more = more && f(r)
			}
			return more
		})
	}
	each(ValidatingWebhooks, func(o codec.Object) (out [][]admissionv1.RuleWithOperations) {
		for i := range o.(*admissionv1.ValidatingWebhookConfiguration).Webhooks {
			out = append(out, o.(*admissionv1.ValidatingWebhookConfiguration).Webhooks[i].Rules)
		}
		return out
	})
	each(MutatingWebhooks, func(o codec.Object) (out [][]admissionv1.RuleWithOperations) {
		for i := range o.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			out = append(out, o.(*admissionv1.MutatingWebhookConfiguration).Webhooks[i].Rules)
		}
		return out
	})
	each(ValidatingPolicyBindings, func(o codec.Object) [][]admissionv1.RuleWithOperations {
		p, ok := objectIn[admissionv1.ValidatingAdmissionPolicy](v, ValidatingPolicies, "", o.(*admissionv1.ValidatingAdmissionPolicyBinding).Spec.PolicyName)
		if !ok {
			return nil
		}
		return matchRules(p.Spec.MatchConstraints)
	})
	each(MutatingPolicyBindings, func(o codec.Object) [][]admissionv1.RuleWithOperations {
		p, ok := objectIn[admissionv1.MutatingAdmissionPolicy](v, MutatingPolicies, "", o.(*admissionv1.MutatingAdmissionPolicyBinding).Spec.PolicyName)
		if !ok {
			return nil
		}
		return matchRules(p.Spec.MatchConstraints)
	})
}

func matchRules(m *admissionv1.MatchResources) [][]admissionv1.RuleWithOperations {
	if m == nil || len(m.ResourceRules) == 0 {
		return [][]admissionv1.RuleWithOperations{nil}
	}
	out := make([]admissionv1.RuleWithOperations, len(m.ResourceRules))
	for i := range m.ResourceRules {
		out[i] = m.ResourceRules[i].RuleWithOperations
	}
	return [][]admissionv1.RuleWithOperations{out}
}
