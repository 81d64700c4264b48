package users

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"

	"github.com/berth-dev/berth/access"
)

// Sources say whose tokens are believed, beside those of service accounts.
type Sources struct {
	// TokenFile, if not empty, is a CSV file of bearer tokens: token, user, UID and
	// optionally "group,group".
	TokenFile string
	// ConfigFile, if not empty, has an AuthenticationConfiguration of apiserver.config.k8s.io.
	ConfigFile string
	// Webhook, if not empty, is a kubeconfig that leads to who reviews tokens.
	Webhook string
	// WebhookVersion is that of the reviews, "v1" or "v1beta1"; empty: "v1".
	WebhookVersion string
	// WebhookCache is how long an answer counts; 0: it is asked every time.
	WebhookCache time.Duration
}

// Config is what Users are made of.
type Config struct {
	Sources
	// Audiences are the API's own; Issuer that of its service accounts, which nobody
	// else may be.
	Audiences authenticator.Audiences
	Issuer    string
	// Accounts believes the tokens of service accounts.
	Accounts authenticator.Token
	// Joining believes the tokens of machines that are to join; nil: there are none.
	Joining authenticator.Token

	Logger hclog.Logger
}

// Users tell who makes a request, by its token or as nobody.
type Users struct {
	// Tokens are who bears a token, Anonymous what may be asked without one.
	Tokens, Anonymous authenticator.Request
	// Here are those of Tokens who are known without asking anybody else.
	Here authenticator.Request

	file          authenticator.Request // by the file of tokens alone
	configuration *configuration
}

// Open reads what the configuration names. Where issuers are, keys are fetched from now
// on until Close.
func Open(c Config) (*Users, error) {
	file, err := openTokens(c.TokenFile, c.Logger)
	if err != nil {
		return nil, err
	}
	hook, err := openWebhook(c)
	if err != nil {
		return nil, err
	}
	configuration, err := openConfiguration(c)
	if err != nil {
		return nil, err
	}
	// In kube-apiserver's order: first those who are asked here, then those who are far away.
	var ways []authenticator.Token
	inFile := union.New()
	if file != nil {
		inFile = byToken(file)
		ways = append(ways, authenticator.WrapAudienceAgnosticToken(c.Audiences, file))
	}
	ways = append(ways, c.Accounts)
	if c.Joining != nil {
		ways = append(ways, authenticator.WrapAudienceAgnosticToken(c.Audiences, c.Joining))
	}
	here := tokenunion.New(slices.Clone(ways)...)
	if c.ConfigFile != "" {
		ways = append(ways, authenticator.WrapAudienceAgnosticToken(c.Audiences, nobodysOwn(configuration)))
	}
	if hook != nil {
		ways = append(ways, nobodysOwn(hook))
	}
	all := tokenunion.New(ways...)
	return &Users{
		Tokens:        byToken(all),
		Here:          byToken(here),
		file:          inFile,
		Anonymous:     authenticator.RequestFunc(configuration.anonymous),
		configuration: configuration,
	}, nil
}

func byToken(t authenticator.Token) authenticator.Request {
	return union.New(bearertoken.New(t), websocket.NewProtocolAuthenticator(t))
}

// TokenOf is the token that a request shows; empty: it shows none, or more than one.
func TokenOf(req *http.Request) string {
	var all []string
	_, _, _ = byToken(authenticator.TokenFunc(func(_ context.Context, token string) (*authenticator.Response, bool, error) {
		all = append(all, token)
		return nil, false, nil
	})).AuthenticateRequest(req) // that nobody is believed is known
	if len(all) != 1 {
		return ""
	}
	return all[0]
}

// Believes says whether the configuration names an issuer.
func (u *Users) Believes(url string) bool {
	return slices.ContainsFunc(u.configuration.now().issuers, func(i issuer) bool { return i.said.Issuer.URL == url })
}

// InFile says whether a request shows a token of the file. It takes the token out of the request.
func (u *Users) InFile(req *http.Request) bool {
	_, ok, err := u.file.AuthenticateRequest(req)
	return ok && err == nil
}

// Readings is how often the configuration was read.
func (u *Users) Readings() int64 { return u.configuration.readings.Load() }

// Run follows the configuration's file until ctx ends.
func (u *Users) Run(ctx context.Context) { u.configuration.run(ctx) }

// Close ends what fetches keys.
func (u *Users) Close() { u.configuration.close() }

// nobodysOwn refuses a user who would be a part of Berth: that is what certificates are for.
func nobodysOwn(next authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		who, ok, err := next.AuthenticateToken(ctx, token)
		if err != nil || !ok {
			return nil, false, err
		}
		if access.IsReserved(who.User.GetName()) {
			return nil, false, fmt.Errorf("the user %q is for Berth's own parts, such as servers and workers", who.User.GetName())
		}
		for _, g := range who.User.GetGroups() {
			if access.IsReserved(g) {
				return nil, false, fmt.Errorf("the group %q is for Berth's own parts, such as servers and workers", g)
			}
		}
		return who, true, nil
	})
}

// anonymous is who asks without a token or certificate, where that may be.
func (c *configuration) anonymous(req *http.Request) (*authenticator.Response, bool, error) {
	return c.now().anonymous.AuthenticateRequest(req)
}
