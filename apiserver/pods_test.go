package apiserver

import (
	"context"
	"fmt"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestConcurrentPatches: each of many patches of one object is carried out,
// whoever comes in between.
func TestConcurrentPatches(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	pods := s.client(t).CoreV1().Pods(ns)
	ctx := context.Background()
	if _, err := pods.Create(ctx, testPod("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const n = 20
	var all sync.WaitGroup
	for i := range n {
		all.Add(1)
		go func() {
			defer all.Done()
			patch := fmt.Sprintf(`{"metadata":{"annotations":{"n%d":"1"}}}`, i)
			if _, err := pods.Patch(ctx, "a", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	p, err := pods.Get(ctx, "a", metav1.GetOptions{})
	if err != nil || len(p.Annotations) != n {
		t.Fatalf("got %v, %v", p.Annotations, err)
	}
}

// TestConcurrentCreates: a name is given once, and generated names do not
// collide.
func TestConcurrentCreates(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	pods := s.client(t).CoreV1().Pods(ns)
	ctx := context.Background()
	var mu sync.Mutex
	made := 0
	var all sync.WaitGroup
	for range 10 {
		all.Add(1)
		go func() {
			defer all.Done()
			_, err := pods.Create(ctx, testPod("same"), metav1.CreateOptions{})
			if err == nil {
				mu.Lock()
				made++
				mu.Unlock()
			} else {
				wantStatus(t, err, 409, "already exists")
			}
			generated := testPod("")
			generated.GenerateName = "made-"
			if _, err := pods.Create(ctx, generated, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	all.Wait()
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil || made != 1 || len(list.Items) != 11 {
		t.Fatalf("%d made, %d listed, %v", made, len(list.Items), err)
	}
	// A collection goes in few entries.
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	if list, err = pods.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Fatalf("%d are left, %v", len(list.Items), err)
	}
}

// TestEventsUnderTwoNames: the events of both groups are the same objects.
func TestEventsUnderTwoNames(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	client := s.client(t)
	ctx := context.Background()
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "e"}, EventTime: metav1.NowMicro(), ReportingController: "example.com/c",
		ReportingInstance: "i", Action: "A", Reason: "R", Type: "Normal", Note: "hello",
		Regarding: corev1.ObjectReference{Kind: "Pod", Name: "p", Namespace: ns},
	}
	if _, err := client.EventsV1().Events(ns).Create(ctx, e, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Events(ns).Get(ctx, "e", metav1.GetOptions{})
	if err != nil || got.Message != "hello" || got.InvolvedObject.Name != "p" {
		t.Fatalf("got %v, %v", got, err)
	}
	list, err := client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=p"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("got %v, %v", list, err)
	}
}
