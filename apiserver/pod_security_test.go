package apiserver

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	restclient "k8s.io/client-go/rest"
)

const wildPod = `
apiVersion: v1
kind: Pod
metadata: {name: %}
spec:
  hostPID: true
  containers: [{name: c, image: busybox}]
`

const restrictedPod = `
apiVersion: v1
kind: Pod
metadata: {name: %}
spec:
  securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}
  containers: [{name: c, image: busybox, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]
`

func podNamed(manifest, name string) string { return strings.ReplaceAll(manifest, "%", name) }

// TestPodSecurityByLabels: a namespace says by its labels which pods are refused and of
// which is warned, also in templates; changed labels tell whom they would refuse.
func TestPodSecurityByLabels(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	k.want(podNamed(wildPod, "before"), []string{"create"}, "pod/before created")
	k.refused("", []string{"label", "ns", ns, "pod-security.kubernetes.io/enforce=unheard"}, `must be one of privileged, baseline, restricted`)
	k.want("", []string{"label", "ns", ns, "pod-security.kubernetes.io/enforce=restricted", "pod-security.kubernetes.io/warn=restricted"},
		`existing pods in namespace "`+ns+`" violate the new PodSecurity enforce level "restricted:latest"`, "before: host namespaces, allowPrivilegeEscalation != false")
	refusal := `pods "wild" is forbidden: violates PodSecurity "restricted:latest": host namespaces (hostPID=true)`
	k.refused(podNamed(wildPod, "wild"), []string{"create"}, refusal)
	k.refused(podNamed(wildPod, "wild"), []string{"create", "--dry-run=server"}, refusal)
	k.refused("", []string{"patch", "pod", "before", "--subresource=ephemeralcontainers", "-p",
		`{"spec":{"ephemeralContainers":[{"name":"e","image":"busybox","securityContext":{"runAsUser":0}}]}}`}, `violates PodSecurity "restricted:latest"`)
	k.want("", []string{"label", "pod", "before", "a=b"}, "labeled") // what is there goes on
	k.want(podNamed(restrictedPod, "tame"), []string{"create"}, "pod/tame created")

	template := `
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {hostPID: true, containers: [{name: c, image: busybox}]}
`
	k.want(template, []string{"apply"}, `would violate PodSecurity "restricted:latest"`, "deployment.apps/web created")
	newKubectl(t, s, "nowhere").refused(podNamed(wildPod, "wild"), []string{"create"}, `namespaces "nowhere" not found`)
}

// TestPodSecurityOfTemplates: no ReplicaSet makes a pod that nobody may create.
func TestPodSecurityOfTemplates(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	pod := testPod("")
	pod.Namespace, pod.GenerateName = ns, "web-"
	if _, err := s.FinishTemplate(pod); err != nil {
		t.Fatal(err)
	}
	newKubectl(t, s, ns).want("", []string{"label", "ns", ns, "pod-security.kubernetes.io/enforce=baseline"}, "labeled")
	if _, err := s.FinishTemplate(pod); err != nil {
		t.Fatal(err)
	}
	pod.Spec.HostNetwork = true
	_, err := s.FinishTemplate(pod)
	wantStatus(t, err, 403, `violates PodSecurity "baseline:latest": host namespaces (hostNetwork=true)`)
}

// TestPrivilegedPods: nothing but a level of PodSecurity keeps a container from being privileged, in a template or in a pod.
func TestPrivilegedPods(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	const pod = `
apiVersion: v1
kind: Pod
metadata: {name: %}
spec: {containers: [{name: c, image: busybox, securityContext: {privileged: true}}]}
`
	const job = `
apiVersion: batch/v1
kind: Job
metadata: {name: tune}
spec:
  template:
    spec: {restartPolicy: Never, containers: [{name: c, image: busybox, securityContext: {privileged: true}}]}
`
	k.want(podNamed(pod, "free"), []string{"create"}, "pod/free created")
	k.want(job, []string{"create"}, "job.batch/tune created")
	k.want("", []string{"label", "ns", ns, "pod-security.kubernetes.io/enforce=baseline"}, "labeled")
	k.refused(podNamed(pod, "kept"), []string{"create"}, `violates PodSecurity "baseline:latest": privileged`)
}

// TestPodSecurityByDefault: the configuration says what holds where no label does, and for
// whom nothing.
func TestPodSecurityByDefault(t *testing.T) {
	s := start(t, newDouble(t), func(c *Config) {
		c.Admission.PodSecurity = PodSecurity{
			Enforce: "baseline", EnforceVersion: "v1.30", Warn: "restricted",
			ExemptUsers: []string{"robot"}, ExemptNamespaces: []string{"kube-system"},
		}
	})
	wild := testPod("wild")
	wild.Spec.HostPID = true
	ctx := context.Background()
	_, err := s.client(t).CoreV1().Pods("default").Create(ctx, wild, metav1.CreateOptions{})
	wantStatus(t, err, 403, `violates PodSecurity "baseline:v1.30": host namespaces (hostPID=true)`)
	if _, err := s.client(t).CoreV1().Pods("kube-system").Create(ctx, wild, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := s.clientOf(t, "robot", "system:masters").CoreV1().Pods("default").Create(ctx, wild, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	config := s.config(t, "root", "system:masters")
	told := &warnings{}
	config.WarningHandler = told
	client := clientFor(t, config)
	if _, err := client.CoreV1().Pods("default").Create(ctx, testPod("tame"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.ReplicaSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: testPod("web").Spec},
	}}
	if _, err := client.AppsV1().ReplicaSets("default").Create(ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(told.texts) != 2 || !strings.Contains(told.texts[0], `would violate PodSecurity "restricted:latest"`) || told.texts[0] != told.texts[1] {
		t.Errorf("warned of %q", told.texts)
	}
	if _, err := newPodSecurity(PodSecurity{Enforce: "much"}, admission.PluginInitializers{}); err == nil {
		t.Error("a level was taken that there is not")
	}
}

// warnings keeps what a client is warned of.
type warnings struct{ texts []string }

var _ restclient.WarningHandler = (*warnings)(nil)

// HandleWarningHeader implements restclient.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.texts = append(w.texts, text) }
