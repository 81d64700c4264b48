package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/raftlog"
)

// auditPolicy has a level of each kind: nothing of what is public and of what controllers look at, and the more of the rest
// the less it is to be hidden.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
omitManagedFields: true
rules:
- {level: None, nonResourceURLs: ["/healthz*", "/livez*", "/readyz*", "/version", "/metrics", "/api*", "/apis*", "/openapi*", "/berth/v1/status"]}
- {level: None, userGroups: ["berth:controllers"], verbs: [get, list, watch]}
- {level: None, users: [quiet]}
- {level: Metadata, resources: [{group: "", resources: [secrets, serviceaccounts/token]}]}
- {level: Request, namespaces: [told], resources: [{group: "", resources: [configmaps]}]}
- {level: RequestResponse, resources: [{group: "", resources: [pods]}]}
- {level: Metadata}
`

// collected are the accounts that a webhook was sent.
type collected struct {
	mu     sync.Mutex
	events []auditv1.Event
}

func (c *collected) take(w http.ResponseWriter, r *http.Request) {
	exchange(w, r, func(list *auditv1.EventList) bool {
		if r.Header.Get("Authorization") != "Bearer "+farSecret || list.Kind != "EventList" {
			return false
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.events = append(c.events, list.Items...)
		return true
	})
}

// told are accounts by what makes each another one than all others.
func told(t *testing.T, events []auditv1.Event) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, e := range events {
		e.TypeMeta = metav1.TypeMeta{} // in a list the items have none
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%s %s", e.AuditID, e.Stage)
		if _, twice := all[key]; twice {
			t.Errorf("%s is told of twice: %s", key, text)
		}
		all[key] = string(text)
	}
	return all
}

// The policy's levels, a file and a webhook at once, and the log of commands: all tell of the same requests by the same users.
// Nobody waits for a webhook that hangs or is not there.
func TestAuditByPolicy(t *testing.T) {
	dir := t.TempDir()
	sent := &collected{}
	hook := newFar(t, sent.take)
	c := newAuditedCluster(t, dir, hook)
	s := c.Servers()[0]
	ada, quiet := c.userOf(t, s, "ada", "system:masters"), c.userOf(t, s, "quiet", "system:masters")
	if _, err := ada.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "told"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.audited(t, ada, quiet)
	kept := func() []auditv1.Event { return accounts(t, dir) }
	both := func(context.Context) error {
		sent.mu.Lock()
		defer sent.mu.Unlock()
		if n := len(kept()); n != len(sent.events) {
			return fmt.Errorf("the file has %d, and the webhook %d", n, len(sent.events))
		}
		return nil
	}

	// While the webhook hangs, and then is not there, requests are answered; what waits arrives when it is back.
	write := func(name string) {
		t.Helper()
		if _, err := ada.CoreV1().ConfigMaps("told").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	hook.hang()
	write("waits")
	c.eventually(t, "the webhook to be waited for", func(context.Context) error {
		if !hook.waited() {
			return errors.New("nobody has sent it anything")
		}
		return nil
	})
	for i := range 20 {
		write(fmt.Sprint("hangs-", i))
	}
	hook.gone()
	for i := range 20 {
		write(fmt.Sprint("gone-", i))
	}
	hook.back()
	c.eventually(t, "what has waited to arrive", both)
	has(t, "metrics", c.berth(t, "get", "--raw", "/metrics"), "berth_audit_events_lost_total 0\n")
	s.Signal(syscall.SIGTERM)
	<-s.Exited()

	events := kept()
	here, there := told(t, events), told(t, sent.events)
	for key, line := range here {
		if there[key] != line {
			t.Errorf("the file has\n%s\nthe webhook\n%s", line, there[key])
		}
	}
	if len(there) != len(here) {
		t.Errorf("the file has %d accounts, the webhook %d", len(here), len(there))
	}
	levels(t, events)
	agree(t, events, proposals(t, filepath.Join(s.DataDir, "server")))
}

func newAuditedCluster(t *testing.T, dir string, hook *far) *cluster {
	t.Helper()
	policy := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	c := newCluster(t, server("s1", "bootstrap_expect = 1", fmt.Sprintf(`audit {
  policy_file = %q
  log { path = %q }
  webhook {
    config_file = %q
    max_batch   = 7
    max_wait    = "1s"
  }
}`, policy, filepath.Join(dir, "s1.log"), hook.kubeconfig(t, "/accounts"))))
	c.waitLeader(t)
	return c
}

// hidden is in a secret, and in no account.
const hidden = "nobody-tells-this"

// audited are requests of every kind: by people, as somebody else, refused ones, and what controllers do about them.
func (c *cluster) audited(t *testing.T, ada, quiet kubernetes.Interface) {
	t.Helper()
	ctx := t.Context()
	check := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	core := ada.CoreV1()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"key": hidden}}
	check(core.Secrets("told").Create(ctx, secret, metav1.CreateOptions{}))
	check(core.Secrets("told").Patch(ctx, "hidden", types.MergePatchType, []byte(`{"stringData":{"more":"`+hidden+`"}}`), metav1.PatchOptions{}))
	check(core.Secrets("told").List(ctx, metav1.ListOptions{}))
	check(quiet.CoreV1().Secrets("told").Get(ctx, "hidden", metav1.GetOptions{}))
	for _, name := range []string{"plain", "other"} {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"some": "yes"}}, Data: map[string]string{"colour": "blue"}}
		check(core.ConfigMaps("told").Create(ctx, o, metav1.CreateOptions{}))
	}
	check(core.ConfigMaps("told").Patch(ctx, "plain", types.MergePatchType, []byte(`{"data":{"colour":"red"}}`), metav1.PatchOptions{}))
	if _, err := core.ConfigMaps("told").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "plain"}}, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Errorf("it is made twice: %v", err)
	}
	check(nil, core.ConfigMaps("told").DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{LabelSelector: "some"}))
	check(core.Pods("told").Create(ctx, pod("told", "pending", "true"), metav1.CreateOptions{}))
	check(core.Pods("told").Patch(ctx, "pending", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{}))
	check(nil, core.Pods("told").Delete(ctx, "pending", metav1.DeleteOptions{}))
	vera := func(args ...string) result { return run(t, c.env, "", append(args, "--as=vera", "-n", "told")...) }
	if r := vera("create", "configmap", "veras"); r.code == 0 {
		t.Error("vera has no role, and makes a config map")
	}
	c.berth(t, "create", "rolebinding", "vera", "--clusterrole=edit", "--user=vera", "-n", "told")
	c.eventually(t, "vera to make something", func(context.Context) error {
		if r := vera("create", "configmap", "veras"); r.code != 0 {
			return errors.New(r.err)
		}
		return nil
	})
	c.berth(t, "create", "token", "default", "-n", "told")
	c.berthIn(t, `{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicas: 2, selector: {matchLabels: {app: web}}, template: {metadata: {labels: {app: web}},
  spec: {containers: [{name: c, image: none}]}}}}`, "create", "-n", "told", "-f", "-")
	c.eventually(t, "the pods of web", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Pods("told").List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err == nil && len(list.Items) != 2 {
			err = fmt.Errorf("there are %d", len(list.Items))
		}
		return err
	})
}

// levels looks whether each account has what the policy says, and no more.
func levels(t *testing.T, events []auditv1.Event) {
	t.Helper()
	seen := map[auditv1.Level]int{}
	for _, e := range events {
		text, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), hidden) || strings.Contains(string(text), "bm9ib2R5LXRlbGxzLXRoaX") {
			t.Errorf("it tells a secret: %s", text)
		}
		resource, ns := "", ""
		if e.ObjectRef != nil {
			resource, ns = e.ObjectRef.Resource, e.ObjectRef.Namespace
			if e.ObjectRef.Subresource != "" {
				resource += "/" + e.ObjectRef.Subresource
			}
		}
		want := auditv1.LevelMetadata
		switch {
		case resource == "configmaps" && ns == "told":
			want = auditv1.LevelRequest
		case resource == "pods":
			want = auditv1.LevelRequestResponse
		}
		writes := e.Verb == "create" || e.Verb == "patch"
		done := e.ResponseStatus != nil && e.ResponseStatus.Code < 300
		asked := e.RequestObject != nil || want == auditv1.LevelMetadata || !writes || !done
		answered := e.ResponseObject != nil || want != auditv1.LevelRequestResponse || !writes
		more := e.RequestObject != nil && want == auditv1.LevelMetadata || e.ResponseObject != nil && want != auditv1.LevelRequestResponse
		if e.Level != want || e.Stage == auditv1.StageRequestReceived || e.User.Username == "quiet" || !asked || !answered || more {
			t.Errorf("the account is not as the policy says: %s", text)
		}
		if strings.Contains(string(text), "managedFields") {
			t.Errorf("it has managed fields: %s", text)
		}
		seen[e.Level]++
	}
	if len(seen) != 3 {
		t.Errorf("the accounts are of the levels %v", seen)
	}
}

// deed is what somebody did to an object, as an account says it: create, update or delete. Of a collection, or of what has no name yet, the name is empty.
type deed struct{ user, verb, resource, namespace, name string }

// proposals are the commands in a server's log of whoever is not the servers themselves.
func proposals(t *testing.T, dir string) (all []deed) {
	t.Helper()
	store, err := raftlog.Open(filepath.Join(dir, "raft", "log"), raftlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	first, err := store.FirstIndex()
	last, err2 := store.LastIndex()
	if err := errors.Join(err, err2); err != nil || first != 1 {
		t.Fatalf("the log begins with %d (%v)", first, err)
	}
	for i := first; i <= last; i++ {
		l := new(raft.Log)
		if err := store.GetLog(i, l); err != nil {
			t.Fatal(err)
		}
		if l.Type != raft.LogCommand {
			continue
		}
		_, ps, err := fsm.DecodeEntry(l.Data)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range ps {
			if p.User == "system:berth" {
				continue
			}
			d, err := deedOf(p.Command)
			if err != nil {
				t.Fatalf("%s proposes %T: %v", p.User, p.Command, err)
			}
			d.user = p.User
			all = append(all, d)
		}
	}
	return all
}

// deedOf says what a command does, and not who does it.
func deedOf(command fsm.Command) (deed, error) {
	writes := map[bool]string{true: "create", false: "update"}
	switch c := command.(type) {
	case *fsm.PutNamespace:
		return deed{verb: writes[c.Create], resource: "namespaces", name: c.Namespace.Object.Name}, nil
	case *fsm.AdmitPod:
		return deed{verb: "create", resource: "pods", namespace: c.Pod.Object.Namespace, name: c.Pod.Object.Name}, nil
	case *fsm.UpdatePod:
		return deed{verb: "update", resource: "pods", namespace: c.Pod.Object.Namespace, name: c.Pod.Object.Name}, nil
	case *fsm.DeletePod:
		namespace, name, _ := strings.Cut(c.Key, "/")
		return deed{verb: "delete", resource: "pods", namespace: namespace, name: name}, nil
	case *fsm.PutEvent:
		return deed{verb: writes[c.Create], resource: "events", namespace: c.Event.Object.Namespace, name: c.Event.Object.Name}, nil
	case *fsm.SetStatus:
		return deed{verb: "update", resource: c.Owner.Resource, namespace: c.Owner.Namespace, name: c.Owner.Name}, nil
	case *fsm.DeleteObject:
		return deed{verb: "delete", resource: c.Resource, namespace: c.Namespace, name: c.Name}, nil
	case *fsm.PutObject:
		kind, ok := fsm.KindOf(c.Resource)
		if !ok {
			return deed{}, fmt.Errorf("nobody knows the kind of %s", c.Resource)
		}
		o := kind.New()
		if err := o.Unmarshal(c.Raw); err != nil {
			return deed{}, err
		}
		return deed{verb: writes[c.Create], resource: c.Resource, namespace: o.GetNamespace(), name: o.GetName()}, nil
	}
	return deed{}, errors.New("nothing here makes a request of that kind")
}

// accountOf is what an account tells of; false: it is of nothing that is in the log.
func accountOf(e auditv1.Event) (d deed, ok bool) {
	d.verb, ok = map[string]string{"create": "create", "update": "update", "patch": "update", "delete": "delete", "deletecollection": "delete"}[e.Verb]
	if !ok || e.ObjectRef == nil {
		return d, false
	}
	d.user, d.resource, d.namespace, d.name = e.User.Username, e.ObjectRef.Resource, e.ObjectRef.Namespace, e.ObjectRef.Name
	if e.ImpersonatedUser != nil {
		d.user = e.ImpersonatedUser.Username
	}
	if d.resource == "namespaces" {
		d.namespace = ""
	}
	return d, !strings.HasSuffix(d.resource, "reviews") && e.ObjectRef.Subresource != "token"
}

func (d deed) matches(o deed) bool {
	if d.name == "" || o.name == "" {
		d.name, o.name = "", ""
	}
	return d == o
}

// agree looks whether each command has its account, and each account of something that was made or deleted its command, with the same user.
func agree(t *testing.T, events []auditv1.Event, logged []deed) {
	t.Helper()
	var asked, succeeded []deed
	for _, e := range events {
		d, ok := accountOf(e)
		if !ok || e.Stage != auditv1.StageResponseComplete {
			continue
		}
		asked = append(asked, d)
		if e.ResponseStatus.Code < 300 && d.verb != "update" { // an update that changes nothing need not be in the log
			succeeded = append(succeeded, d)
		}
	}
	for _, d := range logged {
		if !slices.ContainsFunc(asked, d.matches) {
			t.Errorf("the log has %+v, and no account tells of it", d)
		}
	}
	for _, d := range succeeded {
		if !slices.ContainsFunc(logged, d.matches) {
			t.Errorf("an account tells of %+v, and the log has no such command", d)
		}
	}
	for _, d := range []deed{
		{"ada", "create", "secrets", "told", "hidden"}, {"ada", "update", "secrets", "told", "hidden"}, {"ada", "update", "configmaps", "told", "plain"},
		{"ada", "delete", "configmaps", "told", "other"}, {"vera", "create", "configmaps", "told", "veras"}, {"ada", "delete", "pods", "told", "pending"},
		{"system:controller:deployment", "create", "replicasets", "told", ""},
	} {
		if !slices.ContainsFunc(logged, d.matches) || !slices.ContainsFunc(asked, d.matches) {
			t.Errorf("of %+v not both tell", d)
		}
	}
}
