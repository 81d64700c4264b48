package devices

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// A plugin that does not answer holds up those who ask for its devices, for as long as they like, and nobody else; what it does before a container
// starts holds up that container alone.
func TestOnePluginHangs(t *testing.T) {
	b := newBench(t)
	hangs := &stub{allocates: make(chan struct{}, 1)}
	slow := &stub{name: "example.com/slow", prepares: make(chan struct{}, 2)}
	slow.options.PreStartRequired = true
	b.plug(hangs, "gpu.sock", "a", "b")
	b.plug(slow, "slow.sock", "a", "b")
	b.plug(&stub{name: "example.com/fpga"}, "fpga.sock", "f")
	b.has("2 of 2")
	b.eventually("the devices of the slow one", func() error {
		_, healthy := b.Amounts()
		if n := healthy["example.com/slow"]; n.Value() != 2 {
			return fmt.Errorf("there are %s", n.String())
		}
		return nil
	})
	asking := func(pod, name string) *corev1.Pod {
		return gpuPod(pod, 1, func(p *corev1.Pod) {
			p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceName(name): *resource.NewQuantity(1, resource.DecimalSI)}
		})
	}
	all := func(types.UID) bool { return true }
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	give := func(p *corev1.Pod) {
		go func() {
			_, err := b.Give(ctx, p, &p.Spec.Containers[0], all)
			ended <- err
		}()
	}
	give(gpuPod("one", 1))
	<-hangs.allocates
	give(gpuPod("two", 1)) // waits for the one before it
	for _, pod := range []string{"three", "four"} {
		give(asking(pod, "example.com/slow"))
		<-slow.prepares
	}
	b.eventually("the other plugin's devices to be given", func() error {
		p := asking("five", "example.com/fpga")
		_, err := b.Give(t.Context(), p, &p.Spec.Containers[0], all)
		return err // it has not told of them yet
	})
	plain := asking("six", "cpu")
	if _, err := b.Give(t.Context(), plain, &plain.Spec.Containers[0], all); err != nil {
		t.Error(err)
	}
	cancel()
	for range 4 {
		if err := <-ended; err == nil {
			t.Error("devices were given that no plugin gave")
		}
	}
}
