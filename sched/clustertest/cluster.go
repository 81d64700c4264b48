// Package clustertest gives tests of what decides about a cluster one that is put together in words: a state machine with
// nothing above it, to which commands are applied at once, and as a log if that is to be decided again.
//
// It must not know the scheduler, so that the scheduler's own tests can stand on it.
package clustertest

import (
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

const second = int64(1_000_000_000)

// Cluster is a state that a test writes to. Its methods panic at what is refused.
type Cluster struct {
	State       *fsm.State
	NowUnixNano int64 // the time of what is applied next
	Admitted    int   // pods so far

	log *Log
}

// New is a cluster with the namespace default and nothing else, which goes by the newest rules.
func New() *Cluster {
	s := fsm.NewState()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion}, nil)
	if err == nil {
		_, err = s.Apply(1, 1, entry)
	}
	if err != nil {
		panic(err)
	}
	return begun(s, nil)
}

// NewLogged is New with all that is applied in a log, whose first entry says by which rules it goes.
func NewLogged(log *Log) *Cluster { return begun(fsm.NewState(), log) }

func begun(s *fsm.State, log *Log) *Cluster {
	cl := &Cluster{State: s, NowUnixNano: 1000 * second, log: log}
	cl.Must(&fsm.PutNamespace{Create: true, Namespace: DefaultNamespace()})
	return cl
}

// DefaultNamespace is the namespace default.
func DefaultNamespace() fsm.NamespaceWire {
	return fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}}
}

// Apply carries a command out in the name of an administrator.
func (cl *Cluster) Apply(c fsm.Command) fsm.Result {
	if cl.log != nil {
		return cl.log.apply(cl.State, cl.NowUnixNano, c)
	}
	return cl.State.Try(cl.NowUnixNano, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})[0]
}

// Must is Apply of what is not refused.
func (cl *Cluster) Must(c fsm.Command) fsm.Result {
	r := cl.Apply(c)
	if r.Refused() {
		panic(fmt.Sprintf("%T: %s", c, r.Message))
	}
	return r
}

// PutNode stores a node, or changes one that is there.
func (cl *Cluster) PutNode(n *corev1.Node) {
	n = n.DeepCopy()
	old, known := cl.State.View().Nodes.Get(n.Name)
	if known {
		n.UID, n.ResourceVersion, n.CreationTimestamp = old.UID, old.ResourceVersion, old.CreationTimestamp
	} else {
		n.UID = types.UID("node-" + n.Name)
	}
	cl.Must(&fsm.PutNode{Create: !known, Node: fsm.NodeWire{Object: n}})
}

// AdmitPod admits a pod; its priority gets a class of its own.
func (cl *Cluster) AdmitPod(p *corev1.Pod) {
	p = p.DeepCopy()
	cl.Admitted++
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.UID == "" {
		p.UID = types.UID("uid-" + p.Name)
	}
	cl.PutNamespace(p.Namespace, nil)
	if p.Spec.Priority == nil && p.Spec.PreemptionPolicy != nil {
		p.Spec.Priority = new(int32) // a policy comes from a class
	}
	if p.Spec.Priority != nil {
		p.Spec.PriorityClassName = cl.Class(*p.Spec.Priority, p.Spec.PreemptionPolicy)
	}
	p.CreationTimestamp = metav1.Unix(cl.NowUnixNano/second, 0)
	start, conditions := p.Status.StartTime, p.Status.Conditions
	if start != nil { // it was made when it started: nothing starts before
		p.CreationTimestamp = *start
	}
	cl.Must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	if start != nil || conditions != nil {
		status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: start, Conditions: conditions}
		cl.Must(&fsm.ReportPods{Node: p.Spec.NodeName, Reports: []fsm.PodReport{
			{Key: fsm.PodKey(p.Namespace, p.Name), UID: string(p.UID), Status: fsm.PodStatusWire{Object: &status}}}})
	}
}

// Report has a running pod say whether it is ready.
func (cl *Cluster) Report(key string, ready bool) {
	p, _ := cl.State.View().Pods.Get(key)
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: p.Status.StartTime, ContainerStatuses: p.Status.ContainerStatuses}
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	if ready {
		status.Conditions[0].Status = corev1.ConditionTrue
	}
	cl.Must(&fsm.ReportPods{Node: p.Spec.NodeName,
		Reports: []fsm.PodReport{{Key: key, UID: string(p.UID), Status: fsm.PodStatusWire{Object: &status}}}})
}

// Remove takes a pod off its node at once, as a worker's confirmation does.
func (cl *Cluster) Remove(key string) {
	zero := int64(0)
	cl.Must(&fsm.DeletePod{Key: key, GraceSeconds: &zero})
}

// Confirm removes every pod that is ending.
func (cl *Cluster) Confirm() {
	var ending []string
	cl.State.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.DeletionTimestamp != nil {
			ending = append(ending, key)
		}
		return true
	})
	for _, key := range ending {
		cl.Remove(key)
	}
}

// Configure changes the configuration of scheduling.
func (cl *Cluster) Configure(change func(*berthv1.SchedulerConfigurationSpec)) {
	c := cl.State.View().SchedulerConfig().DeepCopy()
	change(&c.Spec)
	c.ResourceVersion = ""
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	cl.Must(&fsm.ConfigureScheduler{JSON: b})
}

// DescribeQueue tells of who waits, as transcripts do: an entry of the queue a line.
func (cl *Cluster) DescribeQueue() string {
	var b strings.Builder
	cl.State.View().Queue.Scan("", func(key string, e *fsm.QueueEntry) bool {
		fmt.Fprintf(&b, "%s %s attempts=%d", key, e.State, e.Attempts)
		if n, ok := cl.State.View().Nominations.Get(key); ok {
			fmt.Fprintf(&b, " nominated to %s, %d victims", n.Node, len(n.Victims))
		}
		b.WriteString("\n")
		return true
	})
	if b.Len() == 0 {
		return "empty"
	}
	return b.String()
}
