package tokens

import (
	"context"
	"crypto/x509"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	apiaccount "k8s.io/apiserver/pkg/authentication/serviceaccount"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/berth-dev/berth/fsm"
)

const (
	// freshTimeout bounds how long a token that this server would refuse waits for
	// the newest state.
	freshTimeout = 3 * time.Second
	// keysMaxAgeSeconds is how long others may keep the public keys.
	keysMaxAgeSeconds = 60
)

// Authenticator believes the tokens of the service accounts that are there, and those that secrets hold.
func (a *Accounts) Authenticator() authenticator.Token {
	return tokenunion.New(
		serviceaccount.JWTTokenAuthenticator([]string{Issuer}, a, Audiences(), asNew(notRevoked(serviceaccount.NewValidator(a), a.state), a.state)),
		a.lasting(),
	)
}

// fresh refuses nobody by a state that is old: a token may be of a pod that
// another server has seen and this one has not. Whom the newest state refuses is
// refused.
type fresh[Claims any] struct {
	serviceaccount.Validator[Claims]
	state State
}

func asNew[Claims any](v serviceaccount.Validator[Claims], s State) *fresh[Claims] {
	return &fresh[Claims]{v, s}
}

// Validate implements serviceaccount.Validator.
func (f *fresh[Claims]) Validate(ctx context.Context, token string, public *jwt.Claims, private *Claims) (*apiaccount.ServiceAccountInfo, error) {
	info, err := f.Validator.Validate(ctx, token, public, private)
	if err == nil || public.Expiry != nil && public.Expiry.Time().Before(time.Now()) {
		return info, err
	}
	if !awaitNewest(ctx, f.state) {
		return nil, err
	}
	return f.Validator.Validate(ctx, token, public, private)
}

// unrevoked refuses the token of a pod, or of a node, whose node's certificates were revoked since it was made: the
// node has it, and may have made it known.
type unrevoked[Claims any] struct {
	serviceaccount.Validator[Claims]
	state State
}

func notRevoked[Claims any](v serviceaccount.Validator[Claims], s State) serviceaccount.Validator[Claims] {
	return &unrevoked[Claims]{v, s}
}

var errRevoked = errors.New("the certificates of the node that has this token are revoked")

// Validate implements serviceaccount.Validator.
func (u *unrevoked[Claims]) Validate(ctx context.Context, token string, public *jwt.Claims, private *Claims) (*apiaccount.ServiceAccountInfo, error) {
	info, err := u.Validator.Validate(ctx, token, public, private)
	if err != nil {
		return nil, err
	}
	v := u.state.View()
	nodes := []string{info.NodeName}
	if info.PodName != "" {
		if pod, ok := v.Pods.Get(fsm.PodKey(info.Namespace, info.PodName)); ok {
			nodes = append(nodes, pod.Spec.NodeName) // it may have been made before the pod had a node
		}
	}
	for _, node := range nodes {
		if until, revoked := v.NodeRevoked(node); revoked && (public.IssuedAt == nil || !public.IssuedAt.Time().After(until)) {
			return nil, errRevoked
		}
	}
	return info, nil
}

// Says is what a token says by its own word: who has issued it, and when it ends, without and with the leeway that
// checks of its time have; nothing of a token that does not say so. It verifies nothing.
func Says(token string) (issuer string, ends []time.Time) {
	parsed, err := jwt.ParseSigned(token)
	if err != nil {
		return "", nil
	}
	var claims jwt.Claims
	if err := parsed.UnsafeClaimsWithoutVerification(&claims); err != nil {
		return "", nil
	}
	if claims.Expiry == nil {
		return claims.Issuer, nil
	}
	end := claims.Expiry.Time().Add(time.Second) // it is good in its last second
	return claims.Issuer, []time.Time{end, end.Add(jwt.DefaultLeeway)}
}

func awaitNewest(ctx context.Context, s State) bool {
	ctx, cancel := context.WithTimeout(ctx, freshTimeout)
	defer cancel()
	return s.ReadIndex(ctx) == nil
}

// AddListener implements serviceaccount.PublicKeysGetter; nobody is told, since
// the keys are always read from the state.
func (a *Accounts) AddListener(serviceaccount.Listener) {}

// GetCacheAgeMaxSeconds implements serviceaccount.PublicKeysGetter.
func (a *Accounts) GetCacheAgeMaxSeconds() int { return keysMaxAgeSeconds }

// GetPublicKeys implements serviceaccount.PublicKeysGetter.
func (a *Accounts) GetPublicKeys(ctx context.Context, id string) []serviceaccount.PublicKey {
	if id == "" {
		var all []serviceaccount.PublicKey
		a.state.View().SigningKeys(func(id string, k *fsm.SigningKey) bool {
			all = append(all, public(id, k)...)
			return true
		})
		return all
	}
	k, ok := a.state.View().SigningKey(id)
	if !ok && a.stranger.Allow() && awaitNewest(ctx, a.state) { // another server may sign with a newer one
		k, ok = a.state.View().SigningKey(id)
	}
	if !ok {
		return nil
	}
	return public(id, k)
}

// public is a key as upstream wants it; none where it cannot be read.
func public(id string, k *fsm.SigningKey) []serviceaccount.PublicKey {
	key, err := x509.ParsePKIXPublicKey(k.Public)
	if err != nil {
		return nil
	}
	return []serviceaccount.PublicKey{{KeyID: id, PublicKey: key}}
}

// GetServiceAccount implements serviceaccount.ServiceAccountTokenGetter.
func (a *Accounts) GetServiceAccount(_ context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	return object[*corev1.ServiceAccount](a, "serviceaccounts", namespace, name)
}

// GetSecret implements serviceaccount.ServiceAccountTokenGetter.
func (a *Accounts) GetSecret(_ context.Context, namespace, name string) (*corev1.Secret, error) {
	o, ok := a.state.View().Objects.Get(fsm.ObjectKey("secrets", namespace, name))
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	o, err := a.keys.Open(o)
	if err != nil {
		return nil, err
	}
	return o.Value.(*corev1.Secret), nil
}

// GetPod implements serviceaccount.ServiceAccountTokenGetter.
func (a *Accounts) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	pod, ok := a.state.View().Pods.Get(fsm.PodKey(namespace, name))
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
	}
	return pod, nil
}

// GetNode implements serviceaccount.ServiceAccountTokenGetter.
func (a *Accounts) GetNode(_ context.Context, name string) (*corev1.Node, error) {
	node, ok := a.state.View().Nodes.Get(name)
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	return node, nil
}

func object[T any](a *Accounts, resource, namespace, name string) (T, error) {
	o, ok := a.state.View().Objects.Get(fsm.ObjectKey(resource, namespace, name))
	if !ok {
		var none T
		return none, apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
	}
	return o.Value.(any).(T), nil
}
