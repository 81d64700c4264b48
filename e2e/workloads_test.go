package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Every kind of the examples does what it says, by the commands that users have.
func TestWorkloadsOfTheExamples(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "kinds")
	manifest := func(name string) string { return "../examples/manifests/" + name + ".yaml" }

	has(t, "apply", s.kubectl("apply", "-f", manifest("deployment")), "deployment.apps/web created")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	s.kubectl("set", "env", "deployment/web", "GREETING=hello")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	has(t, "history", s.kubectl("rollout", "history", "deployment/web"), "1 ", "2 ")
	has(t, "env", s.kubectl("get", "pods", "-l", "app=web", "-o", "jsonpath={.items[*].spec.containers[*].env[*].value}"), "hello hello hello")
	s.kubectl("rollout", "undo", "deployment/web")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")
	s.kubectl("rollout", "pause", "deployment/web")
	s.kubectl("set", "env", "deployment/web", "GREETING=later")
	s.kubectl("scale", "deployment/web", "--replicas=4")
	has(t, "wait", s.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=4", "deployment/web", "--timeout=90s"), "met")
	has(t, "paused", s.kubectl("get", "deployment", "web", "-o", "jsonpath={.status.updatedReplicas}"), "")
	s.kubectl("rollout", "resume", "deployment/web")
	s.kubectl("rollout", "status", "deployment/web", "--timeout=90s")

	s.kubectl("apply", "-f", manifest("service"), "-f", manifest("autoscaler"))
	s.eventually(t, "the endpoints of web", func(context.Context) error {
		if out := s.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=web", "-o", "jsonpath={.items[*].endpoints[*].targetRef.name}"); len(strings.Fields(out)) != 4 {
			return fmt.Errorf("they are %q", out)
		}
		return nil
	})
	c.berth(t, "apply", "-n", "default", "-f", manifest("persistentvolume"))
	has(t, "claim", c.berth(t, "wait", "-n", "default", "--for=jsonpath={.status.phase}=Bound", "pvc/shared", "--timeout=90s"), "met")
	c.berth(t, "delete", "-n", "default", "pvc/shared", "pv/shared")
	has(t, "autoscaler", s.kubectl("get", "hpa", "web"), "Deployment/web", "2", "6")
	s.kubectl("delete", "hpa/web", "service/web")
	for _, name := range []string{"statefulset", "daemonset", "job", "cronjob", "replicationcontroller"} {
		s.kubectl("apply", "-f", manifest(name))
	}
	s.kubectl("rollout", "status", "statefulset/db", "--timeout=90s")
	has(t, "ordinals", s.kubectl("get", "pods", "-l", "app=db", "-o", "name"), "pod/db-0", "pod/db-1", "pod/db-2")
	s.kubectl("rollout", "status", "daemonset/agent", "--timeout=90s")
	has(t, "one a node", s.kubectl("get", "pods", "-l", "app=agent", "-o", "jsonpath={.items[*].spec.nodeName}"), "worker-1", "worker-2", "worker-3")
	has(t, "wait", s.kubectl("wait", "--for=jsonpath={.status.readyReplicas}=2", "rc/elder", "--timeout=90s"), "met")
	s.kubectl("wait", "--for=condition=Complete", "job/pieces", "--timeout=90s")
	has(t, "job", s.kubectl("get", "job", "pieces"), "6/6")
	s.eventually(t, "the endpoints of db", func(context.Context) error {
		if out := s.kubectl("get", "endpointslices", "-l", "kubernetes.io/service-name=db", "-o", "jsonpath={.items[*].endpoints[*].hostname}"); len(strings.Fields(out)) != 3 {
			return fmt.Errorf("they are %q", out)
		}
		return nil
	})
	for _, cascade := range []string{"deployment/web --cascade=foreground", "statefulset/db", "daemonset/agent", "job/pieces", "cronjob/report", "rc/elder", "service/db"} {
		s.kubectl(append([]string{"delete", "--timeout=90s"}, strings.Fields(cascade)...)...)
	}
	s.eventually(t, "all pods to go with their owners", func(context.Context) error {
		if out := s.kubectl("get", "pods,rs,controllerrevisions,endpoints,endpointslices", "-o", "name"); strings.TrimSpace(out) != "" {
			return fmt.Errorf("there are %s", out)
		}
		return nil
	})
	c.verify(t, 3) // nobody has changed what is the state's
}

// The leader is killed three times while a Job of 1,000 pods runs and a Deployment of 50
// is rolled out: every piece of work succeeds in exactly one pod, and no ReplicaSet
// has a pod too many.
func TestLeaderKilledDuringWorkloads(t *testing.T) {
	const pieces, replicas, kills = 1000, 50, 3
	c := sharedCluster(t)
	ns := c.namespace(t, "kills")
	kube := c.Reader().Kube
	template := func(app, restart string) corev1.PodTemplateSpec {
		p := pod(ns, app, "", pretended)
		p.Spec.RestartPolicy = corev1.RestartPolicy(restart)
		return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: p.Spec}
	}
	indexed, completions, parallelism := batchv1.IndexedCompletion, int32(pieces), int32(100)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{
		Completions: &completions, Parallelism: &parallelism, CompletionMode: &indexed, Template: template("work", "Never"),
	}}
	job.Spec.Template.Annotations = map[string]string{"fake.berth.dev/run-seconds": "1"}
	n := int32(replicas)
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &n, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}, Template: template("web", "Always"),
	}}
	if _, err := kube.AppsV1().Deployments(ns).Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	rolledOut := func(ctx context.Context) error {
		d, err := c.Reader().Kube.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if st := d.Status; st.ObservedGeneration != d.Generation || st.UpdatedReplicas != n || st.AvailableReplicas != n || st.Replicas != n {
			return fmt.Errorf("the status is %+v", st)
		}
		return nil
	}
	c.eventually(t, "the Deployment", rolledOut)
	if _, err := kube.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	succeeded := func(ctx context.Context) (*batchv1.Job, error) {
		return c.Reader().Kube.BatchV1().Jobs(ns).Get(ctx, "work", metav1.GetOptions{})
	}
	for kill := range kills {
		c.eventually(t, "a new template", func(ctx context.Context) error {
			_, err := c.Reader().Kube.AppsV1().Deployments(ns).Patch(ctx, "web", "application/strategic-merge-patch+json",
				fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"roll":"%d"}}}}}`, kill), metav1.PatchOptions{})
			return err
		})
		c.eventually(t, "some of the work", func(ctx context.Context) error {
			j, err := succeeded(ctx)
			if err != nil {
				return err
			}
			if j.Status.Succeeded < int32(pieces*kill/4+5) {
				return fmt.Errorf("%d pieces are done", j.Status.Succeeded)
			}
			return nil
		})
		leader := c.waitLeader(t)
		leader.Kill()
		c.waitLeader(t)
		c.restart(t, leader)
	}
	c.eventually(t, "the last rollout", rolledOut)
	began := time.Now()
	c.eventually(t, "the Job", func(ctx context.Context) error {
		j, err := succeeded(ctx)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(j.Status.Conditions, func(k batchv1.JobCondition) bool { return k.Type == batchv1.JobComplete }) {
			return fmt.Errorf("after %s the status is %+v", time.Since(began), j.Status)
		}
		if j.Status.Succeeded != pieces || j.Status.Failed != 0 || j.Status.CompletedIndexes != fmt.Sprintf("0-%d", pieces-1) {
			t.Fatalf("the Job says %+v", j.Status)
		}
		return nil
	})
	pods, err := c.Reader().Kube.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	byIndex, running := map[string]int{}, 0
	for i := range pods.Items {
		switch p := &pods.Items[i]; {
		case p.Labels["app"] == "work":
			byIndex[p.Annotations[batchv1.JobCompletionIndexAnnotation]]++
		case p.DeletionTimestamp == nil:
			running++
		}
	}
	if len(byIndex) != pieces || running != replicas {
		t.Errorf("%d pieces of %d, and %d pods of %d", len(byIndex), pieces, running, replicas)
	}
	for index, n := range byIndex {
		if n != 1 {
			t.Errorf("piece %s was done %d times", index, n)
		}
	}
	c.verify(t, 3)
	background := metav1.DeletePropagationBackground
	for _, err := range []error{
		c.Reader().Kube.AppsV1().Deployments(ns).Delete(t.Context(), "web", metav1.DeleteOptions{PropagationPolicy: &background}),
		c.Reader().Kube.BatchV1().Jobs(ns).Delete(t.Context(), "work", metav1.DeleteOptions{PropagationPolicy: &background}),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
