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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// Of so many workloads in turn one is a StatefulSet and one a Job, and the others are Deployments.
const kindsInTurn = 10

const (
	aDeployment  = "deployments"
	aStatefulSet = "statefulsets"
	aJob         = "jobs"
)

func kindOf(i int) string {
	switch i % kindsInTurn {
	case 0:
		return aStatefulSet
	case 1:
		return aJob
	}
	return aDeployment
}

func spaceOf(i int) string        { return fmt.Sprintf("space-%04d", i/spaceSize) }
func workloadNameOf(i int) string { return fmt.Sprintf("work-%06d", i) }

// fill makes the namespaces and the workloads.
func (t *takeover) fill(ctx context.Context) error {
	workloads := t.Pods / podsOfEach
	for i := 0; i < workloads; i += spaceSize {
		space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: spaceOf(i)}}
		if _, err := t.servers.servers[0].client.CoreV1().Namespaces().Create(ctx, space, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create namespace %s: %w", space.Name, err)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for at := range t.Clients {
		client := t.servers.servers[at%len(t.servers.servers)].client
		working.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= workloads {
					return
				}
				if err := createWorkload(ctx, client, kindOf(i), spaceOf(i), workloadNameOf(i)); err != nil {
					cancel(err)
				}
			}
		})
	}
	working.Wait()
	t.made, t.jobs = t.Pods, workloads/kindsInTurn
	t.deployments = workloads - 2*t.jobs
	return context.Cause(ctx)
}

// createWorkload makes a workload whose pods run until they are told to end.
func createWorkload(ctx context.Context, client kubernetes.Interface, kind, space, name string) error {
	labels, replicas := map[string]string{appLabel: name}, int32(podsOfEach)
	meta, selector := metav1.ObjectMeta{Namespace: space, Name: name}, &metav1.LabelSelector{MatchLabels: labels}
	template := templateOf(newPod("10m", "16Mi"))
	template.Labels = labels
	var err error
	switch kind {
	case aDeployment:
		_, err = client.AppsV1().Deployments(space).Create(ctx, &appsv1.Deployment{
			ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template},
		}, metav1.CreateOptions{})
	case aStatefulSet:
		_, err = client.AppsV1().StatefulSets(space).Create(ctx, &appsv1.StatefulSet{
			ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: template},
		}, metav1.CreateOptions{})
	default:
		template.Spec.RestartPolicy = corev1.RestartPolicyNever
		indexed := batchv1.IndexedCompletion
		_, err = client.BatchV1().Jobs(space).Create(ctx, &batchv1.Job{
			ObjectMeta: meta, Spec: batchv1.JobSpec{Completions: &replicas, Parallelism: &replicas, CompletionMode: &indexed, Template: template},
		}, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("create %s/%s of %s: %w", space, name, kind, err)
	}
	return nil
}

// settled waits until the workloads say that all of their pods are ready.
func (t *takeover) settled(ctx context.Context, p *process) error {
	return awaitCount(ctx, t.made, "pods are ready, by what their workloads say", func() (int, error) { return readyOf(ctx, p) })
}

// awaitCount waits until what is counted is as much as is wanted. It fails when that stands still.
func awaitCount(ctx context.Context, want int, what string, count func() (int, error)) error {
	seen, moved := -1, time.Now()
	for {
		n, err := count()
		if err != nil {
			return err
		}
		switch {
		case n == want:
			return nil
		case n != seen:
			seen, moved = n, time.Now()
		case time.Since(moved) > stallTimeout:
			return fmt.Errorf("nothing moved for %s: %d of %d %s", stallTimeout, n, want, what)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(settlePoll):
		}
	}
}

// readyOf is how many pods are ready, by the statuses of workloads that are as they are asked to be.
func readyOf(ctx context.Context, p *process) (ready int, err error) {
	cached := metav1.ListOptions{ResourceVersion: "0"}
	deployments, err1 := p.client.AppsV1().Deployments("").List(ctx, cached)
	sets, err2 := p.client.AppsV1().StatefulSets("").List(ctx, cached)
	jobs, err3 := p.client.BatchV1().Jobs("").List(ctx, cached)
	if err := errors.Join(err1, err2, err3); err != nil {
		return 0, fmt.Errorf("list the workloads: %w", err)
	}
	for i := range deployments.Items {
		if d := &deployments.Items[i]; d.Status.ObservedGeneration == d.Generation {
			ready += int(d.Status.AvailableReplicas)
		}
	}
	for i := range sets.Items {
		if s := &sets.Items[i]; s.Status.ObservedGeneration == s.Generation {
			ready += int(s.Status.AvailableReplicas)
		}
	}
	for i := range jobs.Items {
		if j := &jobs.Items[i]; j.Status.Ready != nil {
			ready += int(*j.Status.Ready)
		}
	}
	return ready, nil
}

// audit fails unless every workload has exactly its pods, all of them bound, and no piece of a Job has two.
func (t *takeover) audit(ctx context.Context, p *process) error {
	const page = 5000
	has, pieces, pods := map[string]int{}, map[string]bool{}, 0
	options := metav1.ListOptions{Limit: page}
	for first := true; first || options.Continue != ""; first = false {
		list, err := p.client.CoreV1().Pods("").List(ctx, options)
		if err != nil {
			return fmt.Errorf("list the pods: %w", err)
		}
		options.Continue = list.Continue
		for i := range list.Items {
			pod := &list.Items[i]
			name := pod.Namespace + "/" + pod.Labels[appLabel]
			if index, ok := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; ok {
				if pieces[name+"/"+index] {
					return fmt.Errorf("piece %s of Job %s has two pods", index, name)
				}
				pieces[name+"/"+index] = true
			}
			if pod.Spec.NodeName == "" || pod.DeletionTimestamp != nil {
				return fmt.Errorf("pod %s/%s is on node %q, and told to end at %v", pod.Namespace, pod.Name, pod.Spec.NodeName, pod.DeletionTimestamp)
			}
			has[name]++
			pods++
		}
	}
	for name, n := range has {
		if want := t.wanted(name); n != want {
			return fmt.Errorf("workload %s has %d pods, and not %d", name, n, want)
		}
	}
	if pods != t.made {
		return fmt.Errorf("there are %d pods, and not %d", pods, t.made)
	}
	return nil
}

// wanted is how many pods a workload has to have.
func (t *takeover) wanted(name string) int {
	last := t.Pods/podsOfEach - 1
	for _, i := range []int{last, lastSet(last)} {
		if name == spaceOf(i)+"/"+workloadNameOf(i) {
			return podsOfEach + t.Kills
		}
	}
	return podsOfEach
}

// lastSet is the number of the last StatefulSet.
func lastSet(last int) int { return last / kindsInTurn * kindsInTurn }

// refusedForGood says whether a request was refused for a reason that another server, or another moment, does not change.
func refusedForGood(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status) && status.Status().Code < 500 && !apierrors.IsTooManyRequests(err) && !apierrors.IsConflict(err)
}
