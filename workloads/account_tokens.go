package workloads

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	accountcontroller "k8s.io/kubernetes/pkg/controller/serviceaccount"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
)

// Tokens are what secrets of the type kubernetes.io/service-account-token are filled with.
type Tokens struct {
	// Signer makes them.
	Signer serviceaccount.TokenGenerator
	// KeyOf is the ID of the key that has signed a token; empty: nobody knows.
	KeyOf func(token string) string
	// RootCA is the authority of the API, in PEM.
	RootCA []byte
}

const (
	tokensController = "serviceaccount-token-controller"
	// tokenWorkers is how many secrets are worked on at a time.
	tokenWorkers = 5
	// keyInterval is how often it is asked which keys there are.
	keyInterval = time.Second
	// keyRests is how many looks are left out where something was refused.
	keyRests = 30
)

// newAccountTokens makes Kubernetes' own controller of the secrets that hold tokens of service accounts. It begins when there is a
// key to sign with, since it tries nothing again that cannot be signed.
func newAccountTokens(ctx context.Context, config *rest.Config, state State, f factory, open opening, o Tokens) (begun, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", tokensController, err)
	}
	secrets := tokenSecrets{f.Core().V1().Secrets(), open}
	m, err := accountcontroller.NewTokensController(klog.FromContext(ctx), f.Core().V1().ServiceAccounts(), secrets, c,
		accountcontroller.TokensControllerOptions{TokenGenerator: o.Signer, RootCA: o.RootCA})
	if err != nil {
		return nil, fmt.Errorf("controller %s: %w", tokensController, err)
	}
	return func(ctx context.Context) {
		var running guard.Group
		defer running.Wait()
		ticker := time.NewTicker(keyInterval)
		defer ticker.Stop()
		var known map[string]bool
		rest := 0 // looks that are left out
		for begins := true; ; rest-- {
			if _, _, signs := state.View().SignsNow(); signs && begins {
				begins = false
				running.Go(func() { m.Run(ctx, tokenWorkers) })
			}
			if keys := verifying(state.View()); !maps.Equal(keys, known) && rest <= 0 {
				if err := emptyOf(ctx, c, secrets.Lister(), o.KeyOf, keys); err == nil {
					known = keys
				} else {
					klog.FromContext(ctx).Error(err, "Tokens of keys that verify no more are still in their secrets")
					rest = keyRests
				}
			}
			select {
			case <-ctx.Done():
				if begins { // it ends at once, and gives back what it was made with
					m.Run(ctx, tokenWorkers)
				}
				return
			case <-ticker.C:
			}
		}
	}, nil
}

// verifying are the keys whose tokens are believed.
func verifying(v *fsm.View) map[string]bool {
	keys := map[string]bool{}
	v.SigningKeys(func(id string, _ *fsm.SigningKey) bool {
		keys[id] = true
		return true
	})
	return keys
}

// emptyOf takes the tokens out of secrets that are of none of the keys any more, and which nobody believes: so they are filled anew.
func emptyOf(ctx context.Context, c kubernetes.Interface, secrets corelisters.SecretLister, keyOf func(token string) string, keys map[string]bool) error {
	if len(keys) == 0 {
		return nil
	}
	all, err := secrets.List(labels.Everything())
	if err != nil {
		return err
	}
	var errs []error
	for _, s := range all {
		token := s.Data[corev1.ServiceAccountTokenKey]
		if len(token) == 0 || keys[keyOf(string(token))] {
			continue
		}
		s = s.DeepCopy()
		delete(s.Data, corev1.ServiceAccountTokenKey)
		if _, err := c.CoreV1().Secrets(s.Namespace).Update(ctx, s, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			errs = append(errs, err) // it is looked at again, as it is then
		}
	}
	return errors.Join(errs...)
}

// tokenSecrets are the secrets that hold tokens of service accounts, and no others, as they were before they were sealed: whose token one
// holds is sealed, too.
type tokenSecrets struct {
	coreinformers.SecretInformer
	open opening
}

// Informer implements coreinformers.SecretInformer.
func (t tokenSecrets) Informer() cache.SharedIndexInformer {
	return tokenInformer{t.SecretInformer.Informer(), t.open}
}

// Lister implements coreinformers.SecretInformer.
func (t tokenSecrets) Lister() corelisters.SecretLister {
	return tokenLister{t.SecretInformer.Lister(), t.open}
}

// opened is a secret as it was before it was sealed. What cannot be opened here is shown as it is.
func (open opening) secret(s *corev1.Secret) *corev1.Secret {
	if o, err := open(&fsm.Object{Resource: "secrets", Value: s}); err == nil {
		return o.Value.(*corev1.Secret)
	}
	return s
}

func holdsToken(o any) bool {
	s, ok := o.(*corev1.Secret)
	return ok && s.Type == corev1.SecretTypeServiceAccountToken
}

type tokenInformer struct {
	cache.SharedIndexInformer
	open opening
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i tokenInformer) AddEventHandlerWithOptions(h cache.ResourceEventHandler, options cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandlerWithOptions(cache.FilteringResourceEventHandler{FilterFunc: holdsToken, Handler: openingHandler{h, i.open}}, options)
}

// openingHandler tells of secrets as they were before they were sealed.
type openingHandler struct {
	cache.ResourceEventHandler
	open opening
}

// OnAdd implements cache.ResourceEventHandler.
func (h openingHandler) OnAdd(o any, initial bool) {
	h.ResourceEventHandler.OnAdd(h.open.secret(o.(*corev1.Secret)), initial)
}

// OnUpdate implements cache.ResourceEventHandler.
func (h openingHandler) OnUpdate(old, now any) {
	h.ResourceEventHandler.OnUpdate(h.open.secret(old.(*corev1.Secret)), h.open.secret(now.(*corev1.Secret)))
}

// OnDelete implements cache.ResourceEventHandler.
func (h openingHandler) OnDelete(o any) {
	h.ResourceEventHandler.OnDelete(h.open.secret(o.(*corev1.Secret)))
}

type tokenLister struct {
	corelisters.SecretLister
	open opening
}

// List implements corelisters.SecretLister.
func (l tokenLister) List(s labels.Selector) ([]*corev1.Secret, error) {
	return l.open.tokens(l.SecretLister.List(s))
}

// Secrets implements corelisters.SecretLister.
func (l tokenLister) Secrets(namespace string) corelisters.SecretNamespaceLister {
	return tokensOf{l.SecretLister.Secrets(namespace), l.open}
}

type tokensOf struct {
	corelisters.SecretNamespaceLister
	open opening
}

// List implements corelisters.SecretNamespaceLister.
func (l tokensOf) List(s labels.Selector) ([]*corev1.Secret, error) {
	return l.open.tokens(l.SecretNamespaceLister.List(s))
}

// tokens are those of the secrets that hold tokens, opened.
func (open opening) tokens(all []*corev1.Secret, err error) ([]*corev1.Secret, error) {
	all = slices.DeleteFunc(all, func(s *corev1.Secret) bool { return !holdsToken(s) })
	for i := range all {
		all[i] = open.secret(all[i])
	}
	return all, err
}
