package audittrail

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/apiserver/replies"
)

const (
	// sendTimeout bounds one attempt, firstRetry is when the second is made: five in all.
	sendTimeout = 30 * time.Second
	firstRetry  = 2 * time.Second
	// maxAnswer is how much is read of what a webhook says to a batch.
	maxAnswer = 1 << 20
)

// sender sends batches to a webhook, each until it is taken or was tried often enough.
type sender struct {
	trail *Trail
	hook  *webhook.GenericWebhook
	ctx   context.Context
	stop  context.CancelFunc
}

func (t *Trail) newSender(kubeconfig string) (*sender, error) {
	config, err := webhook.LoadKubeconfig(kubeconfig, nil)
	if err != nil {
		return nil, err
	}
	config.Timeout = sendTimeout
	config.Wrap(replies.AtMost(maxAnswer))
	hook, err := webhook.NewGenericWebhook(audit.Scheme, audit.Codecs, config, []schema.GroupVersion{auditv1.SchemeGroupVersion},
		webhook.DefaultRetryBackoffWithInitialDelay(firstRetry))
	if err != nil {
		return nil, err
	}
	hook.ShouldRetry = func(err error) bool { return err != nil }
	s := &sender{trail: t, hook: hook}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s, nil
}

// ProcessEvents implements audit.Sink.
func (s *sender) ProcessEvents(events ...*auditinternal.Event) bool {
	var list auditinternal.EventList
	for _, e := range events {
		list.Items = append(list.Items, *e)
	}
	err := s.hook.WithExponentialBackoff(s.ctx, func() rest.Result {
		return s.hook.RestClient.Post().Body(&list).Do(s.ctx)
	}).Error()
	if err != nil {
		s.trail.lose(len(events), "the webhook does not take them", err)
	}
	return err == nil
}

// Run implements audit.Backend.
func (s *sender) Run(<-chan struct{}) error { return nil }

// Shutdown implements audit.Backend.
func (s *sender) Shutdown() { s.stop() }

// String implements audit.Backend.
func (s *sender) String() string { return "webhook" }
