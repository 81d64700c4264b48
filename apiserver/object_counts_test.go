package apiserver

import (
	"errors"
	"testing"
	"time"

	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"

	"github.com/berth-dev/berth/fsm"
)

func TestObjectCounts(t *testing.T) {
	d, now := manyPods(t, 300), time.Unix(0, 0)
	c := newObjectCounts(d.View, func() time.Time { return now })
	c.serve(podKind().resource, podKind().rows)
	c.serve(secretKind().resource, secretKind().rows)
	wantCount := func(resource string, n int64) {
		t.Helper()
		s, err := c.Get(resource)
		if err != nil || s.ObjectCount != n || (s.EstimatedAverageObjectSizeBytes > 0) != (n > 0) {
			t.Errorf("%s: %+v, %v; want %d objects", resource, s, err, n)
		}
	}
	wantCount("pods", 300)
	wantCount("pods.metrics.k8s.io", 300)
	wantCount("secrets", 0)
	if _, err := c.Get("pots"); !errors.Is(err, flowrequest.ObjectCountNotFoundErr) {
		t.Errorf("a kind that is not there: %v", err)
	}
	pod := testPod("")
	pod.GenerateName, pod.Namespace = "p-", "default"
	for range 5 {
		d.must(t, &fsm.AdmitPods{Template: fsm.PodWire{Object: pod.DeepCopy()}, Count: 1000})
	}
	wantCount("pods", 300)
	now = now.Add(countedFor)
	wantCount("pods", countedObjects)
}
