package apiserver

import (
	"context"
	"fmt"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/audittrail"
)

const deploymentController = "system:controller:deployment"

var deploymentGroups = []string{access.Controllers, access.ControllerGroup("deployment")}

func testTemplate() (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": "web"}
	return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: testPod("web").Spec}
}

// TestLocalStatusesAreAsRequestsWriteThem: the status of a Deployment that a controller writes without a request is what a request would have
// made of it, refusals too.
func TestLocalStatusesAreAsRequestsWriteThem(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx, admin := context.Background(), s.client(t)
	h := newHook(t)
	create(t, admin, validatingHook(h, "statuses", admissionv1.Fail, rulesFor("deployments/status", admissionv1.Update)))
	byRequest := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://here", Transport: s.Local(deploymentController, deploymentGroups...), QPS: -1})
	local, written := s.LocalWorkloads(deploymentController, deploymentGroups...), 0
	made := func(name string, labels map[string]string) *appsv1.Deployment {
		selector, template := testTemplate()
		d, err := admin.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	eventually(t, "the webhook is asked", func() bool {
		d := made("refused-at-last", map[string]string{"refuse": "x"})
		d.Status.Replicas = 1
		_, err := admin.AppsV1().Deployments("default").UpdateStatus(ctx, d, metav1.UpdateOptions{})
		if err := admin.AppsV1().Deployments("default").Delete(ctx, d.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		return err != nil
	})
	same := func(d *appsv1.Deployment) *appsv1.Deployment {
		d = d.DeepCopy()
		d.Name, d.UID, d.ResourceVersion, d.CreationTimestamp, d.ManagedFields = "", "", "", metav1.Time{}, nil
		return d
	}
	for i, tt := range []struct {
		what, namespace string
		labels          map[string]string
		change          func(d *appsv1.Deployment)
	}{
		{"as it is", "default", nil, func(*appsv1.Deployment) {}},
		{"numbers", "default", nil, func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Status.ReadyReplicas, d.Status.ObservedGeneration = 3, 2, 1
		}},
		{"a condition", "default", nil, func(d *appsv1.Deployment) {
			d.Status.Conditions = []appsv1.DeploymentCondition{{Type: appsv1.DeploymentAvailable, Status: corev1.ConditionTrue, Reason: "Many"}}
		}},
		{"another spec beside", "default", nil, func(d *appsv1.Deployment) {
			d.Status.Replicas, d.Spec.Paused, d.Labels = 1, true, map[string]string{"mine": "x"}
		}},
		{"fewer than none", "default", nil, func(d *appsv1.Deployment) { d.Status.Replicas = -1 }},
		{"more ready than there are", "default", nil, func(d *appsv1.Deployment) { d.Status.Replicas, d.Status.ReadyReplicas = 1, 2 }},
		{"of an old one", "default", nil, func(d *appsv1.Deployment) { d.Status.Replicas, d.ResourceVersion = 1, "1" }},
		{"of another one of the name", "default", nil, func(d *appsv1.Deployment) { d.Status.Replicas, d.UID, d.ResourceVersion = 1, "other", "" }},
		{"of none", "default", nil, func(d *appsv1.Deployment) { d.Name = "unheard" }},
		{"of another namespace", "kube-system", nil, func(d *appsv1.Deployment) { d.Status.Replicas = 1 }},
		{"refused by a webhook", "default", map[string]string{"refuse": "x"}, func(d *appsv1.Deployment) { d.Status.Replicas = 1 }},
	} {
		t.Run(tt.what, func(t *testing.T) {
			theirs, ours := made(fmt.Sprintf("theirs-%d", i), tt.labels), made(fmt.Sprintf("ours-00-%d", i), tt.labels)
			ours.Name = fmt.Sprintf("ours-00-%d", i)
			tt.change(theirs)
			tt.change(ours)
			kept := ours.DeepCopy()
			want, wantErr := byRequest.AppsV1().Deployments(tt.namespace).UpdateStatus(ctx, theirs, metav1.UpdateOptions{})
			got, err := local.UpdateDeploymentStatus(ctx, tt.namespace, ours)
			if apierrors.ReasonForError(err) != apierrors.ReasonForError(wantErr) || (err == nil) != (wantErr == nil) {
				t.Fatalf("it says %v, and a request is told %v", err, wantErr)
			}
			if err == nil {
				written++
				stored, getErr := admin.AppsV1().Deployments("default").Get(ctx, ours.Name, metav1.GetOptions{})
				if getErr != nil || !equality.Semantic.DeepEqual(stored, got) {
					t.Errorf("it gives\n%+v\nand stored is\n%+v, %v", got, stored, getErr)
				}
				if !equality.Semantic.DeepEqual(same(got), same(want)) {
					t.Errorf("it made\n%+v\nand a request makes\n%+v", same(got), same(want))
				}
			}
			if !equality.Semantic.DeepEqual(ours, kept) {
				t.Error("the caller's object is another one now")
			}
		})
	}
	if written < 4 {
		t.Errorf("%d were written", written)
	}
}

// TestLocalReplicaSetsAreAsRequestsMakeThem: a ReplicaSet that a controller makes without a request is what a request would have made.
func TestLocalReplicaSetsAreAsRequestsMakeThem(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx, admin := context.Background(), s.client(t)
	byRequest := kubernetes.NewForConfigOrDie(&rest.Config{Host: "http://here", Transport: s.Local(deploymentController, deploymentGroups...), QPS: -1})
	local, made := s.LocalWorkloads(deploymentController, deploymentGroups...), 0
	same := func(rs *appsv1.ReplicaSet) *appsv1.ReplicaSet {
		rs = rs.DeepCopy()
		rs.UID, rs.ResourceVersion, rs.CreationTimestamp, rs.ManagedFields = "", "", metav1.Time{}, nil
		return rs
	}
	for what, tt := range map[string]struct {
		namespace string
		change    func(rs *appsv1.ReplicaSet)
	}{
		"as it is":                 {"default", func(*appsv1.ReplicaSet) {}},
		"none, and a status":       {"default", func(rs *appsv1.ReplicaSet) { rs.Spec.Replicas, rs.Status.Replicas = new(int32), 7 }},
		"without a name":           {"default", func(rs *appsv1.ReplicaSet) { rs.Name = "" }},
		"that selects others":      {"default", func(rs *appsv1.ReplicaSet) { rs.Spec.Selector.MatchLabels = map[string]string{"app": "other"} }},
		"of no such namespace":     {"unheard", func(*appsv1.ReplicaSet) {}},
		"of another namespace":     {"default", func(rs *appsv1.ReplicaSet) { rs.Namespace = "kube-system" }},
		"that goes in no such way": {"default", func(rs *appsv1.ReplicaSet) { rs.Annotations = map[string]string{"berth.dev/scale-in": "unheard"} }},
	} {
		t.Run(what, func(t *testing.T) {
			selector, template := testTemplate()
			rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
			tt.change(rs)
			kept := rs.DeepCopy()
			want, wantErr := byRequest.AppsV1().ReplicaSets(tt.namespace).Create(ctx, rs.DeepCopy(), metav1.CreateOptions{})
			if wantErr == nil {
				if _, err := local.CreateReplicaSet(ctx, tt.namespace, rs); !apierrors.IsAlreadyExists(err) {
					t.Errorf("it is made twice: %v", err)
				}
				if err := admin.AppsV1().ReplicaSets(tt.namespace).Delete(ctx, want.Name, metav1.DeleteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			got, err := local.CreateReplicaSet(ctx, tt.namespace, rs)
			if fmt.Sprint(err) != fmt.Sprint(wantErr) || apierrors.ReasonForError(err) != apierrors.ReasonForError(wantErr) {
				t.Fatalf("it says %v, and a request is told %v", err, wantErr)
			}
			if !equality.Semantic.DeepEqual(rs, kept) {
				t.Error("the caller's object is another one now")
			}
			if err != nil {
				return
			}
			if made++; !equality.Semantic.DeepEqual(same(got), same(want)) {
				t.Errorf("it made\n%+v\nand a request makes\n%+v", same(got), same(want))
			}
			if err := admin.AppsV1().ReplicaSets(tt.namespace).Delete(ctx, got.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	if made != 2 {
		t.Errorf("%d were made", made)
	}
}

// TestLocalWorkloadsOfWhomMayNot: rights hold as for requests, and where an account is kept of requests, there are requests.
func TestLocalWorkloadsOfWhomMayNot(t *testing.T) {
	s := start(t, newDouble(t), nil)
	other := s.LocalWorkloads("system:controller:endpoint", access.Controllers, access.ControllerGroup("endpoint"))
	selector, template := testTemplate()
	rs := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
	if _, err := other.CreateReplicaSet(context.Background(), "default", rs); !apierrors.IsForbidden(err) {
		t.Errorf("it may make ReplicaSets: %v", err)
	}
	if _, err := other.UpdateDeploymentStatus(context.Background(), "default", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}); !apierrors.IsForbidden(err) {
		t.Errorf("it may write statuses: %v", err)
	}
	if (&Server{trail: new(audittrail.Trail)}).LocalWorkloads(deploymentController) != nil {
		t.Error("what is written is in no account")
	}
}
