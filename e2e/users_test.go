package e2e

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/apiserver/users/issuertest"
)

// reviewer says of one token that it is eve's, and nothing to whom he does not know.
func reviewer(w http.ResponseWriter, r *http.Request) {
	exchange(w, r, func(review *authenticationv1.TokenReview) bool {
		switch review.Spec.Token {
		case "eves":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "eve", Groups: []string{"far"}}}
		case "a worker's":
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "berth:worker:w1", Groups: []string{"berth:workers"}}}
		}
		return r.Header.Get("Authorization") == "Bearer "+farSecret && review.Kind == "TokenReview" && r.URL.Path == "/review"
	})
}

// Users come by a file of tokens, by an issuer and by somebody who reviews tokens, all at one server that is not restarted: the
// file is followed, whoever reviews is asked each time, and when he is not there his users are nobody, and nobody else.
func TestUsersOfAllKinds(t *testing.T) {
	dir := t.TempDir()
	tokens, configuration := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "authentication.yaml")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const anns, bobs = "anns,ann,1,\"people,dev\"\n", "bobs,bob,2,people\n"
	issuer, hook := issuertest.Start(t), newFar(t, reviewer)
	write(tokens, anns)
	write(configuration, believing(issuer))
	spec := server("s1", "bootstrap_expect = 1")
	spec.HCL += fmt.Sprintf("auth {\n  token_file = %q\n  config_file = %q\n  webhook {\n    config_file = %q\n    cache_ttl = \"0s\"\n  }\n}\n",
		tokens, configuration, hook.kubeconfig(t, "/review"))
	c := newCluster(t, spec)
	s := c.waitLeader(t)
	ann, bob, eve := bearer(t, s, "anns"), bearer(t, s, "bobs"), bearer(t, s, "eves")
	sue := bearer(t, s, issuer.Token(map[string]any{"sub": "sue", "aud": "berth", "verified": true, "tenant": "ours", "id": "1", "team": "red"}))
	is := func(kube kubernetes.Interface, want string) {
		t.Helper()
		c.eventually(t, "somebody to be "+want, func(ctx context.Context) error {
			who, err := whoami(ctx, kube)
			if err == nil && who != want {
				err = fmt.Errorf("it is %q", who)
			}
			return err
		})
	}
	nobody := func(what string, kube kubernetes.Interface) {
		t.Helper()
		c.eventually(t, what+" to be nobody's", func(ctx context.Context) error { return isNobody(ctx, kube) })
	}
	is(ann, "ann people dev system:authenticated")
	is(sue, "sso:sue system:authenticated")
	is(eve, "eve far system:authenticated")
	for what, token := range map[string]string{"a token of nobody": "nobodys", "one of somebody else's user": "a worker's", "one that is not there yet": "bobs"} {
		if err := isNobody(t.Context(), bearer(t, s, token)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}

	c.berth(t, "create", "rolebinding", "users", "--clusterrole=view", "--user=ann", "--user=bob", "--user=eve", "-n", "default")
	write(tokens, anns+bobs)
	is(bob, "bob people system:authenticated")
	watches := map[string]<-chan watch.Event{}
	for name, kube := range map[string]kubernetes.Interface{"ann": ann, "bob": bob, "eve": eve} {
		c.eventually(t, name+" to watch", func(context.Context) error {
			w, err := kube.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
			if err == nil {
				t.Cleanup(w.Stop)
				watches[name] = w.ResultChan()
			}
			return err
		})
	}
	write(tokens, anns+"bobs,bob\n") // it is wrong, and what it said before counts
	c.eventually(t, "the file to be found wrong", func(ctx context.Context) error {
		if who, err := whoami(ctx, bob); err != nil || who != "bob people system:authenticated" {
			t.Errorf("bob is %q (%v)", who, err)
		}
		return logged(s, "the token file has changed and cannot be read")
	})
	write(tokens, "anns,ann,1,people\n")
	nobody("bob's token", bob)
	is(ann, "ann people system:authenticated")
	for _, name := range []string{"ann", "bob"} { // she has lost a group, and he all
		c.eventually(t, "the watch of "+name+" to end", func(ctx context.Context) error { return through(ctx, watches[name], "") })
	}

	hook.gone()
	nobody("eve's token", eve)
	is(ann, "ann people system:authenticated")
	is(sue, "sso:sue system:authenticated")
	if _, err := s.Kube.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "meanwhile"}}, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	c.eventually(t, "the watch of eve to go on", func(ctx context.Context) error { return through(ctx, watches["eve"], "meanwhile") })
	hook.back()
	is(eve, "eve far system:authenticated")
}

// logged is an error until somebody has logged a text.
func logged(p *fleet.Process, text string) error {
	log, err := os.ReadFile(p.Log)
	if err == nil && !strings.Contains(string(log), text) {
		err = fmt.Errorf("%s has not logged %q", p.Name, text)
	}
	return err
}

// through goes through a watch to an object, or to the watch's end where none is named.
func through(ctx context.Context, events <-chan watch.Event, name string) error {
	for {
		select {
		case e, open := <-events:
			o, ok := e.Object.(metav1.Object)
			switch {
			case !open && name == "", ok && o.GetName() == name:
				return nil
			case !open:
				return fmt.Errorf("it ended before %s", name)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
