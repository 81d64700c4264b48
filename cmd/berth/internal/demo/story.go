package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/fleet"
	"github.com/berth-dev/berth/pki"
)

const (
	serverCount = 3
	workerCount = 3
	// workerCPU is what each worker offers, whatever the machine has.
	workerCPU = 4
)

// Options say how the story is told.
type Options struct {
	// Binary is the program that agents are processes of.
	Binary string
	// Dir holds everything; it must be empty.
	Dir string
	// Keep leaves the cluster running at the end.
	Keep bool
	Out  io.Writer
}

// ErrNotHeld says that something that Berth promises did not hold.
var ErrNotHeld = errors.New("not everything held")

const (
	waitForCluster = 60 * time.Second
	waitForPods    = 60 * time.Second
	pollEvery      = 50 * time.Millisecond
	stopGrace      = 20 * time.Second

	namespace = metav1.NamespaceDefault
	urgent    = "urgent"
	later     = "later-1" // waits: the others fill the cluster
	huge      = "huge"    // waits: no node is as large
	patient   = "patient"
)

// story is one telling.
type story struct {
	Options
	c      *fleet.Fleet
	step   int
	checks []check
	began  time.Time
	killed *fleet.Process
}

// check is one claim, and whether it held.
type check struct {
	claim string
	held  bool
	but   string
}

// workerHCL configures a worker with so many cpus. The pods of the story write next to nothing: a disk that is nearly full is no reason
// to evict them.
const workerHCL = `worker {
  enabled = true
  runtime = "process"
  capacity {
    cpu = "%d"
  }
  eviction {
    hard = {
      "nodefs.available"   = "1%%"
      "nodefs.inodesFree"  = "1%%"
      "imagefs.available"  = "1%%"
      "imagefs.inodesFree" = "1%%"
    }
  }
}
`

// prepare writes certificates and configurations.
func prepare(binary, dir string) (*fleet.Fleet, error) {
	f, err := fleet.New(binary, dir)
	if err != nil {
		return nil, err
	}
	var specs []fleet.Spec
	for i := range serverCount {
		specs = append(specs, fleet.Spec{
			Name: fmt.Sprintf("server-%d", i+1), Kind: pki.Server,
			HCL: fmt.Sprintf("server {\n  enabled          = true\n  bootstrap_expect = %d\n}\n", serverCount),
		})
	}
	for i := range workerCount {
		specs = append(specs, fleet.Spec{
			Name: fmt.Sprintf("worker-%d", i+1), Kind: pki.Worker,
			HCL: fmt.Sprintf(workerHCL, workerCPU),
		})
	}
	_, err = f.Add(specs...)
	return f, err
}

// Run tells the story. It returns nil only if everything held.
func Run(ctx context.Context, o Options) error {
	s := &story{Options: o, began: time.Now()}
	var err error
	if s.c, err = prepare(o.Binary, o.Dir); err != nil {
		return fmt.Errorf("prepare the demonstration: %w", err)
	}
	kept := false
	defer func() {
		if !kept {
			s.end()
		}
	}()
	if err := s.tell(ctx); err != nil {
		return err
	}
	held := s.summary()
	if o.Keep {
		kept = true
		s.tellHowToGoOn()
	}
	if !held {
		return ErrNotHeld
	}
	return nil
}

func (s *story) tell(ctx context.Context) error {
	if err := s.startCluster(ctx); err != nil {
		return err
	}
	if err := s.fill(ctx); err != nil {
		return err
	}
	before, err := s.preempt(ctx)
	if err != nil {
		return err
	}
	if err := s.killLeader(ctx, before); err != nil {
		return err
	}
	if err := s.finish(ctx, before); err != nil {
		return err
	}
	return s.comeBack(ctx)
}

func (s *story) heading(format string, args ...any) {
	s.step++
	fmt.Fprintf(s.Out, "\n%d. %s\n", s.step, fmt.Sprintf(format, args...))
}

func (s *story) say(format string, args ...any) {
	fmt.Fprintf(s.Out, "   %s\n", fmt.Sprintf(format, args...))
}

func (s *story) check(held bool, claim, but string) {
	s.checks = append(s.checks, check{claim, held, but})
	mark := "✓"
	if !held {
		mark = "✗"
		claim += ": " + but
	}
	s.say("%s %s", mark, claim)
}

// wait asks again and again until the answer is yes, or the time is over, or a
// process that should run has ended.
func (s *story) wait(ctx context.Context, what string, most time.Duration, ask func(ctx context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	var last error
	for {
		done, err := ask(ctx)
		if done {
			return nil
		}
		if err != nil {
			last = err
		}
		if err := s.c.Alive(); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, errors.Join(ctx.Err(), last))
		case <-time.After(pollEvery):
		}
	}
}

func (s *story) startCluster(ctx context.Context) error {
	s.heading("Three servers and three workers, each a process of its own, with certificates and encrypted gossip")
	if err := s.c.Start(); err != nil {
		return err
	}
	began := time.Now()
	err := s.wait(ctx, "the nodes to be ready", waitForCluster, func(ctx context.Context) (bool, error) {
		nodes, err := s.c.Reader().Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		_, err = s.c.Reader().Kube.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return len(nodes.Items) == workerCount && err == nil, err
	})
	if err != nil {
		return err
	}
	leader := s.c.Leader(ctx)
	for _, p := range s.c.Servers() {
		role := ""
		if p == leader {
			role = "  leads"
		}
		s.say("%s  pid %-7d https://%s%s", p.Name, p.PID(), p.HTTP(), role)
	}
	for _, p := range s.c.Workers() {
		s.say("%s  pid %-7d %d cpus", p.Name, p.PID(), workerCPU)
	}
	s.say("ready after %.1f s", time.Since(began).Seconds())
	return nil
}

// work is what the low-priority pods run: on TERM they save their work, which
// takes a while.
const work = `trap 'echo saving; sleep 8; echo saved; exit 0' TERM
n=0; while :; do n=$((n+1)); echo "batch $n"; sleep 0.2 & wait $!; done`

func pod(name, class string, cpu string, command string) *corev1.Pod {
	grace := int64(20)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace},
		Spec: corev1.PodSpec{
			PriorityClassName: class, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: "main", Image: "none", Command: []string{"/bin/sh", "-c", command},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}},
			}},
		},
	}
}

func (s *story) fill(ctx context.Context) error {
	s.heading("Patient work fills the cluster: six pods of priority 0, two cpus each, running a real command")
	kube := s.c.Reader().Kube
	for _, class := range []*schedulingv1.PriorityClass{
		{ObjectMeta: metav1.ObjectMeta{Name: urgent}, Value: 1000, Description: "Evicts whoever is less urgent."},
		{ObjectMeta: metav1.ObjectMeta{Name: patient}, Value: 500, Description: "Ahead of the rest in the queue."},
	} {
		if _, err := kube.SchedulingV1().PriorityClasses().Create(ctx, class, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create class %s: %w", class.Name, err)
		}
	}
	for i := range 2 * workerCount {
		p := pod(fmt.Sprintf("batch-%d", i+1), "", "2", work)
		if _, err := kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		}
	}
	// Two that can not run now, so that there is a queue to be kept.
	for _, p := range []*corev1.Pod{pod(later, "", "2", work), pod(huge, patient, "64", work)} {
		if _, err := kube.CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s: %w", p.Name, err)
		}
	}
	err := s.waitForRunning(ctx, "the pods to run", func(ctx context.Context) (bool, error) {
		pods, err := s.pods(ctx)
		queue, qerr := s.queue(ctx, s.c.Reader())
		waiting := 0
		for _, e := range queue {
			if e.Status.State == "Unschedulable" {
				waiting++
			}
		}
		return count(pods, running) == 2*workerCount && waiting == 2, errors.Join(err, qerr)
	})
	if err != nil {
		return err
	}
	return s.showPods(ctx)
}

// end ends the pods, then the processes.
func (s *story) end() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	if s.c.Leader(ctx) != nil {
		one := int64(1)
		_ = s.c.Reader().Kube.CoreV1().Pods(namespace).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &one}, metav1.ListOptions{})
		_ = s.wait(ctx, "the pods to end", stopGrace, func(ctx context.Context) (bool, error) {
			pods, err := s.pods(ctx)
			return err == nil && len(pods) == 0, err
		})
	}
	s.c.Stop(stopGrace)
}

func (s *story) summary() bool {
	fmt.Fprintf(s.Out, "\nIn short, after %.0f s:\n", time.Since(s.began).Seconds())
	held := true
	for _, c := range s.checks {
		held = held && c.held
		if c.held {
			fmt.Fprintf(s.Out, "   ✓ %s\n", c.claim)
		} else {
			fmt.Fprintf(s.Out, "   ✗ %s: %s\n", c.claim, c.but)
		}
	}
	if held {
		fmt.Fprintf(s.Out, "Everything held.\n")
	} else {
		fmt.Fprintf(s.Out, "NOT everything held. The logs are in %s.\n", s.Dir)
	}
	return held
}

func (s *story) tellHowToGoOn() {
	fmt.Fprintf(s.Out, "\nThe cluster goes on running. Its files are in %s; the processes are", s.Dir)
	for _, p := range s.c.Processes() {
		if p.Running() {
			fmt.Fprintf(s.Out, " %d", p.PID())
		}
	}
	fmt.Fprintln(s.Out, ".")
}
