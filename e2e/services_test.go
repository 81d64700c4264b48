package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var servicesInside = flag.Bool("services.inside", false, "this process has a network namespace of its own")

const (
	// nodeAddress is the node's, and podNetwork tells the number of the pods' network from the machine's others'.
	nodeAddress = "10.89.0.1"
	podNetwork  = 88<<8 | 1
	hostPort    = 18080
)

// TestServices carries what is sent to services, in a network namespace that ends with it: rules of nftables are the
// whole machine's.
func TestServices(t *testing.T) {
	needsContainers(t)
	if !*servicesInside {
		cmd := exec.Command(os.Args[0], "-test.run=^TestServices$", "-test.v", "-services.inside", "-crio", *crioPrograms)
		cmd.Env = append(os.Environ(), "BERTH_E2E_BINARY="+binary)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGTERM}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	if err := execute("ip link set lo up", "ip link add node type veth peer name wire", "ip addr add "+nodeAddress+"/24 dev node",
		"ip link set node up", "ip link set wire up", "ip route add default via 10.89.0.254 dev node"); err != nil {
		t.Fatal(err)
	}
	d, err := startDaemon(t.Context(), podNetwork)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	w := worker("worker-1", `runtime = "cri"`, `metrics_address = "127.0.0.1:7645"`, fmt.Sprintf("cri {\n  endpoint = %q\n}", d.Endpoint()))
	s := server("server-1", "bootstrap_expect = 1")
	s.Host, w.Host = nodeAddress, nodeAddress
	c := newCluster(t, s, w)
	c.emptied(t, d)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	services(t, c, d)
}

const serviceManifests = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {type: NodePort, selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: all}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: sticky}
spec: {sessionAffinity: ClientIP, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`

// web is a pod that says its name, and is ready while a file is there.
func web(name string) *corev1.Pod {
	return imaged(name, "hostname > /tmp/index.html; touch /tmp/ready; exec httpd -f -p 8080 -h /tmp", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "web"}
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 1,
			ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", "/tmp/ready"}}}}
	})
}

func services(t *testing.T, c *cluster, d daemon) {
	kube := c.Reader().Kube
	create(t, kube, web("web-0"), web("web-1"), imaged("client", "exec sleep 1000"))
	c.berthIn(t, serviceManifests, "create", "-f", "-")
	pods := c.waitRunning(t, "default", "web-0", "web-1", "client")
	both := []string{"web-0", "web-1"}
	serviceOf := func(name string) *corev1.Service {
		s, err := kube.CoreV1().Services("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	// Whom the client finds behind an address or a name, in twenty requests.
	finds := func(host string) func(context.Context) ([]string, error) {
		return func(context.Context) ([]string, error) {
			r := run(t, c.env, "", "exec", "client", "--", "sh", "-c",
				fmt.Sprintf("for i in $(seq 20); do timeout 5 wget -q -O - http://%s/ || exit 1; done", host))
			if r.code != 0 {
				return nil, fmt.Errorf("exit status %d: %s%s", r.code, r.out, r.err)
			}
			return distinct(strings.Fields(r.out)), nil
		}
	}
	asks := func(url string) func(context.Context) ([]string, error) {
		return func(ctx context.Context) ([]string, error) {
			var out []string
			for range 20 {
				body, err := fetch(ctx, url)
				if err != nil {
					return nil, err
				}
				out = append(out, strings.TrimSpace(body))
			}
			return distinct(out), nil
		}
	}
	is := func(what string, ask func(context.Context) ([]string, error), want ...string) {
		t.Helper()
		c.eventually(t, what, func(ctx context.Context) error {
			got, err := ask(ctx)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("%q, want %q", got, want)
			}
			return err
		})
	}
	resolves := func(name string) func(context.Context) ([]string, error) {
		return func(ctx context.Context) ([]string, error) {
			r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, "10.96.0.10:53")
			}}
			ips, err := r.LookupHost(ctx, name)
			slices.Sort(ips)
			return ips, err
		}
	}
	ips := []string{pods[0].Status.PodIP, pods[1].Status.PodIP}
	slices.Sort(ips)
	url := fmt.Sprintf("http://%s:%d/", nodeAddress, serviceOf("web").Spec.Ports[0].NodePort)

	is("the address to lead to both", finds(serviceOf("web").Spec.ClusterIP), both...)
	is("the short name to lead to both", finds("web"), both...)
	is("the whole name to lead to both", finds("web.default.svc.cluster.local"), both...)
	is("the headless name to be both", resolves("all.default.svc.cluster.local."), ips...)
	is("the port of the node to lead to both", asks(url), both...)
	create(t, kube, imaged("hosted", "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp", func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080, HostPort: hostPort}}
	}))
	is("the port that a pod has of the host to lead to it", asks(fmt.Sprintf("http://%s:%d/", nodeAddress, hostPort)), "hosted")
	c.eventually(t, "one to be stuck to", func(ctx context.Context) error {
		got, err := finds("sticky")(ctx)
		if err == nil && len(got) != 1 {
			err = fmt.Errorf("%q", got)
		}
		return err
	})
	c.eventually(t, "the API to be found by its name", func(context.Context) error {
		r := run(t, c.env, "", "exec", "client", "--", "sh", "-c", "nc -w 5 kubernetes.default.svc 443 </dev/null")
		if r.code != 0 {
			return errors.New(r.out + r.err)
		}
		return nil
	})

	balanced(t, c)

	// Who is not ready gets nothing.
	c.berth(t, "exec", "web-0", "--", "rm", "/tmp/ready")
	is("only the other to be led to", finds("web"), "web-1")
	is("the port of the node to lead to the other", asks(url), "web-1")
	is("the headless name to be the other", resolves("all.default.svc.cluster.local."), pods[1].Status.PodIP)
	c.berth(t, "exec", "web-0", "--", "touch", "/tmp/ready")
	is("both to be led to again", finds("web"), both...)

	// Rules stay while the worker is away; what went meanwhile goes when it is back.
	p := c.Workers()[0]
	p.Kill()
	is("the port of the node to lead to both while the worker is away", asks(url), both...)
	if err := kube.CoreV1().Services("default").Delete(t.Context(), "sticky", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := carriedRules(t); !strings.Contains(out, "default/sticky") {
		t.Errorf("nobody carries the service any more:\n%s", out)
	}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	c.eventually(t, "the rules of what is gone to go", func(context.Context) error {
		if out := carriedRules(t); strings.Contains(out, "default/sticky") || !strings.Contains(out, "default/web") {
			return errors.New(out)
		}
		return nil
	})
	is("both to be led to by name when the worker is back", finds("web"), both...)
	c.eventually(t, "the worker's metrics", func(ctx context.Context) error {
		text, err := fetch(ctx, "http://127.0.0.1:7645/metrics")
		for _, part := range []string{`berth_services_carried{what="services"} 2`, `berth_dns_queries_total{answer="NOERROR",name="cluster"}`,
			"kubeproxy_sync_proxy_rules_duration_seconds"} {
			if err == nil && !strings.Contains(text, part) {
				err = errors.New("they have no " + part)
			}
		}
		return err
	})
	n, err := kube.CoreV1().Nodes().Get(t.Context(), "worker-1", metav1.GetOptions{})
	if err != nil || n.Annotations["berth.dev/services"] != "carried" {
		t.Errorf("the node says %v, %v", n.Annotations, err)
	}
}

// balanced: a balancer before the nodes asks each of them how many pods of a service it has itself.
func balanced(t *testing.T, c *cluster) {
	const manifest = `
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
`
	c.berthIn(t, manifest, "create", "-f", "-")
	services := c.Reader().Kube.CoreV1().Services("default")
	s, err := services.Get(t.Context(), "balanced", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("http://%s:%d/healthz", nodeAddress, s.Spec.HealthCheckNodePort)
	c.eventually(t, "the node to say that it has two pods of the service", func(ctx context.Context) error {
		text, err := fetch(ctx, url)
		if err == nil && (!strings.Contains(text, `"localEndpoints": 2`) || !strings.Contains(text, `"serviceProxyHealthy": true`)) {
			err = errors.New(text)
		}
		return err
	})
	if err := services.Delete(t.Context(), s.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func distinct(of []string) []string {
	slices.Sort(of)
	return slices.Compact(of)
}

func fetch(ctx context.Context, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// carriedRules are the rules that lead from addresses to services.
func carriedRules(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "map", "ip", "kube-proxy", "service-ips").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}
