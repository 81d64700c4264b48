package users

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"gopkg.in/go-jose/go-jose.v2/jwt"
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/berth-dev/berth/apiserver/users/issuertest"
)

const ownIssuer = "https://kubernetes.default.svc"

func testConfig(s Sources) Config {
	return Config{
		Sources: s, Audiences: authenticator.Audiences{ownIssuer}, Issuer: ownIssuer, Logger: hclog.NewNullLogger(),
		Accounts: authenticator.TokenFunc(func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil }),
	}
}

// believes is an AuthenticationConfiguration of one issuer; more is added to the issuer's entry.
func believes(i *issuertest.Issuer, more string) string {
	ca := strings.ReplaceAll(strings.TrimSpace(i.CA()), "\n", "\n      ")
	return fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [berth]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: "corp:"}
    groups: {expression: "claims.roles"}
%s`, i.URL(), ca, more)
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func open(t *testing.T, s Sources) *Users {
	t.Helper()
	u, err := Open(testConfig(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(u.Close)
	return u
}

// who is the user of a token, or the error.
func who(u *Users, token string) string {
	req := httptest.NewRequest(http.MethodGet, "/api", nil)
	req.Header.Set("Authorization", "Bearer "+token)
	r, ok, err := u.Tokens.AuthenticateRequest(req)
	switch {
	case err != nil && err.Error() == "invalid bearer token":
		return "nobody"
	case err != nil:
		return "error: " + err.Error()
	case !ok:
		return "nobody"
	}
	return r.User.GetName() + " " + strings.Join(r.User.GetGroups(), ",")
}

func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	poll, late := time.NewTicker(10*time.Millisecond), time.After(60*time.Second)
	defer poll.Stop()
	for !ok() {
		select {
		case <-poll.C:
		case <-late:
			t.Fatal("it never came: " + what)
		}
	}
}

func TestWebTokens(t *testing.T) {
	i := issuertest.Start(t)
	rules := `  claimValidationRules:
  - {expression: "claims.?tenant.orValue('') == 'one'", message: "only of tenant one"}
  userValidationRules:
  - {expression: "!user.username.startsWith('corp:root')", message: "nobody is root"}
`
	u := open(t, Sources{ConfigFile: write(t, believes(i, rules))})
	claims := func(more map[string]any) map[string]any {
		c := map[string]any{"sub": "ann", "aud": "berth", "tenant": "one", "roles": []string{"dev", "ops"}}
		for k, v := range more {
			c[k] = v
		}
		return c
	}
	good := i.Token(claims(nil))
	await(t, "the issuer's keys", func() bool { return who(u, good) == "corp:ann dev,ops" })
	for name, c := range map[string]struct {
		claims map[string]any
		want   string
	}{
		"another audience": {map[string]any{"aud": "elsewhere"}, "error: "},
		"expired":          {map[string]any{"exp": jwt.NewNumericDate(time.Now().Add(-time.Hour))}, "error: "},
		"another tenant":   {map[string]any{"tenant": "two"}, "error: "},
		"a refused user":   {map[string]any{"sub": "root"}, "error: "},
		"another issuer":   {map[string]any{"iss": "https://elsewhere"}, "nobody"},
		"our own issuer":   {map[string]any{"iss": ownIssuer}, "nobody"},
		"a server":         {map[string]any{"roles": []string{"berth:servers"}}, `error: the group "berth:servers" is for Berth's own parts`},
	} {
		if got := who(u, i.Token(claims(c.claims))); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	if got := who(u, good[:len(good)-8]+"AAAAAAAA"); !strings.HasPrefix(got, "error: ") {
		t.Errorf("a forged signature: %s", got)
	}

	// A token of a new key is good as soon as it comes; who floods us with unknown keys does not
	// flood the issuer.
	i.Rotate()
	fresh := i.Token(claims(nil))
	await(t, "the new key", func() bool { return who(u, fresh) == "corp:ann dev,ops" })
	other := issuertest.Start(t)
	before := i.Asked()
	for range 200 {
		forged := other.Token(claims(map[string]any{"iss": i.URL()}))
		if got := who(u, forged); !strings.HasPrefix(got, "error: ") {
			t.Fatalf("a token that somebody else has signed: %s", got)
		}
	}
	if n := i.Asked() - before; n > 100 {
		t.Errorf("the issuer was asked for its keys %d times", n)
	}
	i.SetAway(true)
	if got := who(u, fresh); got != "corp:ann dev,ops" {
		t.Errorf("its keys are known, though the issuer is away: %s", got)
	}
}

// TestConfigurationIsReadAgain: what the file says by now counts, unless it is wrong.
func TestConfigurationIsReadAgain(t *testing.T) {
	one, two := issuertest.Start(t), issuertest.Start(t)
	file := write(t, believes(one, ""))
	u := open(t, Sources{ConfigFile: file})
	ctx, end := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { u.Run(ctx); close(done) }()
	defer func() { end(); <-done }()
	claims := map[string]any{"sub": "ann", "aud": "berth", "roles": []string{"dev"}}
	ofOne, ofTwo := one.Token(claims), two.Token(claims)
	await(t, "the first issuer", func() bool { return who(u, ofOne) == "corp:ann dev" })
	first := u.configuration.now().issuers[0].token
	change := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	_, entry, _ := strings.Cut(believes(two, ""), "jwt:\n")
	change(believes(one, "") + entry)
	await(t, "the second issuer", func() bool { return who(u, ofTwo) == "corp:ann dev" })
	if u.configuration.now().issuers[0].token != first {
		t.Error("an issuer of which nothing else is said is asked anew")
	}
	change(believes(two, "") + "anonymous: {enabled: false}\n")
	await(t, "that the first issuer is believed no more", func() bool { return who(u, ofOne) == "nobody" })
	if _, ok, _ := u.Anonymous.AuthenticateRequest(httptest.NewRequest(http.MethodGet, "/healthz", nil)); ok {
		t.Error("nobody may ask anything without a token, and may")
	}
	change("wrong")
	u.configuration.look()
	if got := who(u, ofTwo); got != "corp:ann dev" {
		t.Errorf("the file is wrong, and what it said before does not count: %s", got)
	}
}

// TestMistakesInTheConfiguration: each is told with its line.
func TestMistakesInTheConfiguration(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	const issuer = "jwt:\n- issuer:\n    url: https://example.com\n    audiences: [a]\n"
	const user = "  claimMappings:\n    username: {claim: sub, prefix: ''}\n"
	for text, want := range map[string]string{
		"x":                          ": ",
		head + "jwt:\n- isuer: {}\n": `:4: unknown field "jwt[0].isuer"`,
		head + "jwt:\n- issuer:\n    url: http://a\n" + user:                                      `:5: jwt[0].issuer.url: Invalid value`,
		head + issuer + user + "  userValidationRules:\n  - expression: 'user.nam'\n":             `:10: jwt[0].userValidationRules[0].expression`,
		head + strings.Replace(issuer, "https://example.com", ownIssuer, 1) + user:                `:5: jwt[0].issuer.url: Invalid value`,
		head + issuer + "    egressSelectorType: cluster\n" + user:                                `:7: jwt[0].issuer.egressSelectorType: Forbidden`,
		head + "anonymous: {enabled: true}\n":                                                     `anonymous.conditions: Required value`,
		head + "anonymous:\n  enabled: true\n  conditions:\n  - path: /healthz\n  - path: /api\n": `:7: anonymous.conditions[1].path: Unsupported value: "/api"`,
		"apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources: []\n":  "not an AuthenticationConfiguration",
	} {
		_, err := Open(testConfig(Sources{ConfigFile: write(t, text)}))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %s", text, err, want)
		}
	}
}

// TestWebhook: what nobody else knows is asked there, and its answer counts for a while.
func TestWebhook(t *testing.T) {
	var asked atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var review authenticationv1.TokenReview
		if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
			t.Error(err)
		}
		switch review.Spec.Token {
		case "good":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "eve", Groups: []string{"far"}}}
		case "worker":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "berth:worker:n1", Groups: []string{"berth:workers"}}}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	defer hook.Close()
	file := write(t, fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: hook, cluster: {server: %s}}]
users: [{name: us}]
contexts: [{name: hook, context: {cluster: hook, user: us}}]
current-context: hook
`, hook.URL))
	tokens := filepath.Join(t.TempDir(), "tokens.csv")
	if err := os.WriteFile(tokens, []byte("near,ann,1,people\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	u := open(t, Sources{TokenFile: tokens, Webhook: file, WebhookCache: time.Minute})
	if got := who(u, "near"); got != "ann people" || asked.Load() != 0 {
		t.Errorf("%s; the webhook was asked %d times of a token that is known here", got, asked.Load())
	}
	for range 3 {
		if got := who(u, "good"); got != "eve far" {
			t.Error(got)
		}
		if got := who(u, "bad"); got != "nobody" {
			t.Error(got)
		}
	}
	if n := asked.Load(); n != 2 {
		t.Errorf("the webhook was asked %d times of two tokens", n)
	}
	if got := who(u, "worker"); !strings.Contains(got, "Berth's own parts") {
		t.Error(got)
	}
	if _, err := Open(testConfig(Sources{Webhook: write(t, "{")})); err == nil {
		t.Error("a kubeconfig that is none was taken")
	}
}

// TestFarIsBounded: who waits for an issuer that does not answer, waits for so long, and so many do.
func TestFarIsBounded(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	f := newFar(authenticator.TokenFunc(func(ctx context.Context, _ string) (*authenticator.Response, bool, error) {
		if _, ok := ctx.Deadline(); !ok {
			t.Error("it may last as long as it likes")
		}
		arrived <- struct{}{}
		<-release
		return nil, false, ctx.Err()
	}), false)
	done := make(chan struct{})
	for range maxFar {
		go func() { _, _, _ = f.AuthenticateToken(context.Background(), "x"); done <- struct{}{} }()
		<-arrived
	}
	if _, _, err := f.AuthenticateToken(context.Background(), "x"); err != errManyWait {
		t.Errorf("one more: %v", err)
	}
	close(release)
	for range maxFar {
		<-done
	}
}
