package sched

import (
	"flag"
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/sched/clustertest"
	"github.com/berth-dev/berth/store"
)

var preemptions = flag.Int("preemptions", 20,
	"how many preemptions the run has in which the leader is lost at every position")

// TestLeaderLostAtEveryPosition: a run of preemptions is recorded. Then, for every position of its log, the leader is
// lost there with all that it had under way, and another goes on from a snapshot of that state. Whatever the position,
// the same pods are evicted for the same preemptors, nobody twice, nobody without the nomination that it makes room for
// in the same entry; and a server that was there all the time has the same state as the one that was restored.
func TestLeaderLostAtEveryPosition(t *testing.T) {
	whole := newReign(t, fsm.NewState(), fsm.NewState(), reignStart)
	whole.found(*preemptions)
	founded := len(whole.log)
	whole.run()
	if len(whole.evicted) < *preemptions {
		t.Fatalf("only %d pods were evicted for %d preemptors", len(whole.evicted), *preemptions)
	}
	t.Logf("%d positions, %d victims", len(whole.log)-founded, len(whole.evicted))

	upTo := fsm.NewState()
	told := newReign(t, upTo, fsm.NewState(), reignStart) // follows the recorded log
	for i, entry := range whole.log {
		if i >= founded {
			next := told.successor()
			next.run()
			if !maps.Equal(next.evicted, whole.evicted) {
				t.Fatalf("the leader was lost after entry %d, and others were evicted: %s", i,
					difference(whole.evicted, next.evicted))
			}
		}
		told.apply(entry)
	}
}

func difference(want, got map[types.UID]string) string {
	out := ""
	for uid, preemptor := range want { // order does not matter: it is for people
		if got[uid] != preemptor {
			out += fmt.Sprintf("%s for %q and not for %s; ", uid, got[uid], preemptor)
		}
	}
	for uid, preemptor := range got { // order does not matter: as above
		if _, ok := want[uid]; !ok {
			out += fmt.Sprintf("%s for %s and not at all; ", uid, preemptor)
		}
	}
	return out
}

const reignStart = 1000 * second

// reign is a leader's time: its scheduler over its state, a server that follows, and the cluster's clients and workers,
// which do what the state calls for.
type reign struct {
	t              *testing.T
	state, replica *fsm.State
	sched          *Scheduler
	under          []*Plan // made and not applied
	now            int64
	log            [][]byte
	wanted         []*corev1.Pod        // the preemptors
	created        int                  // of these, in this reign or before
	evicted        map[types.UID]string // victim to preemptor
}

func newReign(t *testing.T, state, replica *fsm.State, now int64) *reign {
	return &reign{t: t, state: state, replica: replica, sched: New(state), now: now, evicted: map[types.UID]string{}}
}

// successor is the reign that begins when the leader is lost now: its state comes from a snapshot, its follower was
// there.
func (r *reign) successor() *reign {
	next := newReign(r.t, restored(r.state), r.state.View().Fork(), r.now+2*second)
	next.wanted, next.evicted = preemptorsOf(*preemptions), maps.Clone(r.evicted)
	return next
}

// propose puts commands into one entry.
func (r *reign) propose(commands ...fsm.Command) []fsm.Result {
	r.now += second / 1000
	ps := make([]fsm.Proposal, len(commands))
	for i, c := range commands {
		ps[i] = fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c}
	}
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: r.now, Server: "s"}, ps)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.apply(entry)
}

// apply applies an entry on both servers, and looks at whom it evicts.
func (r *reign) apply(entry []byte) []fsm.Result {
	r.log = append(r.log, entry)
	before, index := r.state.View().Revision(), r.state.View().Index()+1
	results, err := r.state.Apply(index, 1, entry)
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.replica.Apply(index, 1, entry); err != nil {
		r.t.Fatal(err)
	}
	for _, result := range results {
		if result.Refused() {
			r.t.Fatalf("entry %d: %s", index, result.Message)
		}
	}
	changes := r.changesAfter(before)
	nominated := map[types.UID]string{} // by victim; another may wait for it too
	for _, c := range changes {
		if n, ok := c.New.(*fsm.Nomination); ok {
			for _, v := range n.Victims {
				if _, known := nominated[v.UID]; !known {
					nominated[v.UID] = n.Key()
				}
			}
		}
		old, _ := c.Old.(*corev1.Pod)
		pod, _ := c.New.(*corev1.Pod)
		if old == nil || pod == nil || model.Terminating(old) || !model.Terminating(pod) {
			continue
		}
		preemptor, ok := nominated[pod.UID]
		if !ok {
			r.t.Fatalf("entry %d evicts %s, and nobody is nominated for its room", index, c.Key)
		}
		if first, twice := r.evicted[pod.UID]; twice {
			r.t.Fatalf("entry %d evicts %s for %s; it was evicted for %s before", index, c.Key, preemptor, first)
		}
		r.evicted[pod.UID] = preemptor
	}
	return results
}

// changesAfter are all changes after a revision, which the feed gives in parts.
func (r *reign) changesAfter(revision int64) []store.Change {
	var out []store.Change
	for {
		part, err := r.state.Feed().After(revision+int64(len(out)), 1<<20)
		if err != nil {
			r.t.Fatal(err)
		}
		if len(part) == 0 {
			return out
		}
		out = append(out, part...)
	}
}

// found makes the cluster: a node for each preemptor, full of ready pods of several priorities, and budgets that allow
// for the end of none, of half and of most of those of an app.
func (r *reign) found(preemptors int) {
	commands := []fsm.Command{&fsm.PutNamespace{Create: true, Namespace: clustertest.DefaultNamespace()}}
	for _, priority := range []int32{0, 1, 2, 3, 10, 20, 30} {
		commands = append(commands, &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", priority), UID: types.UID(fmt.Sprintf("p%d", priority))},
			Value:      priority}}})
	}
	for i := range preemptors {
		node := clustertest.Node(fmt.Sprintf("n%03d cpu=4 mem=8Gi label=band=%d", i, i%3))
		node.UID = types.UID(node.Name)
		commands = append(commands, &fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: node}})
		for j := range 4 {
			pod := clustertest.Pod(fmt.Sprintf("low-%03d-%d cpu=1 node=n%03d label=app=a%d", i, j, i, j))
			pod.Namespace, pod.UID = "default", types.UID(pod.Name)
			pod.Spec.PriorityClassName = fmt.Sprintf("p%d", (i*7+j*3+i*j)%4)
			commands = append(commands, &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}}, readyReport(pod))
		}
	}
	for j, least := range []int{preemptors, preemptors / 2, preemptors / 8} {
		amount := intstr.FromInt(least)
		commands = append(commands, &fsm.PutDisruptionBudget{Create: true,
			Budget: fsm.BudgetWire{Object: &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("a%d", j),
					UID: types.UID(fmt.Sprintf("a%d", j))},
				Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &amount, Selector: &metav1.LabelSelector{
					MatchLabels: map[string]string{"app": fmt.Sprintf("a%d", j)}}}}}})
	}
	r.propose(commands...)
	r.wanted = preemptorsOf(preemptors)
}

func readyReport(pod *corev1.Pod) fsm.Command {
	status := &corev1.PodStatus{Phase: corev1.PodRunning,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	return &fsm.ReportPods{Node: pod.Spec.NodeName, Reports: []fsm.PodReport{
		{Key: fsm.PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Status: fsm.PodStatusWire{Object: status}}}}
}

// preemptorsOf are what the clients want to run, each in the room of two or three pods. Each priority has nodes of its
// own: a pod that waits for its victims may take room that is promised to one of lower priority (NM4, NM6), who then
// needs other victims, and whether it does depends on when the first of them end.
func preemptorsOf(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = clustertest.Pod(fmt.Sprintf("high-%03d cpu=%d select=band=%d", i, 2+i/3%2, i%3))
		pods[i].Namespace, pods[i].UID = "default", types.UID(pods[i].Name)
		pods[i].Spec.PriorityClassName = fmt.Sprintf("p%d", 10*(1+i%3))
	}
	return pods
}

const (
	admittedAtOnce = 8 // preemptors of one entry
	decidedAtOnce  = 5 // pods of one plan
	plansUnderWay  = 3
)

// run goes on until every preemptor has its place. Plans are made ahead of the log, and workers confirm one node at a
// time.
func (r *reign) run() {
	for turn := 0; ; turn++ {
		if turn > 100*len(r.wanted)+100 {
			r.t.Fatalf("it does not come to an end: %+v", r.state.View().QueueLengths())
		}
		if commands := r.clients(); len(commands) > 0 {
			r.propose(commands...)
			continue
		}
		made := r.decide()
		switch confirmed := r.worker(); {
		case len(r.under) > 0 && (!made || turn%2 == 0):
			r.commit()
		case len(confirmed) > 0 && (!made || turn%3 == 0):
			r.propose(confirmed...)
		case !made:
			r.settled()
			return
		}
	}
}

// clients are the creations that nobody has answered yet.
func (r *reign) clients() []fsm.Command {
	var out []fsm.Command
	for ; r.created < len(r.wanted) && len(out) < admittedAtOnce; r.created++ {
		pod := r.wanted[r.created]
		if _, there := r.state.View().Pods.Get(fsm.PodKey(pod.Namespace, pod.Name)); !there {
			out = append(out, &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod.DeepCopy()}})
		}
	}
	return out
}

func (r *reign) decide() bool {
	if len(r.under) == plansUnderWay {
		return false
	}
	p := clustertest.Next(r.sched, r.now, decidedAtOnce)
	if p != nil {
		r.under = append(r.under, p)
	}
	return p != nil
}

func (r *reign) commit() {
	p := r.under[0]
	r.under = r.under[1:]
	r.propose(p.Command)
	r.sched.Settle(p)
}

// worker is the confirmation of what has ended on the node where the first of those who wait for it is nominated.
func (r *reign) worker() []fsm.Command {
	v, report := r.state.View(), &fsm.ReportPods{}
	v.Nominations.Scan("", func(_ string, n *fsm.Nomination) bool {
		if len(n.Victims) > 0 {
			report.Node = n.Node
		}
		return report.Node == ""
	})
	if report.Node == "" {
		return nil
	}
	v.PodsOnNode(report.Node, func(pod *corev1.Pod) bool {
		if model.Terminating(pod) {
			report.Reports = append(report.Reports, fsm.PodReport{Key: fsm.PodKey(pod.Namespace, pod.Name), UID: string(pod.UID),
				Removed: true})
		}
		return true
	})
	return []fsm.Command{report}
}

// settled: everybody has a place, nothing is left over, and both servers agree.
func (r *reign) settled() {
	r.t.Helper()
	v := r.state.View()
	if v.Queue.Len() > 0 || v.Nominations.Len() > 0 {
		r.t.Fatalf("%d pods wait, %d are nominated, and nothing moves", v.Queue.Len(), v.Nominations.Len())
	}
	if a, b := v.Digest(), r.replica.View().Digest(); a != b {
		r.t.Fatalf("the restored server has %s, the one that was there %s", a, b)
	}
}
