package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/berth-dev/berth/worker/runtime/fake"
)

const (
	// A kubelet renews its lease as often, and says that it lasts so long.
	leaseEvery   = 10 * time.Second
	leaseSeconds = 40
	// players is how many pods are seen to at the same time.
	players = 64
)

// playedNodes are nodes of Kubernetes that only pretend, as fake workers are nodes of Berth. They are kept by one client, which
// costs the API server less than as many kubelets would: it watches the pods of all nodes by one watch, tells of each pod once
// instead of several times, and takes no time to start or to end it.
type playedNodes struct {
	client kubernetes.Interface
	pods   cache.Store
	queue  workqueue.TypedRateLimitingInterface[string]
	cancel context.CancelFunc
	loop   sync.WaitGroup

	mu  sync.Mutex
	err error // the last one
}

// playNodes registers so many nodes and plays them until it is stopped.
func playNodes(ctx context.Context, client kubernetes.Interface, n int) (*playedNodes, error) {
	leases := make([]*coordinationv1.Lease, n)
	err := each(ctx, players, n, func(ctx context.Context, i int) error {
		node := stubNode(i)
		now := metav1.Now()
		node.Status.Conditions = []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now,
		}}
		if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("register node %s: %w", node.Name, err)
		}
		seconds := int32(leaseSeconds)
		lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node.Name},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node.Name, LeaseDurationSeconds: &seconds, RenewTime: &metav1.MicroTime{Time: now.Time}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("the lease of node %s: %w", node.Name, err)
		}
		leases[i] = lease
		return nil
	})
	if err != nil {
		return nil, err
	}
	p := &playedNodes{client: client, queue: workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]())}
	bound := fields.OneTermNotEqualSelector("spec.nodeName", "")
	add := func(o any) {
		if key, err := cache.MetaNamespaceKeyFunc(o); err == nil {
			p.queue.Add(key)
		}
	}
	var pods cache.Controller
	p.pods, pods = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.NewListWatchFromClient(client.CoreV1().RESTClient(), "pods", "", bound), ObjectType: &corev1.Pod{},
		Handler: cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }},
	})
	playing, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	p.loop.Go(func() { pods.RunWithContext(playing) })
	for i, lease := range leases {
		p.loop.Go(func() { p.renew(playing, lease, leaseEvery*time.Duration(i)/time.Duration(n)) })
	}
	for range players {
		p.loop.Go(func() { p.work(playing) })
	}
	return p, nil
}

func (p *playedNodes) stop() {
	p.cancel()
	p.queue.ShutDown()
	p.loop.Wait()
}

// lastError is what the nodes could not do; it may be that they could do it later.
func (p *playedNodes) lastError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *playedNodes) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

// renew keeps a node from being missed, from a moment of its own on, as kubelets do not all begin at once. Each node asks by
// itself: one whose answer is late delays no other.
func (p *playedNodes) renew(ctx context.Context, lease *coordinationv1.Lease, after time.Duration) {
	leases := p.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	for wait := time.NewTimer(after); ; wait.Reset(leaseEvery) {
		select {
		case <-ctx.Done():
			return
		case <-wait.C:
		}
		lease.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()}
		renewed, err := leases.Update(ctx, lease, metav1.UpdateOptions{})
		if err != nil {
			p.failed(fmt.Errorf("renew the lease of node %s: %w", lease.Name, err))
			renewed, err = leases.Get(ctx, lease.Name, metav1.GetOptions{}) // it may have been done for all that
		}
		if err == nil {
			lease = renewed
		}
	}
}

// verify fails if a node was missed: nobody says of it again that it is ready, and of a cluster that evicts its pods no figure
// counts.
func (p *playedNodes) verify(ctx context.Context) error {
	nodes, err := p.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	for i := range nodes.Items {
		for _, c := range nodes.Items[i].Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
				return errors.Join(fmt.Errorf("node %s was missed: its condition is %+v", nodes.Items[i].Name, c), p.lastError())
			}
		}
	}
	return nil
}

func (p *playedNodes) work(ctx context.Context) {
	for {
		key, down := p.queue.Get()
		if down {
			return
		}
		if err := p.play(ctx, key); err != nil {
			p.failed(fmt.Errorf("pod %s: %w", key, err))
			p.queue.AddRateLimited(key)
		} else {
			p.queue.Forget(key)
		}
		p.queue.Done(key)
	}
}

// play does for a pod what its node has to do next.
func (p *playedNodes) play(ctx context.Context, key string) error {
	o, ok, err := p.pods.GetByKey(key)
	if err != nil || !ok {
		return err
	}
	pod := o.(*corev1.Pod)
	pods := p.client.CoreV1().Pods(pod.Namespace)
	switch {
	case pod.DeletionTimestamp != nil:
		options := metav1.NewPreconditionDeleteOptions(string(pod.UID))
		options.GracePeriodSeconds = new(int64)
		err = pods.Delete(ctx, pod.Name, *options)
	case pod.Status.Phase == corev1.PodPending:
		var patch []byte
		if patch, err = json.Marshal(map[string]any{"status": playedStatus(pod)}); err == nil {
			_, err = pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		}
	}
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another one has its name
	}
	return err
}

// playedStatus is that of a pod that runs, or that has ended if it has nothing to do.
func playedStatus(pod *corev1.Pod) corev1.PodStatus {
	now := metav1.Now()
	ended := pod.Annotations[fake.Prefix+"run-seconds"] == "0"
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, HostIP: "127.0.0.1", PodIP: "127.0.0.1", PodIPs: []corev1.PodIP{{IP: "127.0.0.1"}}}
	ready, reason := corev1.ConditionTrue, ""
	if ended {
		status.Phase, ready, reason = corev1.PodSucceeded, corev1.ConditionFalse, "PodCompleted"
	}
	for _, c := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		condition := corev1.PodCondition{Type: c, Status: ready, Reason: reason, LastTransitionTime: now}
		if c == corev1.PodInitialized {
			condition.Status = corev1.ConditionTrue
		}
		status.Conditions = append(status.Conditions, condition)
	}
	for i := range pod.Spec.Containers {
		c, started := &pod.Spec.Containers[i], !ended
		s := corev1.ContainerStatus{Name: c.Name, Image: c.Image, Ready: started, Started: &started, ContainerID: "fake://" + string(pod.UID) + "/" + c.Name}
		if ended {
			s.State.Terminated = &corev1.ContainerStateTerminated{Reason: "Completed", StartedAt: now, FinishedAt: now, ContainerID: s.ContainerID}
		} else {
			s.State.Running = &corev1.ContainerStateRunning{StartedAt: now}
		}
		status.ContainerStatuses = append(status.ContainerStatuses, s)
	}
	return status
}
