package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	killedPieces, killedPiecesAtOnce = 1000, 100
	killedReplicas                   = 100
	// killsAmid are at random moments, and two more around a time at which a CronJob is due.
	killsAmid = 3
	// killWithin is after how many facts of a rollout the leader is killed at the latest: it has more of them.
	killWithin = 400
	// dueGap is how long before a CronJob is due nobody leads any more.
	dueGap = 1500 * time.Millisecond
)

// killed is a Job, a Deployment and a CronJob on the worker that pretends, while leaders are killed.
type killed struct {
	*cluster
	rand         *rand.Rand
	ns, crons    string
	watch, ticks *factWatcher // of the two namespaces
}

// The leader is killed at moments that a seed chooses, while a Job of 1,000 pieces runs and a Deployment of 100 pods is rolled out again
// and again, and twice around a time at which a CronJob is due and nobody leads. What each revision shows is held to
// what the kinds promise (WC1, WC2, WC3, WC4): a piece has one pod, ever, and is counted once; no rollout has a pod too many, or too few that are ready;
// each time of the schedule has one Job.
func TestLeaderKilledDuringWorkloads(t *testing.T) {
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d (-chaos.seed)", seed)
	c := sharedCluster(t)
	k := &killed{cluster: c, rand: rand.New(rand.NewPCG(seed, 0)), ns: c.namespace(t, "kills"), crons: c.namespace(t, "kills-when-due")}
	k.watch, k.ticks = &factWatcher{fleet: c.Fleet, space: k.ns}, &factWatcher{fleet: c.Fleet, space: k.crons}
	watching, unwatch := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer unwatch()
	k.watch.start(watching, &watchers)
	k.ticks.start(watching, &watchers)
	k.furnish(t)

	due := time.Time{}
	for kills := 0; kills < killsAmid || due.IsZero(); {
		next := time.Now().Truncate(time.Minute).Add(time.Minute)
		if due.IsZero() && (kills >= killsAmid || time.Until(next) < 8*time.Second) {
			due = next
			k.killAround(t, due)
			continue
		}
		k.roll(t)
		k.killAmid(t)
		kills++
	}
	k.roll(t)
	k.settle(t, due)
	c.verify(t, 3)
	k.remove(t)
}

// furnish makes the three, and waits until the Deployment has its pods: what it lacks then is missed.
func (k *killed) furnish(t *testing.T) {
	t.Helper()
	kube := k.Reader().Kube
	template := func(app string, restart corev1.RestartPolicy, seconds string) corev1.PodTemplateSpec {
		p := pod("", app, "", pretended, policy(restart))
		out := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: p.Spec}
		if seconds != "" {
			out.Annotations = map[string]string{"fake.berth.dev/run-seconds": seconds}
		}
		return out
	}
	cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick"}, Spec: batchv1.CronJobSpec{
		Schedule: "* * * * *", StartingDeadlineSeconds: new(int64(100)), ConcurrencyPolicy: batchv1.AllowConcurrent,
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template("tick", corev1.RestartPolicyNever, "1")}},
	}}
	if _, err := kube.BatchV1().CronJobs(k.crons).Create(t.Context(), cron, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	web := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: new(int32(killedReplicas)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
		Template: template("web", corev1.RestartPolicyAlways, ""),
	}}
	if _, err := kube.AppsV1().Deployments(k.ns).Create(t.Context(), web, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	k.eventually(t, "the Deployment", k.rolledOut)
	indexed := batchv1.IndexedCompletion
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{
		Completions: new(int32(killedPieces)), Parallelism: new(int32(killedPiecesAtOnce)), CompletionMode: &indexed,
		Template: template("work", corev1.RestartPolicyNever, "1"),
	}}
	if _, err := kube.BatchV1().Jobs(k.ns).Create(t.Context(), job, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (k *killed) rolledOut(ctx context.Context) error {
	d, err := k.Reader().Kube.AppsV1().Deployments(k.ns).Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if s, n := d.Status, *d.Spec.Replicas; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != n || s.AvailableReplicas != n || s.Replicas != n {
		return fmt.Errorf("the status is %+v", s)
	}
	return nil
}

func (k *killed) roll(t *testing.T) {
	t.Helper()
	patch := roll(k.rand)
	k.eventually(t, "a new template", func(ctx context.Context) error {
		_, err := k.Reader().Kube.AppsV1().Deployments(k.ns).Patch(ctx, "web", types.MergePatchType, patch, metav1.PatchOptions{})
		return err
	})
}

// killAmid kills the leader when some more has happened.
func (k *killed) killAmid(t *testing.T) {
	t.Helper()
	until := k.watch.seen() + 1 + k.rand.IntN(killWithin)
	k.eventually(t, "some of the work", func(context.Context) error {
		if n := k.watch.seen(); n < until {
			return fmt.Errorf("%d facts of %d", n, until)
		}
		return nil
	})
	leader := k.waitLeader(t)
	leader.Kill()
	k.waitLeader(t)
	k.restart(t, leader)
}

// killAround has nobody lead when the CronJob is due, and kills who leads after that as soon as it does.
func (k *killed) killAround(t *testing.T, due time.Time) {
	t.Helper()
	k.reach(t, due.Add(-dueGap-time.Second))
	k.roll(t)
	first, other := k.waitLeader(t), k.followers(t)[0]
	k.reach(t, due.Add(-dueGap))
	other.Signal(syscall.SIGSTOP) // the third has no majority
	first.Kill()
	k.reach(t, due.Add(time.Second/2))
	other.Signal(syscall.SIGCONT)
	second := k.waitLeader(t)
	second.Kill()
	k.restart(t, first)
	k.waitLeader(t)
	k.restart(t, second)
}

// reach waits for a time of day.
func (k *killed) reach(t *testing.T, at time.Time) {
	t.Helper()
	k.eventually(t, at.Format(time.TimeOnly), func(context.Context) error {
		if left := time.Until(at); left > 0 {
			return fmt.Errorf("it is in %s", left)
		}
		return nil
	})
}

// settle waits until everything is done, and holds all that was seen to what was promised.
func (k *killed) settle(t *testing.T, due time.Time) {
	t.Helper()
	k.eventually(t, "the last rollout", k.rolledOut)
	k.eventually(t, "the Job", func(ctx context.Context) error {
		j, err := k.Reader().Kube.BatchV1().Jobs(k.ns).Get(ctx, "work", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !complete(j) {
			return fmt.Errorf("the status is %+v", j.Status)
		}
		if s := j.Status; s.Succeeded != killedPieces || s.Failed != 0 || s.Active != 0 || s.CompletedIndexes != fmt.Sprintf("0-%d", killedPieces-1) {
			t.Fatalf("the Job says %+v", s)
		}
		return nil
	})
	k.eventually(t, "the watches to have seen all of it", func(context.Context) error {
		if p := judge(k.watch.all()); p.completed != 1 || p.active("web") != killedReplicas {
			return fmt.Errorf("%d Jobs are complete, and %d pods of web are there", p.completed, p.active("web"))
		}
		return k.ticked(due)
	})
	for _, w := range []*factWatcher{k.watch, k.ticks} {
		w.mu.Lock()
		for _, v := range w.missed {
			t.Error(v)
		}
		w.mu.Unlock()
	}
	p := judge(k.watch.all())
	for _, v := range p.broken {
		t.Error(v)
	}
	if templates := killsAmid + 3; p.rollouts < 2 || p.rollouts > templates {
		t.Errorf("there were %d ReplicaSets, and %d templates", p.rollouts, templates)
	}
	byIndex := map[string]int{}
	for _, one := range p.pods {
		if one.pod.index != "" {
			byIndex[one.pod.index]++
		}
	}
	for index, n := range byIndex {
		if n != 1 {
			t.Errorf("piece %s had %d pods", index, n)
		}
	}
	if len(byIndex) != killedPieces {
		t.Errorf("%d pieces of %d had a pod", len(byIndex), killedPieces)
	}
	k.judgeTicks(t)
	t.Logf("%d facts: %d pods made, %d told to end", k.watch.seen(), p.made, p.ended)
}

// ticked waits for the Job of a time of the schedule, and its end.
func (k *killed) ticked(due time.Time) error {
	name := fmt.Sprintf("tick-%d", due.Unix()/60)
	if !slices.ContainsFunc(k.ticks.all(), func(f fact) bool { return f.kind == "Job" && f.name == name && f.set.complete }) {
		return fmt.Errorf("no Job %s is complete", name)
	}
	return nil
}

// judgeTicks: each time from the first to the last has one Job, and each Job one pod.
func (k *killed) judgeTicks(t *testing.T) {
	t.Helper()
	jobs, pods := map[string][]types.UID{}, map[types.UID][]types.UID{}
	for _, f := range k.ticks.all() {
		switch {
		case f.kind == "Job" && !slices.Contains(jobs[f.name], f.uid):
			jobs[f.name] = append(jobs[f.name], f.uid)
		case f.kind == "Pod" && !slices.Contains(pods[f.owner], f.uid):
			pods[f.owner] = append(pods[f.owner], f.uid)
		}
	}
	var minutes []int
	for name, uids := range jobs {
		minutes = append(minutes, ordinalOf(name))
		if len(uids) != 1 || len(pods[uids[0]]) != 1 {
			t.Errorf("%s was made %d times: %v; its pods: %v", name, len(uids), uids, pods[uids[0]])
		}
	}
	slices.Sort(minutes)
	if n := len(minutes); minutes[n-1]-minutes[0] != n-1 {
		t.Errorf("the CronJob, due every minute, has made Jobs for the minutes %v", minutes)
	}
}

func (k *killed) remove(t *testing.T) {
	t.Helper()
	kube, o := k.Reader().Kube, metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}
	for _, err := range []error{
		kube.AppsV1().Deployments(k.ns).Delete(t.Context(), "web", o),
		kube.BatchV1().Jobs(k.ns).Delete(t.Context(), "work", o),
		kube.BatchV1().CronJobs(k.crons).Delete(t.Context(), "tick", o),
	} {
		if err != nil {
			t.Error(err)
		}
	}
}
