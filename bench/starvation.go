package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

const (
	// replicas of low priority fill one node; the pod that evicts them needs
	// all of it.
	replicas   = 10
	replicaCPU = "400m"
	wholeNode  = "4"
	// victimEnds is how many seconds a replica takes to end.
	victimEnds = "1"
	// starvationRounds is how often the node is taken, and given back.
	starvationRounds = 5
	// starvationTarget bounds the time from when the last victim has gone until
	// the pod is bound that it made room for.
	starvationTarget = 500 * time.Millisecond
	// noiseEvery is how often others come.
	noiseEvery = 100 * time.Millisecond

	replicaApp, wholeApp, noiseApp = "replica", "whole", "noise"
)

// starvation: ten replicas of low priority fill a node, and their ReplicaSet
// creates them again the moment they are told to end. A pod comes that needs the whole node. It
// must have it after one round of evictions, although the replicas are back in
// the queue long before the room is free (PR16, NM1), and although others come
// all the time.
func starvation(ctx context.Context, r *run) (err error) {
	c, err := r.startFought(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(1)
	if err != nil {
		return err
	}
	if err := createReplicaSet(ctx, clients[0], replicaApp, replicas, fought(replicaApp, lowClass, replicaCPU)); err != nil {
		return err
	}
	if err := c.awaitReplicas(ctx); err != nil {
		return err
	}
	stop := r.startNoise(ctx, c)
	var longest time.Duration
	for round := range starvationRounds {
		late, err := c.takeNode(ctx, clients[0], fmt.Sprintf("%s-%d", wholeApp, round))
		if err != nil {
			_, noiseErr := stop()
			return errors.Join(fmt.Errorf("round %d: %w", round+1, err), noiseErr)
		}
		longest = max(longest, late)
	}
	rate, err := stop()
	if err != nil {
		return err
	}
	r.figure("times that one round of evictions was enough", starvationRounds, "")
	r.target("bound after the last victim's end, at the latest", millis(longest), "ms", fmt.Sprintf("< %d", starvationTarget.Milliseconds()), longest < starvationTarget)
	r.figure("other pods that came meanwhile", rate, "pods/s")
	return nil
}

// startFought is start with one real worker: the node that is fought over.
func (r *run) startFought(ctx context.Context) (_ *cluster, err error) {
	c, err := r.startServers(ctx, server.Consensus{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, c.stop(ctx))
		}
	}()
	if c.fleet, err = startFleet(ctx, c.fleetOf(1, r.Version)); err != nil {
		return nil, err
	}
	if err := c.registerStubs(ctx, 1, r.Nodes); err != nil {
		return nil, err
	}
	return c, c.createClasses(ctx)
}

// fought is the pod of an app that only the one node will do for.
func fought(app, class, cpu string) *corev1.Pod {
	pod := newPod(cpu, "500Mi")
	pod.Labels = map[string]string{appLabel: app}
	pod.Annotations = map[string]string{fake.Prefix + "term-seconds": victimEnds}
	pod.Spec.PriorityClassName = class
	pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: nodeName(0)}
	return pod
}

// startNoise lets r.Pods pods a second come that go elsewhere. stop says how
// many came in a second.
func (r *run) startNoise(ctx context.Context, c *cluster) (stop func() (float64, error)) {
	pod := newPod("1m", "1Mi")
	pod.GenerateName, pod.Labels = noiseApp+"-", map[string]string{appLabel: noiseApp}
	pod.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
		NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{
			Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpNotIn, Values: []string{nodeName(0)},
		}}}},
	}}}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	came, began := 0, time.Now()
	go func() {
		ticker := time.NewTicker(noiseEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				done <- nil
				return
			case <-ticker.C:
			}
			n := int(float64(r.Pods)*time.Since(began).Seconds()) - came // what a slow tick left out as well
			if err := c.admit(ctx, pod, n); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			came += n
		}
	}()
	return func() (float64, error) {
		cancel()
		err := <-done
		return float64(came) / time.Since(began).Seconds(), err
	}
}

// awaitReplicas waits until the node is the replicas'.
func (c *cluster) awaitReplicas(ctx context.Context) error {
	return c.await(ctx, "the replicas to have the node", func(v *fsm.View) (bool, int) {
		n := 0
		v.PodsOnNode(nodeName(0), func(pod *corev1.Pod) bool {
			if pod.Labels[appLabel] == replicaApp && pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodRunning {
				n++
			}
			return true
		})
		return n == replicas, n
	})
}

// takeNode creates the pod that needs the whole node, checks what it took to
// bind it, and gives the node back. It returns how long after the last victim's
// end that was.
func (c *cluster) takeNode(ctx context.Context, client kubernetes.Interface, name string) (time.Duration, error) {
	pod := fought(wholeApp, highClass, wholeNode)
	pod.Name = name
	pods := client.CoreV1().Pods(metav1.NamespaceDefault)
	created, err := pods.Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	if err := c.await(ctx, "the pod to have the node", func(v *fsm.View) (bool, int) {
		p, ok := v.Pods.Get(fsm.PodKey(metav1.NamespaceDefault, name))
		return ok && p.Spec.NodeName != "", int(v.Revision())
	}); err != nil {
		return 0, err
	}
	seen := time.Now()
	v := c.servers[0].View()
	last, err := oneRound(v, created.UID)
	if err != nil {
		return 0, err
	}
	if waiting(v, replicaApp) == 0 {
		return 0, errors.New("no replica was back in the queue when the pod was bound: that is not what is to be measured")
	}
	if err := pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return 0, err
	}
	return seen.Sub(last), c.awaitReplicas(ctx)
}

// waiting counts the pods of an app that have no node.
func waiting(v *fsm.View, app string) (n int) {
	v.Queue.Scan("", func(key string, _ *fsm.QueueEntry) bool {
		if pod, ok := v.Pods.Get(key); ok && pod.Labels[appLabel] == app {
			n++
		}
		return true
	})
	return n
}

// oneRound fails unless the pod was preempted for once, with every replica as
// its victim, and returns when the last of them had gone.
func oneRound(v *fsm.View, preemptor types.UID) (last time.Time, err error) {
	rounds := 0
	v.Preemptions.Scan("", func(key string, p *berthv1.Preemption) bool {
		if p.Status.Preemptor.UID != preemptor {
			return true
		}
		rounds++
		if p.Status.State != berthv1.PreemptionBound || len(p.Status.Victims) != replicas {
			err = fmt.Errorf("preemption %s is %s, with %d victims", key, p.Status.State, len(p.Status.Victims))
		}
		for _, victim := range p.Status.Victims {
			if victim.GoneAt == nil {
				err = fmt.Errorf("preemption %s: bound while victim %s is still there", key, victim.Name)
			} else if victim.GoneAt.After(last) {
				last = victim.GoneAt.Time
			}
		}
		return true
	})
	if err == nil && rounds != 1 {
		err = fmt.Errorf("it took %d rounds of preemption", rounds)
	}
	return last, err
}
