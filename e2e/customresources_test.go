package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/agent/fleet"
)

const widgetDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.e2e.example.com}
spec:
  group: e2e.example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              size: {type: integer, default: 3, description: How large it is.}
              color: {type: string, enum: [red, blue]}
              replicas: {type: integer}
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, required: [name], properties: {name: {type: string}, count: {type: integer}}}
            x-kubernetes-validations:
            - {rule: "self.size <= 10", message: it is too large}
          status: {type: object, properties: {replicas: {type: integer}, selector: {type: string}, phase: {type: string}}}
    subresources:
      status: {}
      scale: {specReplicasPath: .spec.replicas, statusReplicasPath: .status.replicas, labelSelectorPath: .status.selector}
    selectableFields: [{jsonPath: .spec.color}]
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Color, type: string, jsonPath: .spec.color}
  - name: v1beta1
    served: true
    storage: false
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// widget is a manifest, with more of its metadata and its spec.
func widget(name, metadata, spec string) string {
	return fmt.Sprintf("apiVersion: e2e.example.com/v1\nkind: Widget\nmetadata: {name: %s%s}\nspec: {%s}\n", name, metadata, spec)
}

// A custom kind does what its definition says: two versions, schema, defaults, a CEL
// rule, subresources, columns, owners, finalizers; on every server, and while the leader
// is killed.
func TestCustomResources(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "custom")
	dir := t.TempDir()
	file := func(name, text string) string {
		path := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	t.Cleanup(func() {
		client, err := dynamic.NewForConfig(c.Reader().RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
		if err := client.Resource(definitions).Delete(context.Background(), "widgets.e2e.example.com", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	s.kubectl("apply", "-f", file("definition", widgetDefinition))
	s.kubectl("wait", "--for=condition=Established", "crd/widgets.e2e.example.com", "--timeout=60s")

	seen := watchWidgets(t, c, s.ns)
	s.kubectl("create", "-f", file("a", widget("a", "", "color: red, replicas: 2, parts: [{name: x1, count: 1}]")))
	has(t, "columns", s.kubectl("get", "wd"), "SIZE", "COLOR", "a", "3", "red")
	has(t, "the other version", s.kubectl("get", "widgets.v1beta1.e2e.example.com", "a", "-o", "jsonpath={.apiVersion} {.spec.size}"), "e2e.example.com/v1beta1 3")
	s.kubectl("apply", "--server-side", "--field-manager=second", "-f", file("a2", widget("a", "", "parts: [{name: x2, count: 2}]")))
	has(t, "merged by key", s.kubectl("get", "wd", "a", "-o", "jsonpath={.spec.parts[*].name}"), "x1 x2")
	s.kubectl("scale", "wd/a", "--replicas=5")
	s.kubectl("patch", "wd", "a", "--subresource=status", "--type=merge", "-p", `{"status":{"phase":"Up","replicas":5},"spec":{"size":9}}`)
	has(t, "parts apart", s.kubectl("get", "wd", "a", "-o", "jsonpath={.spec.replicas} {.status.phase} {.spec.size}"), "5 Up 3")
	has(t, "field selector", s.kubectl("get", "wd", "--field-selector=spec.color=red", "-o", "name"), "widget.e2e.example.com/a")
	has(t, "explained", s.kubectl("explain", "wd.spec.size"), "How large it is.")
	has(t, "of all", s.kubectl("get", "all"), "widget.e2e.example.com/a")
	s.refused("it is too large", "patch", "wd", "a", "--type=merge", "-p", `{"spec":{"size":11}}`)
	s.refused(`Unsupported value: "green"`, "patch", "wd", "a", "--type=merge", "-p", `{"spec":{"color":"green"}}`)
	s.refused(`unknown field "spec.junk"`, "create", "-f", file("junk", widget("junk", "", "junk: 1")))

	// Written while the leader is killed: each once, and everybody sees the same.
	uid := s.kubectl("get", "wd", "a", "-o", "jsonpath={.metadata.uid}")
	owner := fmt.Sprintf(", ownerReferences: [{apiVersion: e2e.example.com/v1, kind: Widget, name: a, uid: %s, blockOwnerDeletion: true}]", uid)
	leader := c.waitLeader(t)
	leader.Kill()
	for i := range 10 {
		c.eventually(t, "a widget", func(ctx context.Context) error {
			u := &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "e2e.example.com/v1", "kind": "Widget",
				"metadata": map[string]any{"name": fmt.Sprint("w", i)}, "spec": map[string]any{"color": "blue"},
			}}
			_, err := widgetsOf(t, c.Reader(), s.ns).Create(ctx, u, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil // its outcome was not known
			}
			return err
		})
	}
	c.waitLeader(t)
	c.restart(t, leader)
	s.kubectl("create", "-f", file("child", widget("child", owner, "color: blue")))
	s.kubectl("create", "-f", file("owned", fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owned%s}\n", owner)))
	for _, informer := range seen {
		informer.knows(t, c, s.ns, 12)
		informer.stop()
	}

	s.kubectl("delete", "wd", "a", "--cascade=foreground", "--timeout=60s")
	s.refused(`"child" not found`, "get", "wd", "child")
	s.refused(`"owned" not found`, "get", "configmap", "owned")

	// A definition goes after its objects, and these after their finalizers.
	s.kubectl("create", "-f", file("held", widget("held", ", finalizers: [example.com/hold]", "color: red")))
	s.kubectl("delete", "crd", "widgets.e2e.example.com", "--wait=false")
	c.eventually(t, "all others to go", func(ctx context.Context) error {
		list, err := widgetsOf(t, c.Reader(), s.ns).List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) == 1 {
			return err
		}
		return fmt.Errorf("there are %d", len(list.Items))
	})
	s.refused("is terminating", "create", "-f", file("late", widget("late", "", "color: red")))
	s.kubectl("patch", "wd", "held", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	s.kubectl("wait", "--for=delete", "crd/widgets.e2e.example.com", "--timeout=60s")
	s.kubectl("apply", "-f", file("definition", widgetDefinition))
	s.kubectl("wait", "--for=condition=Established", "crd/widgets.e2e.example.com", "--timeout=60s")

	// A namespace ends with them.
	s.kubectl("create", "-f", file("last", widget("last", ", finalizers: [example.com/hold]", "color: red")))
	s.kubectl("delete", "namespace", s.ns, "--wait=false")
	c.eventually(t, "the namespace to wait", func(ctx context.Context) error {
		ns, err := c.Reader().Kube.CoreV1().Namespaces().Get(ctx, s.ns, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range ns.Status.Conditions {
			if condition.Type == corev1.NamespaceContentRemaining && strings.Contains(condition.Message, "widgets.e2e.example.com has 1 resource instances") {
				return nil
			}
		}
		return fmt.Errorf("it says %v", ns.Status.Conditions)
	})
	s.kubectl("patch", "wd", "last", "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	s.kubectl("wait", "--for=delete", "namespace/"+s.ns, "--timeout=60s")
	c.verify(t, 3)
}

// refused runs a command that is to fail, and to say why.
func (s *sets) refused(why string, args ...string) {
	s.t.Helper()
	r := run(s.t, s.env, "", append(args, "-n", s.ns)...)
	if r.code == 0 || !strings.Contains(r.err, why) {
		s.t.Errorf("berth %s: exit status %d, and not %q:\n%s%s", strings.Join(args, " "), r.code, why, r.out, r.err)
	}
}

var widgetResource = schema.GroupVersionResource{Group: "e2e.example.com", Version: "v1", Resource: "widgets"}

func widgetsOf(t *testing.T, p *fleet.Process, ns string) dynamic.ResourceInterface {
	t.Helper()
	client, err := dynamic.NewForConfig(p.RESTConfig())
	if err != nil {
		t.Fatal(err)
	}
	return client.Resource(widgetResource).Namespace(ns)
}

// widgetInformer is client-go's, of one server.
type widgetInformer struct {
	server string
	store  cache.Store
	stop   func()
}

// watchWidgets begins an informer on each server.
func watchWidgets(t *testing.T, c *cluster, ns string) []widgetInformer {
	var out []widgetInformer
	for _, p := range c.Servers() {
		client, err := dynamic.NewForConfig(p.RESTConfig())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		factory := dynamicinformer.NewFilteredDynamicSharedInformerFactory(client, 0, ns, nil)
		informer := factory.ForResource(widgetResource).Informer()
		factory.Start(ctx.Done())
		stop := sync.OnceFunc(func() {
			cancel()
			factory.Shutdown()
		})
		t.Cleanup(stop)
		out = append(out, widgetInformer{p.Name, informer.GetStore(), stop})
	}
	return out
}

// knows waits until the informer holds so many widgets, and each of them as it is.
func (i widgetInformer) knows(t *testing.T, c *cluster, ns string, n int) {
	t.Helper()
	c.eventually(t, i.server+"'s informer", func(ctx context.Context) error {
		list, err := widgetsOf(t, c.Reader(), ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if known := len(i.store.ListKeys()); known != n || len(list.Items) != n {
			return fmt.Errorf("it knows %d, and there are %d", known, len(list.Items))
		}
		for _, is := range list.Items {
			o, ok, err := i.store.GetByKey(ns + "/" + is.GetName())
			if err != nil || !ok {
				return fmt.Errorf("%s is not known: %v", is.GetName(), err)
			}
			if was := o.(*unstructured.Unstructured).GetResourceVersion(); was != is.GetResourceVersion() {
				return fmt.Errorf("%s is known at %s, and is at %s", is.GetName(), was, is.GetResourceVersion())
			}
		}
		return nil
	})
}
