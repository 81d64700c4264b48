package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/pki"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// user is somebody with client-go, on a machine of his own, who knows every server.
type user struct {
	world   *World
	name    string
	rand    *rand.Rand
	host    *host
	clients []*kubernetes.Clientset // by server
}

// patience is how long a user waits for an answer.
const patience = 10 * time.Second

// newUser brings a user, who is of some groups.
func (w *World) newUser(name string, number int, groups ...string) (*user, error) {
	u := &user{
		world: w, name: name, rand: rand.New(rand.NewPCG(w.config.Seed, uint64(100+number))),
		host: w.network.start(fmt.Sprintf("10.0.2.%d", number+1)),
	}
	pair, err := w.ca.Issue(time.Now(), pki.Request{Kind: pki.Client, Name: name, Groups: groups})
	if err != nil {
		return nil, err
	}
	for _, m := range w.servers {
		c, err := kubernetes.NewForConfig(&rest.Config{
			Host: "https://" + address(m.ip, httpPort), QPS: -1, UserAgent: name,
			Dial:            func(ctx context.Context, _, addr string) (net.Conn, error) { return u.host.dial(ctx, addr) },
			TLSClientConfig: rest.TLSClientConfig{CAData: w.ca.CertPEM(), CertData: pair.CertPEM, KeyData: pair.KeyPEM},
			ContentConfig:   rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf"},
		})
		if err != nil {
			return nil, err
		}
		u.clients = append(u.clients, c)
	}
	return u, nil
}

// any is one of the servers.
func (u *user) any() *kubernetes.Clientset { return u.clients[u.rand.IntN(len(u.clients))] }

// ask makes a request of one of the servers.
func (u *user) ask(ctx context.Context, do func(ctx context.Context, c *kubernetes.Clientset) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return do(ctx, u.any())
}

// insist makes a request until it is done.
func (u *user) insist(ctx context.Context, do func(ctx context.Context, c *kubernetes.Clientset) error) {
	for ctx.Err() == nil {
		err := u.ask(ctx, do)
		if err == nil || apierrors.IsAlreadyExists(err) {
			return
		}
		pause(ctx, 500*time.Millisecond)
	}
}

// every does something again and again until ctx ends, the more seldom the quieter the world is.
func (u *user) every(ctx context.Context, d time.Duration, do func()) {
	every(ctx, d*time.Duration(u.world.config.Pace.slow), do)
}

// unlessGone is nil where what is to go is gone.
func unlessGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// every does something again and again until ctx ends.
func every(ctx context.Context, d time.Duration, do func()) {
	for ctx.Err() == nil {
		do()
		pause(ctx, d)
	}
}

var classes = []struct {
	name  string
	value int32
}{{"low", 0}, {"middle", 100}, {"high", 1000}}

const (
	replicaSets = 5
	leastOfSet  = 2 // that the budget of a set demands
	space       = "default"
	// grace is what every pod has to end in.
	grace = 5 * time.Second
)

func nameOfSet(i int) string { return fmt.Sprintf("set-%d", i) }

// furnish makes what the others work with.
func (u *user) furnish(ctx context.Context) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Namespaces().Get(ctx, space, metav1.GetOptions{})
		return err
	})
	for _, class := range classes {
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.SchedulingV1().PriorityClasses().Create(ctx, &schedulingv1.PriorityClass{
				ObjectMeta: metav1.ObjectMeta{Name: class.name}, Value: class.value}, metav1.CreateOptions{})
			return err
		})
	}
	for i := range replicaSets {
		name := nameOfSet(i)
		replicas, labels := int32(3), map[string]string{"set": name}
		selector := &metav1.LabelSelector{MatchLabels: labels}
		least := intstr.FromInt32(leastOfSet)
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.PolicyV1().PodDisruptionBudgets(space).Create(ctx, &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: selector}}, metav1.CreateOptions{})
			return err
		})
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			pod := podOf("", classes[i%len(classes)].name, 1000, -1)
			pod.Labels = labels
			_, err := c.AppsV1().ReplicaSets(space).Create(ctx, &appsv1.ReplicaSet{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: selector, Template: corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}},
			}, metav1.CreateOptions{})
			return err
		})
	}
}

// podOf is a pod that runs for some seconds; for ever, if they are negative.
func podOf(name, class string, milliCPU int64, seconds int) *corev1.Pod {
	graceSeconds := int64(grace / time.Second)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{fake.Prefix + "term-seconds": "1"}},
		Spec: corev1.PodSpec{
			PriorityClassName: class, TerminationGracePeriodSeconds: &graceSeconds,
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
				"cpu": *resource.NewMilliQuantity(milliCPU, resource.DecimalSI), "memory": resource.MustParse("64Mi"),
			}}}},
		},
	}
	if seconds >= 0 {
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Annotations[fake.Prefix+"run-seconds"] = fmt.Sprint(seconds)
	}
	return p
}

// submit makes pods, so many a minute.
func (u *user) submit(ctx context.Context, perMinute int) {
	n := 0
	every(ctx, time.Minute/time.Duration(perMinute), func() {
		n++
		pod := podOf(fmt.Sprintf("%s-%d", u.name, n), classes[u.rand.IntN(len(classes))].name, int64(200+100*u.rand.IntN(20)), 5+u.rand.IntN(60))
		switch u.rand.IntN(10) {
		case 2, 3:
			pod.Annotations[fake.Prefix+"ignore-term"] = "true"
		case 4:
			pod.Annotations[fake.Prefix+"exit-code"] = "7"
		case 0:
			pod.Spec.NodeSelector = map[string]string{corev1.LabelTopologyZone: "zone-" + string('a'+byte(u.rand.IntN(3)))}
		case 1:
			pod.Labels = map[string]string{"apart": fmt.Sprint(u.rand.IntN(20))}
			pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: pod.Labels}}}}}
		}
		go func() { // as a controller that does not wait
			err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
			if apierrors.IsAlreadyExists(err) {
				u.world.checker.violated("pod %s is created once, and is said to be there already", pod.Name)
			}
		}()
	})
}

// pods are those of the users, none if nobody answers.
func (u *user) pods(ctx context.Context) (items []corev1.Pod) {
	_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		pods, err := c.CoreV1().Pods(space).List(ctx, metav1.ListOptions{})
		if err == nil {
			items = pods.Items
		}
		return err
	})
	return items
}

// tidy deletes pods that have ended, and now and then one that has not.
func (u *user) tidy(ctx context.Context) {
	u.every(ctx, 10*time.Second, func() {
		for _, p := range u.pods(ctx) {
			ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
			if p.DeletionTimestamp != nil || !ended && u.rand.IntN(100) > 0 {
				continue
			}
			_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				return c.CoreV1().Pods(space).Delete(ctx, p.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}})
			})
		}
	})
}

// scale changes what workloads want.
func (u *user) scale(ctx context.Context) {
	u.every(ctx, 20*time.Second, func() {
		name, replicas := nameOfSet(u.rand.IntN(replicaSets)), u.rand.IntN(8)
		patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
		err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.AppsV1().ReplicaSets(space).Patch(ctx, name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
			return err
		})
		u.world.story.tell(u.name, "scales %s to %d: %v", name, replicas, err)
	})
}

// drain empties a node as kubectl does, and gives it back.
func (u *user) drain(ctx context.Context) {
	u.every(ctx, time.Minute, func() {
		pause(ctx, time.Duration(u.rand.IntN(60))*time.Second)
		node := u.world.workers[u.rand.IntN(len(u.world.workers))].name
		u.world.story.tell(u.name, "drains %s", node)
		u.cordon(ctx, node, true)
		for round := 0; round < 5 && ctx.Err() == nil; round++ {
			if u.evictFrom(ctx, node) == 0 {
				break
			}
			pause(ctx, 5*time.Second)
		}
		u.cordon(ctx, node, false)
		u.world.story.tell(u.name, "gives %s back", node)
	})
}

func (u *user) cordon(ctx context.Context, node string, yes bool) {
	u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		_, err := c.CoreV1().Nodes().Patch(ctx, node, "application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"unschedulable":%v}}`, yes), metav1.PatchOptions{})
		return unlessGone(err)
	})
}

// evictFrom says how many pods are left on a node.
func (u *user) evictFrom(ctx context.Context, node string) (left int) {
	err := u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		pods, err := c.CoreV1().Pods(space).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		left = len(pods.Items)
		for i := range pods.Items {
			p := &pods.Items[i]
			err = errors.Join(err, c.CoreV1().Pods(space).EvictV1(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: space}}))
		}
		return nil
	})
	if err != nil {
		return 1
	}
	return left
}
