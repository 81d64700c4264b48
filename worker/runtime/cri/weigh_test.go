package cri

import (
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/runtime/cgroup"
)

// slowGroups takes note of a weight late: something happens before.
type slowGroups struct {
	podGroups
	before func()
	shares uint64
}

func (g *slowGroups) Create(_ string, r *specs.LinuxResources) error {
	if before := g.before; before != nil {
		g.before = nil
		before()
	}
	g.shares = *r.CPU.Shares
	return nil
}

// Of pods that come at the same time none has the others weigh what they did without it.
func TestWeightOfAll(t *testing.T) {
	r := away(t)
	asks := func(name, cpu string) *corev1.Pod {
		c := corev1.Container{Name: "c"}
		c.Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse(cpu)}
		return pod(name, c)
	}
	g := &slowGroups{}
	g.before = func() {
		if err := r.weigh(g, asks("other", "2")); err != nil {
			t.Error(err)
		}
	}
	if err := r.weigh(g, asks("one", "1")); err != nil || g.shares != cgroup.Shares(3000) {
		t.Errorf("they weigh %d, %v", g.shares, err)
	}
}
