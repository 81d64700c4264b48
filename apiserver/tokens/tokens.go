// Package tokens makes and checks the tokens of service accounts: JSON web
// tokens in Kubernetes' form, signed with the cluster's key, which is part of
// the replicated state. A token is good for a time, for an audience, and as long
// as what it is bound to is there: its service account, and its pod or secret.
//
// A private key never leaves this package but in the command that adds it.
package tokens

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"golang.org/x/time/rate"
	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/berth-dev/berth/fsm"
)

// Issuer is who tokens say has made them, and the audience that stands for this
// API. Every cluster's is the same, as kubeadm's is: tokens are told apart by
// their keys.
const Issuer = "https://kubernetes.default.svc"

// MaxLife is the longest life of a token; who asks for more gets so much.
const MaxLife = fsm.MaxTokenSeconds * time.Second

// State is where the keys are, and what tokens are bound to.
type State interface {
	// View is this server's latest state.
	View() *fsm.View
	// ReadIndex returns when the state is at least as new as every write that was
	// acknowledged before the call.
	ReadIndex(ctx context.Context) error
}

// Keys open the private part of a key, and the secret that holds a token, which may be sealed in the state.
type Keys interface {
	OpenKey(id string, private []byte) ([]byte, error)
	// Open gives an object as it was before it was sealed.
	Open(row *fsm.Object) (*fsm.Object, error)
}

// Accounts makes and checks tokens by one server's state.
type Accounts struct {
	state State
	keys  Keys
	// stranger bounds how often a key that is not known is looked for among newer
	// writes.
	stranger *rate.Limiter

	mu         sync.Mutex
	generators map[string]serviceaccount.TokenGenerator // of the key signingID, by issuer
	signingID  string
}

var (
	_ serviceaccount.TokenGenerator            = (*Accounts)(nil)
	_ serviceaccount.PublicKeysGetter          = (*Accounts)(nil)
	_ serviceaccount.ServiceAccountTokenGetter = (*Accounts)(nil)
)

// New makes and checks tokens by a state.
func New(state State, keys Keys) *Accounts {
	return &Accounts{state: state, keys: keys, stranger: rate.NewLimiter(1, 4)}
}

// NewKey gives the command that adds a new key.
func NewKey() (*fsm.AddSigningKey, error) {
	key, err := newPrivateKey()
	if err != nil {
		return nil, fmt.Errorf("making a signing key: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a signing key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("encoding a signing key: %w", err)
	}
	// The generator names the key in its tokens by itself, so its name is asked
	// where the names are made.
	getter, err := serviceaccount.StaticPublicKeysGetter([]any{&key.PublicKey})
	if err != nil {
		return nil, fmt.Errorf("naming a signing key: %w", err)
	}
	id := getter.GetPublicKeys(context.Background(), "")[0].KeyID
	return &fsm.AddSigningKey{ID: id, Private: private, Public: public}, nil
}

// newPrivateKey draws a key of P-256 from bytes alone, so that the same random
// bytes make the same key.
func newPrivateKey() (*ecdsa.PrivateKey, error) {
	var err error
	for range 16 { // all but one of 2³² numbers are one
		scalar := make([]byte, 32)
		if _, err = rand.Read(scalar); err != nil {
			return nil, err
		}
		var key *ecdsa.PrivateKey
		if key, err = ecdsa.ParseRawPrivateKey(elliptic.P256(), scalar); err == nil {
			return key, nil
		}
	}
	return nil, err
}

// ErrNoKey: the cluster's key is not made yet. It is once a leader is there, and
// every server knows of such keys.
var ErrNoKey = errors.New("the cluster has no key to sign tokens with yet")

// GenerateToken implements serviceaccount.TokenGenerator, with the key that signs
// now.
func (a *Accounts) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return a.generate(ctx, Issuer, claims, private)
}

func (a *Accounts) generate(ctx context.Context, issuer string, claims *jwt.Claims, private any) (string, error) {
	g, err := a.signer(issuer)
	if err != nil {
		return "", err
	}
	return g.GenerateToken(ctx, claims, private)
}

func (a *Accounts) signer(issuer string) (serviceaccount.TokenGenerator, error) {
	signing, key, ok := a.state.View().SignsNow()
	if !ok {
		return nil, ErrNoKey
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.signingID == signing {
		return a.generators[issuer], nil
	}
	opened, err := a.keys.OpenKey(signing, key.Private)
	if err != nil {
		return nil, fmt.Errorf("the cluster's signing key: %w", err)
	}
	private, err := x509.ParsePKCS8PrivateKey(opened)
	if err != nil {
		return nil, fmt.Errorf("the cluster's signing key: %w", err)
	}
	made := map[string]serviceaccount.TokenGenerator{}
	for _, by := range []string{Issuer, serviceaccount.LegacyIssuer} {
		if made[by], err = serviceaccount.JWTTokenGenerator(by, private); err != nil {
			return nil, fmt.Errorf("the cluster's signing key: %w", err)
		}
	}
	a.generators, a.signingID = made, signing
	return made[issuer], nil
}

// Request is what a token is to be.
type Request struct {
	Pod *corev1.Pod
	// Audience is who believes the token; empty: this API.
	Audience string
	// ExpirationSeconds is how long it is good.
	ExpirationSeconds int64
}

// ForPod makes a token of a pod's service account that is good while the pod is
// there, as TokenRequest does when it is bound to the pod, and says for how long
// at most. The service account must be there.
func (a *Accounts) ForPod(ctx context.Context, r Request) (token string, life time.Duration, err error) {
	pod := r.Pod
	account, err := a.GetServiceAccount(ctx, pod.Namespace, pod.Spec.ServiceAccountName)
	if err != nil {
		return "", 0, err
	}
	node := &core.Node{}
	node.Name = pod.Spec.NodeName
	if n, err := a.GetNode(ctx, node.Name); err == nil {
		node.UID = n.UID
	}
	bound, of := &core.Pod{}, core.ServiceAccount{}
	bound.Name, bound.UID = pod.Name, pod.UID
	of.Namespace, of.Name, of.UID = account.Namespace, account.Name, account.UID
	audience := r.Audience
	if audience == "" {
		audience = Issuer
	}
	seconds := min(r.ExpirationSeconds, fsm.MaxTokenSeconds)
	claims, private, err := serviceaccount.Claims(of, bound, nil, node, seconds, 0, []string{audience})
	if err != nil {
		return "", 0, err
	}
	token, err = a.GenerateToken(ctx, claims, private)
	return token, time.Duration(seconds) * time.Second, err
}

// Audiences are those that a token has to have one of to be believed by this API.
func Audiences() authenticator.Audiences { return authenticator.Audiences{Issuer} }
