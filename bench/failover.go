package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
)

const (
	// failoverTarget is how long the cluster may bind nothing.
	failoverTarget = 3 * time.Second
	// preemptEvery of the pods needs others to go.
	preemptEvery = 10
	// clientPatience is how long a client tries to create a pod.
	clientPatience = time.Minute
)

// drill is a failover under way.
type drill struct {
	*run
	servers *processes
	fleet   *fleet
	watch   *observer

	created  atomic.Int64
	killedAt atomic.Pointer[time.Time]
	// fresh are pods whose creation began after the kill: only a new leader
	// can have bound them.
	fresh sync.Map
	first chan time.Time // when the first of them was seen bound
}

// failover: the leader is killed while pods are created, bound and evicted.
func failover(ctx context.Context, r *run) (err error) {
	if r.Pods/preemptEvery > r.Nodes || r.Pods > 20*r.Nodes {
		return errors.New("the nodes do not hold these pods")
	}
	d := &drill{run: r, first: make(chan time.Time, 1)}
	if d.servers, err = r.startProcesses(ctx); err != nil {
		return err
	}
	defer d.servers.stop()
	var addrs []string
	for _, p := range d.servers.servers {
		addrs = append(addrs, p.addr(p.rpc))
	}
	d.fleet, err = startFleet(ctx, fleetConfig{
		workers: r.Nodes, servers: addrs, version: r.Version, source: d.servers.workerSource, registered: d.servers.nodes,
	})
	if err != nil {
		return err
	}
	defer d.fleet.stop()
	d.watch = watchPods(d.servers, d.onBinding)
	defer d.watch.stop()
	if err := d.carryOut(ctx); err != nil {
		return fmt.Errorf("%w; the servers' last words:\n%s", err, d.servers.lastWords())
	}
	return nil
}

func (d *drill) onBinding(name string, at time.Time) {
	if _, ok := d.fresh.Load(name); ok {
		select {
		case d.first <- at:
		default:
		}
	}
}

func (d *drill) carryOut(ctx context.Context) error {
	low := d.Nodes * lowPods
	if err := d.prepare(ctx, low); err != nil {
		return err
	}
	leader, term, err := d.servers.awaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	loading := make(chan error, 1)
	go func() { loading <- d.load(ctx, "", d.Pods, d.loadPod) }()
	for d.created.Load() < int64(low+d.Pods/2) {
		select {
		case err := <-loading:
			return errors.Join(errors.New("the load ended before the leader was killed"), err)
		case <-time.After(poll):
		}
	}
	now := time.Now()
	d.killedAt.Store(&now)
	if err := leader.kill(); err != nil {
		return err
	}
	successor, _, err := d.servers.awaitLeader(ctx, term)
	if err != nil {
		return err
	}
	elected := time.Since(now)
	var first time.Duration
	select {
	case at := <-d.first:
		first = at.Sub(now)
	case <-time.After(stallTimeout):
		return errors.New("the new leader binds nothing")
	}
	d.target("from the kill to the new leader's first binding, seen by a client", first.Seconds(), "s",
		fmt.Sprintf("< %.0f", failoverTarget.Seconds()), first < failoverTarget)
	d.figure("from the kill to a new leader", elected.Seconds(), "s")
	comparisons := 0
	for loaded := false; !loaded; comparisons++ {
		// The digest is of every table: the queue and the nominations are in it.
		if _, err := d.servers.verify(ctx, successor); err != nil {
			return err
		}
		select {
		case err := <-loading:
			if err != nil {
				return err
			}
			loaded = true
		case <-time.After(50 * poll):
		}
	}
	d.figure("equal states of the survivors under load, compared", float64(comparisons), "times")
	return d.finish(ctx, leader, successor)
}

// prepare fills the nodes.
func (d *drill) prepare(ctx context.Context, low int) error {
	client := d.servers.servers[0].client
	for name, value := range map[string]int32{lowClass: lowPriority, highClass: highPriority} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create class %s: %w", name, err)
		}
	}
	if err := d.load(ctx, "low", low, func(int) *corev1.Pod {
		pod := lowPod()
		pod.GenerateName = ""
		return pod
	}); err != nil {
		return err
	}
	return d.watch.settled(ctx, low)
}

// loadPod is a pod of the load: most are small, some need others to go.
func (d *drill) loadPod(i int) *corev1.Pod {
	pod := newPod("10m", "16Mi")
	if i%preemptEvery == 0 {
		pod = newPod("2500m", "500Mi")
	}
	pod.Spec.PriorityClassName = highClass
	return pod
}

// load creates pods through all servers; a client whose server fails goes on at
// the next one.
func (d *drill) load(ctx context.Context, prefix string, n int, pod func(i int) *corev1.Pod) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if prefix == "" {
		prefix = "load"
	}
	var next atomic.Int64
	var working sync.WaitGroup
	for at := range d.Clients {
		working.Go(func() {
			for {
				i := int(next.Add(1)) - 1
				if i >= n || ctx.Err() != nil {
					return
				}
				p := pod(i)
				p.Name = fmt.Sprintf("%s-%06d", prefix, i)
				if d.killedAt.Load() != nil {
					d.fresh.Store(p.Name, true)
				}
				var err error
				if at, err = d.create(ctx, at, p); err != nil {
					cancel(err)
					return
				}
				d.created.Add(1)
			}
		})
	}
	working.Wait()
	return context.Cause(ctx)
}

// create creates a pod at the server, or at another one, which it returns.
func (d *drill) create(ctx context.Context, at int, pod *corev1.Pod) (int, error) {
	give := time.Now().Add(clientPatience)
	for {
		p := d.servers.servers[at%len(d.servers.servers)]
		_, err := p.client.CoreV1().Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		var status apierrors.APIStatus
		switch {
		case err == nil:
			return at, nil
		case apierrors.IsAlreadyExists(err):
			return at, nil // an earlier attempt, whose answer was lost, was carried out
		case errors.As(err, &status) && status.Status().Code < 500 && !apierrors.IsTooManyRequests(err):
			return at, fmt.Errorf("create pod %s: %w", pod.Name, err)
		case ctx.Err() != nil || time.Now().After(give):
			return at, fmt.Errorf("create pod %s: %w", pod.Name, err)
		}
		at++
		select {
		case <-ctx.Done():
		case <-time.After(poll):
		}
	}
}

// finish waits for the end of the load, and audits.
func (d *drill) finish(ctx context.Context, killed, successor *process) error {
	pods := d.Nodes*lowPods + d.Pods
	if err := d.watch.settled(ctx, pods); err != nil {
		return err
	}
	if err := d.watch.compare(ctx, successor); err != nil {
		return err
	}
	d.figure("acknowledged pods or bindings lost", 0, "")
	evicted, err := auditVictims(ctx, successor)
	if err != nil {
		return err
	}
	d.figure("victims", float64(evicted), "")
	d.figure("victims evicted twice", 0, "")
	// The killed server comes back from its disk and has to agree.
	began := time.Now()
	if err := killed.start(d.Program); err != nil {
		return err
	}
	for {
		all, err := d.servers.verify(ctx, successor)
		switch {
		case err != nil:
			return err
		case all:
			d.figure("from its restart until the killed server agrees", time.Since(began).Seconds(), "s")
			return nil
		case time.Since(began) > stallTimeout:
			return fmt.Errorf("server %s does not agree with the others", killed.name)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(poll):
		}
	}
}

// auditVictims fails if a pod was evicted twice, by what the records say and by
// what the events say, and returns the number of victims.
func auditVictims(ctx context.Context, p *process) (int, error) {
	list := new(berthv1.PreemptionList)
	if err := p.ask(ctx, "GET", "/apis/"+berthv1.GroupVersion.String()+"/preemptions", list); err != nil {
		return 0, err
	}
	told := map[types.UID]metav1.MicroTime{}
	for _, record := range list.Items {
		for _, v := range record.Status.Victims {
			if v.EvictedAt == nil {
				return 0, fmt.Errorf("preemption %s does not say when victim %s was evicted", record.Name, v.Name)
			}
			// A later preemption may wait for a victim of an earlier one.
			if at, twice := told[v.UID]; twice && v.EvictedAt.Sub(at.Time).Abs() > time.Second {
				return 0, fmt.Errorf("victim %s was evicted at %s and at %s", v.Name, at, v.EvictedAt)
			}
			told[v.UID] = *v.EvictedAt
		}
	}
	events, err := p.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("list the events: %w", err)
	}
	preempted := map[types.UID]int32{}
	for _, e := range events.Items {
		if e.Reason == "Preempted" {
			preempted[e.InvolvedObject.UID] += max(e.Count, 1)
		}
	}
	for uid, n := range preempted {
		if n != 1 {
			return 0, fmt.Errorf("pod %s was evicted %d times", uid, n)
		}
	}
	if len(preempted) != len(told) {
		return 0, fmt.Errorf("the events tell of %d victims, and the records of %d", len(preempted), len(told))
	}
	return len(told), nil
}
