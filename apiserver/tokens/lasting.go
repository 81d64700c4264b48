package tokens

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"gopkg.in/go-jose/go-jose.v2/jwt"
)

// A token that a secret of the type kubernetes.io/service-account-token holds has no end of its own: it is good as long as the secret
// holds it, its account is there, and its key verifies.

// Lasting makes such tokens.
func (a *Accounts) Lasting() serviceaccount.TokenGenerator { return lasting{a} }

type lasting struct{ accounts *Accounts }

// GenerateToken implements serviceaccount.TokenGenerator.
func (l lasting) GenerateToken(ctx context.Context, claims *jwt.Claims, private any) (string, error) {
	return l.accounts.generate(ctx, serviceaccount.LegacyIssuer, claims, private)
}

// lasting believes them.
func (a *Accounts) lasting() authenticator.Token {
	held, err := serviceaccount.NewLegacyValidator(true, a, unnoted{})
	if err != nil {
		panic(err) // it is given all that it asks for
	}
	return serviceaccount.JWTTokenAuthenticator([]string{serviceaccount.LegacyIssuer}, a, Audiences(), asNew(held, a.state))
}

// unnoted is where Kubernetes notes the day on which a secret's token was last shown. Here no request that reads becomes one that writes.
type unnoted struct{ typedcorev1.SecretInterface }

// Secrets implements typedcorev1.SecretsGetter.
func (u unnoted) Secrets(string) typedcorev1.SecretInterface { return u }

// Patch implements typedcorev1.SecretInterface.
func (unnoted) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*corev1.Secret, error) {
	return &corev1.Secret{}, nil
}

// KeyOf is the ID of the key that a token says has signed it; empty: it says none. It verifies nothing.
func KeyOf(token string) string {
	parsed, err := jwt.ParseSigned(token)
	if err != nil || len(parsed.Headers) == 0 {
		return ""
	}
	return parsed.Headers[0].KeyID
}
