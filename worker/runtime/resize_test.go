package runtime

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What is less memory for the pod as a whole: also a limit where there was none, or where nobody knows.
func TestLowersMemoryOfAll(t *testing.T) {
	limited := func(memory string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse(memory)}}
	}
	none := &corev1.ResourceRequirements{}
	for what, c := range map[string]struct {
		had, is *corev1.ResourceRequirements
		early   bool // it is not the last call
		lower   bool
	}{
		"less":                                 {limited("2Mi"), limited("1Mi"), false, true},
		"less, with a later call":              {limited("2Mi"), limited("1Mi"), true, false},
		"as much":                              {limited("1Mi"), limited("1Mi"), false, false},
		"more":                                 {limited("1Mi"), limited("2Mi"), false, false},
		"a limit where there is none":          {none, limited("1Mi"), false, true},
		"a limit where there is none, at once": {none, limited("1Mi"), true, true},
		"a limit of zero before":               {limited("0"), limited("1Mi"), false, true},
		"it is not known":                      {nil, limited("1Mi"), true, true},
		"no limit any more":                    {limited("1Mi"), none, false, false},
		"nothing of the whole":                 {limited("1Mi"), nil, false, false},
	} {
		z := Resize{Last: !c.early, Pod: &corev1.Pod{Spec: corev1.PodSpec{Resources: c.is}}, Most: &corev1.Pod{Spec: corev1.PodSpec{Resources: c.is}}, Had: c.had}
		if _, lower := z.LowersMemoryOfAll(); lower != c.lower {
			t.Errorf("%s: %v", what, lower)
		}
	}
}
