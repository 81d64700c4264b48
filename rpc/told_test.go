package rpc

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestTold: the sum is that of what a worker was told, in whatever order.
func TestTold(t *testing.T) {
	told := Told{}
	for _, p := range []metav1.ObjectMeta{{UID: "a", Generation: 1}, {UID: "b", Generation: 2}, {UID: "a", Generation: 4}} {
		told.Add(&corev1.Pod{ObjectMeta: p})
	}
	for what, c := range map[string]struct {
		is   Told
		same bool
	}{
		"the same":          {Told{"b": 2, "a": 4}, true},
		"an old generation": {Told{"b": 2, "a": 1}, false},
		"one more":          {Told{"b": 2, "a": 4, "c": 0}, false},
		"one less":          {Told{"b": 2}, false},
		"nothing":           {Told{}, false},
		"each other's":      {Told{"b": 4, "a": 2}, false},
		"one for the two":   {Told{"ab": 2}, false},
	} {
		if same := bytes.Equal(c.is.Sum(), told.Sum()); same != c.same {
			t.Errorf("%s: the sums are the same: %t", what, same)
		}
	}
}
