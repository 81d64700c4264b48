package sim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/api/operator"
)

const mergePatch = "application/merge-patch+json"

// hold makes config maps that a finalizer holds, deletes them, and lets them go a
// while later: until then they are there.
func (u *user) hold(ctx context.Context) {
	n := 0
	every(ctx, 5*time.Second, func() {
		n++
		name := fmt.Sprintf("held-%d", n)
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().ConfigMaps(space).Create(ctx, &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{"berth.dev/held"}}}, metav1.CreateOptions{})
			return err
		})
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.CoreV1().ConfigMaps(space).Delete(ctx, name, metav1.DeleteOptions{})
		})
		pause(ctx, time.Duration(u.rand.IntN(5))*time.Second)
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().ConfigMaps(space).Get(ctx, name, metav1.GetOptions{})
			return err
		})
		if apierrors.IsNotFound(err) {
			u.world.checker.violated("config map %s is gone, and its finalizer was not taken away", name)
		}
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().ConfigMaps(space).Patch(ctx, name, mergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	})
}

// prepare makes pods that only one node can take, and that node later.
func (u *user) prepare(ctx context.Context) {
	n := 0
	every(ctx, 3*time.Second, func() {
		n++
		name, key := fmt.Sprintf("prepared-%d", n), fmt.Sprintf("berth.dev/place-%d", n%4)
		node := u.world.workers[u.rand.IntN(len(u.world.workers))].name
		pod := podOf(name, classes[u.rand.IntN(len(classes))].name, 100, 5)
		pod.Spec.NodeSelector = map[string]string{key: "yes"}
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
			return err
		})
		pause(ctx, time.Duration(u.rand.IntN(4))*time.Second)
		u.label(ctx, node, key, `"yes"`)
		pause(ctx, time.Duration(u.rand.IntN(10))*time.Second)
		if ctx.Err() == nil && u.rand.IntN(4) > 0 { // else it stays: somebody may wait for it at the end
			u.label(ctx, node, key, "null")
		}
	})
}

func (u *user) label(ctx context.Context, node, key, value string) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, mergePatch, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value), metav1.PatchOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// recreate deletes a pod and makes it again at once, under its name, as a controller
// with one pod does. Nobody else uses the name.
func (u *user) recreate(ctx context.Context) {
	const name = "again"
	every(ctx, 500*time.Millisecond, func() {
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{})
		})
		if !apierrors.IsNotFound(err) {
			return // it is there, or who knows
		}
		u.make(ctx, name)
		pause(ctx, time.Duration(u.rand.IntN(2000))*time.Millisecond)
	})
}

// make creates a pod that is not there. That it is there means that what was told
// before was wrong.
func (u *user) make(ctx context.Context, name string) {
	var made *corev1.Pod
	err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) (err error) {
		made, err = c.CoreV1().Pods(space).Create(ctx, podOf(name, "middle", 100, -1), metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		u.world.checker.violated("pod %s was not there, is made, and is said to be there already", name)
	}
	if err != nil {
		return
	}
	var found *corev1.Pod
	err = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) (err error) {
		found, err = c.CoreV1().Pods(space).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	switch {
	case apierrors.IsNotFound(err):
		// Preempted and gone, it may be; but not within the grace that it has.
	case err == nil && found.UID != made.UID:
		u.world.checker.violated("pod %s was made with UID %s, and has %s", name, made.UID, found.UID)
	}
}

// handOver asks now and then that another server leads.
func (u *user) handOver(ctx context.Context) {
	every(ctx, 20*time.Second, func() {
		pause(ctx, time.Duration(u.rand.IntN(20))*time.Second)
		to := u.world.servers[u.rand.IntN(len(u.world.servers))].name
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.CoreV1().RESTClient().Post().AbsPath(operator.PathTransferLeader).SetHeader("Content-Type", "application/json").
				Body(fmt.Appendf(nil, `{"id":%q}`, to)).Do(ctx).Error()
		})
		u.world.story.tell(u.name, "hands leadership to %s: %v", to, err)
	})
}

// remove takes a server that does not run out of the cluster. It gives up when it runs.
func (u *user) remove(m *machine) {
	u.insist(context.Background(), func(ctx context.Context, c *kubernetes.Clientset) error {
		if m.server != nil {
			return nil
		}
		err := c.CoreV1().RESTClient().Delete().AbsPath(operator.PathRaftServers, m.name).Do(ctx).Error()
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	u.world.story.tell(u.name, "has removed %s", m.name)
}
