package e2e

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/fleet"
)

var chaosWorkloads = flag.Int("chaos.workloads", 0, "minutes in which leaders and workers are killed while workloads change; 0: none")

const (
	workloadSpace   = "changing"
	deploymentsKept = 3
	setsKept        = 2
	// killEvery is how often somebody is killed, about.
	killEvery = 5 * time.Second
	// nodeGrace is how long a node may be silent; pods tolerate its loss for lossSeconds.
	nodeGrace   = "8s"
	lossSeconds = 3
	// pieces are those of each Job, piecesAtOnce run at a time.
	pieces, piecesAtOnce = 10, 4
)

// workloadChaos is a cluster whose workloads change while its leaders and workers are killed.
type workloadChaos struct {
	*cluster
	rand    *rand.Rand
	checker *chaosChecker
	watcher *factWatcher
	dir     string // the pods of a StatefulSet hold a lock here each, and tell of whom they meet
	began   time.Time
	back    map[*fleet.Process]time.Time // when it is started again
	counts  map[string]int
}

// TestChaosOfWorkloads changes Deployments and StatefulSets and runs Jobs while leaders and workers are killed, and holds
// what every revision shows to what the kinds promise. make chaos-workloads runs it.
func TestChaosOfWorkloads(t *testing.T) {
	if *chaosWorkloads == 0 {
		t.Skip("make chaos-workloads runs it")
	}
	seed := *chaosSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("seed %d", seed)
	var specs []fleet.Spec
	for i := range chaosServers {
		specs = append(specs, server(fmt.Sprintf("server-%d", i+1), fmt.Sprintf("bootstrap_expect = %d\nscheduler { node_grace = %q }", chaosServers, nodeGrace)))
	}
	for i := range chaosWorkers {
		specs = append(specs, worker(fmt.Sprintf("worker-%d", i+1), `capacity { cpu = "8" }`))
	}
	c := &workloadChaos{
		cluster: newCluster(t, specs...), rand: rand.New(rand.NewPCG(seed, 0)), checker: newChaosChecker(), dir: t.TempDir(), began: time.Now(),
		back: map[*fleet.Process]time.Time{}, counts: map[string]int{},
	}
	c.watcher = &factWatcher{fleet: c.Fleet, space: workloadSpace}
	c.namespace(t, workloadSpace)
	watching, unwatch := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	defer watchers.Wait()
	defer unwatch()
	c.watcher.start(watching, &watchers)
	for _, s := range c.Servers() {
		watchers.Go(func() { c.checker.follow(watching, s) })
	}
	c.live(t)
	c.settle(t)
	unwatch()
	watchers.Wait()
	c.judge(t)
}

func (c *workloadChaos) tell(format string, args ...any) {
	fmt.Printf("%8.2f  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// live lets users change workloads while somebody is killed again and again.
func (c *workloadChaos) live(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	c.furnish(t)
	var users sync.WaitGroup
	for i, work := range []func(ctx context.Context, kube kubernetes.Interface, r *rand.Rand){c.rollDeployments, c.rollSets, c.runJobs} {
		random := rand.New(rand.NewPCG(c.rand.Uint64(), uint64(i)))
		users.Go(func() {
			for ctx.Err() == nil {
				one, cancel := context.WithTimeout(ctx, askTimeout)
				work(one, c.Servers()[random.IntN(chaosServers)].Kube, random) // who is away answers nothing, and the next is asked
				cancel()
				chaosPause(ctx, time.Second+time.Duration(random.Int64N(int64(6*time.Second))))
			}
		})
	}
	next := time.Now()
	for until := c.began.Add(time.Duration(*chaosWorkloads) * time.Minute); time.Now().Before(until) && len(c.checker.violations()) == 0 && !t.Failed(); {
		chaosPause(ctx, pollEvery)
		c.revive(t, false)
		if time.Now().After(next) {
			next = next.Add(killEvery/2 + time.Duration(c.rand.Int64N(int64(killEvery))))
			c.killOne(ctx)
		}
	}
	c.revive(t, true)
	stop()
	users.Wait()
	c.tell("the faults are over: %v", c.counts)
}

// killOne kills a leader, another server or a worker; of the servers one at a time is away.
func (c *workloadChaos) killOne(ctx context.Context) {
	short := 200*time.Millisecond + time.Duration(c.rand.Int64N(int64(6*time.Second)))
	n := c.rand.IntN(20)
	var who *fleet.Process
	what := "worker"
	if n < 12 {
		for _, s := range c.Servers() {
			if !s.Running() {
				return
			}
		}
		leader := c.Leader(ctx)
		if leader == nil {
			return
		}
		who, what = leader, "leader"
		if n < 3 {
			what = "follower"
			others := slices.DeleteFunc(slices.Clone(c.Servers()), func(s *fleet.Process) bool { return s == leader })
			who = others[c.rand.IntN(len(others))]
		}
	} else {
		who = c.Workers()[c.rand.IntN(chaosWorkers)]
		if !who.Running() {
			return
		}
		if n == 19 { // its node is lost
			what, short = "worker for long", short+20*time.Second
		}
	}
	c.tell("kill %s %s for %s", what, who.Name, short.Round(time.Millisecond))
	c.counts[what]++
	who.Kill()
	c.back[who] = time.Now().Add(short)
}

// revive starts those whose time has come.
func (c *workloadChaos) revive(t *testing.T, all bool) {
	for p, at := range c.back {
		if !all && time.Now().Before(at) {
			continue
		}
		delete(c.back, p)
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range c.Processes() {
		if _, away := c.back[p]; !away && !p.Running() {
			t.Fatalf("%s ended by itself:\n%s", p.Name, p.LogTail(10))
		}
	}
}

// template is a pod of these workloads. It tolerates the loss of its node for a short time only.
func (c *workloadChaos) template(app, command string) corev1.PodTemplateSpec {
	p := pod("", "", command, cpu("100m"))
	p.Spec.TerminationGracePeriodSeconds = new(int64(2))
	for _, key := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{
			Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(lossSeconds)),
		})
	}
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "POD", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}}
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}}, Spec: p.Spec}
}

func (c *workloadChaos) furnish(t *testing.T) {
	kube := c.Reader().Kube.AppsV1()
	for i := range deploymentsKept {
		name := fmt.Sprintf("web-%d", i)
		_, err := kube.Deployments(workloadSpace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
			Replicas: new(int32(8)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: c.template(name, "exec sleep 100000"),
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Who finds another pod of its name alive tells of it. The lock is the process's: it goes with it, however it ends.
	alone := fmt.Sprintf("exec 9>>%[1]s/$POD; flock -n 9 || echo $POD >> %[1]s/twice; exec sleep 100000", c.dir)
	for i := range setsKept {
		name := fmt.Sprintf("db-%d", i)
		_, err := kube.StatefulSets(workloadSpace).Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(4)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}, Template: c.template(name, alone),
		}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
}

func roll(r *rand.Rand) []byte {
	return fmt.Appendf(nil, `{"spec":{"template":{"metadata":{"annotations":{"roll":"%d"}}}}}`, r.Uint32())
}

func (c *workloadChaos) rollDeployments(ctx context.Context, kube kubernetes.Interface, r *rand.Rand) {
	patch := roll(r)
	if r.IntN(4) == 0 {
		patch = fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, 6+r.IntN(5))
	}
	name := fmt.Sprintf("web-%d", r.IntN(deploymentsKept))
	_, _ = kube.AppsV1().Deployments(workloadSpace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}) // or it stays as it is
}

func (c *workloadChaos) rollSets(ctx context.Context, kube kubernetes.Interface, r *rand.Rand) {
	patch := roll(r)
	switch r.IntN(6) {
	case 0:
		patch = fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, 3+r.IntN(3))
	case 1, 2, 3: // a rollout takes its time
		return
	}
	name := fmt.Sprintf("db-%d", r.IntN(setsKept))
	_, _ = kube.AppsV1().StatefulSets(workloadSpace).Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}) // as above
}

// runJobs makes a Job, whose pods fail now and then.
func (c *workloadChaos) runJobs(ctx context.Context, kube kubernetes.Interface, r *rand.Rand) {
	indexed := batchv1.IndexedCompletion
	name := fmt.Sprintf("work-%08x", r.Uint32())
	template := c.template(name, fmt.Sprintf("sleep %d; case $(date +%%N) in 1*) exit 1;; esac", 1+r.IntN(3)))
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	_, _ = kube.BatchV1().Jobs(workloadSpace).Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batchv1.JobSpec{ // or there is none
		Completions: new(int32(pieces)), Parallelism: new(int32(piecesAtOnce)), CompletionMode: &indexed, BackoffLimit: new(int32(1000)),
		TTLSecondsAfterFinished: new(int32(30)), Template: template,
	}}, metav1.CreateOptions{})
}

// settle waits until every workload is as it is asked to be, and then removes them.
func (c *workloadChaos) settle(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), chaosPatience)
	defer cancel()
	if err := c.waitReady(ctx); err != nil {
		t.Fatal(err)
	}
	for _, s := range c.Servers() {
		if err := c.wait(ctx, "the workloads to rest, at "+s.Name, func(ctx context.Context) error { return restless(ctx, s.Kube) }); err != nil {
			t.Error(err)
		}
	}
	kube, background := c.Reader().Kube, metav1.DeletePropagationBackground
	options := metav1.DeleteOptions{PropagationPolicy: &background}
	for _, remove := range []func(context.Context, metav1.DeleteOptions, metav1.ListOptions) error{
		kube.AppsV1().Deployments(workloadSpace).DeleteCollection, kube.AppsV1().StatefulSets(workloadSpace).DeleteCollection,
		kube.BatchV1().Jobs(workloadSpace).DeleteCollection,
	} {
		if err := remove(ctx, options, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	}
	err := c.wait(ctx, "all pods to go with their owners", func(ctx context.Context) error {
		list, err := kube.CoreV1().Pods(workloadSpace).List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there, %s among them", len(list.Items), list.Items[0].Name)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	c.verify(t, chaosServers)
}

// restless says which workload is not as it is asked to be.
func restless(ctx context.Context, kube kubernetes.Interface) error {
	deployments, err := kube.AppsV1().Deployments(workloadSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range deployments.Items {
		d := &deployments.Items[i]
		if s, n := d.Status, *d.Spec.Replicas; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != n || s.AvailableReplicas != n || s.Replicas != n {
			return fmt.Errorf("Deployment %s of %d: %+v", d.Name, n, s)
		}
	}
	sets, err := kube.AppsV1().StatefulSets(workloadSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range sets.Items {
		d := &sets.Items[i]
		if s, n := d.Status, *d.Spec.Replicas; s.ObservedGeneration != d.Generation || s.UpdatedReplicas != n || s.AvailableReplicas != n || s.Replicas != n {
			return fmt.Errorf("StatefulSet %s of %d: %+v", d.Name, n, s)
		}
	}
	jobs, err := kube.BatchV1().Jobs(workloadSpace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range jobs.Items {
		if j := &jobs.Items[i]; !complete(j) {
			return fmt.Errorf("Job %s: %+v", j.Name, j.Status)
		}
	}
	return nil
}

func complete(j *batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(k batchv1.JobCondition) bool {
		return k.Type == batchv1.JobComplete && k.Status == corev1.ConditionTrue
	})
}

// judge tells what was broken.
func (c *workloadChaos) judge(t *testing.T) {
	for _, v := range c.checker.violations() {
		t.Error(v)
	}
	for _, v := range c.watcher.missed {
		t.Error(v)
	}
	if twice, err := filepath.Glob(filepath.Join(c.dir, "twice")); err != nil || len(twice) > 0 {
		t.Errorf("pods of a StatefulSet met others of their name: %v", err)
	}
	p := judge(c.watcher.facts)
	for _, v := range p.broken {
		t.Error(v)
	}
	kills := 0
	for n := range maps.Values(c.counts) {
		kills += n
	}
	t.Logf("%d kills in %s: %v; %d facts: %d pods made, %d told to end, %d rollouts, %d Jobs complete", kills, time.Since(c.began).Round(time.Second), c.counts,
		len(c.watcher.facts), p.made, p.ended, p.rollouts, p.completed)
	if p.completed == 0 || p.rollouts == 0 || p.made == 0 {
		t.Error("nothing happened")
	}
}
