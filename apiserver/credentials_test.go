package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/apiserver/users"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/pki"
)

// watches is a watch of the pods of default, which has begun.
func watches(t *testing.T, c kubernetes.Interface) watch.Interface {
	t.Helper()
	w, err := c.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	return w
}

// over waits until a watch has ended; others goes on.
func over(t *testing.T, w watch.Interface) {
	t.Helper()
	late := time.NewTimer(60 * time.Second)
	defer late.Stop()
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return
			}
		case <-late.C:
			t.Fatal("the watch goes on")
		}
	}
}

// goesOn makes a pod and waits until a watch tells of it.
func goesOn(t *testing.T, w watch.Interface, by kubernetes.Interface, pod string) {
	t.Helper()
	if _, err := by.CoreV1().Pods("default").Create(t.Context(), testPod(pod), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Name == pod {
			return
		}
	}
	t.Fatal("a watch has ended whose credential is good")
}

func newAccount(t *testing.T, by kubernetes.Interface, name string) {
	t.Helper()
	if _, err := by.CoreV1().ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// tokenOf makes a pod of an account, on a node if it is given, and gives a token that is bound to it.
func tokenOf(t *testing.T, by kubernetes.Interface, pod, account, node string) string {
	t.Helper()
	p := testPod(pod)
	p.Spec.ServiceAccountName, p.Spec.NodeName = account, node
	p, err := by.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := by.CoreV1().ServiceAccounts("default").CreateToken(t.Context(), account, boundTo(p), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// TestWhatLastsEndsWithItsToken: with its pod, its account, its line in the file of tokens; and not with another's.
func TestWhatLastsEndsWithItsToken(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens.csv")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const bob = "secret-of-bob,bob,2,people\n"
	write("secret-of-ann,ann,1,people\n" + bob)
	s := start(t, newDouble(t), func(c *Config) { c.Users = users.Sources{TokenFile: file} })
	s.withKey(t, nil)
	root, ctx := s.client(t), t.Context()
	for _, name := range []string{"stays", "goes"} {
		newAccount(t, root, name)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	ofPod, ofAccount, ofStaying := watches(t, s.as(t, tokenOf(t, root, "gone", "stays", ""))),
		watches(t, s.as(t, tokenOf(t, root, "kept", "goes", ""))), watches(t, s.as(t, tokenOf(t, root, "staying", "stays", "")))
	ofAnn, ofBob := watches(t, s.as(t, "secret-of-ann")), watches(t, s.as(t, "secret-of-bob"))
	if err := root.CoreV1().Pods("default").Delete(ctx, "gone", now); err != nil {
		t.Fatal(err)
	}
	over(t, ofPod)
	if err := root.CoreV1().ServiceAccounts("default").Delete(ctx, "goes", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	over(t, ofAccount)
	write(bob)
	over(t, ofAnn)
	goesOn(t, ofStaying, root, "more")
	goesOn(t, ofBob, root, "still-more")
	write("secret-of-bob,bob,2,others\n")
	over(t, ofBob) // he is not of people any more
	s.withKey(t, func(k *fsm.AddSigningKey) { k.Revoke = true })
	over(t, ofStaying)
	c := s.standing.credentials
	eventually(t, "nothing is kept of what has ended", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return len(c.near)+len(c.far)+len(c.hanging) == 0
	})
}

// TestWhatLastsEndsWithItsCertificate, and requests on a connection that is older than its end are refused.
func TestWhatLastsEndsWithItsCertificate(t *testing.T) {
	s := start(t, newDouble(t), nil)
	config := s.configOf(t, pki.Request{Kind: pki.Client, Name: "ann", Validity: 6 * time.Second})
	others := watches(t, s.clientOf(t, "bob"))
	// One connection for all that is asked.
	pair, err := tls.X509KeyPair(config.CertData, config.KeyData)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.caPEM)
	connections := 0
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1, ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: pki.ServerDNSName, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			connections++
			return &pair, nil
		},
	}}}
	defer client.CloseIdleConnections()
	get := func() int {
		resp, err := client.Get("https://" + s.Addr().String() + "/api/v1/namespaces/default/pods")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		return resp.StatusCode
	}
	if code := get(); code != http.StatusOK {
		t.Fatalf("while it is good: %d", code)
	}
	w := watches(t, clientFor(t, config))
	over(t, w)
	if code := get(); code != http.StatusUnauthorized || connections != 1 {
		t.Errorf("it is over: %d, by %d connections", code, connections)
	}
	goesOn(t, others, s.client(t), "more")
}

// revoke makes certificates of a node worthless that were issued until a time.
func revoke(t *testing.T, by kubernetes.Interface, node string, until time.Time) {
	t.Helper()
	leases, at := by.CoordinationV1().Leases(metav1.NamespaceSystem), metav1.NewMicroTime(until)
	l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: fsm.RevocationName(node)}, Spec: coordinationv1.LeaseSpec{RenewTime: &at}}
	_, err := leases.Create(t.Context(), l, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		before, readErr := leases.Get(t.Context(), l.Name, metav1.GetOptions{})
		if readErr != nil {
			t.Fatal(readErr)
		}
		l.ResourceVersion = before.ResourceVersion
		_, err = leases.Update(t.Context(), l, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// TestTokensOfARevokedNode: tokens of its pods that were made before count no more than its certificate, and what lasts by
// one ends; those of other nodes' pods do.
func TestTokensOfARevokedNode(t *testing.T) {
	s := start(t, newDouble(t), nil)
	s.withKey(t, nil)
	root := s.client(t)
	s.node(t, "n1")
	s.node(t, "n2")
	newAccount(t, root, "app")
	n1, n2 := s.as(t, tokenOf(t, root, "one", "app", "n1")), s.as(t, tokenOf(t, root, "two", "app", "n2"))
	ask := func(c kubernetes.Interface) error {
		_, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		return err
	}
	revoke(t, root, "n1", time.Now().Add(-time.Hour))
	if err := ask(n1); err != nil {
		t.Errorf("the token was made after the revocation: %v", err)
	}
	w, others := watches(t, n1), watches(t, n2)
	revoke(t, root, "n1", time.Now().Add(time.Minute))
	if err := ask(n1); !apierrors.IsUnauthorized(err) {
		t.Errorf("its node is revoked: %v", err)
	}
	over(t, w)
	if err := ask(n2); err != nil {
		t.Error(err)
	}
	goesOn(t, others, root, "more")
}

// TestRevokedNodeOfMoreGroups: a node is revoked whatever other groups its certificate has.
func TestRevokedNodeOfMoreGroups(t *testing.T) {
	s := start(t, newDouble(t), nil)
	root := s.client(t)
	s.node(t, "n1")
	n1 := s.clientOf(t, "system:node:n1", "system:nodes", "more")
	get := func() error {
		_, err := n1.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err
	}
	if err := get(); err != nil {
		t.Fatal(err)
	}
	revoke(t, root, "n1", time.Now().Add(time.Minute))
	wantStatus(t, get(), 403, "the certificate of this node is revoked")
}

// TestCredentialsOfElsewhere: what somebody else vouches for goes on while he cannot be asked, and ends when he says no.
func TestCredentialsOfElsewhere(t *testing.T) {
	var said error
	asked := 0
	known, err := users.Open(users.Config{Logger: hclog.NewNullLogger(), Accounts: authenticator.TokenFunc(
		func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil })})
	if err != nil {
		t.Fatal(err)
	}
	defer known.Close()
	c := newCredentials(authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		asked++
		if r.Header.Get("Authorization") != "Bearer x" {
			t.Errorf("it shows %q", r.Header)
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "eve"}}, said == nil, said
	}), known, nil)
	shows := &shown{authorization: []string{"Bearer x"}, who: &user.DefaultInfo{Name: "eve"}}
	ctx := context.WithValue(t.Context(), shownKey{}, shows)
	var all [3]*lastingRequest
	for i := range all {
		l := &lastingRequest{}
		l.ctx, l.end = context.WithCancel(ctx)
		defer l.end()
		defer c.hold(ctx, l)()
		all[i] = l
	}
	look := func(at time.Time) {
		for _, one := range c.dueOf(c.far, at) {
			c.check(t.Context(), one)
			c.wasChecked(one)
		}
	}
	began := time.Now()
	look(began)
	look(began.Add(farEvery - 1))
	if asked != 1 {
		t.Errorf("asked %d times for what three requests show", asked)
	}
	said = users.ErrAway
	look(began.Add(farEvery))
	for _, l := range all {
		if l.ctx.Err() != nil {
			t.Error("one has ended because nobody answers")
		}
	}
	said = context.Canceled // any other word
	look(began.Add(2 * farEvery))
	for _, l := range all {
		if l.ctx.Err() == nil {
			t.Error("one goes on")
		}
	}
}

// lasts is a request that has begun to last by a token.
func lasts(t *testing.T, c *credentials, token string) *lastingRequest {
	t.Helper()
	l := &lastingRequest{}
	ctx := context.WithValue(t.Context(), shownKey{}, &shown{authorization: []string{"Bearer " + token}, who: &user.DefaultInfo{Name: "eve"}})
	l.ctx, l.end = context.WithCancel(ctx)
	release := c.hold(ctx, l)
	context.AfterFunc(l.ctx, release)
	return l
}

// farCredentials are checked by what somebody elsewhere says.
func farCredentials(t *testing.T, says authenticator.TokenFunc) *credentials {
	t.Helper()
	known, err := users.Open(users.Config{Logger: hclog.NewNullLogger(), Accounts: authenticator.TokenFunc(
		func(context.Context, string) (*authenticator.Response, bool, error) { return nil, false, nil })})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(known.Close)
	c := newCredentials(bearertoken.New(says), known, nil)
	var running sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	running.Go(func() { c.runFar(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return c
}

// TestWhoDoesNotAnswerHoldsUpNobodyElse: what one vouches for who takes his time is asked about in parts, and another's word is heard
// meanwhile.
func TestWhoDoesNotAnswerHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		slow, most := 0, 0
		var mu sync.Mutex
		c := farCredentials(t, func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
			if !strings.HasPrefix(token, "slow") {
				return nil, false, errors.New("taken back")
			}
			mu.Lock()
			slow++
			most = max(most, slow)
			mu.Unlock()
			<-ctx.Done()
			mu.Lock()
			defer mu.Unlock()
			slow--
			return nil, false, ctx.Err()
		})
		var held []*lastingRequest
		for i := range 3 * checksAtOnce {
			held = append(held, lasts(t, c, fmt.Sprint("slow", i)))
		}
		c.mu.Lock()
		for _, one := range c.far {
			one.issuer = "https://slow"
		}
		c.mu.Unlock()
		<-time.After(2 * lookEvery)
		taken := lasts(t, c, "quick")
		<-time.After(2 * lookEvery)
		synctest.Wait()
		if taken.ctx.Err() == nil {
			t.Error("what was taken back goes on while another is asked")
		}
		<-time.After(10 * checkTimeout)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if most != checksAtOnce {
			t.Errorf("%d were asked about at once", most)
		}
		for _, l := range held {
			if l.ctx.Err() != nil {
				t.Error("one has ended because nobody answers")
			}
			l.end()
		}
		synctest.Wait()
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.far) != 0 {
			t.Errorf("%d are kept of what has ended", len(c.far))
		}
	})
}

// TestATokenThatHasEndedByItself: nobody has to be asked whether it has, nor answer. One that was believed when it was past its end is
// good by the word of who believes it.
func TestATokenThatHasEndedByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]time.Time{}
		var mu sync.Mutex
		c := farCredentials(t, func(_ context.Context, token string) (*authenticator.Response, bool, error) {
			mu.Lock()
			defer mu.Unlock()
			asked[token] = time.Now()
			return nil, false, users.ErrAway
		})
		until := func(end time.Time) string {
			part := base64.RawURLEncoding.EncodeToString
			return part([]byte(`{"alg":"RS256"}`)) + "." + part(fmt.Appendf(nil, `{"exp":%d}`, end.Unix())) + "." + part([]byte("s"))
		}
		end := time.Now().Add(10 * time.Minute)
		ends, past, opaque := lasts(t, c, until(end)), lasts(t, c, until(end.Add(-time.Hour))), lasts(t, c, "opaque")
		<-time.After(10*time.Minute - 1)
		synctest.Wait()
		if ends.ctx.Err() != nil {
			t.Error("a token that is good has ended because nobody answers")
		}
		<-time.After(2 * time.Minute)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if ends.ctx.Err() == nil {
			t.Error("a token that has ended by itself goes on because nobody answers")
		}
		if at := asked[until(end)]; at.After(end.Add(time.Minute + time.Second)) {
			t.Errorf("it was asked about %s after its end", at.Sub(end))
		}
		for _, l := range []*lastingRequest{past, opaque} {
			if l.ctx.Err() != nil {
				t.Error("one has ended that is good by another's word")
			}
			l.end()
		}
		synctest.Wait()
	})
}
