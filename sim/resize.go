package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/model"
)

// resize has pods ask for other amounts of processor while they run.
func (u *user) resize(ctx context.Context) {
	u.every(ctx, 3*time.Second, func() {
		running := slices.DeleteFunc(u.running(ctx), func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil })
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

// running are the pods that run, without what is not asked of them here: it is much.
func (u *user) running(ctx context.Context) (items []metav1.PartialObjectMetadata) {
	_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		raw, err := c.CoreV1().RESTClient().Get().Namespace(space).Resource("pods").Param("fieldSelector", "status.phase=Running").
			SetHeader("Accept", "application/vnd.kubernetes.protobuf;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1").DoRaw(ctx)
		if err != nil {
			return err
		}
		var envelope runtime.Unknown
		var pods metav1.PartialObjectMetadataList
		const magic = 4 // bytes
		if err := envelope.Unmarshal(raw[min(magic, len(raw)):]); err != nil || pods.Unmarshal(envelope.Raw) != nil {
			u.world.checker.violated("the metadata of pods can not be read: %v", err)
		}
		items = pods.Items
		return nil
	})
	return items
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
