package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gopkg.in/go-jose/go-jose.v2/jwt"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/apiserver/users/issuertest"
)

// believing is an AuthenticationConfiguration of an issuer whose users and groups begin with "sso:", if their addresses are verified.
func believing(i *issuertest.Issuer) string {
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [berth]
    certificateAuthority: %q
  claimValidationRules:
  - {expression: "claims.verified == true", message: only verified addresses}
  - {claim: tenant, requiredValue: ours}
  claimMappings:
    username: {expression: "'sso:' + claims.sub"}
    groups: {claim: roles, prefix: "sso:"}
    uid: {expression: "claims.id"}
    extra: [{key: example.com/team, valueExpression: claims.team}]
  userValidationRules:
  - {expression: "!user.username.endsWith(':root')", message: that one is nobody's}
`, i.URL(), i.CA())
}

// bearer is somebody's way to a server who has nothing but a token.
func bearer(t *testing.T, p *fleet.Process, token string) kubernetes.Interface {
	t.Helper()
	config := rest.AnonymousClientConfig(p.RESTConfig())
	config.BearerToken = token
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// whoami is who a server takes somebody for: the name, and then the groups.
func whoami(ctx context.Context, kube kubernetes.Interface) (string, error) {
	me, err := kube.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return strings.Join(append([]string{me.Status.UserInfo.Username}, me.Status.UserInfo.Groups...), " "), nil
}

// isNobody is an error unless somebody is nobody to a server.
func isNobody(ctx context.Context, kube kubernetes.Interface) error {
	who, err := whoami(ctx, kube)
	if !apierrors.IsUnauthorized(err) {
		return fmt.Errorf("he is %q (%v)", who, err)
	}
	return nil
}

// People come with tokens of an issuer, get roles by the groups that it says, and are nobody when the
// configuration names it no more. Whose token is not as the configuration wants it is nobody, too.
func TestUsersOfAnIssuer(t *testing.T) {
	issuer := issuertest.Start(t)
	file := filepath.Join(t.TempDir(), "authentication.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(believing(issuer))
	s := server("s1", "bootstrap_expect = 1")
	s.HCL += fmt.Sprintf("auth {\n  config_file = %q\n}\n", file)
	c := newCluster(t, s)
	leader := c.waitLeader(t)

	claims := map[string]any{"sub": "ann", "aud": "berth", "roles": []string{"dev"}, "verified": true, "tenant": "ours", "id": "17", "team": "blue"}
	but := func(more map[string]any) map[string]any {
		changed := maps.Clone(claims)
		maps.Copy(changed, more)
		return changed
	}
	ann := bearer(t, leader, issuer.Token(claims))
	c.eventually(t, "the issuer's keys", func(ctx context.Context) error {
		me, err := ann.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		who := me.Status.UserInfo
		if who.Username != "sso:ann" || strings.Join(who.Groups, " ") != "sso:dev system:authenticated" || who.UID != "17" || fmt.Sprint(who.Extra["example.com/team"]) != "[blue]" {
			t.Errorf("ann is %+v", who)
		}
		return nil
	})
	c.eventually(t, "who has no role to be refused", func(ctx context.Context) error { // once the new cluster has roles
		if _, err := ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("ann lists pods (%v)", err)
		}
		return nil
	})
	c.berth(t, "create", "rolebinding", "dev", "--clusterrole=view", "--group=sso:dev", "-n", "default")
	c.eventually(t, "the role", func(ctx context.Context) error {
		_, err := ann.CoreV1().Pods("default").List(ctx, metav1.ListOptions{})
		return err
	})
	for what, token := range map[string]string{
		"an expired token":                    issuer.Token(but(map[string]any{"exp": jwt.NewNumericDate(time.Now().Add(-time.Hour))})),
		"one that is not good yet":            issuer.Token(but(map[string]any{"nbf": jwt.NewNumericDate(time.Now().Add(time.Hour))})),
		"one for others":                      issuer.Token(but(map[string]any{"aud": "others"})),
		"one of another issuer":               issuer.Token(but(map[string]any{"iss": "https://127.0.0.1:1"})),
		"one that somebody else has signed":   issuertest.Start(t).Token(but(map[string]any{"iss": issuer.URL()})),
		"one with an address of anybody's":    issuer.Token(but(map[string]any{"verified": false})),
		"one that says nothing of an address": issuer.Token(but(map[string]any{"verified": nil})),
		"one of another tenant":               issuer.Token(but(map[string]any{"tenant": "theirs"})),
		"one for whom nobody may be":          issuer.Token(but(map[string]any{"sub": "ann:root"})),
	} {
		if err := isNobody(t.Context(), bearer(t, leader, token)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	issuer.Rotate()
	if who, err := whoami(t.Context(), bearer(t, leader, issuer.Token(claims))); err != nil || who != "sso:ann sso:dev system:authenticated" {
		t.Errorf("by the issuer's next key she is %q (%v)", who, err)
	}
	write(believing(issuertest.Start(t)))
	c.eventually(t, "that the issuer is believed no more", func(ctx context.Context) error {
		return isNobody(ctx, ann)
	})
}
