package workloads

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
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
	apps := withWorkloads{requests, w}.AppsV1()
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
