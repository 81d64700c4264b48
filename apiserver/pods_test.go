package apiserver

import (
	"context"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

func TestPodVerbs(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ns := s.namespace(t)
	pods := s.client(t).CoreV1().Pods(ns)

	created, err := pods.Create(ctx, testPod("a"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: created.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	got, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || got.UID != created.UID || got.ResourceVersion != created.ResourceVersion {
		t.Fatalf("got %v, %v", got, err)
	}
	list, err := pods.List(ctx, metav1.ListOptions{LabelSelector: "app=a"})
	if err != nil || len(list.Items) != 1 || list.ResourceVersion == "" {
		t.Fatalf("got %v, %v", list, err)
	}
	got.Labels["tier"] = "web"
	updated, err := pods.Update(ctx, got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if e := <-w.ResultChan(); e.Type != watch.Modified || metaOf(e.Object).GetResourceVersion() != updated.ResourceVersion {
		t.Fatalf("got %v", e)
	}
	if err := pods.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "deleted event", func() bool { return (<-w.ResultChan()).Type == watch.Deleted })
	if _, err := pods.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("got %v", err)
	}
}
