package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/pki"
)

const (
	// stormTarget is how many times as long as beside nobody the slowest hundredth of a user's requests may take beside
	// another user's storm.
	stormTarget = 2.0
	// The two users, each with a namespace of that name. Both are nobody's: they may what the role edit allows.
	stormy, calm = "stormy", "calm"
	// calmGets and calmCreates are how many requests the calm user makes a second, whatever becomes of those before.
	calmGets, calmCreates = 100, 40
	// stormSettles is how long each part goes on before it is measured.
	stormSettles = 3 * time.Second
	// calmPatience is how long a request of the calm user may take.
	calmPatience = 30 * time.Second
	// calmPod is a pod of the calm user's, which it looks at.
	calmPod = "looked-at"
)

// contention is one user's storm beside another's work.
type contention struct {
	*run
	servers *processes
	fleet   *fleet
	leader  *process
	calm    kubernetes.Interface
	made    int // pods that the calm user has made
}

// storm: a user makes few requests at a steady rate, beside nobody, beside another user's storm, and beside nobody again.
// Both ask the leader, which has the most to do.
func storm(ctx context.Context, r *run) (err error) {
	if r.Pods > podsOfANode*r.Nodes {
		return errors.New("the nodes do not hold these pods")
	}
	c := &contention{run: r}
	if c.servers, err = r.startProcesses(ctx, serverSettings{}); err != nil {
		return err
	}
	defer c.servers.stop()
	if c.fleet, err = c.servers.fleet(ctx, r); err != nil {
		return err
	}
	defer c.fleet.stop()
	if err := c.carryOut(ctx); err != nil {
		return fmt.Errorf("%w; the servers' last words:\n%s", err, c.servers.lastWords())
	}
	return nil
}

func (c *contention) carryOut(ctx context.Context) error {
	if err := c.fill(ctx); err != nil {
		return err
	}
	var alone, beside asks
	var stormed stormCounts
	for part, storms := range []bool{false, true, false} {
		c.progress("part %d of 3, storm: %t", part+1, storms)
		end := func() (stormCounts, error) { return stormCounts{}, nil }
		if storms {
			s, err := c.startStorm(ctx)
			if err != nil {
				return err
			}
			end = s.stop
		}
		a, err := c.work(ctx)
		counts, stopErr := end()
		if err := errors.Join(err, stopErr); err != nil {
			return err
		}
		if storms {
			beside, stormed = a, counts
		} else {
			alone.gets, alone.creates = append(alone.gets, a.gets...), append(alone.creates, a.creates...)
		}
	}
	if err := c.tell(alone, beside, stormed); err != nil {
		return err
	}
	return c.audit(ctx)
}

// fill makes what there is to list, the namespaces, and what the two users may.
func (c *contention) fill(ctx context.Context) error {
	leader, _, err := c.servers.awaitLeader(ctx, 0)
	if err != nil {
		return err
	}
	c.leader = leader
	admin := leader.client
	for _, name := range []string{stormy, calm} {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if _, err := admin.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create namespace %s: %w", name, err)
		}
		// Everything is seen, as a dashboard's user sees it; what is written is in the user's own namespace.
		subject := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
		role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole"}
		edit, view := role, role
		edit.Name, view.Name = "edit", "view"
		_, err1 := admin.RbacV1().RoleBindings(name).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject, RoleRef: edit,
		}, metav1.CreateOptions{})
		_, err2 := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Subjects: subject, RoleRef: view,
		}, metav1.CreateOptions{})
		if err := errors.Join(err1, err2); err != nil {
			return fmt.Errorf("say what %s may: %w", name, err)
		}
	}
	if c.calm, err = c.clientOf(calm); err != nil {
		return err
	}
	admins := slices.Repeat([]kubernetes.Interface{admin}, fillers)
	if _, err := createPods(ctx, admins, c.Pods, func(i int) *corev1.Pod {
		pod := newPod("10m", "16Mi")
		pod.Name = fmt.Sprintf("pod-%06d", i)
		return pod
	}); err != nil {
		return err
	}
	if err := createPod(ctx, c.calm, restingPod(calm, calmPod)); err != nil {
		return err
	}
	return c.running(ctx, admin)
}

// fillers are how many clients make what there is to list.
const fillers = 32

// running waits until the pods run, so that what is measured is not how they begin.
func (c *contention) running(ctx context.Context, admin kubernetes.Interface) error {
	return awaitCount(ctx, c.Pods, "pods run", func() (int, error) {
		list, err := admin.CoreV1().Pods(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "status.phase=Running"})
		if err != nil {
			return 0, fmt.Errorf("list the pods: %w", err)
		}
		return len(list.Items), nil
	})
}

// restingPod is one that nobody places: only what the API and the log do for it is measured.
func restingPod(space, name string) *corev1.Pod {
	pod := newPod("10m", "16Mi")
	pod.Namespace, pod.Name = space, name
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "bench.berth.dev/rests"}}
	return pod
}

// clientOf is a client of a user of the role edit, that asks the leader.
func (c *contention) clientOf(name string) (kubernetes.Interface, error) {
	pair, err := c.servers.ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: name})
	if err != nil {
		return nil, err
	}
	return newClient(c.leader.addr(c.leader.http), c.servers.ca.CertPEM(), pair)
}

// asks is how long the calm user's requests took.
type asks struct{ gets, creates []time.Duration }

// work has the calm user make its requests for as long as a part is measured. Each begins at its time, and is measured from
// then: one that the requests before it hold up is late, and counts as late.
func (c *contention) work(ctx context.Context) (a asks, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var both sync.WaitGroup
	first := c.made
	both.Go(func() {
		a.gets = c.steadily(ctx, calmGets, cancel, func(ctx context.Context, _ int) error {
			_, err := c.calm.CoreV1().Pods(calm).Get(ctx, calmPod, metav1.GetOptions{})
			return err
		})
	})
	both.Go(func() {
		a.creates = c.steadily(ctx, calmCreates, cancel, func(ctx context.Context, i int) error {
			_, err := c.calm.CoreV1().Pods(calm).Create(ctx, restingPod(calm, fmt.Sprintf("made-%06d", first+i)), metav1.CreateOptions{})
			return err
		})
	})
	both.Wait()
	c.made += c.part(calmCreates)
	return a, context.Cause(ctx)
}

// part is how many requests of a rate are made in one part.
func (c *contention) part(rate int) int {
	return rate * (int(stormSettles/time.Second) + c.Seconds)
}

// steadily asks at a rate, and tells how long each took but those before the part had settled.
func (c *contention) steadily(ctx context.Context, rate int, fail func(error), ask func(ctx context.Context, i int) error) []time.Duration {
	took := make([]time.Duration, c.part(rate))
	began, every := time.Now(), time.Second/time.Duration(rate)
	var asking sync.WaitGroup
	for i := range took {
		due := began.Add(time.Duration(i) * every)
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(due)):
		}
		if ctx.Err() != nil {
			break
		}
		asking.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, calmPatience)
			defer cancel()
			if err := ask(ctx, i); err != nil {
				fail(fmt.Errorf("a request of the calm user: %w", err))
			}
			took[i] = time.Since(due)
		})
	}
	asking.Wait()
	return took[rate*int(stormSettles/time.Second):]
}

// tell reports what the storm made of the calm user's requests.
func (c *contention) tell(alone, beside asks, stormed stormCounts) error {
	for _, of := range []struct {
		what          string
		alone, beside []time.Duration
	}{{"a get", alone.gets, beside.gets}, {"a create", alone.creates, beside.creates}} {
		for _, q := range []struct {
			what string
			at   float64
		}{{"median", 0.5}, {"p99", 0.99}} {
			was, is := quantile(of.alone, q.at), quantile(of.beside, q.at)
			c.figure(fmt.Sprintf("%s, %s, beside nobody", of.what, q.what), millis(was), "ms")
			c.figure(fmt.Sprintf("%s, %s, in the storm", of.what, q.what), millis(is), "ms")
			name, times := fmt.Sprintf("%s, %s, times as long", of.what, q.what), is.Seconds()/was.Seconds()
			if q.at == 0.5 {
				c.figure(name, times, "")
				continue
			}
			c.target(name, times, "", fmt.Sprintf("≤ %.0f", stormTarget), times <= stormTarget)
		}
	}
	for _, k := range stormed.kinds() {
		c.figure("the storm: "+k.what, float64(k.n)/stormed.Seconds, "/s")
		if k.n == 0 && k.needed {
			return fmt.Errorf("the storm was none: it has made %+v", stormed)
		}
	}
	return nil
}

// audit makes sure that every pod that the calm user made is there, none that the storm made, and that the servers agree.
func (c *contention) audit(ctx context.Context) error {
	admin := c.leader.client
	for space, want := range map[string]int{calm: c.made + 1, metav1.NamespaceDefault: c.Pods} {
		list, err := admin.CoreV1().Pods(space).List(ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list the pods of %s: %w", space, err)
		}
		if len(list.Items) != want {
			return fmt.Errorf("%s has %d pods, and not %d", space, len(list.Items), want)
		}
	}
	if err := admin.CoreV1().Namespaces().Delete(ctx, stormy, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete namespace %s: %w", stormy, err)
	}
	all, err := c.servers.verify(ctx, c.leader)
	if err == nil && !all {
		err = errors.New("not every server tells that its state is the others'")
	}
	return err
}
