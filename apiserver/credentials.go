package apiserver

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	bootstrapapi "k8s.io/cluster-bootstrap/token/api"

	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/store"
)

// shown is what a request shows of who makes it. Upstream takes a token out of a request once it is believed.
type shown struct {
	tls                      *tls.ConnectionState
	authorization, protocols []string // of its header
	actsAs                   http.Header
	who                      user.Info // whom it has shown; nil: nobody yet
	stranger                 bool      // it was asked, and is nobody
}

type shownKey struct{}

const (
	protocolsHeader = "Sec-Websocket-Protocol"
	// protocolPrefix is what a protocol begins with that is a token.
	protocolPrefix = "base64url.bearer.authorization.k8s.io."
)

// withShown keeps what a request shows in its context.
func withShown(req *http.Request) context.Context {
	s := &shown{tls: req.TLS, authorization: req.Header["Authorization"]}
	if protocols := req.Header[protocolsHeader]; slices.ContainsFunc(protocols, func(p string) bool { return strings.Contains(p, protocolPrefix) }) {
		s.protocols = protocols
	}
	s.actsAs = actingAs(req.Header)
	return context.WithValue(req.Context(), shownKey{}, s)
}

// remembered notes whom a request has shown, whomever it acts as.
func remembered(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(req *http.Request) (*authenticator.Response, bool, error) {
		if s, kept := req.Context().Value(shownKey{}).(*shown); kept && s.stranger {
			return nil, false, nil // whatever else is known by now: it goes on without what it has asked
		}
		who, ok, err := next.AuthenticateRequest(req)
		if s, kept := req.Context().Value(shownKey{}).(*shown); kept && ok && err == nil && s.who == nil {
			s.who = who.User
		}
		return who, ok, err
	})
}

// byCertificate: it shows a certificate that is believed, whatever tokens it shows beside that.
func (s *shown) byCertificate() bool {
	_, ok, err := byCertificate(&http.Request{TLS: s.tls})
	return ok && err == nil
}

// again is a request that shows the same.
func (s *shown) again(ctx context.Context) *http.Request {
	r := &http.Request{Method: http.MethodGet, URL: &url.URL{Path: "/"}, Header: http.Header{}, TLS: s.tls}
	if len(s.authorization) > 0 {
		r.Header["Authorization"] = slices.Clone(s.authorization)
	}
	if len(s.protocols) > 0 {
		r.Header["Connection"], r.Header["Upgrade"] = []string{"Upgrade"}, []string{"websocket"}
		r.Header[protocolsHeader] = slices.Clone(s.protocols)
	}
	return r.WithContext(authenticator.WithAudiences(ctx, tokens.Audiences()))
}

// key tells what is shown from what others show; ok is false where nothing is.
func (s *shown) key() (key [sha256.Size]byte, ok bool) {
	var b []byte
	if s.tls != nil && len(s.tls.VerifiedChains) > 0 {
		b = append(b, s.tls.VerifiedChains[0][0].Raw...)
	}
	for _, text := range slices.Concat(s.authorization, []string{"\n"}, s.protocols) {
		b = append(append(b, 0), text...)
	}
	return sha256.Sum256(b), s.tls != nil && len(s.tls.VerifiedChains) > 0 || len(s.authorization)+len(s.protocols) > 0
}

const (
	// lookEvery is how often it is looked which credentials are to be checked: those that cost nothing each time, others
	// when something has changed on which they hang, when they end, and every tokenEvery, or farEvery if they are believed
	// by the word of somebody else.
	lookEvery            = time.Second
	tokenEvery, farEvery = time.Minute, 30 * time.Second
	// issuersBegin is how long an issuer that is new in the configuration may take before it can be asked.
	issuersBegin = 15 * time.Second
	// checkTimeout bounds a check.
	checkTimeout = 15 * time.Second
	// checksAtOnce are under way of what one vouches for.
	checksAtOnce = 16
)

// credentials ends what lasts whose credential has ended: a certificate or token that is over, a token that was taken
// back, or whose service account, pod or node is gone. What shows the same is checked once, however much of it lasts.
type credentials struct {
	authenticate authenticator.Request
	here         authenticator.Request // nobody else is asked
	users        *users.Users
	guard        guard.Func

	mu        sync.Mutex
	near, far map[[sha256.Size]byte]*credential
	hanging   map[string]map[*credential]struct{} // by what they hang on
	readings  int64                               // of the users' configuration
	checks    map[voucher]*checks                 // that are under way
}

// voucher is by whose word credentials are believed: this server's, its state's, an issuer's, or that of any other elsewhere.
type voucher struct {
	far    bool // somebody else is asked
	state  bool // near, and the leader may be asked whether the state is the newest
	issuer string
}

// checks are those of what one vouches for.
type checks struct {
	places chan struct{} // one is taken by each that is made
	n      int           // that are made, or wait for a place
}

// credential is what one or more lasting requests have shown.
type credential struct {
	key   [sha256.Size]byte
	shown *shown
	voucher
	hangs   []string
	every   time.Duration
	ends    []time.Time // by its own word, which may be more than one
	due     time.Time
	checked bool // now, or soon
	lasting map[*lastingRequest]struct{}
}

func newCredentials(authenticate authenticator.Request, known *users.Users, g guard.Func) *credentials {
	return &credentials{
		authenticate: authenticate, here: newLocalAuthenticator(known), users: known, guard: g.Or(), checks: map[voucher]*checks{}, near: map[[sha256.Size]byte]*credential{}, far: map[[sha256.Size]byte]*credential{},
		hanging: map[string]map[*credential]struct{}{},
	}
}

// hold has what lasts end with its credential, until release is called.
func (c *credentials) hold(ctx context.Context, l *lastingRequest) (release func()) {
	s, ok := ctx.Value(shownKey{}).(*shown)
	if !ok || s.who == nil {
		return func() {}
	}
	key, ok := s.key()
	if !ok { // a part of this process, or nobody
		return func() {}
	}
	l.who = s.who
	made := c.newCredential(ctx, key, s)
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.of(made)
	one := all[key]
	if one == nil {
		one, all[key] = made, made
		for _, h := range one.hangs {
			if c.hanging[h] == nil {
				c.hanging[h] = map[*credential]struct{}{}
			}
			c.hanging[h][one] = struct{}{}
		}
	}
	one.lasting[l] = struct{}{}
	one.due = time.Now() // what changed since it was believed was not asked of it
	return func() { c.release(one, l) }
}

func (c *credentials) of(one *credential) map[[sha256.Size]byte]*credential {
	if one.far {
		return c.far
	}
	return c.near
}

func (c *credentials) newCredential(ctx context.Context, key [sha256.Size]byte, s *shown) *credential {
	one := &credential{key: key, shown: s, lasting: map[*lastingRequest]struct{}{}}
	switch who, ok, err := c.here.AuthenticateRequest(s.again(ctx)); {
	case err != nil || !ok || isAnother(s.who, who.User):
		one.every, one.far = farEvery, true
		issuer := ""
		if issuer, one.ends = tokens.Says(users.TokenOf(s.again(ctx))); c.users.Believes(issuer) {
			one.issuer = issuer
		}
		if one.over(time.Now()) {
			one.ends = nil // it is believed beyond its end
		}
	case s.byCertificate() || c.users.InFile(s.again(ctx)):
		one.every = lookEvery
	default:
		one.every, one.hangs, one.state = tokenEvery, hangsOn(s.who), true
		_, one.ends = tokens.Says(users.TokenOf(s.again(ctx)))
	}
	return one
}

// release forgets a request that lasts no more.
func (c *credentials) release(one *credential, l *lastingRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if delete(one.lasting, l); len(one.lasting) > 0 {
		return
	}
	delete(c.of(one), one.key)
	for _, h := range one.hangs {
		if delete(c.hanging[h], one); len(c.hanging[h]) == 0 {
			delete(c.hanging, h)
		}
	}
}

// anyToken is what all tokens of the cluster's own hang on: the keys that sign them, and revocations.
const anyToken = "tokens"

// hangsOn names the objects with which a token may end.
func hangsOn(who user.Info) []string {
	if strings.HasPrefix(who.GetName(), bootstrapapi.BootstrapUserPrefix) {
		return []string{anyToken, "secrets/" + metav1.NamespaceSystem}
	}
	namespace, name, err := serviceaccount.SplitUsername(who.GetName())
	if err != nil {
		return nil
	}
	hangs := []string{anyToken, "serviceaccounts/" + namespace + "/" + name, "secrets/" + namespace}
	for _, pod := range who.GetExtra()[serviceaccount.PodNameKey] {
		hangs = append(hangs, "pods/"+namespace+"/"+pod)
	}
	for _, node := range who.GetExtra()[serviceaccount.NodeNameKey] {
		hangs = append(hangs, "nodes/"+node)
	}
	return hangs
}

// changed has those credentials checked that hang on what has changed.
func (c *credentials) changed(changes []store.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.hanging) == 0 {
		return
	}
	for i := range changes {
		c.due(ended(&changes[i]))
	}
}

// changedAll is changed where it is not known what.
func (c *credentials) changedAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.due(anyToken)
}

// due is called with mu held.
func (c *credentials) due(on string) {
	for one := range c.hanging[on] {
		one.due = time.Time{}
	}
}

// ended names what is not any more what it was; empty: nothing on which a credential hangs.
func ended(change *store.Change) string {
	switch old := change.Old.(type) {
	case *fsm.SigningKey:
		return anyToken
	case *corev1.Pod:
		if now, _ := change.New.(*corev1.Pod); old != nil && (now == nil || now.UID != old.UID) {
			return "pods/" + old.Namespace + "/" + old.Name
		}
	case *corev1.Node:
		if now, _ := change.New.(*corev1.Node); old != nil && (now == nil || now.UID != old.UID) {
			return "nodes/" + old.Name
		}
	}
	old, _ := change.Old.(*fsm.Object)
	now, _ := change.New.(*fsm.Object)
	switch {
	case fsm.RevokedNode(old) != "" || fsm.RevokedNode(now) != "":
		return anyToken
	case old == nil:
	case old.Resource == "secrets" && (now == nil || now.Value.GetUID() != old.Value.GetUID() || old.Value.GetNamespace() == metav1.NamespaceSystem || holdsToken(old)):
		return "secrets/" + old.Value.GetNamespace() // also what says something else now: a token of a machine that is to join, or of an account
	case old.Resource == "serviceaccounts" && (now == nil || now.Value.GetUID() != old.Value.GetUID()):
		return "serviceaccounts/" + old.Value.GetNamespace() + "/" + old.Value.GetName()
	}
	return ""
}

// holdsToken: the secret is one of those that are filled with the token of a service account.
func holdsToken(o *fsm.Object) bool {
	s, ok := o.Value.(*corev1.Secret)
	return ok && s.Type == corev1.SecretTypeServiceAccountToken
}

// run checks what this server can tell by itself, runFar what others are asked about, until ctx ends. Checks are made side by side: who does not
// answer holds up nothing but what he vouches for.
func (c *credentials) run(ctx context.Context)    { c.follow(ctx, c.near) }
func (c *credentials) runFar(ctx context.Context) { c.follow(ctx, c.far) }

func (c *credentials) follow(ctx context.Context, all map[[sha256.Size]byte]*credential) {
	var checking sync.WaitGroup
	defer checking.Wait()
	guard.Every(ctx, lookEvery, func(time.Time) {
		c.readAgain()
		for _, one := range c.dueOf(all, time.Now()) {
			checking.Go(func() {
				_ = c.guard.Call("API/a credential", errCheckBroke, func() error { // it is checked again when it is due
					defer c.wasChecked(one)
					c.checkInTurn(ctx, one)
					return nil
				})
			})
		}
	})
}

var errCheckBroke = errors.New("the check of a credential was broken off by a mistake of Berth's")

// readAgain has those checked that are believed by a configuration of before.
func (c *credentials) readAgain() {
	readings := c.users.Readings()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.readings == readings {
		return
	}
	c.readings = readings
	soon := time.Now().Add(issuersBegin)
	for _, one := range c.far {
		if one.due.After(soon) {
			one.due = soon
		}
	}
}

// dueOf are those that are checked now, what waits longest first. Whoever has one calls wasChecked.
func (c *credentials) dueOf(all map[[sha256.Size]byte]*credential, now time.Time) (due []*credential) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, one := range all {
		if !one.due.After(now) && !one.checked {
			due = append(due, one)
		}
	}
	slices.SortFunc(due, func(a, b *credential) int { return a.due.Compare(b.due) })
	for _, one := range due {
		one.due, one.checked = one.next(now), true
		if c.checks[one.voucher] == nil {
			c.checks[one.voucher] = &checks{places: make(chan struct{}, checksAtOnce)}
		}
		c.checks[one.voucher].n++
	}
	return due
}

// checkInTurn checks a credential when there is a place for it; what has ended by its own word needs none.
func (c *credentials) checkInTurn(ctx context.Context, one *credential) {
	if !one.over(time.Now()) {
		c.mu.Lock()
		places := c.checks[one.voucher].places
		c.mu.Unlock()
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return
		}
	}
	c.check(ctx, one)
}

func (c *credentials) wasChecked(one *credential) {
	c.mu.Lock()
	defer c.mu.Unlock()
	one.checked = false
	if of := c.checks[one.voucher]; of.n == 1 {
		delete(c.checks, one.voucher)
	} else {
		of.n--
	}
}

// over: it has ended by its own word, whatever is said of it elsewhere.
func (one *credential) over(now time.Time) bool {
	return one.far && len(one.ends) > 0 && !now.Before(one.ends[len(one.ends)-1])
}

// next is when a credential is checked that is checked now.
func (one *credential) next(now time.Time) time.Time {
	next := now.Add(one.every)
	for _, end := range one.ends {
		if end.After(now) && end.Before(next) {
			next = end
		}
	}
	return next
}

// check ends what lasts if its credential shows nobody any more, or somebody else. Where somebody would have to be asked
// who does not answer, it goes on; nobody is asked of what has ended by its own word.
func (c *credentials) check(ctx context.Context, one *credential) {
	if one.over(time.Now()) {
		c.end(one, func(*lastingRequest) bool { return true })
		return
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	authenticate := c.here
	if one.far {
		authenticate = c.authenticate
	}
	who, ok, err := authenticate.AuthenticateRequest(one.shown.again(ctx))
	if ctx.Err() != nil || one.far && errors.Is(err, users.ErrAway) {
		return
	}
	c.end(one, func(l *lastingRequest) bool { return err != nil || !ok || isAnother(l.who, who.User) })
}

// end ends what lasts by a credential.
func (c *credentials) end(one *credential, which func(l *lastingRequest) bool) {
	var over []*lastingRequest
	c.mu.Lock()
	for l := range one.lasting {
		if which(l) {
			over = append(over, l)
		}
	}
	c.mu.Unlock()
	for _, l := range over {
		l.end()
	}
}

// isAnother: a user is not, or not all of, what he was.
func isAnother(was, is user.Info) bool {
	return was.GetName() != is.GetName() || was.GetUID() != is.GetUID() ||
		slices.ContainsFunc(was.GetGroups(), func(g string) bool { return !slices.Contains(is.GetGroups(), g) })
}

// maxTokenBytes bounds a bearer token: everybody is heard who shows one, and to read it takes time by its length.
const maxTokenBytes = 16 << 10

// checkToken refuses who shows a longer one.
func checkToken(req *http.Request) error {
	for _, name := range []string{"Authorization", "Sec-Websocket-Protocol"} {
		for _, shown := range req.Header[name] {
			if len(shown) > maxTokenBytes {
				return apierrors.NewUnauthorized(fmt.Sprintf("the header %s has %d bytes, and may have %d", name, len(shown), maxTokenBytes))
			}
		}
	}
	return nil
}
