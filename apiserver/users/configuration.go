package users

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/union"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/yamlfile"
)

// letGoAfter is how long requests that have begun may still ask an issuer of before.
const letGoAfter = time.Minute

// configuration is what an AuthenticationConfiguration says, by the newest reading of its
// file. While that cannot be read or is wrong, what was said before counts.
type configuration struct {
	file     string
	issuer   string // of service accounts
	compiler authenticationcel.Compiler
	logger   hclog.Logger
	lasting  context.Context // of what fetches keys
	close    context.CancelFunc

	watch yamlfile.Watch
	said  atomic.Pointer[said]
	// readings counts those of the file.
	readings atomic.Int64
}

// said is one reading of the file.
type said struct {
	anonymous authenticator.Request
	tokens    authenticator.Token
	issuers   []issuer
}

// issuer is one whose web tokens are believed.
type issuer struct {
	said  apiserver.JWTAuthenticator
	token authenticator.Token
	end   context.CancelFunc
}

// openConfiguration reads the file; without one, no issuer is believed, and who shows nothing
// may ask what is public.
func openConfiguration(c Config) (*configuration, error) {
	k := &configuration{file: c.ConfigFile, issuer: c.Issuer, logger: c.Logger}
	k.lasting, k.close = context.WithCancel(context.Background())
	if c.ConfigFile == "" {
		k.said.Store(&said{anonymous: asNobody(nil), tokens: tokenunion.New()})
		return k, nil
	}
	k.compiler = authenticationcel.NewDefaultCompiler()
	k.watch = yamlfile.NewWatch(c.ConfigFile)
	if err := k.read(); err != nil {
		k.close()
		return nil, fmt.Errorf("the authentication configuration:\n%w", err)
	}
	return k, nil
}

func (c *configuration) now() *said { return c.said.Load() }

// AuthenticateToken implements authenticator.Token.
func (c *configuration) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return c.now().tokens.AuthenticateToken(ctx, token)
}

// run reads the file again whenever it changes, until ctx ends.
func (c *configuration) run(ctx context.Context) {
	if c.file == "" {
		return
	}
	yamlfile.Follow(ctx, c.look)
}

// look reads the file if it is another one than it was.
func (c *configuration) look() {
	if !c.watch.Changed() {
		return
	}
	if err := c.read(); err != nil {
		c.logger.Error("the authentication configuration has changed and cannot be read; what it said before counts", "error", err)
		return
	}
	c.logger.Info("the authentication configuration has changed, and was read again", "file", c.file)
}

// read believes what the file says by now. An issuer of which it says what it said before goes on
// with the keys that it has; one of which it says something else has to be asked first, and until then
// nobody is believed by its word.
func (c *configuration) read() error {
	loaded, err := c.load()
	if err != nil {
		return err
	}
	var before []issuer
	if old := c.now(); old != nil {
		before = old.issuers
	}
	next := &said{anonymous: asNobody(loaded.Anonymous)}
	var ways []authenticator.Token
	for i, j := range loaded.JWT {
		at := slices.IndexFunc(before, func(b issuer) bool { return reflect.DeepEqual(b.said, j) })
		var one issuer
		if at >= 0 {
			one = before[at]
		} else if one, err = c.open(j); err != nil {
			for _, made := range next.issuers {
				if !slices.ContainsFunc(before, made.is) {
					made.end()
				}
			}
			return fmt.Errorf("%s: jwt[%d]: %w", c.file, i, err)
		}
		next.issuers = append(next.issuers, one)
		ways = append(ways, one.token)
	}
	next.tokens = tokenunion.NewFailOnError(ways...)
	c.said.Store(next)
	c.readings.Add(1)
	for _, b := range before {
		if !slices.ContainsFunc(next.issuers, b.is) {
			time.AfterFunc(letGoAfter, b.end)
		}
	}
	return nil
}

func (i issuer) is(other issuer) bool { return i.token == other.token }

// open begins to ask an issuer for its keys.
func (c *configuration) open(j apiserver.JWTAuthenticator) (issuer, error) {
	client, err := issuerClient(j.Issuer.CertificateAuthority)
	if err != nil {
		return issuer{}, fmt.Errorf("issuer.certificateAuthority: %w", err)
	}
	ctx, end := context.WithCancel(c.lasting)
	token, err := oidc.New(ctx, oidc.Options{
		JWTAuthenticator: j, Client: client, Compiler: c.compiler, SupportedSigningAlgs: oidc.AllValidSigningAlgorithms(),
		DisallowedIssuers: []string{c.issuer},
	})
	if err != nil {
		end()
		return issuer{}, err
	}
	return issuer{said: j, token: newFar(token, true), end: end}, nil
}

// load reads the file and checks all that it says.
func (c *configuration) load() (*apiserver.AuthenticationConfiguration, error) {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	o, data, err := yamlfile.Read(c.file, scheme)
	if err != nil {
		return nil, err
	}
	loaded, ok := o.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("%s: it is %s, not an AuthenticationConfiguration", c.file, o.GetObjectKind().GroupVersionKind().Kind)
	}
	problems := validation.ValidateAuthenticationConfiguration(c.compiler, loaded, []string{c.issuer})
	for i, j := range loaded.JWT {
		if j.Issuer.EgressSelectorType != "" {
			problems = append(problems, field.Forbidden(field.NewPath("jwt").Index(i).Child("issuer", "egressSelectorType"),
				"servers reach issuers directly, or by the proxy of their environment"))
		}
	}
	problems = append(problems, checkAnonymous(loaded.Anonymous)...)
	var errs []error
	for _, p := range problems {
		errs = append(errs, yamlfile.Placed(c.file, data, p))
	}
	return loaded, errors.Join(errs...)
}

// checkAnonymous: who shows nothing may ask what is public, or less.
func checkAnonymous(a *apiserver.AnonymousAuthConfig) field.ErrorList {
	if a == nil || !a.Enabled {
		return nil
	}
	at := field.NewPath("anonymous", "conditions")
	if len(a.Conditions) == 0 {
		return field.ErrorList{field.Required(at, "it names paths: without a token or certificate the rest is for nobody")}
	}
	var problems field.ErrorList
	for i, c := range a.Conditions {
		if !slices.Contains(access.PublicPaths(), c.Path) {
			problems = append(problems, field.NotSupported(at.Index(i).Child("path"), c.Path, access.PublicPaths()))
		}
	}
	return problems
}

// asNobody lets requests without a token or certificate in where the configuration says so: without
// one, where it is public.
func asNobody(a *apiserver.AnonymousAuthConfig) authenticator.Request {
	if a == nil {
		a = &apiserver.AnonymousAuthConfig{Enabled: true}
		for _, p := range access.PublicPaths() {
			a.Conditions = append(a.Conditions, apiserver.AnonymousAuthCondition{Path: p})
		}
	}
	if !a.Enabled {
		return union.New()
	}
	known := anonymous.NewAuthenticator(a.Conditions)
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if req.URL == nil { // only a token is asked about, by a review
			return nil, false, nil
		}
		return known.AuthenticateRequest(req)
	})
}
