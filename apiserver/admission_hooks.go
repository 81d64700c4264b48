package apiserver

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"

	"github.com/berth-dev/berth/apiserver/replies"
)

// newHooks makes Kubernetes' own plugins that ask policies and webhooks, in the order in
// which they are asked.
func newHooks(initializer admission.PluginInitializer) (mutating, validating []admission.Interface, err error) {
	changes, err := mutatingpolicy.NewPlugin(nil)
	if err != nil {
		return nil, nil, err
	}
	checks, err := validatingpolicy.NewPlugin(nil)
	if err != nil {
		return nil, nil, err
	}
	// What is not stored, reviews and the like, is nothing to them.
	changes.SetExcludedAdmissionResources(exclusion.Excluded())
	checks.SetExcludedAdmissionResources(exclusion.Excluded())
	changers, err := mutatingwebhook.NewMutatingWebhook(nil)
	if err != nil {
		return nil, nil, err
	}
	checkers, err := validatingwebhook.NewValidatingAdmissionWebhook(nil)
	if err != nil {
		return nil, nil, err
	}
	mutating, validating = []admission.Interface{changes, changers}, []admission.Interface{checks, checkers}
	for _, list := range [][]admission.Interface{mutating, validating} {
		for _, plugin := range list {
			initializer.Initialize(plugin)
			if err := admission.ValidateInitialization(plugin); err != nil {
				return nil, nil, fmt.Errorf("%T: %w", plugin, err)
			}
		}
	}
	return mutating, validating, nil
}

// again asks a chain a second time when a policy or a webhook of it has changed something, as Kubernetes does:
// what fills in defaults sees what was added, and so do the policies and webhooks that were asked before, if they want it (reinvocationPolicy).
type again struct{ chain admission.Interface }

var (
	_ admission.MutationInterface   = again{}
	_ admission.ValidationInterface = again{}
)

// Handles implements admission.Interface.
func (g again) Handles(o admission.Operation) bool { return g.chain.Handles(o) }

// Admit implements admission.MutationInterface.
func (g again) Admit(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	chain := g.chain.(admission.MutationInterface)
	if err := chain.Admit(ctx, a, o); err != nil {
		return err
	}
	told := a.GetReinvocationContext()
	if !told.ShouldReinvoke() {
		return nil
	}
	told.SetIsReinvoke()
	return chain.Admit(ctx, a, o)
}

// Validate implements admission.ValidationInterface.
func (g again) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return g.chain.(admission.ValidationInterface).Validate(ctx, a, o)
}

const (
	// maxWebhookAnswer is how much is read of a webhook's answer: an object and as much again
	// for its patch.
	maxWebhookAnswer = 4 << 20
	// conversionTimes is how much longer what a webhook has converted may be than what it was sent, beside
	// maxWebhookAnswer: it is asked for all objects of a list at once.
	conversionTimes = 2
)

// boundedWebhooks lets nobody who is asked answer without end.
func boundedWebhooks(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return wrapped(of, replies.AtMost(maxWebhookAnswer))
}

// boundedConversions is boundedWebhooks for those that convert objects.
func boundedConversions(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	return wrapped(of, replies.AtMostFor(maxWebhookAnswer, conversionTimes))
}

func wrapped(of webhook.AuthenticationInfoResolver, wrap transport.WrapperFunc) webhook.AuthenticationInfoResolver {
	bounded := func(config *rest.Config, err error) (*rest.Config, error) {
		if err == nil {
			config.Wrap(wrap)
		}
		return config, err
	}
	return &webhook.AuthenticationInfoResolverDelegator{
		ClientConfigForFunc: func(host string) (*rest.Config, error) { return bounded(of.ClientConfigFor(host)) },
		ClientConfigForServiceFunc: func(name, namespace string, port int) (*rest.Config, error) {
			return bounded(of.ClientConfigForService(name, namespace, port))
		},
	}
}
