package worker

import (
	"fmt"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// What a pod as a whole may have had by the time that it is to have something else.
func TestHasOfAll(t *testing.T) {
	limited := func(memory string) *corev1.ResourceRequirements {
		return &corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse(memory)}}
	}
	none := &corev1.ResourceRequirements{}
	for what, c := range map[string]struct {
		own  *corev1.ResourceRequirements
		at   resize
		want string
	}{
		"nothing is said of it":              {nil, resize{settled: true}, "0"},
		"what is set aside for it":           {limited("2Mi"), resize{settled: true}, "2Mi"},
		"an agent was started again":         {limited("2Mi"), resize{}, "2Mi"},
		"a resize has not begun":             {limited("2Mi"), resize{progress: 2, had: limited("1Mi")}, "1Mi"},
		"a resize has begun to raise it":     {limited("2Mi"), resize{progress: 2, had: limited("1Mi"), raised: true}, "2Mi"},
		"a resize has begun to lower it":     {limited("1Mi"), resize{progress: 2, had: limited("2Mi"), raised: true}, "2Mi"},
		"it may have been raised":            {limited("2Mi"), resize{progress: 2, had: limited("1Mi"), underWay: true}, "2Mi"},
		"it may still be without a limit":    {limited("1Mi"), resize{progress: 2, had: none, underWay: true}, "0"},
		"it is to be without any once again": {nil, resize{progress: 2, had: limited("1Mi"), raised: true}, "1Mi"},
	} {
		p := &podState{pod: testPod("p"), resize: c.at}
		p.pod.Spec.Resources = c.own
		if got := p.hasOfAll().Limits.Memory().String(); got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

// resize POD CONTAINER|all [cpu=AMOUNT] [memory=AMOUNT]
func (b *bench) resize(d *datadriven.TestData) {
	pod := b.change(d)
	pod.Generation++
	var is *corev1.ResourceRequirements
	if c := containerByName(pod, d.CmdArgs[1].Key); c != nil {
		c.Resources = *c.Resources.DeepCopy()
		is = &c.Resources
	} else {
		is = &corev1.ResourceRequirements{Limits: corev1.ResourceList{}}
		if had := pod.Spec.Resources; had != nil {
			is = had.DeepCopy()
		}
		pod.Spec.Resources = is
	}
	for _, a := range d.CmdArgs[2:] {
		for _, list := range []corev1.ResourceList{is.Requests, is.Limits} {
			if list != nil {
				list[corev1.ResourceName(a.Key)] = resource.MustParse(a.Vals[0])
			}
		}
	}
	b.assignPods(pod)
}

// resources POD: what the servers know of them
func (b *bench) resources(pod string) {
	for _, s := range b.pods[pod].Status.ContainerStatuses {
		list := func(l corev1.ResourceList) string {
			cpu, memory := l[corev1.ResourceCPU], l[corev1.ResourceMemory]
			return cpu.String() + "/" + memory.String()
		}
		fmt.Fprintf(&b.out, "%s: set aside %s, has %s up to %s\n", s.Name, list(s.AllocatedResources), list(s.Resources.Requests), list(s.Resources.Limits))
	}
}
