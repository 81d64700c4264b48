package fsm

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
)

// TestFarGraces: whatever grace a pod has, its deletion ends in whole seconds,
// not in the past, and as a restored state says; and it can still be shortened.
func TestFarGraces(t *testing.T) {
	for _, grace := range []int64{math.MinInt64, -1, 1, 30, 1 << 31, 9_223_372_036, 9_223_372_037, 18_446_744_173, math.MaxInt64} {
		w := newTranscript(t)
		w.run("cluster", nil, "node n1 cpu=4\npod a cpu=1 uid=a\nbind a n1")
		w.apply(&DeletePod{Key: "default/a", GraceSeconds: &grace})
		pod, ok := w.view().Pods.Get("default/a")
		if !ok || pod.DeletionTimestamp == nil {
			t.Fatalf("grace %d: %+v", grace, pod)
		}
		b, err := pod.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		back := new(corev1.Pod)
		if err := back.Unmarshal(b); err != nil || !equality.Semantic.DeepEqual(pod, back) {
			t.Errorf("grace %d: ends at %v, and %v when it is read back (%v)", grace, pod.DeletionTimestamp, back.DeletionTimestamp, err)
		}
		now := w.view().Now()
		if pod.DeletionTimestamp.Nanosecond() != 0 || pod.DeletionTimestamp.Unix() < now.Unix() || grace > 1<<32 && pod.DeletionTimestamp.Year() < now.Year()+99 {
			t.Errorf("grace %d: ends at %v", grace, pod.DeletionTimestamp)
		}
		if ten := int64(10); grace > ten {
			w.apply(&DeletePod{Key: "default/a", GraceSeconds: &ten})
			pod, _ = w.view().Pods.Get("default/a")
			if left := pod.DeletionTimestamp.Unix() - now.Unix(); left < 9 || left > 10 || *pod.DeletionGracePeriodSeconds != ten {
				t.Errorf("grace %d, then 10: ends in %d seconds, grace %d", grace, left, *pod.DeletionGracePeriodSeconds)
			}
		}
	}
}
