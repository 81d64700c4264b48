package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/api/ledger"
	"github.com/berth-dev/berth/api/operator"
)

// statusAs is a request for a path as somebody, and its status.
func statusAs(t *testing.T, kube kubernetes.Interface, verb, path, body string) int {
	t.Helper()
	status, _ := answerAs(t, kube, verb, path, body)
	return status
}

// answerAs is statusAs, with what is said.
func answerAs(t *testing.T, kube kubernetes.Interface, verb, path, body string) (status int, said string) {
	t.Helper()
	r := kube.Discovery().RESTClient().Verb(verb).RequestURI(path)
	if body != "" {
		r = r.SetHeader("Content-Type", "application/json").Body([]byte(body))
	}
	if verb == http.MethodPatch {
		r = r.SetHeader("Content-Type", "application/merge-patch+json")
	}
	raw, err := r.Do(t.Context()).StatusCode(&status).Raw()
	if status == 0 {
		return 0, fmt.Sprint(err) // it is not answered
	}
	return status, string(raw)
}

// everybodys are the verbs that everybody has: to ask about himself, and to see which kinds were defined, as kubectl must.
var everybodys = map[string][]string{
	"selfsubjectreviews": {"create"}, "selfsubjectaccessreviews": {"create"}, "selfsubjectrulesreviews": {"create"},
	"customresourcedefinitions": {"get", "list", "watch"},
}

// everyVerb is each verb of a resource, whether that has it or not.
var everyVerb = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

// berthEndpoints are the method and path of each thing that is served below /berth/v1.
func berthEndpoints() (out [][2]string) {
	names := strings.NewReplacer("{id}", "nobody", "{name}", "nobody")
	for _, pattern := range append(operator.Endpoints(), "GET "+ledger.PathWhy+"?namespace=bystanders&pod=bystander") {
		method, path, _ := strings.Cut(names.Replace(pattern), " ")
		out = append(out, [2]string{method, path})
	}
	return out
}

// Who has no rights has none: with every verb at everything that is served, and at kinds that somebody has defined.
func (a *attacked) userWithoutRights(t *testing.T) {
	leader := a.waitLeader(t)
	eve := a.userOf(t, leader, "eve", "people")
	lists := a.served(t, leader)
	before := a.keptFrom(t, leader)
	tried := map[string]int{} // by kind
	for _, list := range lists {
		root := "/apis/" + list.GroupVersion
		if list.GroupVersion == "v1" {
			root = "/api/v1"
		}
		for _, r := range list.APIResources {
			resource, sub, _ := strings.Cut(r.Name, "/")
			at := root + "/"
			if r.Namespaced {
				at += "namespaces/" + a.ns + "/"
			}
			all, one := at+resource, at+resource+"/secret"
			if sub != "" {
				one += "/" + sub
			}
			for _, verb := range everyVerb {
				if sub == "" && slices.Contains(everybodys[resource], verb) {
					continue
				}
				for _, request := range requestsOf(verb, sub, all, one) {
					tried[resource]++
					if status := statusAs(t, eve, request[0], request[1], request[2]); status != http.StatusForbidden {
						t.Errorf("%s: %s %s answers %d", verb, request[0], request[1], status)
					}
				}
			}
		}
	}
	if len(tried) < 60 || tried["pods"] < 30 || tried["widgets"] < 20 {
		t.Errorf("of %d kinds only were requests tried: %v", len(tried), tried)
	}
	paths := append(slices.Clone(nobodysPaths), "/debug/pprof/", "/logs", "/configz", "/berth/v1", "/berth/v1/", "/berth/v1/nothing")
	for _, e := range berthEndpoints() {
		paths = append(paths, e[1])
	}
	for _, path := range paths {
		if strings.HasPrefix(path, "/openapi") {
			continue // what is served is told to whoever is somebody
		}
		for _, verb := range []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if status := statusAs(t, eve, verb, path, ""); status != http.StatusForbidden {
				t.Errorf("%s %s answers %d", verb, path, status)
			}
		}
	}
	for _, as := range []string{"ada", "system:node:w1", "system:serviceaccount:kube-system:default"} {
		status := 0
		_ = eve.Discovery().RESTClient().Get().AbsPath("/api/v1/namespaces").SetHeader("Impersonate-User", as).SetHeader("Impersonate-Group", "system:masters").
			Do(t.Context()).StatusCode(&status) // the status is the answer
		if status != http.StatusForbidden {
			t.Errorf("eve acts as %s: %d", as, status)
		}
	}
	if after := a.keptFrom(t, leader); after != before {
		t.Errorf("the widget, the voters and the signing keys were %s, and are %s", before, after)
	}
}

// served is what discovery tells of, once somebody has defined a kind and made an object of it.
func (a *attacked) served(t *testing.T, s *fleet.Process) []*metav1.APIResourceList {
	t.Helper()
	a.berthIn(t, widgetDefinition, "create", "-f", "-")
	var lists []*metav1.APIResourceList
	a.eventually(t, "widgets to be served", func(context.Context) (err error) {
		_, lists, err = s.Kube.Discovery().ServerGroupsAndResources()
		if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
			return err
		}
		if !slices.ContainsFunc(lists, func(l *metav1.APIResourceList) bool { return l.GroupVersion == "e2e.example.com/v1" }) {
			return errors.New("they are not there")
		}
		return nil
	})
	made := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "e2e.example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "secret"}}}
	a.eventually(t, "a widget", func(ctx context.Context) error {
		_, err := widgetsOf(t, s, a.ns).Create(ctx, made.DeepCopy(), metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return nil // its outcome was not known
		}
		return err
	})
	return lists
}

// keptFrom is some of what eve would like to change.
func (a *attacked) keptFrom(t *testing.T, s *fleet.Process) string {
	t.Helper()
	one, err := widgetsOf(t, s, a.ns).Get(t.Context(), "secret", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var raft operator.RaftConfiguration
	if err := s.Call(t.Context(), http.MethodGet, operator.PathRaftConfiguration, &raft); err != nil {
		t.Fatal(err)
	}
	keys, err := s.Kube.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("%s %s, %d voters, %s", one.GetUID(), one.GetResourceVersion(), len(raft.Servers), keys)
}

// requestsOf are the method, path and body of a verb; none where a part of an object has no such verb.
func requestsOf(verb, sub, all, one string) [][3]string {
	const empty = "{}"
	if sub != "" && (verb == "list" || verb == "watch" || verb == "deletecollection") {
		return nil
	}
	switch verb {
	case "create":
		if sub != "" {
			return [][3]string{{http.MethodPost, one, empty}}
		}
		return [][3]string{{http.MethodPost, all, empty}}
	case "list":
		return [][3]string{{http.MethodGet, all, ""}, {http.MethodGet, all + "?resourceVersion=0", ""}}
	case "watch":
		return [][3]string{{http.MethodGet, all + "?watch=true&timeoutSeconds=1", ""}}
	case "deletecollection":
		return [][3]string{{http.MethodDelete, all, ""}}
	case "get":
		return [][3]string{{http.MethodGet, one, ""}}
	case "update":
		return [][3]string{{http.MethodPut, one, empty}}
	case "patch":
		return [][3]string{{http.MethodPatch, one, empty}}
	case "delete":
		return [][3]string{{http.MethodDelete, one, ""}}
	}
	return nil
}

// editor may write what is in a namespace of its own, and nothing else.
func (a *attacked) editor(t *testing.T, name string) (kube kubernetes.Interface, ns string) {
	t.Helper()
	ns = a.namespace(t, name)
	a.berth(t, "create", "rolebinding", name, "--clusterrole=edit", "--user="+name, "-n", ns)
	kube = a.userOf(t, a.waitLeader(t), name, "people")
	a.eventually(t, name+" to be let in", func(ctx context.Context) error {
		_, err := kube.AppsV1().Deployments(ns).List(ctx, metav1.ListOptions{})
		return err
	})
	return kube, ns
}

// A class that somebody may not use is not had by a template either, of whatever workload.
func (a *attacked) classByTemplate(t *testing.T) {
	dora, ns := a.editor(t, "dora")
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "climber"}},
		Spec:       pod(ns, "climber", "exec sleep 1000", class("system-cluster-critical")).Spec,
	}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	if _, err := dora.CoreV1().Pods(ns).Create(t.Context(), pod(ns, "climber", "true", class("system-cluster-critical")), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a pod: %v", err)
	}
	refused := func(kind string, err error) {
		t.Helper()
		if apierrors.IsForbidden(err) {
			return
		}
		if err != nil {
			t.Errorf("%s: %v", kind, err)
			return
		}
		a.eventually(t, kind+"'s pods to be refused", func(ctx context.Context) error {
			events, err := a.Reader().Kube.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for _, e := range events.Items {
				if e.Reason == "FailedCreate" && strings.Contains(e.Message, "system-cluster-critical") {
					return nil
				}
			}
			return fmt.Errorf("of %d events none says so", len(events.Items))
		})
	}
	_, err := dora.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	refused("a ReplicaSet", err)
	_, err = dora.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	refused("a Deployment", err)
	_, err = dora.AppsV1().DaemonSets(ns).Create(t.Context(), &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	refused("a DaemonSet", err)
	_, err = dora.AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	refused("a StatefulSet", err)
	_, err = dora.CoreV1().ReplicationControllers(ns).Create(t.Context(), &corev1.ReplicationController{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: corev1.ReplicationControllerSpec{Selector: template.Labels, Template: &template},
	}, metav1.CreateOptions{})
	refused("a ReplicationController", err)
	once := template
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, err = dora.BatchV1().Jobs(ns).Create(t.Context(), &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "climber"}, Spec: batchv1.JobSpec{Template: once}}, metav1.CreateOptions{})
	refused("a Job", err)
	_, err = dora.BatchV1().CronJobs(ns).Create(t.Context(), &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "climber"},
		Spec:       batchv1.CronJobSpec{Schedule: "* * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}},
	}, metav1.CreateOptions{})
	refused("a CronJob", err)
	// One that is not there yet may come to be restricted, when nobody asks any more.
	template.Spec.PriorityClassName = "to-come"
	_, err = dora.AppsV1().Deployments(ns).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "early"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, metav1.CreateOptions{})
	if !apierrors.IsForbidden(err) {
		t.Errorf("a Deployment of a class that is not there: %v", err)
	}
	// What a revision says is not asked about again: its controller would take its template.
	template.Spec.PriorityClassName = ""
	back := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "back", Annotations: map[string]string{appsv1.DeprecatedRollbackTo: "1"}},
		Spec:       appsv1.DeploymentSpec{Selector: selector, Template: template, Replicas: new(int32)},
	}
	if _, err := dora.AppsV1().Deployments(ns).Create(t.Context(), back, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Deployment that goes back: %v", err)
	}
	back.Annotations = nil
	if _, err := dora.AppsV1().Deployments(ns).Create(t.Context(), back, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"0"}}}`, appsv1.DeprecatedRollbackTo)
	if _, err := dora.AppsV1().Deployments(ns).Patch(t.Context(), "back", types.MergePatchType, patch, metav1.PatchOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Deployment that is to go back: %v", err)
	}
	pods, err := a.Reader().Kube.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) > 0 {
		t.Errorf("there are %d pods: %v", len(pods.Items), err)
	}
}

// A watch goes on from where it was only as long as the right does.
func (a *attacked) watchOfBefore(t *testing.T) {
	fred, ns := a.editor(t, "fred")
	before, err := fred.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	a.berth(t, "delete", "rolebinding", "fred", "-n", ns)
	if _, err := a.Reader().Kube.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "later"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, s := range a.Servers() {
		kube := a.userOf(t, s, "fred", "people")
		a.eventually(t, "fred to be refused by "+s.Name, func(ctx context.Context) error {
			watch, err := kube.CoreV1().Secrets(ns).Watch(ctx, metav1.ListOptions{ResourceVersion: before.ResourceVersion})
			if err == nil {
				watch.Stop()
			}
			if !apierrors.IsForbidden(err) {
				return fmt.Errorf("he is answered %w", err)
			}
			return nil
		})
	}
}
