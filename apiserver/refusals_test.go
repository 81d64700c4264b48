package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
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

// admissionTest tries pods on a server with the class "high".
type admissionTest struct {
	*testing.T
	server *testServer
	pods   typedcorev1.PodInterface
	n      int
}

func newAdmission(t *testing.T) *admissionTest {
	s := start(t, newDouble(t), nil)
	if _, err := s.client(t).SchedulingV1().PriorityClasses().Create(context.Background(), class("high", 100, false), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &admissionTest{T: t, server: s, pods: s.clientOf(t, "ann", "people").CoreV1().Pods("default")}
}

// try creates a pod of a new name, changed.
func (a *admissionTest) try(options metav1.CreateOptions, change func(p *corev1.Pod)) (*corev1.Pod, error) {
	a.n++
	p := testPod(fmt.Sprintf("p%d", a.n))
	change(p)
	return a.pods.Create(context.Background(), p, options)
}

// must is try for pods that have to be taken.
func (a *admissionTest) must(options metav1.CreateOptions, change func(p *corev1.Pod)) *corev1.Pod {
	a.Helper()
	p, err := a.try(options, change)
	if err != nil {
		a.Fatal(err)
	}
	return p
}

func high(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }

// TestPodRefusals: AD2, AD3, AD5, AD7, in earnest and as a dry run.
func TestPodRefusals(t *testing.T) {
	a := newAdmission(t)
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
	} {
		t.Run(c.rule, func(t *testing.T) {
			for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
				_, err := a.try(metav1.CreateOptions{DryRun: dryRun}, c.change)
				wantStatus(t, err, c.code, c.part)
			}
		})
	}
	_, err := a.server.client(t).CoreV1().Pods("none").Create(context.Background(), testPod("x"), metav1.CreateOptions{})
	wantStatus(t, err, 404, `namespaces "none" not found`)
}

// TestPodAdmission: AD1, AD4, AD5, AD8, PC5, PC7.
func TestPodAdmission(t *testing.T) {
	a := newAdmission(t)
	t.Run("AD1", func(t *testing.T) {
		for _, dryRun := range [][]string{nil, {metav1.DryRunAll}} {
			p := a.must(metav1.CreateOptions{DryRun: dryRun}, high)
			if *p.Spec.Priority != 100 || *p.Spec.PreemptionPolicy != corev1.PreemptLowerPriority {
				t.Fatalf("got %v", p)
			}
			_, err := a.pods.Get(context.Background(), p.Name, metav1.GetOptions{})
			if exists := err == nil; exists != (dryRun == nil) {
				t.Fatalf("dry run %v, there %v", dryRun, exists)
			}
			if there := p.ResourceVersion != ""; there != (dryRun == nil) {
				t.Fatalf("dry run %v, resourceVersion %q", dryRun, p.ResourceVersion)
			}
		}
	})
	t.Run("AD5", func(t *testing.T) {
		admin, err := kubernetes.NewForConfig(a.server.config(t, "root", "system:masters"))
		if err != nil {
			t.Fatal(err)
		}
		p := testPod("critical")
		p.Spec.PriorityClassName = "system-node-critical"
		if _, err := admin.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("AD8", a.defaults)
	t.Run("AD4", func(t *testing.T) {
		p := a.must(metav1.CreateOptions{}, high)
		p.Spec.Priority, p.Spec.PreemptionPolicy, p.Spec.Tolerations = nil, nil, nil
		p.Labels["again"] = "1"
		p, err := a.pods.Update(context.Background(), p, metav1.UpdateOptions{})
		if err != nil || *p.Spec.Priority != 100 {
			t.Fatalf("got %v, %v", p, err)
		}
		*p.Spec.Priority = 7
		_, err = a.pods.Update(context.Background(), p, metav1.UpdateOptions{})
		wantStatus(t, err, 422, "pod updates may not change fields other than")
	})
	t.Run("PC7", func(t *testing.T) {
		if err := a.server.client(t).SchedulingV1().PriorityClasses().Delete(context.Background(), "high", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		_, err := a.try(metav1.CreateOptions{}, high)
		wantStatus(t, err, 403, "no PriorityClass with name high was found")
	})
}

// defaults: AD8, and PC5.
func (a *admissionTest) defaults(t *testing.T) {
	p := a.must(metav1.CreateOptions{}, func(*corev1.Pod) {})
	if p.Spec.RestartPolicy != corev1.RestartPolicyAlways || *p.Spec.TerminationGracePeriodSeconds != 30 || p.Spec.ServiceAccountName != "default" ||
		len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Name != accountVolume || *p.Spec.Priority != 0 || p.Status.Phase != corev1.PodPending || p.Generation != 1 {
		t.Fatalf("got %v", p)
	}
	no := false
	for what, without := range map[string]func(*corev1.Pod){
		"it does not want the token": func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = &no },
		"something else is mounted there": func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "own", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "own", MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"}}
		},
	} {
		if p := a.must(metav1.CreateOptions{}, without); slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == accountVolume }) {
			t.Errorf("%s: %v", what, p.Spec.Volumes)
		}
	}
	if len(p.Spec.Tolerations) != 2 || *p.Spec.Tolerations[0].TolerationSeconds != 300 || p.Spec.Tolerations[1].Key != corev1.TaintNodeUnreachable {
		t.Fatalf("got %v", p.Spec.Tolerations)
	}
	own := corev1.Toleration{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	p = a.must(metav1.CreateOptions{}, func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{own} })
	if len(p.Spec.Tolerations) != 2 || p.Spec.Tolerations[0].TolerationSeconds != nil {
		t.Fatalf("got %v", p.Spec.Tolerations)
	}
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
