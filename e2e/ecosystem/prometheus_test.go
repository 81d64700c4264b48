package ecosystem

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/fleet"
)

const prometheusAddress = "127.0.0.1:19090"

// watched is what Prometheus finds: a pod that has figures, and what leads to it.
const watched = `apiVersion: v1
kind: Pod
metadata: {name: toy, labels: {app: toy}, annotations: {prometheus.io/scrape: "true"}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: toy
    image: registry.test/busybox:1
    command: [sh, -c, "mkdir /tmp/pages; echo 'toy_total 3' > /tmp/pages/metrics; exec httpd -f -p 8080 -h /tmp/pages"]
    ports: [{name: figures, containerPort: 8080}]
    readinessProbe: {httpGet: {path: /metrics, port: 8080}, periodSeconds: 1}
---
apiVersion: v1
kind: Service
metadata: {name: toy, labels: {app: toy}}
spec:
  selector: {app: toy}
  ports: [{name: figures, port: 80, targetPort: figures}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: toy}
spec:
  rules: [{host: toy.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: toy, port: {name: figures}}}}]}}]
`

// TestPrometheus: Prometheus finds nodes, pods, services, endpoints and ingresses by itself, and reads the figures of servers, workers and pods; promtool
// finds nothing to object to in Berth's own.
func TestPrometheus(t *testing.T) {
	needTool(t, "prometheus")
	tool(t, "kubectl", "create", "namespace", "watched")
	t.Cleanup(func() { atEnd(t, "delete", "namespace", "watched", "--wait") })
	k := namespaced{t, "watched"}
	k.input(watched, "apply", "-f", "-")
	k.run("wait", "pod/toy", "--for=condition=Ready", "--timeout=5m")
	config := prometheusConfig(t)
	contains(t, tool(t, "promtool", "check", "config", config), "SUCCESS")
	said := follow(t, command(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(t.TempDir(), "data"),
		"--web.listen-address="+prometheusAddress, "--log.level=warn"))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("Prometheus says\n%s", strings.Join(said.all(), "\n"))
		}
	})
	for job, atLeast := range map[string]int{"servers": 3, "workers": workers, "resources": workers, "pods": 1, "endpoints": 1, "endpointslices": 1} {
		t.Run(job+" are read", func(t *testing.T) {
			eventually(t, "the job "+job, func(ctx context.Context) error { return up(ctx, job, atLeast) })
		})
	}
	t.Run("figures can be asked for", func(t *testing.T) {
		for query, want := range map[string]string{
			`toy_total{job="pods",namespace="watched",pod="toy"}`:  "3",
			`toy_total{job="endpoints",service="toy"}`:             "3",
			`sum(berth_raft_leader{job="servers"})`:                "1",
			`count(container_memory_working_set_bytes{pod="toy"})`: "1",
			`count(node_cpu_usage_seconds_total{job="resources"})`: fmt.Sprint(workers),
		} {
			eventually(t, query, func(context.Context) error {
				out, err := command(t, "promtool", "query", "instant", "http://"+prometheusAddress, query).CombinedOutput()
				if err == nil && !strings.Contains(string(out), "=> "+want+" @") {
					err = fmt.Errorf("it is %q", out)
				}
				return err
			})
		}
	})
	t.Run("services and ingresses are found", func(t *testing.T) {
		eventually(t, "they", func(ctx context.Context) error {
			for job, address := range map[string]string{"services": "toy.watched.svc:80", "ingresses": "toy.example.com"} {
				if err := found(ctx, job, address); err != nil {
					return err
				}
			}
			return nil
		})
	})
	t.Run("the figures are well made", func(t *testing.T) {
		for what, text := range figures(t) {
			cmd := command(t, "promtool", "check", "metrics")
			cmd.Stdin = strings.NewReader(text)
			out, _ := cmd.CombinedOutput() // its status says that it objects to something, be that Kubernetes' own
			if strings.Contains(string(out), "error while linting") {
				t.Errorf("the figures of %s cannot be read: %s", what, out)
			}
			for line := range strings.Lines(string(out)) {
				if strings.HasPrefix(line, "berth_") {
					t.Errorf("of %s: %s", what, line)
				}
			}
		}
	})
}

// figures are the texts that promtool checks.
func figures(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for what, path := range map[string]string{"a server": "/metrics", "a worker": "/api/v1/nodes/node-1/proxy/metrics",
		"a node": "/api/v1/nodes/node-1/proxy/metrics/resource"} {
		out[what] = tool(t, "kubectl", "get", "--raw", path)
		contains(t, out[what], "# TYPE ")
	}
	return out
}

func prometheusConfig(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	r := shared.Fleet.Reader().RESTConfig()
	for name, data := range map[string][]byte{"ca.pem": r.CAData, "cert.pem": r.CertData, "key.pem": r.KeyData} {
		if err := os.WriteFile(filepath.Join(folder, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile("testdata/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	var servers []string
	for _, p := range shared.Fleet.Servers() {
		servers = append(servers, (*fleet.Process).HTTP(p))
	}
	config := filepath.Join(folder, "prometheus.yml")
	filled := strings.NewReplacer("FOLDER", folder, "KUBECONFIG", shared.Kubeconfig, "SERVERS", strings.Join(servers, ", "), "API", servers[0]).Replace(string(text))
	if err := os.WriteFile(config, []byte(filled), 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// targets are what Prometheus knows of, by job.
func targets(ctx context.Context) (map[string][]target, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+prometheusAddress+"/api/v1/targets?state=active", nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // it was only read
	var answer struct {
		Data struct{ ActiveTargets []target }
	}
	body, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	out := map[string][]target{}
	for _, one := range answer.Data.ActiveTargets {
		out[one.ScrapePool] = append(out[one.ScrapePool], one)
	}
	return out, err
}

type target struct {
	ScrapePool, Health, LastError string
	DiscoveredLabels              map[string]string
}

// up is an error unless so many targets of a job, and no others, could be read.
func up(ctx context.Context, job string, atLeast int) error {
	all, err := targets(ctx)
	if err != nil {
		return err
	}
	if len(all[job]) < atLeast {
		return fmt.Errorf("there are %d targets", len(all[job]))
	}
	for _, one := range all[job] {
		if one.Health != "up" {
			return fmt.Errorf("%s is %s: %s", one.DiscoveredLabels["__address__"], one.Health, one.LastError)
		}
	}
	return nil
}

func found(ctx context.Context, job, address string) error {
	all, err := targets(ctx)
	for _, one := range all[job] {
		if one.DiscoveredLabels["__address__"] == address {
			return nil
		}
	}
	return fmt.Errorf("%s is not among the %d targets of %s: %w", address, len(all[job]), job, err)
}
