package fsm

import (
	"encoding/json"
	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
)

// worstCase is a command that can be asked for again and again, each time about
// something else or so that it is done once more.
type worstCase struct {
	name string
	make func(w *worstWorld, i int) []Command
}

func single(f func(w *worstWorld, i int) Command) func(w *worstWorld, i int) []Command {
	return func(w *worstWorld, i int) []Command { return []Command{f(w, i)} }
}

func several(n int, f func(w *worstWorld, i int) Command) func(w *worstWorld, i int) []Command {
	return func(w *worstWorld, at int) []Command {
		var cs []Command
		for i := at * n; i < (at+1)*n; i++ {
			cs = append(cs, f(w, i))
		}
		return takenAtMost(cs)
	}
}

// takenAtMost is what of the commands the proposer would take into one entry, if all those before them had been as cheap as can be
// (raftnode's leastCost).
func takenAtMost(cs []Command) []Command {
	work, bytes := int64(0), 0
	for i, c := range cs {
		part, err := EncodeProposal(Proposal{Command: c})
		if err != nil {
			panic(err) // a world makes nothing that cannot be encoded
		}
		work, bytes = work+max(150*int64(Weight(c)), MostWork(c)), bytes+len(part)
		if i > 0 && (work > pacedWork || bytes > pacedBytes) {
			return cs[:i]
		}
	}
	return cs
}

// bindNew makes a pod with rules and binds it.
func bindNew(rules worstRules) func(w *worstWorld, i int) []Command {
	return func(w *worstWorld, i int) []Command {
		w.fresh++
		name := fmt.Sprintf("new-%d", w.fresh)
		pod := w.pod(name, name, 0, 0, rules)
		return []Command{&AdmitPod{Pod: PodWire{Object: pod}}, &ApplyPlan{Revision: w.state.View().Revision() + 2, Bindings: []BindDecision{
			{Key: PodKey(pod.Namespace, name), UID: string(pod.UID), Node: w.nodeName(i)}}}}
	}
}

// worstCases is every kind of command, alone and as many as an entry holds.
func worstCases() []worstCase {
	zero := int64(0)
	deletePlaced := func(w *worstWorld, i int) Command {
		return &DeletePod{Key: w.placedName(i % max(1, w.Placed+w.Crowd)).Key, GraceSeconds: &zero}
	}
	admit := func(w *worstWorld, _ int) Command {
		w.fresh++
		return &AdmitPod{Pod: PodWire{Object: w.pod(fmt.Sprintf("new-%d", w.fresh), fmt.Sprintf("new-%d", w.fresh), w.fresh, 0, w.WaitingRules)}}
	}
	named := func(w *worstWorld, _ int) Command {
		w.fresh++
		pod := w.pod(fmt.Sprintf("new-%d", w.fresh), fmt.Sprintf("new-%d", w.fresh), w.fresh, 0, w.PlacedRules)
		pod.Spec.NodeName = w.nodeName(w.fresh % w.Nodes)
		return &AdmitPod{Pod: PodWire{Object: pod}}
	}
	crowded := func(w *worstWorld, _ int) Command {
		w.fresh++
		pod := w.pod(fmt.Sprintf("new-%d", w.fresh), fmt.Sprintf("new-%d", w.fresh), w.fresh, 0, w.PlacedRules)
		pod.Spec.NodeName = w.nodeName(0)
		w.ports(pod, w.Crowd+w.fresh)
		return &AdmitPod{Pod: PodWire{Object: pod}}
	}
	relabel := func(w *worstWorld, i int) Command {
		pod, ok := w.state.View().Pods.Get(w.placedName(i % max(1, w.Placed+w.Crowd)).Key)
		if !ok {
			return &Checkpoint{}
		}
		next := pod.DeepCopy()
		w.fresh++
		next.Labels["kind"] = fmt.Sprintf("relabelled-%d", w.fresh)
		return &UpdatePod{Pod: PodWire{Object: next}}
	}
	relabelWaiting := func(w *worstWorld, i int) Command {
		pod, ok := w.state.View().Pods.Get(w.waitingName(i % w.Waiting).Key)
		if !ok {
			return &Checkpoint{}
		}
		next := pod.DeepCopy()
		w.fresh++
		next.Labels["more"] = fmt.Sprintf("relabelled-%d", w.fresh)
		return &UpdatePod{Pod: PodWire{Object: next}}
	}
	health := func(ready string) func(w *worstWorld, i int) Command {
		return func(w *worstWorld, i int) Command {
			return &SetNodeHealth{Nodes: []NodeHealth{{Name: w.nodeName(i % w.Nodes), Ready: ready, Reason: "r", LetGo: true}}}
		}
	}
	ready := func(w *worstWorld, node string, ready corev1.ConditionStatus) Command {
		c := &ReportPods{Node: node}
		status := runningStatus()
		for i := range status.Conditions {
			status.Conditions[i].Status = ready
		}
		w.state.View().PodsOnNode(node, func(pod *corev1.Pod) bool {
			c.Reports = append(c.Reports, PodReport{Key: PodKey(pod.Namespace, pod.Name), UID: string(pod.UID), Status: PodStatusWire{Object: status}})
			return len(c.Reports) < worstBatch
		})
		return c
	}
	changeNode := func(f func(n *corev1.Node, i int)) func(w *worstWorld, i int) Command {
		return func(w *worstWorld, i int) Command {
			old, ok := w.state.View().Nodes.Get(w.nodeName(i % w.Nodes))
			if !ok {
				return &Checkpoint{}
			}
			n := old.DeepCopy()
			w.fresh++
			f(n, w.fresh)
			return &PutNode{Node: NodeWire{Object: n}}
		}
	}
	rezone := changeNode(func(n *corev1.Node, i int) { n.Labels["zone"] = fmt.Sprintf("zone-%d", i%3) })
	grow := changeNode(func(n *corev1.Node, i int) {
		n.Status.Allocatable["cpu"] = *apiresource.NewQuantity(int64(1001+i), apiresource.DecimalSI)
	})
	untaint := changeNode(func(n *corev1.Node, _ int) {
		if len(n.Spec.Taints) > 0 {
			n.Spec.Taints = nil
		} else {
			n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: corev1.TaintEffectNoSchedule}}
		}
	})
	newNode := func(w *worstWorld, _ int) Command {
		w.fresh++
		return &PutNode{Create: true, Node: NodeWire{Object: w.node(w.Nodes + w.fresh)}}
	}
	bind := func(w *worstWorld, i int) Command {
		pod := w.waitingName(i % w.Waiting)
		return &BindPod{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)}
	}
	budget := func(w *worstWorld, _ int) Command {
		w.fresh++
		b := w.budget(1_000_000 + w.fresh)
		b.Spec.Selector = &metav1.LabelSelector{}
		return &PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: b}}
	}
	return []worstCase{
		{"AdmitPod", single(admit)},
		{"AdmitPod/full", several(300, admit)},
		{"AdmitPod/named", single(named)},
		{"AdmitPod/named-full", several(300, named)},
		{"AdmitPod/crowd-full", several(300, crowded)},
		{"AdmitPods", single(func(w *worstWorld, _ int) Command {
			w.fresh++
			pod := w.pod("", fmt.Sprintf("many-%d", w.fresh), 0, 0, w.WaitingRules)
			pod.GenerateName = "many-"
			return &AdmitPods{Template: PodWire{Object: pod}, Count: maxAdmitPods}
		})},
		{"AdmitPod/first-rules", bindNew(worstRules{Anti: 1, Key: 1})},
		{"AdmitPod/wide-rule", bindNew(worstRules{Anti: 1, Key: 1, About: 2})},
		{"AdmitPod/wide-rules", bindNew(worstRules{Anti: 64, Key: 1, About: 2})},
		{"AdmitPod/counting", func(w *worstWorld, i int) []Command { // and the entries that go on with it
			if i > 0 && w.state.View().WorkPending() {
				return []Command{&ApplyPlan{}}
			}
			return bindNew(worstRules{Anti: 64, Key: 1, About: 2})(w, i)
		}},
		{"AdmitPods/named", single(func(w *worstWorld, _ int) Command {
			w.fresh++
			pod := w.pod("", fmt.Sprintf("many-%d", w.fresh), 0, 0, w.PlacedRules)
			pod.GenerateName, pod.Spec.NodeName = "many-", w.nodeName(w.fresh%w.Nodes)
			return &AdmitPods{Template: PodWire{Object: pod}, Count: 7000}
		})},
		{"UpdatePod/labels", single(relabel)},
		{"UpdatePod/labels-full", several(300, relabel)},
		{"UpdatePod/waiting", single(relabelWaiting)},
		{"UpdatePod/waiting-full", several(300, relabelWaiting)},
		{"DeletePod", single(deletePlaced)},
		{"ReleasePod/full", several(4000, func(w *worstWorld, i int) Command {
			return &ReleasePod{Key: w.placedName(i % max(1, w.Placed+w.Crowd)).Key, Finalizers: []string{"example.com/hold"}}
		})},
		{"DeletePod/full", several(4000, deletePlaced)},
		{"DeletePod/waiting-full", several(4000, func(w *worstWorld, i int) Command {
			return &DeletePod{Key: w.waitingName(i % w.Waiting).Key, GraceSeconds: &zero}
		})},
		{"EvictPod", single(func(w *worstWorld, i int) Command { return &EvictPod{Key: w.placedName(i % max(1, w.Placed)).Key} })},
		{"EvictPod/full", several(4000, func(w *worstWorld, i int) Command { return &EvictPod{Key: w.placedName(i % max(1, w.Placed)).Key} })},
		{"BindPod", single(bind)},
		{"BindPod/full", several(3000, bind)},
		{"ApplyPlan/bindings", single(func(w *worstWorld, at int) Command {
			plan := &ApplyPlan{Revision: w.state.View().Revision()}
			for i := at * worstBatch; i < (at+1)*worstBatch; i++ {
				pod := w.waitingName(i % w.Waiting)
				plan.Bindings = append(plan.Bindings, BindDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)})
			}
			return plan
		})},
		{"ApplyPlan/one-binding", single(func(w *worstWorld, i int) Command {
			pod := w.waitingName((i*37 + 5) % w.Waiting)
			return &ApplyPlan{Revision: w.state.View().Revision(), Bindings: []BindDecision{{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)}}}
		})},
		{"ApplyPlan/preemptions", single(func(w *worstWorld, at int) Command {
			return w.preempt(at*worstBatch%w.Waiting, min(worstBatch, w.Waiting-at*worstBatch%w.Waiting))
		})},
		{"ApplyPlan/preempt-all", single(func(w *worstWorld, i int) Command { // one pod, for whom all of a node have to go
			pod := w.waitingName(i % max(1, w.Waiting))
			d := PreemptDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(0), Diagnosis: &Diagnosis{Message: "no room"}, Alternatives: &berthv1.PreemptionAlternatives{}}
			w.state.View().PodsOnNode(d.Node, func(p *corev1.Pod) bool {
				d.Victims = append(d.Victims, PlannedVictim{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID)})
				return true
			})
			return &ApplyPlan{Revision: w.state.View().Revision(), Preemptions: []PreemptDecision{d}}
		})},
		{"ApplyPlan/failures", single(func(w *worstWorld, at int) Command {
			return w.fail(at*worstBatch%w.Waiting, min(worstBatch, w.Waiting-at*worstBatch%w.Waiting))
		})},
		{"ApplyPlan/stale-failures", single(func(w *worstWorld, at int) Command {
			c := w.fail(at*worstBatch%w.Waiting, min(worstBatch, w.Waiting-at*worstBatch%w.Waiting)).(*ApplyPlan)
			c.Revision = max(0, c.Revision-20_000)
			return c
		})},
		{"ApplyPlan/undone", single(func(w *worstWorld, at int) Command { // failures that counted on what is refused
			first := at * worstBatch % w.Waiting
			plan := w.fail(first, min(worstBatch/2, w.Waiting-first)).(*ApplyPlan)
			for i := first + worstBatch/2; i < first+worstBatch; i++ {
				pod := w.waitingName(i % w.Waiting)
				pod.UID += "-of-another"
				plan.Bindings = append(plan.Bindings, BindDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)})
			}
			return plan
		})},
		{"ApplyPlan/empty", single(func(*worstWorld, int) Command { return &ApplyPlan{} })},
		{"ReportPods/ready", single(func(w *worstWorld, i int) Command {
			return ready(w, w.nodeName(i/2%w.Nodes), [...]corev1.ConditionStatus{"True", "False"}[i%2])
		})},
		{"ReportPods/nodes", func(w *worstWorld, at int) []Command {
			var cs []Command
			for i := range 100 {
				cs = append(cs, ready(w, w.nodeName((at/2*100+i)%w.Nodes), [...]corev1.ConditionStatus{"True", "False"}[at%2]))
			}
			return cs
		}},
		{"ReportPods/removed", single(func(w *worstWorld, i int) Command {
			c := ready(w, w.nodeName(i%w.Nodes), "False").(*ReportPods)
			for j := range c.Reports {
				c.Reports[j].Status.Object.Phase = corev1.PodFailed
			}
			return c
		})},
		{"RegisterNode", single(func(w *worstWorld, i int) Command {
			n := w.node(i % w.Nodes)
			w.fresh++
			n.Status.Allocatable["cpu"] = *apiresource.NewQuantity(int64(1000+w.fresh), apiresource.DecimalSI)
			return &RegisterNode{Node: NodeWire{Object: n}}
		})},
		{"PutNode/new", single(newNode)},
		{"PutNode/new-full", several(300, newNode)},
		{"PutNode/zone", single(rezone)},
		{"PutNode/zone-full", several(300, rezone)},
		{"PutNode/grow", single(grow)},
		{"PutNode/grow-full", several(300, grow)},
		{"PutNode/taint", single(untaint)},
		{"DeleteNode", single(func(w *worstWorld, i int) Command { return &DeleteNode{Name: w.nodeName(i % w.Nodes)} })},
		{"DeleteNode/full", several(2000, func(w *worstWorld, i int) Command { return &DeleteNode{Name: w.nodeName(i % w.Nodes)} })},
		{"SetNodeHealth/lost", single(health("Unknown"))},
		{"SetNodeHealth/many", single(func(w *worstWorld, at int) Command {
			c := &SetNodeHealth{}
			for i := range min(w.Nodes, 250) { // as many as the controller says at once
				c.Nodes = append(c.Nodes, NodeHealth{Name: w.nodeName(i), Ready: [...]string{"Unknown", "True"}[at%2], Reason: "r", LetGo: true})
			}
			return c
		})},
		{"SetNodeHealth/back", several(100, func(w *worstWorld, i int) Command {
			return health([...]string{"Unknown", "True"}[i/100%2])(w, i%100)
		})},
		{"PutNamespace/labels", single(func(w *worstWorld, i int) Command {
			old, _ := w.state.View().Namespaces.Get(w.namespace(i))
			ns := old.DeepCopy()
			w.fresh++
			ns.Labels["new"] = fmt.Sprint(w.fresh)
			return &PutNamespace{Namespace: NamespaceWire{Object: ns}}
		})},
		{"PutDisruptionBudget", single(budget)},
		{"PutDisruptionBudget/long", single(func(w *worstWorld, i int) Command {
			c := budget(w, i).(*PutDisruptionBudget)
			for e := range 64 {
				r := metav1.LabelSelectorRequirement{Key: "kind", Operator: metav1.LabelSelectorOpNotIn}
				for v := range 256 {
					r.Values = append(r.Values, fmt.Sprintf("placed-%d-%d", e, v))
				}
				c.Budget.Object.Spec.Selector.MatchExpressions = append(c.Budget.Object.Spec.Selector.MatchExpressions, r)
			}
			return c
		})},
		{"DeleteDisruptionBudget", single(func(w *worstWorld, i int) Command {
			b := w.budget(i % max(1, w.Budgets))
			return &DeleteDisruptionBudget{Namespace: b.Namespace, Name: b.Name}
		})},
		{"PutObject/service", single(func(w *worstWorld, i int) Command {
			w.fresh++
			return w.service(0, 1_000_000+w.fresh)
		})},
		{"PutObject/volume", single(func(w *worstWorld, _ int) Command {
			w.fresh++
			return w.storeNew(PersistentVolumes, w.volumes().Volume(1_000_000+w.fresh))
		})},
		{"PutObject/volume-full", several(1000, func(w *worstWorld, _ int) Command {
			w.fresh++
			return w.storeNew(PersistentVolumes, w.volumes().Volume(1_000_000+w.fresh))
		})},
		{"PutObject/replicaset", single(func(w *worstWorld, i int) Command { return w.replicaSet(int32(i), i == 0 && !w.Replicas) })},
		{"ScaleIn", func(w *worstWorld, at int) []Command {
			c := &ScaleIn{Owner: ObjectRef{Resource: "replicasets", Namespace: w.namespace(0), Name: "set", UID: "set"}}
			for i := at * worstBatch; i < (at+1)*worstBatch; i++ {
				c.Victims = append(c.Victims, w.placedName(i%max(1, w.Placed)))
			}
			return []Command{w.replicaSet(0, false), c}
		}},
		{"ConfigureScheduler/fifo", single(func(w *worstWorld, i int) Command {
			return &ConfigureScheduler{JSON: worstConfig(map[string]any{"queue": [...]string{"fifo", "priority"}[i%2]})}
		})},
		{"ConfigureScheduler/aging", single(func(w *worstWorld, i int) Command {
			return &ConfigureScheduler{JSON: worstConfig(map[string]any{"aging": map[string]any{"secondsPerPoint": i + 1}})}
		})},
		{"ConfigureScheduler/profiles", single(func(w *worstWorld, i int) Command {
			return &ConfigureScheduler{JSON: worstConfig(map[string]any{"profiles": []map[string]any{{"schedulerName": [...]string{"other", "default-scheduler"}[i%2]}}})}
		})},
		{"ConfigureScheduler/budgets", single(func(w *worstWorld, i int) Command {
			return &ConfigureScheduler{JSON: worstConfig(map[string]any{"preemption": map[string]any{"budgets": [...]string{"Strict", "BestEffort"}[i%2]}})}
		})},
		{"ConfigureScheduler/events", single(func(w *worstWorld, i int) Command {
			return &ConfigureScheduler{JSON: worstConfig(map[string]any{"eventLimit": [...]int{0, 20000}[i%2]})}
		})},
		{"PutEvent", several(100, func(w *worstWorld, _ int) Command {
			w.fresh++
			return &PutEvent{Create: true, Event: EventWire{Object: &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(0), Name: fmt.Sprintf("event-%d", w.fresh)}}}}
		})},
		{"DeleteEvents", single(func(w *worstWorld, _ int) Command {
			return &DeleteEvents{BeforeUnixNano: worldStart.UnixNano() + int64(w.index+1_000_000)*1e6, Limit: 4096}
		})},
		{"ReleaseNominations", single(func(w *worstWorld, at int) Command {
			c := &ReleaseNominations{}
			w.index += 1_000_000 // the deadlines have passed
			for i := at * worstBatch; i < (at+1)*worstBatch; i++ {
				c.Pods = append(c.Pods, w.waitingName(i%w.Waiting))
			}
			return c
		})},
		{"CollectGarbage", single(func(w *worstWorld, at int) Command {
			c := &CollectGarbage{}
			for i := at * 500; i < (at+1)*500; i++ {
				pod := w.placedName(i % max(1, w.Placed))
				ns, name := pod.Key[:len(pod.Key)-len(nameOfKey(pod.Key))-1], nameOfKey(pod.Key)
				c.Objects = append(c.Objects, ObjectRef{Resource: "pods", Namespace: ns, Name: name, UID: pod.UID})
			}
			return c
		})},
		{"CollectGarbage/owner", func(w *worstWorld, i int) []Command { // whose dependents are the placed pods
			return []Command{
				&DeleteObject{Resource: ReplicaSets, Namespace: w.namespace(0), Name: "set", Propagation: Propagation(metav1.DeletePropagationForeground)},
				&CollectGarbage{Objects: []ObjectRef{{Resource: ReplicaSets, Namespace: w.namespace(0), Name: "set", UID: "set"}}},
			}
		}},
		{"ClaimPods", single(func(w *worstWorld, at int) Command {
			c := &ClaimPods{Owner: ObjectRef{Resource: ReplicaSets, Namespace: w.namespace(0), Name: "set", UID: "set"}}
			for i := at * worstBatch; i < (at+1)*worstBatch; i++ {
				c.Adopt = append(c.Adopt, w.waitingName(i%w.Waiting))
			}
			return c
		})},
		{"DeletePriorityClass", single(func(w *worstWorld, i int) Command {
			return &DeletePriorityClass{Name: fmt.Sprintf("level-%d", i)}
		})},
		{"DeleteNamespace", single(func(w *worstWorld, i int) Command { return &DeleteNamespace{Name: w.namespace(i)} })},
		{"UpdatePriorityClass", single(func(w *worstWorld, i int) Command {
			old, ok := w.state.View().PriorityClasses.Get("level-0")
			if !ok {
				return &Checkpoint{}
			}
			class := old.DeepCopy()
			w.fresh++
			class.Description = fmt.Sprint(w.fresh)
			return &UpdatePriorityClass{Class: PriorityClassWire{Object: class}}
		})},
		{"Checkpoint", single(func(*worstWorld, int) Command { return &Checkpoint{} })},
		{"StageSnapshot", single(func(w *worstWorld, i int) Command {
			return &StageSnapshot{ID: fmt.Sprint("restore-", i), Data: slices.Repeat([]byte{byte(i)}, 1<<20)}
		})},
		{"AddSigningKey", single(func(_ *worstWorld, i int) Command {
			return &AddSigningKey{ID: fmt.Sprint("key-", i), Private: []byte("private"), Public: []byte("public"), Revoke: i%MaxSigningKeys == 0}
		})},
	}
}

func worstConfig(spec map[string]any) []byte {
	raw, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "cluster"}, "spec": spec})
	if err != nil {
		panic(err)
	}
	return raw
}

func (w *worstWorld) replicaSet(replicas int32, create bool) Command {
	set := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(0), Name: "set", UID: types.UID("set")},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "set"}}},
	}
	raw, err := set.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	return &PutObject{Resource: "replicasets", Raw: raw, Create: create}
}
