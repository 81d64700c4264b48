package ecosystem

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const kubectlNamespace = "kubectl"

// TestKubectl: every command of kubectl that is about a cluster.
func TestKubectl(t *testing.T) {
	k := kubectl{namespaced{t, kubectlNamespace}}
	k.run("create", "namespace", kubectlNamespace)
	t.Cleanup(func() { atEnd(t, "delete", "namespace", kubectlNamespace, "--wait") })
	for _, one := range []struct {
		name string
		test func(k kubectl)
	}{
		{"create", kubectl.create},
		{"apply, diff and replace", kubectl.apply},
		{"edit", kubectl.edit},
		{"patch, label and annotate", kubectl.patch},
		{"get", kubectl.get},
		{"describe and explain", kubectl.describe},
		{"scale, autoscale and set", kubectl.scale},
		{"rollout", kubectl.rollout},
		{"run, exec, cp and logs", kubectl.running},
		{"attach", kubectl.attach},
		{"expose, port-forward and proxy", kubectl.reach},
		{"debug", kubectl.debug},
		{"wait and events", kubectl.wait},
		{"top", kubectl.top},
		{"kustomize", kubectl.kustomize},
		{"auth", kubectl.auth},
		{"certificate", kubectl.certificate},
		{"api-resources, api-versions, version and cluster-info", kubectl.about},
		{"config", kubectl.config},
		{"cordon, drain and taint", kubectl.nodes},
		{"delete", kubectl.delete},
	} {
		t.Run(one.name, func(t *testing.T) { one.test(kubectl{k.on(t)}) })
	}
}

// kubectl runs commands in the namespace of its tests.
type kubectl struct{ namespaced }

// fails runs a command that must end with a status, and returns what it said.
func (k kubectl) fails(status int, args ...string) string {
	k.t.Helper()
	out, err := command(k.t, "kubectl", k.args(args)...).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != status {
		k.t.Fatalf("kubectl %s: %v, not status %d\n%s", strings.Join(args, " "), err, status, out)
	}
	return string(out)
}

// is holds what a field of an object is, by a JSON path.
func (k kubectl) is(want, object, path string) {
	k.t.Helper()
	if got := k.run("get", object, "-o", "jsonpath={"+path+"}"); got != want {
		k.t.Errorf("%s of %s is %q, not %q", path, object, got, want)
	}
}

// becomes waits until a field of an object is something.
func (k kubectl) becomes(want, object, path string) {
	k.t.Helper()
	eventually(k.t, fmt.Sprintf("%s of %s to be %q", path, object, want), func(context.Context) error {
		out, err := command(k.t, "kubectl", k.args([]string{"get", object, "-o", "jsonpath={" + path + "}"})...).CombinedOutput()
		if err == nil && string(out) != want {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// create: every object that has a command of its own.
func (k kubectl) create() {
	for _, args := range [][]string{
		{"configmap", "made", "--from-literal=a=1"},
		{"secret", "generic", "made", "--from-literal=a=1"},
		{"secret", "docker-registry", "registry", "--docker-server=registry.test", "--docker-username=u", "--docker-password=p"},
		{"serviceaccount", "made"},
		{"role", "made", "--verb=get,list", "--resource=pods"},
		{"rolebinding", "made", "--role=made", "--serviceaccount=" + kubectlNamespace + ":made"},
		{"clusterrole", "made", "--verb=get", "--non-resource-url=/made"},
		{"clusterrolebinding", "made", "--clusterrole=made", "--user=ada"},
		{"quota", "made", "--hard=pods=50"},
		{"poddisruptionbudget", "made", "--selector=app=none", "--min-available=1"},
		{"priorityclass", "made", "--value=10"},
		{"service", "clusterip", "made", "--tcp=80:8080"},
		{"service", "nodeport", "made-port", "--tcp=80:8080"},
		{"service", "loadbalancer", "made-balancer", "--tcp=80:8080"},
		{"service", "externalname", "made-name", "--external-name=example.com"},
		{"ingress", "made", "--rule=example.com/=made:80"},
		{"deployment", "made", "--image=" + busyboxImage, "--replicas=1", "--", "sleep", "36000"},
		{"job", "made", "--image=" + busyboxImage, "--", "true"},
		{"cronjob", "made", "--image=" + busyboxImage, "--schedule=0 0 1 1 *", "--", "true"},
		{"job", "again", "--from=cronjob/made"},
	} {
		contains(k.t, k.run(append([]string{"create"}, args...)...), "created")
	}
	if token := k.run("create", "token", "made"); strings.Count(token, ".") != 2 {
		k.t.Errorf("a token is %q", token)
	}
	contains(k.t, k.fails(1, "create", "configmap", "made"), `configmaps "made" already exists`)
	contains(k.t, k.run("create", "configmap", "thought", "--dry-run=server"), "created (server dry run)")
	contains(k.t, k.fails(1, "get", "configmap", "thought"), "NotFound")
	contains(k.t, k.input(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"raw"}}`, "create", "--raw", "/api/v1/namespaces/"+kubectlNamespace+"/configmaps", "-f", "-"), `"name":"raw"`)
	k.run("rollout", "status", "deployment/made", "--timeout=5m")
	k.run("wait", "--for=condition=Complete", "job/made", "job/again", "--timeout=5m")
}

// web is a Deployment of pages, with its config map.
func web(page string, replicas int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: ConfigMap
metadata: {name: web, labels: {set: web}}
data: {index.html: %q}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {set: web}}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: web
        image: %s
        command: [httpd, -f, -p, "8080", -h, /pages]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /index.html, port: 8080}, periodSeconds: 1}
        resources: {requests: {cpu: 10m, memory: 8Mi}}
        volumeMounts: [{name: pages, mountPath: /pages}]
      volumes: [{name: pages, configMap: {name: web}}]
`, page, replicas, busyboxImage)
}

func (k kubectl) apply() {
	contains(k.t, k.input(web("one", 1), "apply", "-f", "-"), "configmap/web created", "deployment.apps/web created")
	contains(k.t, k.input(web("one", 1), "apply", "-f", "-"), "deployment.apps/web unchanged")
	cmd := command(k.t, "kubectl", k.args([]string{"diff", "-f", "-"})...)
	cmd.Stdin = strings.NewReader(web("one", 2))
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		k.t.Fatalf("diff: %v\n%s", err, out)
	}
	contains(k.t, string(out), "-  replicas: 1", "+  replicas: 2")
	contains(k.t, k.input(web("two", 2), "apply", "-f", "-"), "configmap/web configured", "deployment.apps/web configured")
	k.is("2", "deployment/web", ".spec.replicas")
	contains(k.t, k.run("apply", "view-last-applied", "deployment/web"), "replicas: 2")
	contains(k.t, k.input(web("two", 2), "apply", "set-last-applied", "-f", "-"), "web")

	const owned = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned}\ndata: {a: %q}\n"
	contains(k.t, k.input(fmt.Sprintf(owned, "1"), "apply", "--server-side", "--field-manager=ada", "-f", "-"), "configmap/owned serverside-applied")
	contains(k.t, k.input(fmt.Sprintf(owned, "1"), "apply", "--server-side", "--field-manager=bob", "-f", "-"), "serverside-applied")
	cmd = command(k.t, "kubectl", k.args([]string{"apply", "--server-side", "--field-manager=bob", "-f", "-"})...)
	cmd.Stdin = strings.NewReader(fmt.Sprintf(owned, "2"))
	if out, err = cmd.CombinedOutput(); err == nil {
		k.t.Fatal("a conflict was not seen")
	}
	contains(k.t, string(out), `conflict with "ada": .data.a`)
	k.input(fmt.Sprintf(owned, "2"), "apply", "--server-side", "--field-manager=bob", "--force-conflicts", "-f", "-")
	k.is("2", "configmap/owned", ".data.a")
	contains(k.t, k.run("get", "configmap/owned", "-o", "yaml", "--show-managed-fields"), "manager: bob", "operation: Apply")

	contains(k.t, k.input(fmt.Sprintf(owned, "3"), "replace", "-f", "-"), "configmap/owned replaced")
	contains(k.t, k.input(fmt.Sprintf(owned, "4"), "replace", "--force", "-f", "-"), "configmap/owned replaced")
	k.is("4", "configmap/owned", ".data.a")

	// What is no more in a set is taken away.
	pruned := "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: pruned-%s, labels: {set: pruned}}\n"
	k.input(fmt.Sprintf(pruned, "1")+"---\n"+fmt.Sprintf(pruned, "2"), "apply", "-f", "-")
	contains(k.t, k.input(fmt.Sprintf(pruned, "2"), "apply", "--prune", "-l", "set=pruned", "--prune-allowlist=core/v1/ConfigMap", "-f", "-"), "configmap/pruned-1 pruned")
	contains(k.t, k.fails(1, "apply", "-f", "testdata/bad.yaml"), `unknown field "spec.replica"`)
}

func (k kubectl) edit() {
	cmd := command(k.t, "kubectl", k.args([]string{"edit", "configmap/owned"})...)
	cmd.Env = append(cmd.Env, `KUBE_EDITOR=sed -i 's/a: "4"/a: "5"/'`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		k.t.Fatalf("edit: %v\n%s", err, out)
	}
	contains(k.t, string(out), "configmap/owned edited")
	k.is("5", "configmap/owned", ".data.a")
	cmd = command(k.t, "kubectl", k.args([]string{"edit", "configmap/owned"})...)
	cmd.Env = append(cmd.Env, "KUBE_EDITOR=true")
	if out, err = cmd.CombinedOutput(); err != nil {
		k.t.Fatalf("edit: %v\n%s", err, out)
	}
	contains(k.t, string(out), "no changes made")
}

func (k kubectl) patch() {
	contains(k.t, k.run("patch", "configmap", "owned", "-p", `{"data":{"b":"1"}}`), "patched")
	contains(k.t, k.run("patch", "configmap", "owned", "-p", `{"data":{"b":"1"}}`), "patched (no change)")
	k.run("patch", "configmap", "owned", "--type=merge", "-p", `{"data":{"a":null}}`)
	k.run("patch", "configmap", "owned", "--type=json", "-p", `[{"op":"test","path":"/data/b","value":"1"},{"op":"add","path":"/data/c","value":"2"}]`)
	k.is(`{"b":"1","c":"2"}`, "configmap/owned", ".data")
	k.fails(1, "patch", "configmap", "owned", "--type=json", "-p", `[{"op":"test","path":"/data/b","value":"2"}]`)
	k.run("patch", "deployment", "web", "--type=strategic", "-p", `{"spec":{"template":{"spec":{"containers":[{"name":"web","env":[{"name":"A","value":"1"}]}]}}}}`)
	k.is("httpd", "deployment/web", ".spec.template.spec.containers[0].command[0]")
	k.is("1", "deployment/web", ".spec.template.spec.containers[0].env[0].value")
	k.run("patch", "deployment", "web", "--subresource=scale", "--type=merge", "-p", `{"spec":{"replicas":1}}`)
	k.is("1", "deployment/web", ".spec.replicas")

	contains(k.t, k.run("label", "configmap", "owned", "color=red"), "labeled")
	contains(k.t, k.fails(1, "label", "configmap", "owned", "color=blue"), "already has a value")
	k.run("label", "configmap", "owned", "color=blue", "--overwrite")
	contains(k.t, k.run("label", "configmap", "owned", "--list"), "color=blue")
	k.run("label", "configmap", "owned", "color-")
	k.is("", "configmap/owned", ".metadata.labels")
	contains(k.t, k.run("annotate", "configmap", "--all", "note=seen"), "annotated")
	k.is("seen", "configmap/web", ".metadata.annotations.note")
	k.run("annotate", "configmap", "--all", "note-")
}

func (k kubectl) get() {
	k.run("rollout", "status", "deployment/web", "--timeout=5m")
	contains(k.t, k.run("get", "all"), "deployment.apps/web", "service/made", "job.batch/made", "cronjob.batch/made", "replicaset.apps/web-", "pod/web-")
	contains(k.t, k.run("get", "pods", "-o", "wide", "-l", "app=web"), "NODE", "node-", "NOMINATED NODE")
	contains(k.t, k.run("get", "deployment", "web", "-o", "yaml"), "kind: Deployment")
	contains(k.t, k.run("get", "deployment", "web", "-o", "json"), `"kind": "Deployment"`)
	contains(k.t, k.run("get", "deployments", "-o", "custom-columns=N:.metadata.name,R:.spec.replicas"), "web")
	contains(k.t, k.run("get", "deployments", "-o", `go-template={{range .items}}{{.metadata.name}};{{end}}`), "web;")
	contains(k.t, k.run("get", "pods", "--field-selector=status.phase=Running", "--show-labels"), "app=web")
	names := strings.Fields(k.run("get", "configmaps", "-o", "name", "--sort-by=.metadata.creationTimestamp"))
	if slices.Index(names, "configmap/web") > slices.Index(names, "configmap/owned") {
		k.t.Errorf("they are not in the order in which they were made: %q", names)
	}
	if len(strings.Fields(k.run("get", "configmaps", "-o", "name", "--chunk-size=1"))) != len(names) {
		k.t.Error("by ones there are not as many")
	}
	contains(k.t, k.run("get", "--raw", "/healthz"), "ok")
	contains(k.t, k.run("get", "deployment", "web", "--subresource=scale"), "web")
	if out := k.run("get", "configmap", "none", "--ignore-not-found"); out != "" {
		k.t.Errorf("of nothing it says %q", out)
	}
	contains(k.t, k.fails(1, "get", "nothings"), `the server doesn't have a resource type "nothings"`)

	watch := command(k.t, "kubectl", k.args([]string{"get", "configmaps", "--field-selector=metadata.name=watched", "--watch-only", "--output-watch-events", "-o", "name", "--request-timeout=0"})...)
	lines := follow(k.t, watch)
	// Nothing tells when the watch has begun, so it is made until it is seen.
	n := 0
	eventually(k.t, "the watch to see it", func(context.Context) error {
		n++
		k.run("create", "configmap", "watched")
		k.run("delete", "configmap", "watched")
		return lines.has("configmap/watched")
	})
}

func (k kubectl) describe() {
	for object, says := range map[string]string{
		"deployment/web": "OldReplicaSets", "configmap/web": "index.html", "secret/made": "Opaque", "service/made": "Endpoints:", "node/node-1": "Allocated resources:",
		"namespace/" + kubectlNamespace: "Resource Quotas", "serviceaccount/made": "Image pull secrets:", "role/made": "PolicyRule:", "clusterrole/made": "/made",
		"rolebinding/made": "Subjects:", "quota/made": "pods", "pdb/made": "Min available:", "priorityclass/made": "Value:", "ingress/made": "Rules:",
		"job/made": "Completions:", "cronjob/made": "Schedule:", "service/made-name": "example.com",
	} {
		contains(k.t, k.run("describe", object), "Name:", says)
	}
	contains(k.t, k.run("describe", "pods", "-l", "app=web"), "Conditions:", "Events:", "Scheduled")
	contains(k.t, k.run("explain", "deployment.spec.strategy"), "rollingUpdate", "KIND:       Deployment")
	contains(k.t, k.run("explain", "pods", "--recursive"), "containers")
	contains(k.t, k.run("explain", "preemptions"), "berth.dev")
	contains(k.t, k.fails(1, "explain", "pods.nothing"), `field "nothing" does not exist`)
}

func (k kubectl) scale() {
	contains(k.t, k.run("scale", "deployment/web", "--replicas=2", "--current-replicas=1"), "scaled")
	k.fails(1, "scale", "deployment/web", "--replicas=3", "--current-replicas=1")
	k.becomes("2", "deployment/web", ".status.readyReplicas")
	contains(k.t, k.run("autoscale", "deployment/web", "--min=1", "--max=3", "--cpu=80%"), "autoscaled")
	contains(k.t, k.run("get", "hpa", "web"), "Deployment/web")
	contains(k.t, k.run("describe", "hpa", "web"), "Min replicas:")
	k.run("delete", "hpa", "web")

	contains(k.t, k.run("set", "env", "deployment/web", "B=2"), "env updated")
	contains(k.t, k.run("set", "env", "deployment/web", "--list"), "B=2")
	contains(k.t, k.run("set", "image", "deployment/web", "web="+busyboxImage+"x"), "image updated")
	contains(k.t, k.run("set", "image", "deployment/web", "web="+busyboxImage), "image updated")
	contains(k.t, k.run("set", "resources", "deployment/web", "--requests=cpu=11m"), "resource requirements updated")
	k.is("11m", "deployment/web", ".spec.template.spec.containers[0].resources.requests.cpu")
	contains(k.t, k.run("set", "serviceaccount", "deployment/web", "made"), "serviceaccount updated")
	contains(k.t, k.run("set", "selector", "service/made", "app=web"), "selector updated")
	contains(k.t, k.run("set", "subject", "rolebinding/made", "--user=bob"), "subjects updated")
	k.run("rollout", "status", "deployment/web", "--timeout=5m")
}

func (k kubectl) rollout() {
	contains(k.t, k.run("rollout", "history", "deployment/web"), "REVISION")
	k.run("annotate", "deployment/web", "kubernetes.io/change-cause=restarted")
	contains(k.t, k.run("rollout", "restart", "deployment/web"), "restarted")
	contains(k.t, k.run("rollout", "status", "deployment/web", "--timeout=5m"), "successfully rolled out")
	contains(k.t, k.run("rollout", "history", "deployment/web"), "restarted")
	contains(k.t, k.run("rollout", "pause", "deployment/web"), "paused")
	before := k.run("get", "deployment/web", "-o", "jsonpath={.metadata.annotations.deployment\\.kubernetes\\.io/revision}")
	k.run("set", "env", "deployment/web", "C=3")
	contains(k.t, k.fails(1, "rollout", "undo", "deployment/web"), "paused")
	contains(k.t, k.run("rollout", "resume", "deployment/web"), "resumed")
	contains(k.t, k.run("rollout", "status", "deployment/web", "--timeout=5m"), "successfully rolled out")
	contains(k.t, k.run("rollout", "undo", "deployment/web", "--to-revision="+before), "rolled back")
	k.run("rollout", "status", "deployment/web", "--timeout=5m")
	if env := k.run("set", "env", "deployment/web", "--list"); strings.Contains(env, "C=3") {
		k.t.Errorf("after the undo the environment is\n%s", env)
	}
}

func (k kubectl) delete() {
	contains(k.t, k.run("delete", "configmap", "owned", "raw", "--wait"), `configmap "owned" deleted`)
	contains(k.t, k.run("delete", "configmap", "-l", "set=pruned"), "pruned-2")
	contains(k.t, k.fails(1, "delete", "configmap", "owned"), "NotFound")
	k.run("delete", "configmap", "owned", "--ignore-not-found")
	contains(k.t, k.run("delete", "deployment", "made", "--cascade=foreground", "--wait"), "deleted")
	contains(k.t, k.run("delete", "deployment", "web", "--cascade=orphan"), "deleted")
	contains(k.t, k.run("get", "replicasets", "-l", "app=web", "-o", "name"), "replicaset.apps/web-")
	k.run("delete", "replicasets", "-l", "app=web", "--cascade=background")
	k.run("wait", "--for=delete", "pod", "-l", "app=web", "--timeout=5m")
	k.run("delete", "pods,jobs,cronjobs,services", "--all", "--now", "--wait")
	k.run("delete", "clusterrole,clusterrolebinding,priorityclass", "made")
}
