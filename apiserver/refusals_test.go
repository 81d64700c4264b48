package apiserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

func class(name string, value int32, isDefault bool) *schedulingv1.PriorityClass {
	return &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, GlobalDefault: isDefault}
}

// TestPriorityClassRules: PC2, PC3, PC4, PC8 and who refuses with which words.
func TestPriorityClassRules(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	classes := s.client(t).SchedulingV1().PriorityClasses()
	create := func(c *schedulingv1.PriorityClass) error {
		_, err := classes.Create(ctx, c, metav1.CreateOptions{})
		return err
	}
	t.Run("PC2", func(t *testing.T) {
		wantStatus(t, create(class("big", 1_000_000_001, false)), 422, "Forbidden: maximum allowed value of a user defined priority is 1000000000")
		if err := create(class("biggest", 1_000_000_000, false)); err != nil {
			t.Fatal(err)
		}
		if err := create(class("negative", -5, false)); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("PC3", func(t *testing.T) {
		wantStatus(t, create(class("system-mine", 1, false)), 422, "priority class names with 'system-' prefix are reserved for system use only")
		for _, name := range []string{"system-cluster-critical", "system-node-critical"} {
			for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
				err := classes.Delete(ctx, name, metav1.DeleteOptions{DryRun: dryRun})
				wantStatus(t, err, 403, "this is a system priority class and cannot be deleted")
			}
		}
	})
	t.Run("PC4", func(t *testing.T) {
		if err := create(class("first", 5, true)); err != nil {
			t.Fatal(err)
		}
		wantStatus(t, create(class("second", 6, true)), 403, "PriorityClass first is already marked as default")
	})
	t.Run("PC8", func(t *testing.T) {
		c, err := classes.Get(ctx, "first", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		c.Description, c.GlobalDefault = "changed", false
		if c, err = classes.Update(ctx, c, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		c.Value++
		_, err = classes.Update(ctx, c, metav1.UpdateOptions{})
		wantStatus(t, err, 422, "may not be changed in an update")
	})
}

// TestPodAdmission: AD1–AD5, AD7, AD8, PC5, PC7.
func TestPodAdmission(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	client := s.client(t)
	pods := client.CoreV1().Pods("default")
	if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class("high", 100, false), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	n := 0
	try := func(options metav1.CreateOptions, change func(p *corev1.Pod)) (*corev1.Pod, error) {
		n++
		p := testPod(fmt.Sprintf("p%d", n))
		change(p)
		return pods.Create(ctx, p, options)
	}
	never := corev1.PreemptNever
	wrong := int32(7)
	for _, c := range []struct {
		rule, part string
		code       int32
		change     func(p *corev1.Pod)
	}{
		{"AD2", "no PriorityClass with name none was found", 403, func(p *corev1.Pod) { p.Spec.PriorityClassName = "none" }},
		{"AD3", "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 100", 403, func(p *corev1.Pod) { p.Spec.PriorityClassName, p.Spec.Priority = "high", &wrong }},
		{"AD3", "the string value of PreemptionPolicy (Never) must not be provided in pod spec", 403, func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }},
		{"AD5", "system-node-critical", 403, func(p *corev1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }},
		{"AD7", "Invalid value", 422, func(p *corev1.Pod) { p.Name = "Not_A_Name" }},
		{"AD7", "Duplicate value", 422, func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) }},
		{"namespace", `namespaces "none" not found`, 404, nil},
	} {
		t.Run(c.rule, func(t *testing.T) {
			for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
				if c.change == nil {
					_, err := client.CoreV1().Pods("none").Create(ctx, testPod("x"), metav1.CreateOptions{DryRun: dryRun})
					wantStatus(t, err, c.code, c.part)
					continue
				}
				_, err := try(metav1.CreateOptions{DryRun: dryRun}, c.change)
				wantStatus(t, err, c.code, c.part)
			}
		})
	}
	t.Run("AD1", func(t *testing.T) {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			p, err := try(metav1.CreateOptions{DryRun: dryRun}, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
			if err != nil || *p.Spec.Priority != 100 || *p.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
				t.Fatalf("got %v, %v", p, err)
			}
			_, err = pods.Get(ctx, p.Name, metav1.GetOptions{})
			if exists := err == nil; exists != (dryRun == nil) {
				t.Fatalf("dry run %v, there %v", dryRun, exists)
			}
			if there := p.ResourceVersion != ""; there != (dryRun == nil) {
				t.Fatalf("dry run %v, resourceVersion %q", dryRun, p.ResourceVersion)
			}
		}
	})
	t.Run("AD5", func(t *testing.T) {
		admin, err := kubernetes.NewForConfig(s.config(t, "root", "system:masters"))
		if err != nil {
			t.Fatal(err)
		}
		p := testPod("critical")
		p.Spec.PriorityClassName = "system-node-critical"
		if _, err := admin.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("AD8", func(t *testing.T) {
		p, err := try(metav1.CreateOptions{}, func(*corev1.Pod) {})
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec.RestartPolicy != corev1.RestartPolicyAlways || *p.Spec.TerminationGracePeriodSeconds != 30 || p.Spec.ServiceAccountName != "default" ||
			len(p.Spec.Volumes) != 0 || *p.Spec.Priority != 0 || p.Status.Phase != corev1.PodPending || p.Generation != 1 {
			t.Fatalf("got %v", p)
		}
		if len(p.Spec.Tolerations) != 2 || *p.Spec.Tolerations[0].TolerationSeconds != 300 || p.Spec.Tolerations[1].Key != corev1.TaintNodeUnreachable {
			t.Fatalf("got %v", p.Spec.Tolerations)
		}
		own := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
		if p, err = try(metav1.CreateOptions{}, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{own} }); err != nil {
			t.Fatal(err)
		}
		if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].TolerationSeconds != nil {
			t.Fatalf("got %v", p.Spec.Tolerations)
		}
	})
	t.Run("AD4", func(t *testing.T) {
		p, err := try(metav1.CreateOptions{}, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
		if err != nil {
			t.Fatal(err)
		}
		p.Spec.Priority, p.Spec.PreemptionPolicy, p.Spec.Tolerations = nil, nil, nil
		p.Labels["again"] = "1"
		if p, err = pods.Update(ctx, p, metav1.UpdateOptions{}); err != nil || *p.Spec.Priority != 100 {
			t.Fatalf("got %v, %v", p, err)
		}
		p.Spec.Priority = &wrong
		_, err = pods.Update(ctx, p, metav1.UpdateOptions{})
		wantStatus(t, err, 422, "pod updates may not change fields other than")
	})
	t.Run("PC7", func(t *testing.T) {
		if err := client.SchedulingV1().PriorityClasses().Delete(ctx, "high", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := try(metav1.CreateOptions{}, func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
		wantStatus(t, err, 403, "no PriorityClass with name high was found")
	})
}

// TestPodParts: status, binding, eviction, log, and what is not supported.
func TestPodParts(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ns := s.namespace(t)
	node := ns + "-node"
	s.node(t, node)
	pods := s.client(t).CoreV1().Pods(ns)
	for _, name := range []string{"a", "b"} {
		if _, err := pods.Create(ctx, testPod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	bind := func(name, to string, dryRun ...string) error {
		return pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name}, Target: corev1.ObjectReference{Name: to}}, metav1.CreateOptions{DryRun: dryRun})
	}
	wantStatus(t, bind("a", "nowhere"), 404, `nodes "nowhere" not found`)
	wantStatus(t, bind("none", node), 404, `pods "none" not found`)
	if err := bind("a", node, metav1.DryRunAll); err != nil {
		t.Fatal(err)
	}
	_, err := pods.GetLogs("a", &corev1.PodLogOptions{}).Stream(ctx)
	wantStatus(t, err, 400, "not on a node yet")
	if err := bind("a", node); err != nil {
		t.Fatal(err)
	}
	wantStatus(t, bind("a", node), 409, "already assigned to node")

	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase = corev1.PodRunning
	p.Spec.ActiveDeadlineSeconds = new(int64)
	if p, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{}); err != nil || p.Status.Phase != corev1.PodRunning || p.Spec.ActiveDeadlineSeconds != nil {
		t.Fatalf("got %v, %v", p, err)
	}
	ready := `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`
	if p, err = pods.Patch(ctx, "a", types.StrategicMergePatchType, []byte(ready), metav1.PatchOptions{}, "status"); err != nil || len(p.Status.Conditions) != 2 {
		t.Fatalf("got %v, %v", p.Status.Conditions, err)
	}

	stream, err := pods.GetLogs("a", &corev1.PodLogOptions{Follow: true, Previous: true}).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer stream.Close()
	text, err := io.ReadAll(stream)
	if want := fmt.Sprintf("log of %s/a main follow=true previous=true\n", ns); err != nil || string(text) != want {
		t.Fatalf("got %q, %v", text, err)
	}
	_, err = pods.GetLogs("a", &corev1.PodLogOptions{Container: "none"}).Stream(ctx)
	wantStatus(t, err, 400, "container none is not valid for pod a")

	for _, part := range []string{"exec", "attach", "portforward"} {
		err := s.client(t).CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Name("a").SubResource(part).
			Param("command", "ls").Do(ctx).Error()
		wantStatus(t, err, http.StatusNotImplemented, "this version of Berth does not support")
	}
	_, err = pods.UpdateEphemeralContainers(ctx, "a", p, metav1.UpdateOptions{})
	wantStatus(t, err, http.StatusNotImplemented, "ephemeral containers")

	// PD7: an evicted pod ends with grace and says why; PD8: one that waits goes
	// at once.
	for _, name := range []string{"a", "b"} {
		if err := pods.EvictV1(ctx, evictionOf(name)); err != nil {
			t.Fatal(err)
		}
	}
	if p, err = pods.Get(ctx, "a", metav1.GetOptions{}); err != nil || p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 30 || p.Generation != 2 {
		t.Fatalf("got %v, %v", p, err)
	}
	found := false
	for _, c := range p.Status.Conditions {
		found = found || c.Type == corev1.DisruptionTarget && c.Reason == "EvictionByEvictionAPI"
	}
	if !found {
		t.Fatalf("no DisruptionTarget in %v", p.Status.Conditions)
	}
	_, err = pods.Get(ctx, "b", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
	wantStatus(t, pods.EvictV1(ctx, evictionOf("b")), 404, "not found")

	// TM6: a grace period of 0 takes the object away at once.
	zero := int64(0)
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	_, err = pods.Get(ctx, "a", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
}

// TestFinalizers: an object with finalizers stays until the last is gone, and
// takes no new ones (PO4).
func TestFinalizers(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ns := s.namespace(t)
	pods := s.client(t).CoreV1().Pods(ns)
	maps := s.client(t).CoreV1().ConfigMaps(ns)
	p := testPod("a")
	p.Finalizers = []string{"example.com/one"}
	if _, err := pods.Create(ctx, p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", Finalizers: []string{"example.com/one"}}}
	if _, err := maps.Create(ctx, cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := maps.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || p.DeletionTimestamp == nil {
		t.Fatalf("got %v, %v", p, err)
	}
	_, err = pods.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/one","example.com/two"]}}`), metav1.PatchOptions{})
	wantStatus(t, err, 422, "no new finalizers can be added if the object is being deleted")
	if cm, err = maps.Get(ctx, "a", metav1.GetOptions{}); err != nil || cm.DeletionTimestamp == nil {
		t.Fatalf("got %v, %v", cm, err)
	}
	none := []byte(`{"metadata":{"finalizers":null}}`)
	if _, err := pods.Patch(ctx, "a", types.MergePatchType, none, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := maps.Patch(ctx, "a", types.MergePatchType, none, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = pods.Get(ctx, "a", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
	_, err = maps.Get(ctx, "a", metav1.GetOptions{})
	wantStatus(t, err, 404, "not found")
}

// TestNamespaces: what a new one has, and how one ends.
func TestNamespaces(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ns := s.namespace(t)
	client := s.client(t).CoreV1()
	if _, err := client.ServiceAccounts(ns).Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	ca, err := client.ConfigMaps(ns).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil || !strings.Contains(ca.Data["ca.crt"], "BEGIN CERTIFICATE") {
		t.Fatalf("got %v, %v", ca, err)
	}
	if err := client.Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n, err := client.Namespaces().Get(ctx, ns, metav1.GetOptions{})
	if err != nil || n.Status.Phase != corev1.NamespaceTerminating || n.DeletionTimestamp == nil {
		t.Fatalf("got %v, %v", n, err)
	}
	_, err = client.Pods(ns).Create(ctx, testPod("late"), metav1.CreateOptions{})
	wantStatus(t, err, 403, "because it is being terminated")
	_, err = client.ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}, metav1.CreateOptions{})
	wantStatus(t, err, 403, "because it is being terminated")
	wantStatus(t, client.Namespaces().Delete(ctx, "default", metav1.DeleteOptions{}), 403, "this namespace may not be deleted")
}

func evictionOf(name string) *policyv1.Eviction {
	return &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: name}}
}
