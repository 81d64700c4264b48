package workloads

import (
	"context"
	"slices"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/kubernetes/pkg/controller/deployment"
	deploymentutil "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// noted notes what it is asked for.
type noted struct{ written []string }

func (n *noted) CreateReplicaSet(_ context.Context, namespace string, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	n.written = append(n.written, namespace+"/"+rs.Name)
	return rs, nil
}

func (n *noted) UpdateDeploymentStatus(_ context.Context, namespace string, d *appsv1.Deployment) (*appsv1.Deployment, error) {
	n.written = append(n.written, namespace+"/"+d.Name)
	return d, nil
}

// TestWhatGoesToAWorkloadWriter: what it can say goes there, and all else is a request.
func TestWhatGoesToAWorkloadWriter(t *testing.T) {
	ctx, w := t.Context(), &noted{}
	d, rs := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}, &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-1"}}
	requests := fake.NewClientset(d)
	apps := newWithWorkloads(requests, w).AppsV1()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := apps.Deployments("default").UpdateStatus(ctx, d, metav1.UpdateOptions{})
	must(err)
	_, err = apps.ReplicaSets("default").Create(ctx, rs, metav1.CreateOptions{})
	must(err)
	if want := []string{"default/web", "default/web-1"}; !slices.Equal(w.written, want) || len(requests.Actions()) > 0 {
		t.Fatalf("%v, and requests %v", w.written, requests.Actions())
	}
	_, err = apps.Deployments("default").UpdateStatus(ctx, d, metav1.UpdateOptions{FieldManager: "me"})
	must(err)
	_, err = apps.Deployments("default").Update(ctx, d, metav1.UpdateOptions{})
	must(err)
	_, err = apps.ReplicaSets("default").Create(ctx, rs, metav1.CreateOptions{FieldManager: "me"})
	must(err)
	_, err = apps.ReplicaSets("default").Update(ctx, rs, metav1.UpdateOptions{})
	must(err)
	if len(requests.Actions()) != 4 || len(w.written) != 2 {
		t.Errorf("%v, and requests %v", w.written, requests.Actions())
	}
}

// through writes by requests, and tells of each status.
type through struct {
	requests kubernetes.Interface
	statuses chan *appsv1.Deployment
}

func (w *through) CreateReplicaSet(ctx context.Context, namespace string, rs *appsv1.ReplicaSet) (*appsv1.ReplicaSet, error) {
	return w.requests.AppsV1().ReplicaSets(namespace).Create(ctx, rs, metav1.CreateOptions{})
}

func (w *through) UpdateDeploymentStatus(ctx context.Context, namespace string, d *appsv1.Deployment) (*appsv1.Deployment, error) {
	w.statuses <- d.DeepCopy()
	return w.requests.AppsV1().Deployments(namespace).UpdateStatus(ctx, d, metav1.UpdateOptions{})
}

// TestTheFirstStatusSaysAll: Kubernetes' own controller makes a Deployment's ReplicaSet and writes one status, which says that, which revision
// it is and what there is, whichever way the Deployment is rolled out.
func TestTheFirstStatusSaysAll(t *testing.T) {
	for _, strategy := range []appsv1.DeploymentStrategyType{appsv1.RollingUpdateDeploymentStrategyType, appsv1.RecreateDeploymentStrategyType} {
		t.Run(string(strategy), func(t *testing.T) {
			ctx := t.Context()
			one := intstr.FromInt32(1)
			replicas, deadline, labels := int32(3), int32(600), map[string]string{"app": "web"}
			d := &appsv1.Deployment{
				ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-web", Generation: 1},
				Spec: appsv1.DeploymentSpec{
					Replicas: &replicas, ProgressDeadlineSeconds: &deadline,
					Strategy: appsv1.DeploymentStrategy{Type: strategy, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &one}},
					Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}},
				},
			}
			w := &through{fake.NewClientset(d), make(chan *appsv1.Deployment, 64)}
			made := clientinformers.NewSharedInformerFactory(w.requests, 0)
			apps := made.Apps().V1()
			c, err := deployment.NewDeploymentController(ctx, apps.Deployments(), apps.ReplicaSets(), made.Core().V1().Pods(), newWithWorkloads(w.requests, w))
			if err != nil {
				t.Fatal(err)
			}
			made.Start(ctx.Done())
			t.Cleanup(made.Shutdown)
			var running sync.WaitGroup
			running.Go(func() { c.Run(ctx, 1) })
			t.Cleanup(running.Wait)
			first := <-w.statuses
			if first.Status.ObservedGeneration != 1 || first.Status.UnavailableReplicas != 3 || first.Annotations[deploymentutil.RevisionAnnotation] != "1" {
				t.Errorf("the first status is of revision %q: %+v", first.Annotations[deploymentutil.RevisionAnnotation], first.Status)
			}
			progressing := deploymentutil.GetDeploymentCondition(first.Status, appsv1.DeploymentProgressing)
			if progressing == nil || progressing.Reason != deploymentutil.NewReplicaSetReason {
				t.Errorf("the first status says of progress %+v", progressing)
			}
		})
	}
}

// TestStatusesThatAreWritten: nothing is left unwritten that is not said again.
func TestStatusesThatAreWritten(t *testing.T) {
	yes := true
	made := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "web-1", OwnerReferences: []metav1.OwnerReference{{UID: "uid-web", Controller: &yes}}}}
	of := func(uid types.UID, change func(d *appsv1.Deployment)) *appsv1.Deployment {
		d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web", UID: uid, Generation: 2}, Status: appsv1.DeploymentStatus{ObservedGeneration: 1}}
		change(d)
		return d
	}
	unchanged := func(*appsv1.Deployment) {}
	for what, c := range map[string]struct {
		made    bool
		status  *appsv1.Deployment
		written bool
	}{
		"no ReplicaSet was made":     {false, of("uid-web", unchanged), true},
		"one was":                    {true, of("uid-web", unchanged), false},
		"another one's was":          {true, of("uid-other", unchanged), true},
		"it says what has been seen": {true, of("uid-web", func(d *appsv1.Deployment) { d.Status.ObservedGeneration = 2 }), true},
		"the spec follows":           {true, of("uid-web", func(d *appsv1.Deployment) { d.Annotations = map[string]string{appsv1.DeprecatedRollbackTo: "1"} }), true},
	} {
		w := &noted{}
		apps := newWithWorkloads(fake.NewClientset(), w).AppsV1()
		if c.made {
			if _, err := apps.ReplicaSets("default").Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			w.written = nil
		}
		for want := range 2 { // the second is always written
			if c.written {
				want++
			}
			got, err := apps.Deployments("default").UpdateStatus(t.Context(), c.status, metav1.UpdateOptions{})
			if err != nil || got == nil || len(w.written) != want {
				t.Errorf("%s: %d were written, and not %d: %v", what, len(w.written), want, err)
			}
		}
	}
}
