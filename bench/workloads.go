package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

const workloadName = "web"

// deployment: one Deployment is created, and then its template changed.
func deployment(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(1)
	if err != nil {
		return err
	}
	deployments, replicas := clients[0].AppsV1().Deployments(metav1.NamespaceDefault), int32(r.Pods)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: workloadName}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{appLabel: workloadName}}, Template: templateOf(newPod("100m", "500Mi")),
	}}
	rolledOut := func(generation int64) func(v *fsm.View) (bool, int) {
		return func(v *fsm.View) (bool, int) {
			d, ok := object[*appsv1.Deployment](v, "deployments")
			if !ok {
				return false, 0
			}
			s := &d.Status
			return s.ObservedGeneration >= generation && s.UpdatedReplicas == replicas && s.AvailableReplicas == replicas && s.Replicas == replicas,
				int(s.UpdatedReplicas + s.AvailableReplicas)
		}
	}
	for generation, what := range []string{"created and available", "rolled out anew"} {
		m, err := startMeter()
		if err != nil {
			return err
		}
		if generation == 0 {
			_, err = deployments.Create(ctx, d, metav1.CreateOptions{})
		} else {
			_, err = deployments.Patch(ctx, workloadName, types.StrategicMergePatchType,
				[]byte(`{"spec":{"template":{"metadata":{"annotations":{"roll":"1"}}}}}`), metav1.PatchOptions{})
		}
		if err != nil {
			return fmt.Errorf("a Deployment to be %s: %w", what, err)
		}
		if err := c.await(ctx, "a Deployment to be "+what, rolledOut(int64(generation+1))); err != nil {
			return err
		}
		if err := r.rate(m, what); err != nil {
			return err
		}
	}
	ended := func(v *fsm.View) (bool, int) { return v.Pods.Len() == r.Pods, v.Pods.Len() }
	return errors.Join(c.await(ctx, "the old pods to be gone", ended), c.verify(ctx, r.Pods))
}

// deployments: many Deployments of a few pods each are created at once, as a cluster's are that is filled.
func deployments(ctx context.Context, r *run) (err error) {
	if r.Pods%podsOfEach != 0 {
		return fmt.Errorf("it needs a multiple of %d pods", podsOfEach)
	}
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(r.Clients)
	if err != nil {
		return err
	}
	m, err := startMeter()
	if err != nil {
		return err
	}
	err = each(ctx, r.Clients, r.Pods/podsOfEach, func(ctx context.Context, i int) error {
		return createWorkload(ctx, clients[i%len(clients)], aDeployment, metav1.NamespaceDefault, workloadNameOf(i))
	})
	if err != nil {
		return fmt.Errorf("create Deployments: %w", err)
	}
	available := func(v *fsm.View) (bool, int) {
		n := 0
		v.Objects.Scan("deployments/", func(_ string, o *fsm.Object) bool {
			d, ok := o.Value.(*appsv1.Deployment)
			if ok {
				n += int(d.Status.AvailableReplicas)
			}
			return ok
		})
		return n == r.Pods, n
	}
	if err := c.await(ctx, "the Deployments to be available", available); err != nil {
		return err
	}
	if err := r.rate(m, "created and available"); err != nil {
		return err
	}
	return c.verify(ctx, r.Pods)
}

// job: one Job whose pods end at once runs to its end.
func job(ctx context.Context, r *run) (err error) {
	c, err := r.start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop(ctx)) }()
	clients, err := c.clients(1)
	if err != nil {
		return err
	}
	pod := newPod("100m", "500Mi")
	pod.Annotations, pod.Spec.RestartPolicy = map[string]string{fake.Prefix + "run-seconds": "0"}, corev1.RestartPolicyNever
	completions, indexed := int32(r.Pods), batchv1.IndexedCompletion
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: workloadName}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &completions, CompletionMode: &indexed, Template: templateOf(pod),
	}}
	m, err := startMeter()
	if err != nil {
		return err
	}
	if _, err := clients[0].BatchV1().Jobs(metav1.NamespaceDefault).Create(ctx, j, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create a Job: %w", err)
	}
	complete := func(v *fsm.View) (bool, int) {
		j, ok := object[*batchv1.Job](v, "jobs")
		if !ok {
			return false, 0
		}
		return slices.ContainsFunc(j.Status.Conditions, func(k batchv1.JobCondition) bool { return k.Type == batchv1.JobComplete }),
			int(j.Status.Succeeded) + v.Pods.Len()
	}
	if err := c.await(ctx, "a Job to complete", complete); err != nil {
		return err
	}
	if err := r.rate(m, "made, run and counted"); err != nil {
		return err
	}
	return errors.Join(c.verify(ctx, 0), verifyPieces(c.servers[0].View(), r.Pods))
}

// rate tells how many pods a second something took, and what that cost.
func (r *run) rate(m meter, what string) error {
	wall, cpu, err := m.stop()
	if err != nil {
		return err
	}
	r.figure(what, float64(r.Pods)/wall.Seconds(), "pods/s")
	r.figure("processor time, servers and workers: "+what, millis(cpu)/float64(r.Pods), "ms/pod")
	return nil
}

// verifyPieces fails unless every piece of a Job was done by one pod, and counted.
func verifyPieces(v *fsm.View, pieces int) error {
	j, _ := object[*batchv1.Job](v, "jobs")
	if j.Status.Succeeded != int32(pieces) || j.Status.Failed != 0 {
		return fmt.Errorf("the Job of %d pieces says %+v", pieces, j.Status)
	}
	done := map[string]bool{}
	var err error
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		index := pod.Annotations[batchv1.JobCompletionIndexAnnotation]
		if done[index] || pod.Status.Phase != corev1.PodSucceeded {
			err = fmt.Errorf("pod %s of piece %s is %s, and another did that piece: %t", key, index, pod.Status.Phase, done[index])
		}
		done[index] = true
		return err == nil
	})
	if err == nil && len(done) != pieces {
		err = fmt.Errorf("%d pieces of %d were done", len(done), pieces)
	}
	return err
}

func templateOf(pod *corev1.Pod) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{appLabel: workloadName}, Annotations: pod.Annotations}, Spec: pod.Spec}
}

// object is the workload, as a server has it.
func object[T codec.Object](v *fsm.View, resource string) (T, bool) {
	o, ok := v.Objects.Get(fsm.ObjectKey(resource, metav1.NamespaceDefault, workloadName))
	if !ok {
		var none T
		return none, false
	}
	return o.Value.(T), true
}
