package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	// failoverTarget is how long the cluster may bind nothing at the worst,
	// failoverMedian how long when half of the kills took longer.
	failoverTarget, failoverMedian = 2500 * time.Millisecond, 1500 * time.Millisecond
	// preemptEvery of the pods needs others to go.
	preemptEvery = 10
	// clientPatience is how long a client tries to create a pod.
	clientPatience = time.Minute
	// roundTimeout bounds one kill, with the load before it and the audit after it.
	roundTimeout = 5 * time.Minute
)

// drill is a failover under way, or several, one after another.
type drill struct {
	*run
	servers *processes
	fleet   *fleet
	watch   *observer

	pods        int // created so far
	comparisons int // of the survivors' states under load
	wave        atomic.Pointer[wave]

	bound, elected, agreed []time.Duration // one a kill
	steps                  string          // of the last one's change of leader
}

// wave is the load around one kill.
type wave struct {
	created atomic.Int64
	killed  atomic.Bool
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
	d := &drill{run: r}
	// The audit reads every event.
	if d.servers, err = r.startProcesses(ctx, serverSettings{EventLimit: 1_000_000}); err != nil {
		return err
	}
	defer d.servers.stop()
	if d.fleet, err = d.servers.fleet(ctx, r); err != nil {
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
	w := d.wave.Load()
	if w == nil {
		return
	}
	if _, ok := w.fresh.Load(name); ok {
		select {
		case w.first <- at:
		default:
		}
	}
}

func (d *drill) carryOut(ctx context.Context) error {
	if err := d.classes(ctx); err != nil {
		return err
	}
	victims := 0
	for n := range d.Kills {
		evicted, err := d.round(ctx, n)
		if err != nil {
			return fmt.Errorf("kill %d: %w", n+1, err)
		}
		victims = evicted // of all rounds so far
	}
	d.tell(victims)
	return nil
}

// round is one kill, with all that it takes before and afterwards. Whoever waits
// for many is told of each.
func (d *drill) round(ctx context.Context, n int) (victims int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, roundTimeout, fmt.Errorf("it took longer than %s", roundTimeout))
	defer cancel()
	began := time.Now()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
	}()
	if n > 0 {
		if err := d.clear(ctx); err != nil {
			return 0, err
		}
	}
	if victims, err = d.kill(ctx, n); err != nil {
		return 0, err
	}
	if d.Progress != nil {
		_, err = fmt.Fprintf(d.Progress, "kill %d of %d: %s; first binding after %s; %s in all\n", n+1, d.Kills,
			d.steps, inSeconds(d.bound[n]), inSeconds(time.Since(began)))
	}
	return victims, err
}

func inSeconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }

// tell gives the figures: of one kill, or the median and the worst of many.
func (d *drill) tell(victims int) {
	const binding, leader = "from the kill to the new leader's first binding, seen by a client", "from the kill to a new leader"
	const agrees = "from its restart until the killed server agrees"
	median := func(all []time.Duration) time.Duration { return slices.Sorted(slices.Values(all))[len(all)/2] }
	worst := slices.Max[[]time.Duration]
	under := func(bound time.Duration) string { return fmt.Sprintf("< %.1f", bound.Seconds()) }
	first := worst(d.bound)
	if d.Kills == 1 {
		d.target(binding, first.Seconds(), "s", under(failoverTarget), first < failoverTarget)
		d.figure(leader, d.elected[0].Seconds(), "s")
		d.figure(agrees, d.agreed[0].Seconds(), "s")
	} else {
		half := median(d.bound)
		d.figure("kills", float64(d.Kills), "")
		d.target(binding+", median", half.Seconds(), "s", under(failoverMedian), half < failoverMedian)
		d.target(binding+", worst", first.Seconds(), "s", under(failoverTarget), first < failoverTarget)
		d.figure(leader+", median", median(d.elected).Seconds(), "s")
		d.figure(leader+", worst", worst(d.elected).Seconds(), "s")
		d.figure(agrees+", worst", worst(d.agreed).Seconds(), "s")
	}
	d.figure("equal states of the survivors under load, compared", float64(d.comparisons), "times")
	d.figure("acknowledged pods or bindings lost", 0, "")
	d.figure("victims", float64(victims), "")
	d.figure("victims evicted twice", 0, "")
}

// kill fills the nodes, kills the leader under load, and audits what came of it.
// It returns how many victims there were since the first kill.
func (d *drill) kill(ctx context.Context, n int) (victims int, err error) {
	low := d.Nodes * lowPods
	if err := d.prepare(ctx, n, low); err != nil {
		return 0, err
	}
	leader, term, err := d.servers.awaitLeader(ctx, 0)
	if err != nil {
		return 0, err
	}
	w := &wave{first: make(chan time.Time, 1)}
	d.wave.Store(w)
	loading := make(chan error, 1)
	go func() { loading <- d.load(ctx, w, fmt.Sprintf("load-%d", n), d.Pods, d.loadPod) }()
	for w.created.Load() < int64(d.Pods/2) {
		select {
		case err := <-loading:
			return 0, errors.Join(errors.New("the load ended before the leader was killed"), err)
		case <-time.After(poll):
		}
	}
	logged := d.servers.logged()
	now := time.Now()
	w.killed.Store(true)
	if err := leader.kill(); err != nil {
		return 0, err
	}
	successor, _, err := d.servers.awaitLeader(ctx, term)
	if err != nil {
		return 0, err
	}
	d.elected = append(d.elected, time.Since(now))
	select {
	case at := <-w.first:
		d.bound = append(d.bound, at.Sub(now))
	case <-time.After(stallTimeout):
		return 0, errors.New("the new leader binds nothing")
	}
	d.steps = successor.steps(logged[successor], now)
	for loaded := false; !loaded; d.comparisons++ {
		// The digest is of every table: the queue and the nominations are in it.
		if _, err := d.servers.verify(ctx, successor); err != nil {
			return 0, err
		}
		select {
		case err := <-loading:
			if err != nil {
				return 0, err
			}
			loaded = true
		case <-time.After(50 * poll):
		}
	}
	d.pods += d.Pods
	return d.finish(ctx, leader, successor)
}

// classes are those of the victims and of who needs them to go.
func (d *drill) classes(ctx context.Context) error {
	for name, value := range map[string]int32{lowClass: lowPriority, highClass: highPriority} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		if _, err := d.servers.servers[0].client.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create class %s: %w", name, err)
		}
	}
	return nil
}

// clear ends all pods of a round.
func (d *drill) clear(ctx context.Context) error {
	p := d.servers.servers[0]
	soon := int64(1)
	options := metav1.DeleteOptions{GracePeriodSeconds: &soon}
	if err := p.client.CoreV1().Pods(metav1.NamespaceDefault).DeleteCollection(ctx, options, metav1.ListOptions{}); err != nil {
		return fmt.Errorf("delete the pods of the last round: %w", err)
	}
	return d.watch.settled(ctx, d.pods, 0)
}

// prepare fills the nodes.
func (d *drill) prepare(ctx context.Context, n, low int) error {
	err := d.load(ctx, new(wave), fmt.Sprintf("low-%d", n), low, func(int) *corev1.Pod {
		pod := lowPod()
		pod.GenerateName = ""
		return pod
	})
	if err != nil {
		return err
	}
	d.pods += low
	return d.watch.settled(ctx, d.pods, -1)
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
func (d *drill) load(ctx context.Context, w *wave, prefix string, n int, pod func(i int) *corev1.Pod) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
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
				if w.killed.Load() {
					w.fresh.Store(p.Name, true)
				}
				var err error
				if at, err = d.create(ctx, at, p); err != nil {
					cancel(err)
					return
				}
				w.created.Add(1)
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
func (d *drill) finish(ctx context.Context, killed, successor *process) (victims int, err error) {
	if err := d.watch.settled(ctx, d.pods, -1); err != nil {
		return 0, err
	}
	if err := d.watch.compare(ctx, successor); err != nil {
		return 0, err
	}
	victims, err = auditVictims(ctx, successor)
	if err != nil {
		return 0, err
	}
	// The killed server comes back from its disk and has to agree.
	began := time.Now()
	if err := killed.start(d.Program); err != nil {
		return 0, err
	}
	for {
		all, err := d.servers.verify(ctx, successor)
		switch {
		case err != nil:
			return 0, err
		case all:
			d.agreed = append(d.agreed, time.Since(began))
			return victims, nil
		case time.Since(began) > stallTimeout:
			return 0, fmt.Errorf("server %s does not agree with the others", killed.name)
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
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
			if v.WaitedFor {
				continue // a later preemption may wait for a victim of an earlier one
			}
			if at, twice := told[v.UID]; twice {
				return 0, fmt.Errorf("victim %s was evicted at %s and at %s", v.Name, at, v.EvictedAt)
			}
			told[v.UID] = *v.EvictedAt
		}
	}
	events, err := p.client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: "reason=Preempted"})
	if err != nil {
		return 0, fmt.Errorf("list the events: %w", err)
	}
	preempted := map[types.UID]int32{}
	for _, e := range events.Items {
		preempted[e.InvolvedObject.UID] += max(e.Count, 1)
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
