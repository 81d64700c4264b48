package sim

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
)

const mergePatch = "application/merge-patch+json"

// hold makes config maps that a finalizer holds, deletes them, and lets them go a
// while later: until then they are there.
func (u *user) hold(ctx context.Context) {
	n := 0
	u.every(ctx, 5*time.Second, func() {
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
			u.world.checker.contradicted("config map %s is gone, and its finalizer was not taken away", name)
		}
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.CoreV1().ConfigMaps(space).Patch(ctx, name, mergePatch, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
			return unlessGone(err)
		})
	})
}

// prepare makes pods that only one node can take, and that node later.
func (u *user) prepare(ctx context.Context) {
	n := 0
	u.every(ctx, 3*time.Second, func() {
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

// reserve keeps a node free for a while by a taint. At the end none is: a restored
// snapshot may have brought taints back.
func (u *user) reserve(ctx context.Context) {
	u.every(ctx, 5*time.Second, func() {
		pause(ctx, time.Duration(u.rand.IntN(10))*time.Second)
		node := u.world.workers[u.rand.IntN(len(u.world.workers))].name
		u.taint(ctx, node, true)
		pause(ctx, time.Duration(u.rand.IntN(15))*time.Second)
		u.taint(ctx, node, false)
	})
	for _, n := range u.world.workers {
		u.taint(context.WithoutCancel(ctx), n.name, false)
	}
}

// taint gives a node the taint of those that are reserved, or takes it away, and leaves
// what others have put there.
func (u *user) taint(ctx context.Context, node string, yes bool) {
	reserved := corev1.Taint{Key: "berth.dev/reserved", Effect: corev1.TaintEffectNoSchedule}
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		n, err := c.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return unlessGone(err)
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == reserved.Key })
		if yes {
			n.Spec.Taints = append(n.Spec.Taints, reserved)
		}
		_, err = c.CoreV1().Nodes().Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
}

func (u *user) label(ctx context.Context, node, key, value string) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, mergePatch, fmt.Appendf(nil, `{"metadata":{"labels":{%q:%s}}}`, key, value), metav1.PatchOptions{})
		return unlessGone(err)
	})
}

// recreate deletes a pod and makes it again at once, under its name, as a controller
// with one pod does. Nobody else uses the name.
func (u *user) recreate(ctx context.Context) {
	const name = "again"
	u.every(ctx, 500*time.Millisecond, func() {
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
		u.world.checker.contradicted("pod %s was not there, is made, and is said to be there already", name)
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
		u.world.checker.contradicted("pod %s was made with UID %s, and has %s", name, made.UID, found.UID)
	}
}

// handOver asks now and then that another server leads.
func (u *user) handOver(ctx context.Context) {
	u.every(ctx, 20*time.Second, func() {
		pause(ctx, time.Duration(u.rand.IntN(20))*time.Second)
		u.handTo(ctx, u.world.servers[u.rand.IntN(len(u.world.servers))].name)
	})
}

// handTo asks whoever leads to let a server lead; another one, if that is the same.
func (u *user) handTo(ctx context.Context, to string) {
	servers := u.world.servers
	leader := max(0, slices.IndexFunc(servers, (*machine).leads))
	if servers[leader].name == to {
		to = u.world.next(servers[leader]).name
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := u.clients[leader].CoreV1().RESTClient().Post().AbsPath(operator.PathTransferLeader).SetHeader("Content-Type", "application/json").
		Body(fmt.Appendf(nil, `{"id":%q}`, to)).Do(ctx).Error()
	u.world.story.tell(u.name, "hands leadership to %s: %v", to, err)
}

// remove takes a server that does not run out of the cluster. It gives up when it runs.
func (u *user) remove(m *machine) {
	u.insist(context.Background(), func(ctx context.Context, c *kubernetes.Clientset) error {
		if m.server != nil {
			return nil
		}
		err := c.CoreV1().RESTClient().Delete().AbsPath(operator.PathRaftServers, m.name).Do(ctx).Error()
		return unlessGone(err)
	})
	u.world.story.tell(u.name, "has removed %s", m.name)
}

// restore saves the cluster's state, and a while later makes it the state again. From
// then on nobody can know what has been forgotten.
func (u *user) restore(d time.Duration) {
	if i := slices.IndexFunc(u.world.servers, (*machine).isUp); i < 0 || u.world.servers[i].server.View().Version() < fsm.SinceSeen {
		return // what was on its way by the state before would be carried out
	}
	var saved []byte
	get := func(ctx context.Context, c *kubernetes.Clientset) (err error) {
		saved, err = c.CoreV1().RESTClient().Get().AbsPath(operator.PathSnapshot).DoRaw(ctx)
		return err
	}
	if err := u.ask(context.Background(), get); err != nil {
		u.world.story.tell(u.name, "saves no snapshot: %v", err)
		return
	}
	time.Sleep(d)
	u.world.story.tell(u.name, "restores a snapshot of %s ago", d)
	u.world.checker.forgets()
	if m := u.world.leader(); m != nil { // what others write meanwhile is in one entry with it
		m.platter.Slow(slowSync)
		defer m.platter.Slow(0)
	}
	err := u.ask(context.Background(), func(ctx context.Context, c *kubernetes.Clientset) error {
		return c.CoreV1().RESTClient().Put().AbsPath(operator.PathSnapshot).MaxRetries(0).Body(saved).Do(ctx).Error()
	})
	u.world.story.tell(u.name, "has restored it: %v", err)
}
