package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/ports"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// contestant is a cluster that goes through the stages of a contest. All is asked for and looked at through its API, so that
// every one is asked the same.
type contestant struct {
	*run
	who      string
	client   kubernetes.Interface
	pids     []int                           // whose processor time and memory count
	programs []*program                      // those that are not Berth's servers
	ports    *ports.Claim                    // theirs
	agree    func(ctx context.Context) error // fails unless the replicas of the state are equal, and the nodes were there all the time
	legs     []leg
	peak     float64 // bytes that all processes have had resident at the most
}

// leg is what one of them took.
type leg struct {
	what string
	rate float64 // pods a second
	work float64 // milliseconds of processor time a pod
}

// over is how many times as fast as in the other one a stage was, and with how many times its processor time.
func (l *leg) over(other *leg) (faster, work float64) {
	return l.rate / other.rate, l.work / other.work
}

const (
	// Of the pods that there are at most, a Job has a third, and so have many Deployments of ten.
	contestShare = 3
	// contestPoll is how often a contestant is asked how far it is, which costs it something.
	contestPoll = 40 * poll
	// contestStall is how long nothing may move.
	contestStall = 5 * stallTimeout
	warmUpName   = "warm-up"
)

// mayContest fails unless the pods and the nodes are such that the stages can be gone through.
func (r *run) mayContest() error {
	switch {
	case r.Workers != FakeWorkers:
		return errors.New("it needs fake workers: a rolling update waits for pods that are ready")
	case r.Pods%(contestShare*podsOfEach) != 0 || r.Pods*4/3 > podsOfANode*r.Nodes:
		return fmt.Errorf("it needs a multiple of %d pods, and for %d of them a node at least, for there is a quarter more of them during a rolling update",
			contestShare*podsOfEach, podsOfANode*3/4)
	}
	return nil
}

// carryOut goes through all stages. What is not measured between them leaves nothing behind.
func (c *contestant) carryOut(ctx context.Context) error {
	for _, part := range []func(ctx context.Context) error{c.warmUp, c.oneDeployment, c.oneJob, c.manyDeployments, c.agree} {
		if err := part(ctx); err != nil {
			return err
		}
	}
	for _, pid := range c.pids {
		bytes, err := peakOf(pid)
		if err != nil {
			return err
		}
		c.peak += float64(bytes)
	}
	for _, s := range c.legs {
		c.figure(c.who+": "+s.what, s.rate, "pods/s")
		c.figure(c.who+": "+s.what+", processor time", s.work, "ms/pod")
	}
	c.figure(c.who+": resident at the most, all processes", c.peak/mebibyte, "MiB")
	return nil
}

// warmUp waits until the controllers work.
func (c *contestant) warmUp(ctx context.Context) error {
	d := c.deployments(warmUpName)
	if err := d.create(ctx, 1); err != nil {
		return err
	}
	if err := c.await(ctx, "the first pod", d.rolledOut(1)); err != nil {
		return err
	}
	return d.remove(ctx)
}

// oneDeployment is scaled from nothing, rolled out anew, and goes.
func (c *contestant) oneDeployment(ctx context.Context) error {
	d := c.deployments(workloadName)
	if err := d.create(ctx, 0); err != nil {
		return err
	}
	scale := func(ctx context.Context) error { return d.patch(ctx, fmt.Sprintf(`{"spec":{"replicas":%d}}`, c.Pods)) }
	if err := c.measure(ctx, "a Deployment from nothing", c.Pods, scale, contestPoll, d.rolledOut(c.Pods)); err != nil {
		return err
	}
	roll := func(ctx context.Context) error {
		return d.patch(ctx, `{"spec":{"template":{"metadata":{"annotations":{"roll":"1"}}}}}`)
	}
	if err := c.measure(ctx, "its rolling update", c.Pods, roll, contestPoll, d.rolledOut(c.Pods)); err != nil {
		return err
	}
	if err := errors.Join(c.await(ctx, "the old pods to go", c.exactly(c.Pods)), c.verify(ctx, map[string]int{workloadName: c.Pods})); err != nil {
		return err
	}
	return d.remove(ctx)
}

// oneJob runs to its end: its pods end at once.
func (c *contestant) oneJob(ctx context.Context) error {
	pod := newPod("10m", "16Mi")
	pod.Annotations, pod.Spec.RestartPolicy = map[string]string{fake.Prefix + "run-seconds": "0"}, corev1.RestartPolicyNever
	pieces, indexed := int32(c.Pods/contestShare), batchv1.IndexedCompletion
	jobs := c.client.BatchV1().Jobs(metav1.NamespaceDefault)
	begin := func(ctx context.Context) error {
		_, err := jobs.Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: workloadName}, Spec: batchv1.JobSpec{
			Completions: &pieces, Parallelism: &pieces, CompletionMode: &indexed, Template: templateOf(pod),
		}}, metav1.CreateOptions{})
		return err
	}
	err := c.measure(ctx, "a Job", int(pieces), begin, contestPoll, func(ctx context.Context) (bool, int, error) {
		j, err := jobs.Get(ctx, workloadName, metav1.GetOptions{})
		if err != nil {
			return false, 0, err
		}
		if j.Status.CompletionTime != nil && (j.Status.Succeeded != pieces || j.Status.Failed != 0) {
			return false, 0, fmt.Errorf("the Job of %d pieces says %+v", pieces, j.Status)
		}
		return j.Status.CompletionTime != nil, int(j.Status.Active + 3*j.Status.Succeeded), nil
	})
	if err != nil {
		return err
	}
	if err := c.verifyPieces(ctx, int(pieces)); err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	if err := jobs.Delete(ctx, workloadName, metav1.DeleteOptions{PropagationPolicy: &background}); err != nil {
		return err
	}
	return c.await(ctx, "the Job's pods to go", c.exactly(0))
}

// manyDeployments of ten are created as fast as the clients can, each the same number of them.
func (c *contestant) manyDeployments(ctx context.Context) error {
	pods, want := c.Pods/contestShare, map[string]int{}
	for i := range pods / podsOfEach {
		want[workloadNameOf(i)] = podsOfEach
	}
	begin := func(ctx context.Context) error {
		return each(ctx, c.Clients, len(want), func(ctx context.Context, i int) error {
			return createWorkload(ctx, c.client, aDeployment, metav1.NamespaceDefault, workloadNameOf(i))
		})
	}
	available, end, err := c.follow(ctx, pods)
	if err != nil {
		return err
	}
	defer end()
	if err := c.measure(ctx, fmt.Sprintf("%d Deployments of %d", len(want), podsOfEach), pods, begin, poll, available); err != nil {
		return err
	}
	return c.verify(ctx, want)
}

// follow watches how many pods of Deployments are available, all of which are made after the call. It asks nothing, as lists of all of them
// would, which cost more the more there are. end ends it.
func (c *contestant) follow(ctx context.Context, pods int) (available progress, end func(), err error) {
	deployments := c.client.AppsV1().Deployments(metav1.NamespaceDefault)
	list, err := deployments.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list the Deployments: %w", err)
	}
	w, err := deployments.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return nil, nil, fmt.Errorf("watch the Deployments: %w", err)
	}
	var ready atomic.Int64
	var ended atomic.Bool
	go func() {
		defer ended.Store(true)
		of := map[string]int32{}
		for e := range w.ResultChan() {
			d, ok := e.Object.(*appsv1.Deployment)
			if !ok {
				return
			}
			ready.Add(int64(d.Status.AvailableReplicas - of[d.Name]))
			of[d.Name] = d.Status.AvailableReplicas
		}
	}()
	return func(context.Context) (bool, int, error) {
		if ended.Load() {
			return false, 0, errors.New("the watch of the Deployments ended")
		}
		n := int(ready.Load())
		return n == pods, n, nil
	}, w.Stop, nil
}

// each does something for 0 to n-1, for as many at a time as there are workers.
func each(ctx context.Context, workers, n int, do func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for range workers {
		working.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	working.Wait()
	return context.Cause(ctx)
}

// progress says whether something has come about, and how far it is.
type progress func(ctx context.Context) (done bool, moved int, err error)

// measure tells how long something takes until it is done for so many pods, and the time that processors worked for it in
// the contestant's processes. It looks every so often whether it is done.
func (c *contestant) measure(ctx context.Context, what string, pods int, begin func(ctx context.Context) error, every time.Duration, done progress) error {
	before, err := c.worked()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := begin(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := c.awaitEvery(ctx, every, what, done); err != nil {
		return err
	}
	wall := time.Since(began)
	after, err := c.worked()
	if err != nil {
		return err
	}
	l := leg{what: what, rate: float64(pods) / wall.Seconds(), work: millis(after-before) / float64(pods)}
	c.legs = append(c.legs, l)
	c.progress("%s: %s: %d pods in %s, %.0f a second, %.2f ms of processor time each", c.who, what, pods, inSeconds(wall), l.rate, l.work)
	return nil
}

// await waits until something has come about; if nothing moves for long it is an error.
func (c *contestant) await(ctx context.Context, what string, done progress) error {
	return c.awaitEvery(ctx, contestPoll, what, done)
}

func (c *contestant) awaitEvery(ctx context.Context, every time.Duration, what string, done progress) error {
	for seen, at := -1, time.Now(); ; {
		ok, moved, err := done(ctx)
		if err == nil && !ok {
			err = c.alive()
		}
		switch {
		case err != nil:
			return fmt.Errorf("waiting for %s: %w", what, err)
		case ok:
			return nil
		case moved != seen:
			seen, at = moved, time.Now()
		case time.Since(at) > contestStall:
			return fmt.Errorf("waiting for %s: nothing moved for %s, at %d", what, contestStall, moved)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(every):
		}
	}
}

// exactly is when there are so many pods.
func (c *contestant) exactly(pods int) progress {
	return func(ctx context.Context) (bool, int, error) {
		list, err := c.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{Limit: 1})
		if err != nil {
			return false, 0, err
		}
		n := len(list.Items)
		if list.RemainingItemCount != nil {
			n += int(*list.RemainingItemCount)
		}
		return n == pods, n, nil
	}
}

// worked is the processor time of all processes until now.
func (c *contestant) worked() (sum time.Duration, err error) {
	for _, pid := range c.pids {
		d, err := workedBy(pid)
		if err != nil {
			return 0, err
		}
		sum += d
	}
	return sum, nil
}

// verify fails unless the workloads have exactly their pods, each bound to a node that is there and told not to end, and no
// node has more than it offers.
func (c *contestant) verify(ctx context.Context, want map[string]int) error {
	used, has := map[string]model.Resources{}, map[string]int{}
	err := c.eachPod(ctx, func(pod *corev1.Pod) error {
		if pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s is %s, and told to end at %v", pod.Name, pod.Status.Phase, pod.DeletionTimestamp)
		}
		has[pod.Labels[appLabel]]++
		used[pod.Spec.NodeName] = used[pod.Spec.NodeName].Add(model.PodRequest(pod))
		return nil
	})
	if err != nil {
		return err
	}
	nodes, err := c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	var errs []error
	for i := range nodes.Items {
		errs = append(errs, verifyRoom(&nodes.Items[i], used[nodes.Items[i].Name]))
		delete(used, nodes.Items[i].Name)
	}
	for node := range used {
		errs = append(errs, fmt.Errorf("pods are bound to node %q, which is not there", node))
	}
	for name, n := range want {
		if has[name] != n {
			errs = append(errs, fmt.Errorf("workload %s has %d pods, and not %d", name, has[name], n))
		}
	}
	if len(has) != len(want) {
		errs = append(errs, fmt.Errorf("%d workloads have pods, and not %d", len(has), len(want)))
	}
	return errors.Join(errs...)
}

// verifyPieces fails unless every piece of the Job was done by one pod.
func (c *contestant) verifyPieces(ctx context.Context, pieces int) error {
	by := map[string]string{}
	err := c.eachPod(ctx, func(pod *corev1.Pod) error {
		index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		if other, ok := by[index]; ok || pod.Status.Phase != corev1.PodSucceeded {
			return fmt.Errorf("pod %s of piece %s is %s, and so is %q of the same", pod.Name, index, pod.Status.Phase, other)
		}
		by[index] = pod.Name
		return nil
	})
	if err == nil && len(by) != pieces {
		err = fmt.Errorf("%d pieces of %d were done", len(by), pieces)
	}
	return err
}

// eachPod looks at all pods, a page at a time.
func (c *contestant) eachPod(ctx context.Context, look func(pod *corev1.Pod) error) error {
	options := metav1.ListOptions{Limit: batch}
	for first := true; first || options.Continue != ""; first = false {
		list, err := c.client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return fmt.Errorf("list the pods: %w", err)
		}
		options.Continue = list.Continue
		for i := range list.Items {
			if err := look(&list.Items[i]); err != nil {
				return err
			}
		}
	}
	return nil
}

// contested is a Deployment that is asked for different things, one after the other.
type contested struct {
	*contestant
	name string
}

func (c *contestant) deployments(name string) *contested { return &contested{c, name} }

func (d *contested) create(ctx context.Context, replicas int32) error {
	template := templateOf(newPod("10m", "16Mi"))
	template.Labels = map[string]string{appLabel: d.name}
	_, err := d.client.AppsV1().Deployments(metav1.NamespaceDefault).Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: d.name},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create Deployment %s: %w", d.name, err)
	}
	return nil
}

func (d *contested) patch(ctx context.Context, patch string) error {
	_, err := d.client.AppsV1().Deployments(metav1.NamespaceDefault).Patch(ctx, d.name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// rolledOut is when all of its pods are of its template and available.
func (d *contested) rolledOut(pods int) progress {
	return func(ctx context.Context) (bool, int, error) {
		o, err := d.client.AppsV1().Deployments(metav1.NamespaceDefault).Get(ctx, d.name, metav1.GetOptions{})
		if err != nil {
			return false, 0, err
		}
		s, want := &o.Status, int32(pods)
		done := s.ObservedGeneration >= o.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && s.Replicas == want
		return done, int(3*s.UpdatedReplicas + s.AvailableReplicas), nil
	}
}

// remove deletes it when its pods are gone.
func (d *contested) remove(ctx context.Context) error {
	if err := d.patch(ctx, `{"spec":{"replicas":0}}`); err != nil {
		return err
	}
	if err := d.await(ctx, "the pods of Deployment "+d.name+" to go", d.exactly(0)); err != nil {
		return err
	}
	background := metav1.DeletePropagationBackground
	return d.client.AppsV1().Deployments(metav1.NamespaceDefault).Delete(ctx, d.name, metav1.DeleteOptions{PropagationPolicy: &background})
}
