package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

// userOf is a person's way to a server.
func (c *cluster) userOf(t *testing.T, p *fleet.Process, name string, groups ...string) kubernetes.Interface {
	t.Helper()
	files, err := pki.Issue(filepath.Join(c.Dir, "ca"), pki.Request{Kind: pki.Client, Name: name, Groups: groups}, true)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(p.RESTConfig())
	config.CertFile, config.KeyFile = files.Cert, files.Key
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// People have the roles that they are given, at every server, over the death of the leader: a viewer, an
// editor of one namespace, a service account by its pod's token.
func TestRoles(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "roles")
	can := func(who string, want bool, what ...string) {
		t.Helper()
		c.eventually(t, fmt.Sprintf("%s: can-i %s: %v", who, strings.Join(what, " "), want), func(context.Context) error {
			args := append([]string{"auth", "can-i", "--as", who, "-n", ns}, what...)
			r := run(t, c.env, "", args...) // its exit status says no
			if got := strings.TrimSpace(r.out) == "yes"; got != want {
				return fmt.Errorf("%s%s", r.out, r.err)
			}
			return nil
		})
	}
	can("vera", false, "list", "pods")
	c.berth(t, "create", "rolebinding", "vera", "--clusterrole=view", "--user=vera", "-n", ns)
	c.berth(t, "create", "rolebinding", "edith", "--clusterrole=edit", "--user=edith", "-n", ns)
	can("vera", true, "list", "pods") // once the aggregated role has its rules
	can("vera", true, "get", "queueentries.berth.dev")
	can("vera", false, "create", "pods")
	can("edith", true, "create", "deployments.apps")
	can("edith", false, "create", "rolebindings")
	has(t, "can-i --list", c.berth(t, "auth", "can-i", "--list", "--as", "vera", "-n", ns), "selfsubjectreviews.authentication.k8s.io", "pods/log")
	has(t, "get clusterroles", c.berth(t, "get", "clusterroles"), "cluster-admin", "berth:status", "CREATED AT")
	has(t, "reconcile", c.berthIn(t, roleManifest(ns), "auth", "reconcile", "-f", "-"), "role.rbac.authorization.k8s.io/guest reconciled")
	has(t, "apply", c.berthIn(t, roleManifest(ns), "apply", "--server-side", "--force-conflicts", "-f", "-"), "guest serverside-applied")

	leader := c.waitLeader(t)
	t.Cleanup(func() {
		if !leader.Running() {
			c.restart(t, leader)
		}
	})
	follower := c.followers(t)[0]
	vera, edith := c.userOf(t, follower, "vera", "people"), c.userOf(t, follower, "edith", "people")
	if _, err := vera.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := vera.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v", err)
	}
	p := pod(ns, "worker", "exec sleep 1000")
	create(t, edith, p)
	if _, err := edith.CoreV1().Pods("default").Create(t.Context(), pod("default", "roles", "true"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("in another namespace: %v", err)
	}
	watch, err := vera.CoreV1().ConfigMaps(ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	// The pod's service account may what it is bound to.
	c.waitRunning(t, ns, "worker")
	token := strings.TrimSpace(c.berth(t, "create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name=worker", "-n", ns))
	config := rest.AnonymousClientConfig(follower.RESTConfig())
	config.BearerToken = token
	account, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := account.CoreV1().Pods(ns).Get(t.Context(), "worker", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a service account without roles: %v", err)
	}
	c.berth(t, "create", "rolebinding", "account", "--clusterrole=view", "--serviceaccount="+ns+":default", "-n", ns)
	if _, err := account.CoreV1().Pods(ns).Get(t.Context(), "worker", metav1.GetOptions{}); err != nil {
		t.Errorf("a right that was given is known to every server: %v", err)
	}

	leader.Kill()
	c.waitLeader(t)
	c.eventually(t, "the roles to hold on", func(ctx context.Context) error {
		_, err := edith.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "after"}}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil
		}
		return err
	})
	can("vera", false, "create", "pods")
	// What ends is refused everywhere, and the watch that it allowed ends.
	c.berth(t, "delete", "rolebinding", "vera", "-n", ns)
	c.eventually(t, "the right to end", func(ctx context.Context) error {
		if _, err := vera.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{ResourceVersion: "0"}); !apierrors.IsForbidden(err) {
			return fmt.Errorf("vera still may: %v", err)
		}
		return nil
	})
	c.eventually(t, "the watch to end", func(ctx context.Context) error {
		for {
			select {
			case _, open := <-watch.ResultChan():
				if !open {
					return nil
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	c.restart(t, leader)
	c.verify(t, 3)
}

func roleManifest(ns string) string {
	return fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: guest, namespace: %s}
rules:
- {apiGroups: [""], resources: [pods], verbs: [get]}
`, ns)
}
