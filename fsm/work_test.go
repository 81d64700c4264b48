package fsm

import (
	"fmt"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/model"
)

// TestDearPlanIsDeferred: what a plan may cost bounds how many of its decisions
// are carried out; the rest is held against nobody.
func TestDearPlanIsDeferred(t *testing.T) {
	// Each term is about all pods, in words of its own.
	w := worstPlan{Nodes: 50, Zones: 2, Placed: 2000, Kinds: 2000, Waiting: 300, Shapes: 300, Namespaces: 1, Levels: 1,
		WaitingRules: worstRules{Affinity: 8, About: 2, Key: 1}}.build(t)
	left := map[string]bool{}
	for i := range w.Waiting {
		left[w.waitingName(i).Key] = true
	}
	rounds := 0
	for len(left) > 0 {
		rounds++
		plan := &ApplyPlan{Revision: w.state.View().Revision()}
		for i := range w.Waiting {
			if pod := w.waitingName(i); left[pod.Key] {
				plan.Bindings = append(plan.Bindings, BindDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)})
			}
		}
		was := len(left)
		r := w.may(plan)[0]
		if r.Work > 2*MaxPlanWork {
			t.Fatalf("a plan did %d units of work", r.Work)
		}
		for _, d := range plan.Bindings {
			delete(left, d.Key)
		}
		for _, refused := range r.Plan.Refused {
			if !refused.Deferred {
				t.Fatalf("%s: %s", refused.Key, refused.Reason)
			}
			left[refused.Key] = true
			if e, ok := w.state.View().Queue.Get(refused.Key); !ok || e.Refusals > 0 {
				t.Fatalf("%s: %+v", refused.Key, e)
			}
		}
		if len(left) >= was {
			t.Fatal("nothing was carried out")
		}
	}
	if rounds < 2 {
		t.Error("the plan was not too dear")
	}
	t.Logf("%d plans", rounds)
}

// TestLostNodeOfManyPods: so many pods of a lost node are marked each time that it
// is said, and no change is left out.
func TestLostNodeOfManyPods(t *testing.T) {
	const pods = 2*MaxUnready + 7
	w := worstPlan{Nodes: 1, Zones: 1, Placed: pods, Kinds: 1, Namespaces: 1, Levels: 1}.build(t)
	report := &ReportPods{Node: w.nodeName(0)}
	for i := range pods {
		pod := w.placedName(i)
		report.Reports = append(report.Reports, PodReport{Key: pod.Key, UID: pod.UID, Status: PodStatusWire{Object: runningStatus()}})
	}
	w.must(report)
	for _, want := range []int{pods - MaxUnready, pods - 2*MaxUnready, 0, 0} {
		w.must(&SetNodeHealth{Nodes: []NodeHealth{{Name: w.nodeName(0), Ready: "Unknown", Reason: "r", Message: "m"}}})
		if got := len(readyPods(w.state.View(), w.nodeName(0))); got != want {
			t.Fatalf("%d pods are ready, want %d", got, want)
		}
	}
}

func readyPods(v *View, node string) (names []string) {
	v.ReadyPodsOnNode(node, func(pod *corev1.Pod) bool {
		names = append(names, pod.Name)
		return true
	})
	return names
}

// TestACommandAboutManyDoesSoMany: where each of many things costs much, as pods do
// that hundreds of budgets cover, a command does some of them, and the rest when it
// comes again.
func TestACommandAboutManyDoesSoMany(t *testing.T) {
	const budgets, pods = 300, 1000
	w := worstPlan{Nodes: 10, Zones: 1, Kinds: 1, Placed: 1, Namespaces: 1, Budgets: budgets, AnyBudget: true, Replicas: true}.build(t)
	set := ObjectRef{Resource: ReplicaSets, Namespace: w.namespace(0), Name: "set", UID: "set"}
	w.must(w.replicaSet(pods, false))
	there := func() int { return w.state.View().Pods.Len() }
	for before, entries := there(), 1; there() < pods; before, entries = there(), entries+1 {
		pod := w.pod("", "set", 0, 0, worstRules{})
		pod.GenerateName, pod.Labels["app"], pod.Spec.NodeName = "set-", "set", w.nodeName(0)
		w.must(&AdmitPods{Template: PodWire{Object: pod}, Count: maxAdmitPods, Owner: &set})
		if made := there() - before; made < 1 || made > pods/5 {
			t.Fatalf("one command made %d pods in entry %d", made, entries)
		}
	}
	w.must(w.replicaSet(0, false))
	active := func() (refs []PodRef) {
		w.state.View().Pods.Scan("", func(key string, pod *corev1.Pod) bool {
			if !model.Terminating(pod) {
				refs = append(refs, PodRef{key, string(pod.UID)})
			}
			return true
		})
		return refs
	}
	for refs := active(); len(refs) > 0; {
		w.must(&ScaleIn{Owner: set, Victims: refs})
		left := active()
		if ended := len(refs) - len(left); ended < 1 || ended > pods/5 {
			t.Fatalf("one command ended %d pods", ended)
		}
		refs = left
	}
}

// TestNamesThatAreTaken: names that somebody has taken in advance are stepped over once by a command that makes many pods.
func TestNamesThatAreTaken(t *testing.T) {
	const taken, pods = 2000, 100
	w := worstPlan{Nodes: 1, Zones: 1, Kinds: 1, Placed: 1, Namespaces: 1, Replicas: true}.build(t)
	set := ObjectRef{Resource: ReplicaSets, Namespace: w.namespace(0), Name: "set", UID: "set"}
	w.must(w.replicaSet(2*pods, false))
	first := w.state.View().Revision() + 4*taken
	for i := range taken {
		pod := w.pod("", "taken", 0, 0, worstRules{})
		pod.Name, pod.Spec.NodeName = fmt.Sprintf("set-%05s", strconv.FormatInt(first+int64(i), 36)), w.nodeName(0)
		w.must(&AdmitPod{Pod: PodWire{Object: pod}})
	}
	for w.state.View().Revision() < first {
		w.must(w.replicaSet(pods, false))
		w.must(w.replicaSet(2*pods, false))
	}
	before := w.state.View().Pods.Len()
	pod := w.pod("", "set", 0, 0, worstRules{})
	pod.GenerateName, pod.Labels["app"], pod.Spec.NodeName = "set-", "set", w.nodeName(0)
	w.must(&AdmitPods{Template: PodWire{Object: pod}, Count: pods, Owner: &set})
	if made := w.state.View().Pods.Len() - before; made != pods {
		t.Errorf("%d pods were made", made)
	}
}

// TestNomineesCost: what those who are nominated to a node take from it costs as much to find out as there are of them.
func TestNomineesCost(t *testing.T) {
	const nominees = 40
	work := map[int]int64{}
	for _, version := range []int{SinceNomineesCounted - 1, SinceNomineesCounted} {
		w := newTranscriptBy(t, version)
		w.line("node n1 cpu=999 pods=999")
		for i := range nominees {
			w.line(fmt.Sprintf("pod low-%d cpu=1 node=n1 port=%d", i, 1+i))
		}
		for i := range nominees {
			w.line(fmt.Sprintf("pod high-%d cpu=1 priority=10 port=%d", i, 1+i))
			w.line(fmt.Sprintf("plan preempt high-%d n1 low-%d", i, i))
		}
		if n := w.view().usage.Nominees("n1"); n != nominees {
			t.Fatalf("%d are nominated", n)
		}
		grace := int64(0)
		work[version] = w.apply(&DeletePod{Key: "default/low-0", GraceSeconds: &grace})[0].Work
	}
	if more := work[SinceNomineesCounted] - work[SinceNomineesCounted-1]; more < nominees*(nominees-1)*costLooked {
		t.Errorf("%d nominees cost %d units more", nominees, more)
	}
}
