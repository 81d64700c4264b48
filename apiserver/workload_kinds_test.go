package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
)

// workloads are one of each kind, with where its template is.
var workloads = []struct{ kind, short, resource, manifest string }{
	{"Deployment", "deploy", "deployment.apps", "apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: 2, selector: {matchLabels: {app: web}}, template: %s}"},
	{"StatefulSet", "sts", "statefulset.apps", "apiVersion: apps/v1\nkind: StatefulSet\nspec: {serviceName: web, selector: {matchLabels: {app: web}}, template: %s}"},
	{"DaemonSet", "ds", "daemonset.apps", "apiVersion: apps/v1\nkind: DaemonSet\nspec: {selector: {matchLabels: {app: web}}, template: %s}"},
	{"Job", "job", "job.batch", "apiVersion: batch/v1\nkind: Job\nspec: {completions: 2, template: %s}"},
	{"CronJob", "cj", "cronjob.batch", "apiVersion: batch/v1\nkind: CronJob\nspec: {schedule: '1 1 1 1 *', jobTemplate: {spec: {template: %s}}}"},
	{"ReplicationController", "rc", "replicationcontroller", "apiVersion: v1\nkind: ReplicationController\nspec: {selector: {app: web}, template: %s}"},
}

// manifestOf is a workload's manifest; more goes into the spec of its template.
func manifestOf(kind, format, more string) string {
	restart := "Always"
	if strings.HasSuffix(kind, "Job") {
		restart = "Never"
	}
	template := fmt.Sprintf("{metadata: {labels: {app: web}}, spec: {restartPolicy: %s, %s containers: [{name: main, image: busybox}]}}", restart, more)
	return strings.Replace(fmt.Sprintf(format, template), "\nspec:", "\nmetadata: {name: web, labels: {app: web}}\nspec:", 1)
}

func TestWorkloadsByKubectl(t *testing.T) {
	s := share(t)
	for _, w := range workloads {
		t.Run(w.kind, func(t *testing.T) {
			k := newKubectl(t, s, s.namespace(t))
			m := manifestOf(w.kind, w.manifest, "")
			k.want(m, []string{"apply", "--dry-run=server"}, w.resource+"/web created (server dry run)")
			k.want(m, []string{"apply"}, w.resource+"/web created")
			k.want(m, []string{"apply"}, "unchanged")
			k.want(m, []string{"apply", "--server-side", "--force-conflicts"}, "serverside-applied")
			k.want("", []string{"get", w.short, "-o", "wide"}, "NAME", "AGE", "web", "busybox")
			k.want("", []string{"get", "all"}, w.resource+"/web")
			k.want("", []string{"get", w.short, "--field-selector=metadata.name=web", "--no-headers"}, "web")
			k.want("", []string{"explain", w.short + ".spec"}, "KIND:", w.kind)
			k.want("", []string{"patch", w.short, "web", "--subresource=status", "--type=merge", "-p", `{"status":{}}`}, "patched")
			k.want("", []string{"describe", w.short, "web"}, "busybox")
			k.want("", []string{"delete", w.short, "web", "--cascade=background"}, "deleted")
			k.refused(manifestOf(w.kind, w.manifest, "terminationGracePeriodSeconds: 2147483648,"), []string{"create"}, "terminationGracePeriodSeconds: Invalid value")
			k.refused("", []string{"get", w.short, "web"}, "not found")
		})
	}
	k := newKubectl(t, s, s.namespace(t))
	for _, w := range workloads[:2] {
		k.want(manifestOf(w.kind, w.manifest, ""), []string{"apply"}, "created")
		k.want("", []string{"scale", w.short + "/web", "--replicas=5"}, "scaled")
		k.want("", []string{"get", w.short, "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"}, "5 2")
	}
	k.refused("", []string{"annotate", "deploy", "web", "berth.dev/scale-in=spred"}, `metadata.annotations[berth.dev/scale-in]: Unsupported value: "spred"`)
	claims := strings.Replace(manifestOf("StatefulSet", workloads[1].manifest, ""), "serviceName: web",
		"volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]", 1)
	k.want(strings.Replace(claims, "name: web", "name: other", 1), []string{"create"}, "created")
}

// TestTemplatesLeaveRoomForWhatControllersAdd: a template that is admitted makes pods
// that are.
func TestTemplatesLeaveRoomForWhatControllersAdd(t *testing.T) {
	for _, w := range workloads {
		for labels, admitted := range map[int]bool{120: true, 129: false} {
			obj, _, err := legacyscheme.Codecs.UniversalDecoder().Decode([]byte(manifestOf(w.kind, w.manifest, "")), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			template, _ := podTemplateOf(obj)
			template.Labels = numbered(labels)
			if err := checkLimits(obj); (err == nil) != admitted {
				t.Errorf("%s with %d labels: %v", w.kind, labels, err)
			}
		}
	}
}

// TestTemplatesAreAskedForWhatPodsAre: no kind of template is a way around the
// list of those who may use a system class (AD5), or around the right to read secrets.
func TestTemplatesAreAskedForWhatPodsAre(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectlAs(t, s, ns, "ann", "people")
	for _, w := range workloads {
		k.refused(manifestOf(w.kind, w.manifest, "priorityClassName: system-node-critical,"), []string{"create"},
			"pods with the PriorityClass system-node-critical may be created only by")
		k.refused(manifestOf(w.kind, w.manifest, "volumes: [{name: v, secret: {secretName: keys}}],"), []string{"create"}, `it refers to the secret "keys"`)
	}
}

// TestWithoutAWordDependentsStay: Jobs and ReplicationControllers leave their pods
// behind, as they always did, unless a client says otherwise.
func TestWithoutAWordDependentsStay(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	for _, w := range workloads {
		k.want(manifestOf(w.kind, w.manifest, ""), []string{"apply"}, "created")
	}
	kube := s.client(t)
	for resource, del := range map[string]func() error{
		"jobs": func() error { return kube.BatchV1().Jobs(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}) },
		"replicationcontrollers": func() error {
			return kube.CoreV1().ReplicationControllers(ns).Delete(t.Context(), "web", metav1.DeleteOptions{})
		},
	} {
		if err := del(); err != nil {
			t.Fatal(err)
		}
		o, ok := s.double.View().Objects.Get(fsm.ObjectKey(resource, ns, "web"))
		if !ok || len(o.Value.GetFinalizers()) != 1 || o.Value.GetFinalizers()[0] != metav1.FinalizerOrphanDependents {
			t.Errorf("%s: %+v", resource, o)
		}
	}
	if err := kube.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.double.View().Objects.Get(fsm.ObjectKey("deployments", ns, "web")); ok {
		t.Error("the Deployment is still there")
	}
}

// TestLocal: a part of the process is a client without a connection, and nobody else
// can be it.
func TestLocal(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	local := func(controller string) kubernetes.Interface {
		c, err := kubernetes.NewForConfig(&restclient.Config{
			Host: "http://here", Transport: s.Local("system:controller:"+controller, access.Controllers, access.ControllerGroup(controller)),
		})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	slices := local("endpointslice").DiscoveryV1().EndpointSlices(ns)
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "web"}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"127.0.0.1"}}}}
	got, err := slices.Create(t.Context(), slice, metav1.CreateOptions{})
	if err != nil || got.Endpoints[0].Addresses[0] != "127.0.0.1" {
		t.Fatalf("%+v %v", got, err)
	}
	got.Endpoints[0].Addresses[0] = "127.0.0.2"
	if got, err = slices.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil || got.Endpoints[0].Addresses[0] != "127.0.0.2" {
		t.Fatalf("%+v %v", got, err)
	}
	_, err = local("deployment").CoreV1().Pods(ns).Create(t.Context(), testPod("x"), metav1.CreateOptions{})
	wantStatus(t, err, 403, `User "system:controller:deployment" cannot create resource "pods"`)
	slice.Name = "other"
	_, err = s.client(t).DiscoveryV1().EndpointSlices(ns).Create(t.Context(), slice, metav1.CreateOptions{})
	wantStatus(t, err, 422, "may not be in the loopback range")
	if !strings.Contains(strings.Join(s.double.proposers(), " "), "system:controller:endpointslice") {
		t.Error("who proposed is not told")
	}
	// A controller's pods of a system class: the template's writer was asked.
	critical := testPod("critical")
	critical.Spec.PriorityClassName, critical.Spec.Volumes = "system-node-critical", []corev1.Volume{
		{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "keys"}}}}
	if _, err := local("job").CoreV1().Pods(ns).Create(t.Context(), critical, metav1.CreateOptions{}); err != nil {
		t.Error(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://here/healthz", nil)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := s.Local("nobody").RoundTrip(request); err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("%v %v", r, err)
	}
}
