package apiserver

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding"
	mutatingbindingstorage "k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingadmissionpolicybinding/storage"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicy"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding"
	validatingbindingstorage "k8s.io/kubernetes/pkg/registry/admissionregistration/validatingadmissionpolicybinding/storage"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"

	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/fsm"
)

// Bounds of what every write is held against.
const (
	maxAdmissionBytes    = 256 << 10 // of one policy or configuration, as it is stored
	maxWebhooks          = 64        // of one configuration
	maxAdmissionRules    = 64        // of one webhook or policy
	maxPolicyExpressions = 256
)

// admissionGroup serves the policies and webhooks that are asked about what is written. Who writes
// a policy about parameters has to be allowed to read them: upstream's strategies see to it.
func (g *registry) admissionGroup() (genericapiserver.APIGroupInfo, error) {
	policies := validatingadmissionpolicy.NewStrategy(g.rights, g.names)
	resources := map[string]rest.Storage{}
	add := func(d description, status statusStrategy) error {
		d.version, d.categories = admissionv1.SchemeGroupVersion, []string{"api-extensions"}
		d.kind = bounded(inNoNamespace(d.kind), maxAdmissionBytes)
		return g.workload(resources, d, status)
	}
	of := admissionregistration.Resource
	err := add(description{
		kind:     plainKind[admissionregistration.ValidatingAdmissionPolicy, admissionv1.ValidatingAdmissionPolicy](of(fsm.ValidatingPolicies)),
		singular: "validatingadmissionpolicy",
		list:     func() runtime.Object { return new(admissionregistration.ValidatingAdmissionPolicyList) },
	}.by(policies), validatingadmissionpolicy.NewStatusStrategy(policies))
	if err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	if err := add(description{
		kind:     plainKind[admissionregistration.MutatingAdmissionPolicy, admissionv1.MutatingAdmissionPolicy](of(fsm.MutatingPolicies)),
		singular: "mutatingadmissionpolicy",
		list:     func() runtime.Object { return new(admissionregistration.MutatingAdmissionPolicyList) },
	}.by(mutatingadmissionpolicy.NewStrategy(g.rights, g.names)), nil); err != nil {
		return genericapiserver.APIGroupInfo{}, err
	}
	validating := &validatingbindingstorage.DefaultPolicyGetter{Getter: resources[fsm.ValidatingPolicies].(rest.Getter)}
	mutating := &mutatingbindingstorage.DefaultPolicyGetter{Getter: resources[fsm.MutatingPolicies].(rest.Getter)}
	for _, d := range []description{
		description{
			kind:     plainKind[admissionregistration.ValidatingAdmissionPolicyBinding, admissionv1.ValidatingAdmissionPolicyBinding](of(fsm.ValidatingPolicyBindings)),
			singular: "validatingadmissionpolicybinding",
			list:     func() runtime.Object { return new(admissionregistration.ValidatingAdmissionPolicyBindingList) },
		}.by(validatingadmissionpolicybinding.NewStrategy(g.rights, validating, g.names)),
		description{
			kind:     plainKind[admissionregistration.MutatingAdmissionPolicyBinding, admissionv1.MutatingAdmissionPolicyBinding](of(fsm.MutatingPolicyBindings)),
			singular: "mutatingadmissionpolicybinding",
			list:     func() runtime.Object { return new(admissionregistration.MutatingAdmissionPolicyBindingList) },
		}.by(mutatingadmissionpolicybinding.NewStrategy(g.rights, mutating, g.names)),
		description{
			kind:     plainKind[admissionregistration.ValidatingWebhookConfiguration, admissionv1.ValidatingWebhookConfiguration](of(fsm.ValidatingWebhooks)),
			singular: "validatingwebhookconfiguration",
			list:     func() runtime.Object { return new(admissionregistration.ValidatingWebhookConfigurationList) },
		}.by(validatingwebhookconfiguration.Strategy),
		description{
			kind:     plainKind[admissionregistration.MutatingWebhookConfiguration, admissionv1.MutatingWebhookConfiguration](of(fsm.MutatingWebhooks)),
			singular: "mutatingwebhookconfiguration",
			list:     func() runtime.Object { return new(admissionregistration.MutatingWebhookConfigurationList) },
		}.by(mutatingwebhookconfiguration.Strategy),
	} {
		if err := add(d, nil); err != nil {
			return genericapiserver.APIGroupInfo{}, err
		}
	}
	return groupOf(admissionv1.SchemeGroupVersion, resources), nil
}

// bounded refuses an object of a plain kind that is too large to be kept.
func bounded(k *kind, most int) *kind {
	create, update := k.create, k.update
	check := func(c fsm.Command, err error) (fsm.Command, error) {
		if err != nil {
			return nil, err
		}
		if n := len(c.(*fsm.PutObject).Raw); n > most {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("the object of %s has %d bytes, and may have %d", k.resource, n, most))
		}
		return c, nil
	}
	k.create = func(obj runtime.Object) (fsm.Command, error) { return check(create(obj)) }
	k.update = func(obj runtime.Object, revision int64) (fsm.Command, error) { return check(update(obj, revision)) }
	return k
}

// admission bounds what is asked about every write. It says whether the object is of these kinds.
func (l *limits) admission(spec *field.Path, obj runtime.Object) bool {
	rules := func(at *field.Path, m *admissionregistration.MatchResources) {
		if m != nil {
			l.count(at.Child("resourceRules"), len(m.ResourceRules), maxAdmissionRules)
			l.count(at.Child("excludeResourceRules"), len(m.ExcludeResourceRules), maxAdmissionRules)
		}
	}
	webhooks := field.NewPath("webhooks")
	switch o := obj.(type) {
	case *admissionregistration.ValidatingAdmissionPolicy:
		rules(spec.Child("matchConstraints"), o.Spec.MatchConstraints)
		l.count(spec, len(o.Spec.Validations)+len(o.Spec.Variables)+len(o.Spec.AuditAnnotations)+len(o.Spec.MatchConditions), maxPolicyExpressions)
	case *admissionregistration.MutatingAdmissionPolicy:
		rules(spec.Child("matchConstraints"), o.Spec.MatchConstraints)
		l.count(spec, len(o.Spec.Mutations)+len(o.Spec.Variables)+len(o.Spec.MatchConditions), maxPolicyExpressions)
	case *admissionregistration.ValidatingAdmissionPolicyBinding:
		rules(spec.Child("matchResources"), o.Spec.MatchResources)
	case *admissionregistration.MutatingAdmissionPolicyBinding:
		rules(spec.Child("matchResources"), o.Spec.MatchResources)
	case *admissionregistration.ValidatingWebhookConfiguration:
		l.count(webhooks, len(o.Webhooks), maxWebhooks)
		for i := range o.Webhooks {
			l.count(webhooks.Index(i).Child("rules"), len(o.Webhooks[i].Rules), maxAdmissionRules)
		}
	case *admissionregistration.MutatingWebhookConfiguration:
		l.count(webhooks, len(o.Webhooks), maxWebhooks)
		for i := range o.Webhooks {
			l.count(webhooks.Index(i).Child("rules"), len(o.Webhooks[i].Rules), maxAdmissionRules)
		}
	default:
		return false
	}
	return true
}
