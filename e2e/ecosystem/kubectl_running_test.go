package ecosystem

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// lines are what a program that goes on has said so far.
type lines struct {
	mu   sync.Mutex
	said []string
}

func (l *lines) has(part string) error {
	_, err := l.with(part)
	return err
}

// with is the first line that has a part.
func (l *lines) with(part string) (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.said {
		if strings.Contains(line, part) {
			return line, nil
		}
	}
	return "", fmt.Errorf("it has not said %q but %q", part, l.said)
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.said)
}

// follow starts a program that goes on until the test ends.
func follow(t *testing.T, cmd *exec.Cmd) *lines {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = w.Close() // the program has its own
	l, read := &lines{}, make(chan struct{})
	go func() {
		defer close(read)
		for s := bufio.NewScanner(r); s.Scan(); {
			l.mu.Lock()
			l.said = append(l.said, s.Text())
			l.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // that it was killed is no news
		<-read
		_ = r.Close() // it was only read
	})
	return l
}

func (k kubectl) running() {
	contains(k.t, k.run("run", "box", "--image="+busyboxImage, "--port=8080", "--labels=app=box", "--command", "--", "sh", "-c",
		"echo hello from box; mkdir -p /tmp/pages; echo box > /tmp/pages/index.html; exec httpd -f -p 8080 -h /tmp/pages"), "pod/box created")
	k.run("wait", "--for=condition=Ready", "pod/box", "--timeout=5m")
	if out := k.run("exec", "box", "--", "cat", "/tmp/pages/index.html"); out != "box\n" {
		k.t.Errorf("exec says %q", out)
	}
	if out := k.input("by hand", "exec", "-i", "box", "--", "cat"); out != "by hand" {
		k.t.Errorf("exec -i says %q", out)
	}
	contains(k.t, k.fails(7, "exec", "box", "--", "sh", "-c", "exit 7"), "exit code 7")
	folder := k.t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "there"), []byte("there and back"), 0o600); err != nil {
		k.t.Fatal(err)
	}
	k.run("cp", filepath.Join(folder, "there"), "box:/tmp/there")
	k.run("cp", "box:/tmp/there", filepath.Join(folder, "back"))
	if back, err := os.ReadFile(filepath.Join(folder, "back")); err != nil || string(back) != "there and back" {
		k.t.Errorf("cp brought back %q: %v", back, err)
	}
	contains(k.t, k.run("logs", "box"), "hello from box")
	contains(k.t, k.run("logs", "-l", "app=box", "--prefix", "--timestamps"), "[pod/box/box]", "hello from box")
	logs := follow(k.t, command(k.t, "kubectl", k.args([]string{"logs", "box", "-f", "--tail=1"})...))
	eventually(k.t, "the log", func(context.Context) error { return logs.has("hello from box") })
	if out := k.input("read and gone\n", "run", "once", "-i", "--rm", "--restart=Never", "--quiet", "--image="+busyboxImage, "--", "cat"); !strings.Contains(out, "read and gone") {
		k.t.Errorf("run -i --rm says %q", out)
	}
	contains(k.t, k.fails(1, "get", "pod", "once"), "NotFound")
	k.run("run", "failing", "--image="+busyboxImage, "--restart=Always", "--command", "--", "sh", "-c", "echo the first try; sleep 1; exit 1")
	eventually(k.t, "the log of what ended", func(context.Context) error {
		out, err := command(k.t, "kubectl", k.args([]string{"logs", "failing", "--previous"})...).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "the first try") {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	k.run("delete", "pod", "failing", "--now")
}

func (k kubectl) attach() {
	k.run("run", "echo", "--image="+busyboxImage, "-i", "--restart=Never", "--attach=false", "--command", "--", "sh", "-c",
		"while read line; do echo got $line; done; sleep 36000")
	k.run("wait", "--for=condition=Ready", "pod/echo", "--timeout=5m")
	cmd := command(k.t, "kubectl", k.args([]string{"attach", "-i", "echo"})...)
	in, err := cmd.StdinPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	said := follow(k.t, cmd)
	if _, err := io.WriteString(in, "a word\n"); err != nil {
		k.t.Fatal(err)
	}
	eventually(k.t, "an echo", func(context.Context) error { return said.has("got a word") })
	k.run("delete", "pod", "echo", "--now")
}

func (k kubectl) reach() {
	contains(k.t, k.run("expose", "pod", "box", "--port=80", "--target-port=8080", "--name=box"), "service/box exposed")
	k.becomes("8080", "endpointslice", ".items[?(@.metadata.labels.kubernetes\\.io/service-name==\"box\")].ports[0].port")
	for _, target := range []string{"pod/box", "service/box"} {
		ports := ":8080"
		if target == "service/box" {
			ports = ":80"
		}
		said := follow(k.t, command(k.t, "kubectl", k.args([]string{"port-forward", target, ports, "--address=127.0.0.1"})...))
		var line string
		eventually(k.t, "the port", func(context.Context) (err error) {
			line, err = said.with("Forwarding from")
			return err
		})
		if page := k.page("http://" + strings.Fields(line)[2] + "/index.html"); page != "box\n" {
			k.t.Errorf("by %s the page is %q", target, page)
		}
	}
	said := follow(k.t, command(k.t, "kubectl", "proxy", "--port=0"))
	var line string
	eventually(k.t, "the proxy", func(context.Context) (err error) {
		line, err = said.with("Starting to serve on")
		return err
	})
	at := "http://" + line[strings.LastIndex(line, " ")+1:]
	contains(k.t, k.page(at+"/api/v1/namespaces/"+kubectlNamespace+"/pods/box"), `"kind":"Pod"`)
	if page := k.page(at + "/api/v1/namespaces/" + kubectlNamespace + "/services/box:80/proxy/index.html"); page != "box\n" {
		k.t.Errorf("by the proxy of services the page is %q", page)
	}
	// A pod's own name is its address, so the service is named whole where they are called alike.
	contains(k.t, k.run("exec", "box", "--", "wget", "-q", "-O", "-", "http://box."+kubectlNamespace+".svc.cluster.local/index.html"), "box")
	contains(k.t, k.run("exec", "deployment/web", "--", "wget", "-q", "-O", "-", "http://box/index.html"), "box")
}

func (k kubectl) page(url string) string {
	k.t.Helper()
	r, err := http.NewRequestWithContext(k.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		k.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		k.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		k.t.Fatal(err)
	}
	return string(body)
}

func (k kubectl) debug() {
	k.run("debug", "box", "--image="+busyboxImage, "--container=look", "--target=box", "--profile=general", "--", "sh", "-c", "echo looked; sleep 36000")
	eventually(k.t, "the ephemeral container", func(context.Context) error {
		out, err := command(k.t, "kubectl", k.args([]string{"logs", "box", "-c", "look"})...).CombinedOutput()
		if err == nil && !strings.Contains(string(out), "looked") {
			err = fmt.Errorf("its log is %q", out)
		}
		return err
	})
	contains(k.t, k.run("exec", "box", "-c", "look", "--", "ps"), "httpd")
	k.run("debug", "box", "--copy-to=box-copy", "--image="+busyboxImage, "--container=look", "--share-processes", "--profile=general", "--", "sleep", "36000")
	k.run("wait", "--for=condition=Ready", "pod/box-copy", "--timeout=5m")
	contains(k.t, k.run("exec", "box-copy", "-c", "look", "--", "ps"), "httpd")
	k.run("delete", "pod", "box-copy", "--now")
	out := k.run("debug", "node/node-1", "--image="+busyboxImage, "--profile=general", "--", "ls", "/host/etc/hostname")
	at := strings.Index(out, "node-debugger-")
	if at < 0 {
		k.t.Fatalf("debug of a node says %q", out)
	}
	pod := strings.Fields(out[at:])[0]
	k.becomes("Succeeded", "pod/"+pod, ".status.phase")
	contains(k.t, k.run("logs", pod), "/host/etc/hostname")
	k.is("node-1", "pod/"+pod, ".spec.nodeName")
	k.run("delete", "pod", pod, "--now")
}

func (k kubectl) wait() {
	contains(k.t, k.run("wait", "deployment/web", "--for=condition=Available", "--timeout=5m"), "condition met")
	contains(k.t, k.run("wait", "pod/box", "--for=jsonpath={.status.phase}=Running", "--timeout=5m"), "condition met")
	contains(k.t, k.fails(1, "wait", "pod/box", "--for=condition=Nothing", "--timeout=0"), "condition not met")
	contains(k.t, k.run("events", "--for", "pod/box"), "Scheduled", "Started")
	contains(k.t, k.run("events", "--types=Normal"), "Pod/box")
	contains(k.t, k.run("get", "events", "--field-selector", "involvedObject.name=box"), "Scheduled")
}

func (k kubectl) top() {
	eventually(k.t, "what nodes and pods use", func(context.Context) error {
		for what, name := range map[string]string{"nodes": "node-2", "pods": "box"} {
			out, err := command(k.t, "kubectl", k.args([]string{"top", what})...).CombinedOutput()
			if err == nil && !strings.Contains(string(out), name) {
				err = fmt.Errorf("%s is not in %q", name, out)
			}
			if err != nil {
				return fmt.Errorf("top %s: %w: %s", what, err, out)
			}
		}
		return nil
	})
	contains(k.t, k.run("top", "pod", "box", "--containers"), "MEMORY(bytes)", "box")
}

func (k kubectl) kustomize() {
	contains(k.t, k.run("kustomize", "testdata/kustomize"), "name: my-config-", "greeting: hello", "team: ada")
	contains(k.t, k.run("apply", "-k", "testdata/kustomize"), "created")
	contains(k.t, k.run("get", "-k", "testdata/kustomize"), "my-config-")
	if out := k.run("diff", "-k", "testdata/kustomize"); out != "" {
		k.t.Errorf("what was applied differs:\n%s", out)
	}
	contains(k.t, k.run("delete", "-k", "testdata/kustomize"), "deleted")
}

func (k kubectl) auth() {
	contains(k.t, k.run("auth", "whoami"), "admin", "system:masters")
	contains(k.t, k.run("auth", "can-i", "create", "pods"), "yes")
	who := "--as=system:serviceaccount:" + kubectlNamespace + ":reader"
	contains(k.t, k.fails(1, "auth", "can-i", "list", "pods", who), "no")
	const rights = `apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: kubectl}
rules: [{apiGroups: [""], resources: [pods], verbs: [list]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: kubectl}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader, namespace: kubectl}]
`
	contains(k.t, k.input(rights, "auth", "reconcile", "-f", "-"), "role.rbac.authorization.k8s.io/reader reconciled")
	contains(k.t, k.run("auth", "can-i", "list", "pods", who), "yes")
	contains(k.t, k.run("auth", "can-i", "--list", who), "pods")
	contains(k.t, k.run("get", "pods", who), "box")
	contains(k.t, k.fails(1, "delete", "pod", "box", who), "Forbidden")
}

func (k kubectl) certificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		k.t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "carol"}}, key)
	if err != nil {
		k.t.Fatal(err)
	}
	request := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	for _, name := range []string{"good", "bad"} {
		k.input(fmt.Sprintf(`{"apiVersion":"certificates.k8s.io/v1","kind":"CertificateSigningRequest","metadata":{"name":%q},
			"spec":{"request":%q,"signerName":"kubernetes.io/kube-apiserver-client","usages":["client auth"]}}`, name, request), "create", "-f", "-")
	}
	contains(k.t, k.run("certificate", "approve", "good"), "approved")
	contains(k.t, k.run("certificate", "deny", "bad"), "denied")
	eventually(k.t, "the certificate", func(context.Context) error {
		if k.run("get", "csr", "good", "-o", "jsonpath={.status.certificate}") == "" {
			return errors.New("it is not signed")
		}
		return nil
	})
	contains(k.t, k.run("get", "csr", "bad"), "Denied")
	k.run("delete", "csr", "good", "bad")
}

func (k kubectl) nodes() {
	contains(k.t, k.run("cordon", "node-2"), "cordoned")
	contains(k.t, k.run("get", "node", "node-2"), "SchedulingDisabled")
	contains(k.t, k.run("uncordon", "node-2"), "uncordoned")
	k.run("scale", "deployment/web", "--replicas=2")
	k.run("rollout", "status", "deployment/web", "--timeout=5m")
	contains(k.t, k.run("drain", "node-2", "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=5m"), "node/node-2 drained")
	if out := k.run("get", "pods", "-A", "--field-selector=spec.nodeName=node-2,status.phase=Running", "-o", "name"); out != "" {
		k.t.Errorf("after the drain there are %q", out)
	}
	k.run("rollout", "status", "deployment/web", "--timeout=5m")
	k.run("uncordon", "node-2")
	contains(k.t, k.run("taint", "nodes", "node-2", "tired=very:NoExecute"), "tainted")
	contains(k.t, k.run("describe", "node", "node-2"), "tired=very:NoExecute")
	contains(k.t, k.run("taint", "nodes", "node-2", "tired-"), "untainted")
}

func (k kubectl) about() {
	contains(k.t, k.run("api-resources"), "deployments", "customresourcedefinitions", "preemptions", "SHORTNAMES")
	contains(k.t, k.run("api-resources", "--api-group=apps", "-o", "name"), "statefulsets.apps")
	contains(k.t, k.run("api-versions"), "apps/v1", "berth.dev/v1", "batch/v1")
	contains(k.t, k.run("version"), "Client Version: v1.36.3", "Server Version: v1.36.3")
	contains(k.t, k.run("cluster-info"), "control plane", "is running at")
	folder := k.t.TempDir()
	k.run("cluster-info", "dump", "--namespaces", kubectlNamespace, "--output-directory", folder)
	for _, file := range []string{"nodes.json", kubectlNamespace + "/pods.json", kubectlNamespace + "/events.json"} {
		if _, err := os.Stat(filepath.Join(folder, file)); err != nil {
			k.t.Errorf("cluster-info dump: %v", err)
		}
	}
	contains(k.t, k.run("options"), "--kubeconfig")
	contains(k.t, k.run("completion", "bash"), "kubectl")
	// What shells call takes no flag before it.
	contains(k.t, tool(k.t, "kubectl", "__complete", "-n", kubectlNamespace, "get", "pods", "bo"), "box")
}

func (k kubectl) config() {
	text, err := os.ReadFile(shared.Kubeconfig)
	if err != nil {
		k.t.Fatal(err)
	}
	file := filepath.Join(k.t.TempDir(), "config")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		k.t.Fatal(err)
	}
	config := func(args ...string) string {
		k.t.Helper()
		return tool(k.t, "kubectl", append([]string{"--kubeconfig", file, "config"}, args...)...)
	}
	contains(k.t, config("view"), "current-context: berth", "DATA+OMITTED")
	k.run("create", "serviceaccount", "reader")
	token := strings.TrimSpace(k.run("create", "token", "reader"))
	config("set-credentials", "reader", "--token="+token)
	config("set-context", "reader", "--cluster=berth", "--user=reader", "--namespace="+kubectlNamespace)
	contains(k.t, config("use-context", "reader"), "Switched")
	contains(k.t, config("current-context"), "reader")
	contains(k.t, tool(k.t, "kubectl", "--kubeconfig", file, "get", "pods"), "box")
	refused(k.t, "Forbidden", "kubectl", "--kubeconfig", file, "get", "secrets")
	config("rename-context", "reader", "other")
	names := strings.Fields(config("get-contexts", "-o", "name"))
	if !slices.Equal(names, []string{"berth", "other"}) {
		k.t.Errorf("the contexts are %q", names)
	}
	config("unset", "current-context")
	config("delete-context", "other")
	config("delete-user", "reader")
}
