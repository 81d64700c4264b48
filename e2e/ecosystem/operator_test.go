package ecosystem

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/e2e/machine"
	"github.com/berth-dev/berth/pki"
)

const (
	gardenNamespace = "garden"
	outsidePort     = 19443
)

// TestOperatorOutside: an operator on controller-runtime that runs beside the cluster, as while it is being developed; webhooks are called by URL. A
// second one waits for the first to end.
func TestOperatorOutside(t *testing.T) {
	g := newGarden(t, []string{machine.HubAddress}, outsideAt(outsidePort))
	g.apply("testdata/operator/crd.yaml", "testdata/operator/webhooks.yaml")
	first := g.start("first", outsidePort)
	holder := g.waitLeads("")
	g.try()
	t.Run("another one takes over", func(t *testing.T) {
		g := g.on(t)
		second := g.start("second", outsidePort+1)
		first.end(t)
		if after := g.waitLeads(holder); after == holder {
			t.Errorf("%s leads still", after)
		}
		// The webhooks are at another port now.
		g.webhook = outsideAt(outsidePort + 1)
		g.apply("testdata/operator/crd.yaml", "testdata/operator/webhooks.yaml")
		g.set("tulips", "plants", int64(1))
		g.waitReady("tulips", 1)
		second.end(t)
	})
}

// outsideAt is where the webhooks of an operator beside the cluster are.
func outsideAt(port int) string {
	return "url: https://" + net.JoinHostPort(machine.HubAddress, fmt.Sprint(port))
}

// TestOperatorInside: the same operator as a Deployment of two pods, whose webhooks are called by its Service.
func TestOperatorInside(t *testing.T) {
	needTool(t, "operator")
	g := newGarden(t, nil, "service: {namespace: "+gardenNamespace+", name: gardener, port: 443, path: \"\"}", "gardener."+gardenNamespace+".svc")
	g.apply("testdata/operator/crd.yaml", "testdata/operator/inside.yaml")
	tool(t, "kubectl", "-n", gardenNamespace, "rollout", "status", "deployment/gardener", "--timeout", "5m")
	g.apply("testdata/operator/webhooks.yaml")
	holder := g.waitLeads("")
	g.try()
	t.Run("another one takes over", func(t *testing.T) {
		g := g.on(t)
		pod, _, _ := strings.Cut(holder, "_")
		tool(t, "kubectl", "-n", gardenNamespace, "delete", "pod", pod, "--wait=false")
		if after := g.waitLeads(holder); after == holder {
			t.Errorf("%s leads still", after)
		}
		tool(t, "kubectl", "-n", gardenNamespace, "rollout", "status", "deployment/gardener", "--timeout", "5m")
		g.set("tulips", "plants", int64(1))
		g.waitReady("tulips", 1)
	})
}

// garden is a namespace with the operator's kinds.
type garden struct {
	t *testing.T
	// certs is a folder with what the webhooks are served by.
	certs string
	// webhook is how the servers find them, and ca who has signed for it.
	webhook, ca string
}

func newGarden(t *testing.T, addresses []string, webhook string, names ...string) *garden {
	g := &garden{t: t, certs: t.TempDir(), webhook: webhook}
	ca, err := pki.NewCA(time.Now(), 0)
	if err != nil {
		t.Fatal(err)
	}
	var ips []net.IP
	for _, a := range addresses {
		ips = append(ips, net.ParseIP(a))
	}
	pair, err := ca.Issue(time.Now(), pki.Request{Kind: pki.Server, Name: "gardener", DNSNames: names, IPs: ips})
	if err != nil {
		t.Fatal(err)
	}
	g.ca = base64.StdEncoding.EncodeToString(ca.CertPEM())
	for name, data := range map[string][]byte{"tls.crt": pair.CertPEM, "tls.key": pair.KeyPEM} {
		if err := os.WriteFile(filepath.Join(g.certs, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tool(t, "kubectl", "create", "namespace", gardenNamespace)
	tool(t, "kubectl", "-n", gardenNamespace, "create", "secret", "tls", "gardener",
		"--cert="+filepath.Join(g.certs, "tls.crt"), "--key="+filepath.Join(g.certs, "tls.key"))
	t.Cleanup(func() { g.remove() })
	return g
}

func (g *garden) on(t *testing.T) *garden {
	out := *g
	out.t = t
	return &out
}

// apply applies manifests, with where the webhooks are.
func (g *garden) apply(files ...string) {
	g.t.Helper()
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			g.t.Fatal(err)
		}
		cmd := command(g.t, "kubectl", "apply", "--server-side", "-f", "-")
		cmd.Stdin = strings.NewReader(strings.NewReplacer("NAMESPACE", gardenNamespace, "IMAGE", operatorImage, "CABUNDLE", g.ca,
			"WEBHOOK/convert", g.at("/convert"), "WEBHOOK/mutate", g.at("/mutate-garden-example-com-v1-plot"),
			"WEBHOOK/validate", g.at("/validate-garden-example-com-v1-plot")).Replace(string(text)))
		if out, err := cmd.CombinedOutput(); err != nil {
			g.t.Fatalf("apply %s: %v\n%s", f, err, out)
		}
	}
}

// at is how the servers find one of the webhooks.
func (g *garden) at(path string) string {
	if url, ok := strings.CutPrefix(g.webhook, "url: "); ok {
		return "url: " + url + path
	}
	return strings.Replace(g.webhook, `path: ""`, "path: "+path, 1)
}

// remove deletes what the cluster as a whole has of it. Plots have a finalizer, which nobody is left to honour.
func (g *garden) remove() {
	ctx := context.Background()
	run := func(args ...string) { atEnd(g.t, args...) }
	run("delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "gardener", "--ignore-not-found")
	run("-n", gardenNamespace, "delete", "deployment", "gardener", "--ignore-not-found", "--wait")
	plots, err := shared.Fleet.Reader().Dynamic.Resource(plotsV1).Namespace(gardenNamespace).List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		g.t.Errorf("the plots: %v", err)
	}
	if plots != nil {
		for i := range plots.Items {
			run("-n", gardenNamespace, "patch", "plot", plots.Items[i].GetName(), "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
		}
	}
	run("delete", "crd", "plots."+plotsV1.Group, "--ignore-not-found", "--wait")
	run("delete", "clusterrole,clusterrolebinding", "gardener", "--ignore-not-found")
	run("delete", "namespace", gardenNamespace, "--wait")
}

// process is an operator beside the cluster.
type process struct {
	cmd    *exec.Cmd
	log    string
	exited chan struct{}
}

func (g *garden) start(name string, port int) *process {
	g.t.Helper()
	p := &process{log: filepath.Join(g.certs, name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		g.t.Fatal(err)
	}
	p.cmd = command(g.t, "operator", "--certs", g.certs, "--host", machine.HubAddress, "--port", fmt.Sprint(port), "--probes", "0", "--election", gardenNamespace)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	go func() {
		defer close(p.exited)
		_ = p.cmd.Wait() // how it ended is in its log
		_ = log.Close()
	}()
	g.t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.exited
		if g.t.Failed() {
			text, _ := os.ReadFile(p.log) // it is only for people
			g.t.Logf("the log of the operator %s:\n%s", name, text)
		}
	})
	return p
}

// end ends it as a service manager would.
func (p *process) end(t *testing.T) {
	t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.exited
}

// waitLeads waits until somebody leads who is another than before, and says who.
func (g *garden) waitLeads(before string) (holder string) {
	g.t.Helper()
	eventually(g.t, "an operator that leads", func(ctx context.Context) error {
		lease, err := kube().CoordinationV1().Leases(gardenNamespace).Get(ctx, "gardener", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" || *lease.Spec.HolderIdentity == before {
			return errors.New("nobody new leads")
		}
		holder = *lease.Spec.HolderIdentity
		return nil
	})
	return holder
}

var (
	plotsV1    = schema.GroupVersionResource{Group: "garden.example.com", Version: "v1", Resource: "plots"}
	plotsAlpha = schema.GroupVersionResource{Group: "garden.example.com", Version: "v1alpha1", Resource: "plots"}
)

func (g *garden) plots(r schema.GroupVersionResource) dynamic.ResourceInterface {
	return shared.Fleet.Reader().Dynamic.Resource(r).Namespace(gardenNamespace)
}

func plot(r schema.GroupVersionResource, name string, spec map[string]any) *unstructured.Unstructured {
	spec["image"] = busyboxImage
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": r.GroupVersion().String(), "kind": "Plot", "metadata": map[string]any{"name": name}, "spec": spec}}
}

// try goes through what an operator does, and leaves a plot of tulips.
func (g *garden) try() {
	g.t.Run("a webhook fills in", func(t *testing.T) {
		g := g.on(t)
		// The first one is asked again until the webhooks are served.
		eventually(t, "the first plot", func(ctx context.Context) error {
			p, err := g.plots(plotsV1).Create(ctx, plot(plotsV1, "tulips", map[string]any{"plants": int64(2)}), metav1.CreateOptions{})
			if err != nil {
				return err
			}
			if sort, _, _ := unstructured.NestedString(p.Object, "spec", "sort"); sort != "tulip" {
				t.Errorf("its sort is %q", sort)
			}
			return nil
		})
	})
	g.t.Run("a webhook refuses", func(t *testing.T) {
		g := g.on(t)
		_, err := g.plots(plotsV1).Create(t.Context(), plot(plotsV1, "jungle", map[string]any{"plants": int64(9)}), metav1.CreateOptions{})
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(fmt.Sprint(err), "no plot has room for more than 5") {
			t.Errorf("9 plants: %v", err)
		}
		refused(t, "plants stay what they are", "kubectl", "-n", gardenNamespace, "patch", "plot", "tulips", "--type=merge", "-p", `{"spec":{"sort":"rose"}}`)
		contains(t, tool(t, "kubectl", "-n", gardenNamespace, "patch", "plot", "tulips", "--type=merge", "--dry-run=server", "-p", `{"spec":{"plants":4}}`),
			"Warning: more than 3 plants want much water")
	})
	g.t.Run("what it owns is made and its status told", func(t *testing.T) { g.on(t).owned() })
	g.t.Run("a change is followed", func(t *testing.T) {
		g := g.on(t)
		g.set("tulips", "plants", int64(1))
		g.waitReady("tulips", 1)
		tool(t, "kubectl", "-n", gardenNamespace, "scale", "plot", "tulips", "--replicas=2")
		g.waitReady("tulips", 2)
	})
	g.t.Run("versions are converted", func(t *testing.T) { g.on(t).converted() })
	g.t.Run("a finalizer is honoured", func(t *testing.T) { g.on(t).finished() })
}

func (g *garden) owned() {
	ctx := g.t.Context()
	p := g.waitReady("tulips", 2)
	for _, get := range []func() (metav1.Object, error){
		func() (metav1.Object, error) {
			return kube().AppsV1().Deployments(gardenNamespace).Get(ctx, "tulips", metav1.GetOptions{})
		},
		func() (metav1.Object, error) {
			return kube().CoreV1().ConfigMaps(gardenNamespace).Get(ctx, "tulips", metav1.GetOptions{})
		},
	} {
		o, err := get()
		if err != nil {
			g.t.Fatal(err)
		}
		if owner := metav1.GetControllerOf(o); owner == nil || owner.UID != p.GetUID() {
			g.t.Errorf("%T is owned by %v", o, owner)
		}
	}
	// What is deleted is made again.
	tool(g.t, "kubectl", "-n", gardenNamespace, "delete", "configmap", "tulips", "--wait")
	eventually(g.t, "the config map to be back", func(ctx context.Context) error {
		_, err := kube().CoreV1().ConfigMaps(gardenNamespace).Get(ctx, "tulips", metav1.GetOptions{})
		return err
	})
	contains(g.t, tool(g.t, "kubectl", "-n", gardenNamespace, "get", "events", "--field-selector", "reason=Planted"), "2 plants of tulip")
	contains(g.t, tool(g.t, "kubectl", "-n", gardenNamespace, "wait", "plot/tulips", "--for=condition=Ready", "--timeout=3m"), "condition met")
	contains(g.t, tool(g.t, "kubectl", "-n", gardenNamespace, "get", "plots"), "READY", "SORT")
}

// set changes what is asked of a plot.
func (g *garden) set(name, field string, value any) {
	g.t.Helper()
	eventually(g.t, "a change of "+name, func(ctx context.Context) error {
		p, err := g.plots(plotsV1).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if err := unstructured.SetNestedField(p.Object, value, "spec", field); err != nil {
			return err
		}
		_, err = g.plots(plotsV1).Update(ctx, p, metav1.UpdateOptions{})
		return err
	})
}

// waitReady waits until the operator says of a plot that so many plants are ready, and that it has seen the newest of it.
func (g *garden) waitReady(name string, plants int64) (p *unstructured.Unstructured) {
	g.t.Helper()
	eventually(g.t, fmt.Sprintf("%d plants of %s", plants, name), func(ctx context.Context) (err error) {
		if p, err = g.plots(plotsV1).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		ready, _, _ := unstructured.NestedInt64(p.Object, "status", "readyPlants")
		seen, _, _ := unstructured.NestedInt64(p.Object, "status", "observedGeneration")
		if ready != plants || seen != p.GetGeneration() {
			return fmt.Errorf("its status: %v", p.Object["status"])
		}
		return nil
	})
	return p
}

// converted: what is stored in one version is read and written in another.
func (g *garden) converted() {
	ctx := g.t.Context()
	old, err := g.plots(plotsAlpha).Get(ctx, "tulips", metav1.GetOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	if size, _, _ := unstructured.NestedString(old.Object, "spec", "size"); size != "2" {
		g.t.Errorf("its size in v1alpha1 is %q", size)
	}
	if _, err := g.plots(plotsAlpha).Create(ctx, plot(plotsAlpha, "roses", map[string]any{"size": "1", "sort": "rose"}), metav1.CreateOptions{}); err != nil {
		g.t.Fatal(err)
	}
	p := g.waitReady("roses", 1)
	if n, _, _ := unstructured.NestedInt64(p.Object, "spec", "plants"); n != 1 {
		g.t.Errorf("v1 has %d plants", n)
	}
	list, err := g.plots(plotsAlpha).List(ctx, metav1.ListOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	var sizes []string
	for i := range list.Items {
		size, _, _ := unstructured.NestedString(list.Items[i].Object, "spec", "size")
		sizes = append(sizes, size)
	}
	slices.Sort(sizes)
	if !slices.Equal(sizes, []string{"1", "2"}) {
		g.t.Errorf("the sizes of v1alpha1 are %q", sizes)
	}
}

// finished: the operator writes down what goes before it goes, and what it owned goes with it.
func (g *garden) finished() {
	tool(g.t, "kubectl", "-n", gardenNamespace, "delete", "plot", "roses", "--wait")
	book, err := kube().CoreV1().ConfigMaps(gardenNamespace).Get(g.t.Context(), "harvest", metav1.GetOptions{})
	if err != nil {
		g.t.Fatal(err)
	}
	if book.Data["roses"] != "1 rose" {
		g.t.Errorf("it was written down as %q", book.Data["roses"])
	}
	eventually(g.t, "what was owned to go", func(ctx context.Context) error {
		_, err := kube().AppsV1().Deployments(gardenNamespace).Get(ctx, "roses", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			err = errors.New("the Deployment is still there")
		}
		return err
	})
}
