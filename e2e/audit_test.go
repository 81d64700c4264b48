package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/operator"
)

// accounts reads what the servers have kept of requests.
func accounts(t *testing.T, dir string) []auditv1.Event {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil {
		t.Fatal(err)
	}
	var all []auditv1.Event
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			var e auditv1.Event
			if !strings.HasSuffix(line, "\n") {
				continue // it is being written
			}
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				t.Fatalf("%s: %s: %v", file, line, err)
			}
			all = append(all, e)
		}
	}
	return all
}

// Every request is told of once, by the server that was asked: what people do, what they may not, what
// operators and controllers do, and who enters a pod.
func TestAuditTrail(t *testing.T) {
	dir := t.TempDir()
	var specs []fleet.Spec
	for i := range 3 {
		name := fmt.Sprintf("server-%d", i+1)
		specs = append(specs, server(name, "bootstrap_expect = 3", fmt.Sprintf("audit {\n log { path = %q }\n}", filepath.Join(dir, name+".log"))))
	}
	c := newCluster(t, append(specs, worker("w1"))...)
	c.waitLeader(t)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	ns := c.namespace(t, "audit")
	follower := c.followers(t)[0]
	ada := c.userOf(t, follower, "ada", "system:masters")
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"key": "not-to-be-told"}}
	if _, err := ada.CoreV1().Secrets(ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.userOf(t, follower, "eve", "people").CoreV1().Secrets(ns).Get(t.Context(), "hidden", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("eve reads a secret: %v", err)
	}
	if _, err := bearer(t, follower, "made-up").CoreV1().Secrets(ns).Get(t.Context(), "hidden", metav1.GetOptions{}); !apierrors.IsUnauthorized(err) {
		t.Errorf("a made up token: %v", err)
	}
	c.berthIn(t, `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 0
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: none, command: [sleep, "1000"]}]}
`, "create", "-n", ns, "-f", "-")
	create(t, ada, pod(ns, "entered", "exec sleep 1000"))
	c.waitRunning(t, ns, "entered")
	has(t, "exec", c.berth(t, "exec", "-n", ns, "entered", "--", "echo", "inside"), "inside")
	c.berth(t, "operator", "transfer-leader")
	c.waitLeader(t)

	type want struct {
		user, verb, resource, subresource, name, path string
		code                                          int32
	}
	wants := []want{
		{user: "ada", verb: "create", resource: "secrets", name: "hidden", code: 201},
		{user: "eve", verb: "get", resource: "secrets", name: "hidden", code: 403},
		{user: "", verb: "get", resource: "secrets", name: "hidden", code: 401},
		{user: "ada", verb: "create", resource: "deployments", name: "web", code: 201},
		{user: "system:controller:deployment", verb: "create", resource: "replicasets", code: 201},
		{user: "ada", resource: "pods", subresource: "exec", name: "entered", code: 101},
		{user: "ada", verb: "post", path: operator.PathTransferLeader, code: 200},
	}
	c.eventually(t, "the accounts", func(context.Context) error {
		all := accounts(t, dir)
		for _, w := range wants {
			n := 0
			for _, e := range all {
				o := e.ObjectRef
				if o == nil {
					o = &auditv1.ObjectReference{}
				}
				stage := auditv1.StageResponseComplete
				if w.code == http.StatusUnauthorized {
					stage = auditv1.StageResponseStarted // Kubernetes tells of it then
				}
				if e.Stage != stage || e.ResponseStatus == nil || e.ResponseStatus.Code != w.code || e.User.Username != w.user {
					continue
				}
				if (w.verb == "" || e.Verb == w.verb) && o.Resource == w.resource && o.Subresource == w.subresource &&
					(w.name == "" || o.Name == w.name) && (w.resource == "" || o.Namespace == ns) && (w.path == "" || strings.HasPrefix(e.RequestURI, w.path)) {
					n++
				}
			}
			if n != 1 {
				return fmt.Errorf("%+v is told of %d times", w, n)
			}
		}
		return nil
	})
	files, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, f := range files {
		if data, err := os.ReadFile(f); err != nil || strings.Contains(string(data), "not-to-be-told") || strings.Contains(string(data), "bm90LXRvLWJlLXRvbGQ") {
			t.Errorf("%s: %v: it tells a secret", f, err)
		}
	}
}
