package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/model"
)

// resize has pods ask for other amounts of processor while they run.
func (u *user) resize(ctx context.Context) {
	u.every(ctx, 3*time.Second, func() {
		running := slices.DeleteFunc(u.pods(ctx), func(p corev1.Pod) bool {
			return p.Status.Phase != corev1.PodRunning || p.DeletionTimestamp != nil
		})
		if len(running) == 0 {
			return
		}
		p := &running[u.rand.IntN(len(running))]
		patch := fmt.Sprintf(`{"metadata":{"uid":%q},"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"%dm"}}}]}}`, p.UID, 200+100*u.rand.IntN(30))
		_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Pods(space).Patch(ctx, p.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "resize")
			return err
		})
	})
}

// setAside is what a pod's node has set aside for it, as far as the servers know.
func setAside(p *corev1.Pod) model.Resources {
	if s := p.Status.ContainerStatuses; len(s) > 0 && s[0].Resources != nil {
		pod := *p
		pod.Spec.Containers = slices.Clone(p.Spec.Containers)
		pod.Spec.Containers[0].Resources.Requests = s[0].AllocatedResources
		return model.PodRequest(&pod)
	}
	return model.PodRequest(p)
}
