package audittrail

import (
	"bufio"
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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

func open(t *testing.T, c Config) *Trail {
	t.Helper()
	if c.MaxEventBytes == 0 {
		c.MaxEventBytes = 100 << 10
	}
	trail, err := Open(c, hclog.NewNullLogger())
	if err != nil {
		t.Fatal(err)
	}
	if err := trail.Run(); err != nil {
		t.Fatal(err)
	}
	return trail
}

func event(id string, body int) *auditinternal.Event {
	return &auditinternal.Event{
		AuditID: types.UID(id), Level: auditinternal.LevelRequest, Stage: auditinternal.StageResponseComplete,
		RequestURI: "/api", Verb: "create",
		RequestObject: &runtime.Unknown{Raw: []byte(fmt.Sprintf("%q", strings.Repeat("x", body))), ContentType: runtime.ContentTypeJSON},
	}
}

func linesOf(t *testing.T, file string) []auditv1.Event {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var all []auditv1.Event
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 2<<20)
	for lines.Scan() {
		var e auditv1.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		all = append(all, e)
	}
	return all
}

// TestLog: an account is a line; what is too long loses its bodies, and nobody makes his own too long.
func TestLog(t *testing.T) {
	for _, batch := range []bool{false, true} {
		file := filepath.Join(t.TempDir(), "trail", "audit.log")
		trail := open(t, Config{Log: Log{Path: file, MaxMebibytes: 2, Batch: batch}})
		long := event("long", 200<<10)
		long.UserAgent, long.RequestURI = strings.Repeat("a", 1<<20), "/"+strings.Repeat("b", 1<<20)
		trail.Backend().ProcessEvents(event("short", 10), long)
		trail.End()
		got := linesOf(t, file)
		if len(got) != 2 || got[0].AuditID != "short" || got[0].RequestObject == nil {
			t.Fatalf("batch %t: %d lines: %+v", batch, len(got), got)
		}
		if l := got[1]; l.AuditID != "long" || l.RequestObject != nil || len(l.UserAgent) > 2<<10 || len(l.RequestURI) > 10<<10 {
			t.Errorf("batch %t: the long one has %d bytes of agent, %d of URI", batch, len(l.UserAgent), len(l.RequestURI))
		}
		if len(long.UserAgent) != 1<<20 {
			t.Error("the account itself was changed, which is gone on with")
		}
		if trail.Lost() != 0 {
			t.Errorf("%d were lost", trail.Lost())
		}
	}
}

// TestLogIsBegunAnew: files are of a size, and of a number.
func TestLogIsBegunAnew(t *testing.T) {
	dir := t.TempDir()
	trail := open(t, Config{Log: Log{Path: filepath.Join(dir, "audit.log"), MaxMebibytes: 2, MaxFiles: 100}})
	for i := range 60 {
		trail.Backend().ProcessEvents(event(fmt.Sprint(i), 90<<10))
	}
	trail.End()
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(files) < 3 {
		t.Fatalf("%v %v", files, err)
	}
	n := 0
	for _, f := range files {
		n += len(linesOf(t, f))
		if fi, err := os.Stat(f); err != nil || fi.Size() > 2<<20 {
			t.Errorf("%s: %v", fi.Name(), err)
		}
	}
	if n != 60 {
		t.Errorf("%d lines of 60", n)
	}
}

// TestDiskIsFull: accounts are lost and counted, and nobody waits or fails.
func TestDiskIsFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	trail := open(t, Config{Log: Log{Path: "/dev/full", MaxMebibytes: 2}})
	for range 10 {
		if !trail.Backend().ProcessEvents(event("x", 10)) {
			t.Fatal("the request fails")
		}
	}
	trail.End()
	if trail.Lost() != 10 {
		t.Errorf("%d are counted as lost", trail.Lost())
	}
	if _, err := Open(Config{Log: Log{Path: "/proc/none/audit.log"}}, hclog.NewNullLogger()); err == nil {
		t.Error("a server starts though its log can never be written")
	}
}

func kubeconfig(t *testing.T, url string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: %q}}]\nusers: [{name: a}]\n"+
		"contexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n", url)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestWebhook: batches arrive, whole and in order, also those that wait when the server stops.
func TestWebhook(t *testing.T) {
	var got atomic.Int64
	hook := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var list auditv1.EventList
		if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
			t.Error(err)
		}
		got.Add(int64(len(list.Items)))
	}))
	defer hook.Close()
	trail := open(t, Config{Webhook: Webhook{Kubeconfig: kubeconfig(t, hook.URL), MaxBatch: 7, MaxWait: time.Hour}})
	for i := range 100 {
		trail.Backend().ProcessEvents(event(fmt.Sprint(i), 10))
	}
	trail.End()
	if got.Load() != 100 || trail.Lost() != 0 {
		t.Errorf("%d arrived, %d were lost", got.Load(), trail.Lost())
	}
}

// TestWebhookHangs: what waits is bounded by bytes, and the server stops all the same.
func TestWebhookHangs(t *testing.T) {
	release := make(chan struct{})
	hook := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
	defer hook.Close()
	defer close(release)
	trail := open(t, Config{Webhook: Webhook{Kubeconfig: kubeconfig(t, hook.URL), MaxBatch: 400, MaxWait: time.Millisecond}})
	const each, all = 90 << 10, 2000
	for i := range all {
		trail.Backend().ProcessEvents(event(fmt.Sprint(i), each))
	}
	if least := int64(all - maxWaitingBytes/each); trail.Lost() < least {
		t.Errorf("%d were lost, so more than %d bytes wait", trail.Lost(), maxWaitingBytes)
	}
	trail.End()
	if trail.Lost() != all {
		t.Errorf("%d of %d are counted as lost", trail.Lost(), all)
	}
}

// TestDefaultPolicy: it keeps no bodies, nothing of probes, and all that is written.
func TestDefaultPolicy(t *testing.T) {
	trail := open(t, Config{Log: Log{Path: filepath.Join(t.TempDir(), "audit.log"), MaxMebibytes: 2}})
	defer trail.End()
	for _, c := range []struct {
		a    authorizer.AttributesRecord
		want auditinternal.Level
	}{
		{authorizer.AttributesRecord{Verb: "create", Resource: "secrets", ResourceRequest: true}, auditinternal.LevelMetadata},
		{authorizer.AttributesRecord{Verb: "get", Resource: "secrets", ResourceRequest: true}, auditinternal.LevelMetadata},
		{authorizer.AttributesRecord{Verb: "get", Path: "/healthz"}, auditinternal.LevelNone},
		{authorizer.AttributesRecord{Verb: "get", Path: "/metrics"}, auditinternal.LevelNone},
		{authorizer.AttributesRecord{Verb: "get", Path: "/berth/v1/snapshot"}, auditinternal.LevelMetadata},
		{authorizer.AttributesRecord{Verb: "list", Resource: "pods", ResourceRequest: true, User: &user.DefaultInfo{Groups: []string{"berth:controllers"}}}, auditinternal.LevelNone},
		{authorizer.AttributesRecord{Verb: "create", Resource: "pods", ResourceRequest: true, User: &user.DefaultInfo{Groups: []string{"berth:controllers"}}}, auditinternal.LevelMetadata},
	} {
		if c.a.User == nil {
			c.a.User = &user.DefaultInfo{Name: "ann"}
		}
		got := trail.Policy().EvaluatePolicyRule(&c.a)
		if got.Level != c.want {
			t.Errorf("%+v: %s, want %s", c.a, got.Level, c.want)
		}
	}
}

// TestMistakesInThePolicy: each is told with its line.
func TestMistakesInThePolicy(t *testing.T) {
	const head = "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for text, want := range map[string]string{
		head: "it has no rules",
		head + "rules:\n- level: Metadata\n  verb: [get]\n":          `:5: unknown field "rules[0].verb"`,
		head + "rules:\n- level: Metadata\n- level: All\n":           `:5: rules[1].level: Unsupported value: "All"`,
		"apiVersion: v1\nkind: Pod\n":                                "no kind",
		"apiVersion: audit.k8s.io/v1\nkind: Event\nlevel: Request\n": "not a Policy",
	} {
		file := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Open(Config{PolicyFile: file, Log: Log{Path: filepath.Join(t.TempDir(), "x")}}, hclog.NewNullLogger())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n%v\nwant %s", text, err, want)
		}
	}
}
