package users

import (
	"fmt"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
)

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
	version := c.WebhookVersion
	if version == "" {
		version = "v1"
	}
	hook, err := webhook.New(config, version, c.Audiences, *webhook.DefaultRetryBackoff())
	if err != nil {
		return nil, fmt.Errorf("setting up the token webhook of %s: %w", c.Webhook, err)
	}
	return cache.New(newFar(hook, false), false, c.WebhookCache, c.WebhookCache), nil
}
