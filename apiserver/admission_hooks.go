package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"

	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/kubeapiserver/admission/exclusion"
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

// maxWebhookAnswer is how much is read of a webhook's answer: an object and as much again
// for its patch.
const maxWebhookAnswer = 4 << 20

var errLongAnswer = errors.New("the webhook's answer is too long")

// boundedWebhooks lets nobody who is asked answer without end.
func boundedWebhooks(of webhook.AuthenticationInfoResolver) webhook.AuthenticationInfoResolver {
	bounded := func(config *rest.Config, err error) (*rest.Config, error) {
		if err == nil {
			config.Wrap(func(next http.RoundTripper) http.RoundTripper { return boundedAnswers{next} })
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

// boundedAnswers is a transport whose answers end after maxWebhookAnswer with an error.
type boundedAnswers struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b boundedAnswers) RoundTrip(r *http.Request) (*http.Response, error) {
	answer, err := b.next.RoundTrip(r)
	if err == nil {
		answer.Body = &boundedBody{answer.Body, maxWebhookAnswer}
	}
	return answer, err
}

type boundedBody struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *boundedBody) Read(p []byte) (int, error) {
	if len(p) > b.left+1 {
		p = p[:b.left+1]
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= n; b.left < 0 {
		return 0, errLongAnswer
	}
	return n, err
}
