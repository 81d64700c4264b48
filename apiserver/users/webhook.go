package users

import (
	"context"
	"errors"
	"fmt"
	"net/url"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/berth-dev/berth/apiserver/replies"
)

// ErrAway: who reviews tokens was asked about one and has not answered.
var ErrAway = errors.New("who reviews tokens does not answer")

// heard tells what a webhook says of a token from that it says nothing.
func heard(next authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		who, ok, err := next.AuthenticateToken(ctx, token)
		var sending *url.Error
		var refused apierrors.APIStatus
		if errors.As(err, &sending) || errors.As(err, &refused) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errManyWait) {
			err = fmt.Errorf("%w: %w", ErrAway, err)
		}
		return who, ok, err
	})
}

// openWebhook is who reviews tokens; nil where there is nobody. Errors are not remembered, answers are.
func openWebhook(c Config) (authenticator.Token, error) {
	if c.Webhook == "" {
		return nil, nil
	}
	config, err := webhookutil.LoadKubeconfig(c.Webhook, nil)
	if err != nil {
		return nil, fmt.Errorf("reading the token webhook's kubeconfig %s: %w", c.Webhook, err)
	}
	config.Timeout = farTimeout
	config.Wrap(replies.AtMost(maxFarBytes))
	version := c.WebhookVersion
	if version == "" {
		version = "v1"
	}
	hook, err := webhook.New(config, version, c.Audiences, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("setting up the token webhook of %s: %w", c.Webhook, err)
	}
	return cache.New(heard(newFar(hook, false)), false, c.WebhookCache, c.WebhookCache), nil
}
