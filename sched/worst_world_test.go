package sched

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

// worstPlan says what a big world is made of: all that the API admits, and that can make one step dear. Two equal plans
// make equal worlds.
type worstPlan struct {
	Nodes, Zones, NodeLabels, Taints, Images int
	Each, Kinds                              int // pods on every node, and of how many kinds all of them are
	Crowd, Crowded                           int // more pods on the first nodes, all of different kinds, and on how many
	Levels                                   int // priorities of the placed pods
	Waiting, Shapes                          int
	Nominated                                int // of those who wait
	// what they ask for: 0 little, 1 more than there is, 2 what some pods have to go for, 3 what most of them have to
	Ask                       int
	PlacedRules, WaitingRules worstRules
	Ports                     int
	Budgets                   int
	// budgets demand no label, so that each covers all pods; none may be violated
	AnyBudget, Strict                  bool
	Resources                          int // that pods ask for beyond cpu, memory and pods
	NodeTerms, Tolerations, Containers int
	SearchLimit, OtherNodes            int32
	// placed pods have deadlines, and room is kept for those who wait for long
	Deadlines bool
	Volumes   worstVolumes
}

// worstRules are the terms of each pod about others.
type worstRules struct {
	Anti, Affinity, Spread, Preferred int
	Key                               int // the topology key: 0 host, 1 zone, 2 one of its own for each term
	// 0: the pod's own kind, by a label; 1: a few kinds, without a label; 2: all pods, each term in words of its own
	About int
}

// worstWorld is a harness on a state that is made by a plan.
type worstWorld struct {
	worstPlan
	*harness
	fresh int
}

const (
	worstBatch    = 1000
	worstHeap     = 4 << 30
	worstCPU      = 1000 // cpus of a node
	worstPriority = 1000 // of those who wait, and above that of all placed pods
)

func (p worstPlan) build() *worstWorld {
	w := &worstWorld{worstPlan: p, harness: newHarness()}
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		s.Preemption.SearchLimit, s.Preemption.MaxOtherNodes = &p.SearchLimit, &p.OtherNodes
		if p.Strict {
			s.Preemption.Budgets = berthv1.BudgetsStrict
		}
		if p.Deadlines {
			s.Reservation.AfterSeconds = new(int32(1))
		}
	})
	for i := range p.Levels {
		w.priority(i)
	}
	w.priority(worstPriority)
	w.many(p.Nodes, func(i int) fsm.Command { return &fsm.PutNode{Create: true, Node: fsm.NodeWire{Object: w.nodeOf(i)}} })
	w.many(p.Budgets, func(i int) fsm.Command {
		return &fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: w.budgetOf(i)}}
	})
	w.many(p.placed(), func(i int) fsm.Command { return &fsm.AdmitPod{Pod: fsm.PodWire{Object: w.placedPod(i)}} })
	w.many(p.Nodes, func(i int) fsm.Command { return w.running(i) })
	w.makeVolumes()
	w.many(p.Waiting, func(i int) fsm.Command { return &fsm.AdmitPod{Pod: fsm.PodWire{Object: w.waitingPod(i)}} })
	if p.placed() > 0 {
		w.many(min(p.Nominated, p.Waiting), func(i int) fsm.Command { return w.nominate(i) })
	}
	for range 200 {
		if !w.State.View().WorkPending() {
			break
		}
		w.Must(&fsm.ApplyPlan{})
	}
	return w
}

func (p *worstPlan) placed() int { return p.Nodes*p.Each + p.Crowd*min(p.Crowded, p.Nodes) }

// many applies many commands, some of which may be refused.
func (w *worstWorld) many(n int, command func(i int) fsm.Command) {
	for first := 0; first < n; first += worstBatch {
		var ps []fsm.Proposal
		for i := first; i < min(n, first+worstBatch); i++ {
			ps = append(ps, fsm.Proposal{User: "admin", Groups: []string{"system:masters"}, Command: command(i)})
		}
		w.State.Try(w.NowUnixNano, ps...)
	}
}

func (w *worstWorld) priority(value int) {
	w.Must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("level-%d", value), UID: types.UID(fmt.Sprintf("level-%d", value))},
		Value:      int32(value)}}})
}

func (w *worstWorld) nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func (w *worstWorld) nodeOf(i int) *corev1.Node {
	name := w.nodeName(i)
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
			Labels: map[string]string{hostKey: name, zoneKey: fmt.Sprintf("zone-%d", i%w.Zones)}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": *resource.NewQuantity(worstCPU, resource.DecimalSI), "memory": resource.MustParse("1000Gi"),
			"pods": resource.MustParse("8191")}},
	}
	for l := range w.NodeLabels {
		n.Labels[fmt.Sprintf("key-%d", l)] = fmt.Sprintf("v%d", i%(l+2))
	}
	for l := range w.Taints {
		n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("taint-%d", l), Value: fmt.Sprint(i),
			Effect: corev1.TaintEffectPreferNoSchedule})
	}
	for l := range w.Images {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("image-%d", l)},
			SizeBytes: int64(50+i) << 20})
	}
	for r := range w.Resources {
		n.Status.Allocatable[corev1.ResourceName(fmt.Sprintf("example.com/r%d", r))] = resource.MustParse("1000")
	}
	return n
}

func (w *worstWorld) budgetOf(i int) *policyv1.PodDisruptionBudget {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default",
		Name: fmt.Sprintf("budget-%05d", i), UID: types.UID(fmt.Sprintf("budget-%05d", i))}}
	least := intstr.FromInt32(1)
	b.Spec.MinAvailable = &least
	b.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"kind": fmt.Sprintf("placed-%d",
		i%max(1, w.Kinds))}}
	if w.AnyBudget {
		b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{b.Name}}}}
	}
	return b
}

func (w *worstWorld) pod(name, kind string, rules worstRules) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name), Generation: 1,
			Labels: map[string]string{"kind": kind}},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler"},
	}
	for i := range max(1, w.Containers) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i),
			Image: fmt.Sprintf("image-%d", i)})
	}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{}
	for r := range w.Resources {
		pod.Spec.Containers[0].Resources.Requests[corev1.ResourceName(fmt.Sprintf("example.com/r%d",
			r))] = resource.MustParse("1")
	}
	rules.give(pod, kind)
	return pod
}

func (w *worstWorld) nodeOfPlaced(i int) int {
	if even := w.Nodes * w.Each; i >= even {
		return (i - even) % min(w.Crowded, w.Nodes)
	}
	return i % w.Nodes
}

func (w *worstWorld) placedName(i int) string { return fmt.Sprintf("placed-%07d", i) }

// placedPod asks for its share of a node, more or less, so that all of them fill it.
func (w *worstWorld) placedPod(i int) *corev1.Pod {
	kind := i % max(1, w.Kinds)
	on := w.nodeOfPlaced(i)
	pods := w.Each
	if on < w.Crowded {
		pods += w.Crowd
	}
	if i >= w.Nodes*w.Each {
		kind = i
	}
	pod := w.pod(w.placedName(i), fmt.Sprintf("placed-%d", kind), w.PlacedRules)
	pod.Spec.NodeName = w.nodeName(on)
	if w.Levels > 0 {
		pod.Spec.PriorityClassName = fmt.Sprintf("level-%d", (i/w.Nodes+i)%w.Levels)
	}
	share := int64(worstCPU * 1000 / max(1, pods))
	pod.Spec.Containers[0].Resources.Requests["cpu"] = *resource.NewMilliQuantity(max(1, share-int64(i*7%13)*share/50),
		resource.DecimalSI)
	pod.Spec.Containers[0].Resources.Requests["memory"] = *resource.NewQuantity(int64(1+i*11%17)<<20, resource.BinarySI)
	for l := range w.Ports {
		port := int32(1000 + i/w.Nodes*w.Ports + l)
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports,
			corev1.ContainerPort{HostPort: port, ContainerPort: port})
	}
	if w.Deadlines {
		pod.Spec.ActiveDeadlineSeconds = new(int64(10_000 + i%1000))
	}
	return pod
}

// running has a node say that its pods run.
func (w *worstWorld) running(node int) fsm.Command {
	c := &fsm.ReportPods{Node: w.nodeName(node)}
	w.State.View().PodsOnNode(c.Node, func(pod *corev1.Pod) bool {
		at := metav1.Unix(w.NowUnixNano/second-int64(len(c.Reports)*31%997), 0)
		c.Reports = append(c.Reports, fsm.PodReport{Key: fsm.PodKey(pod.Namespace, pod.Name), UID: string(pod.UID),
			Status: fsm.PodStatusWire{Object: &corev1.PodStatus{
				Phase: corev1.PodRunning, StartTime: &at,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}})
		return true
	})
	return c
}

func (w *worstWorld) waitingName(i int) string { return fmt.Sprintf("waiting-%07d", i) }

func (w *worstWorld) waitingPod(i int) *corev1.Pod {
	shape := i % max(1, w.Shapes)
	pod := w.pod(w.waitingName(i), fmt.Sprintf("waiting-%d", shape), w.WaitingRules)
	pod.Spec.PriorityClassName = fmt.Sprintf("level-%d", worstPriority)
	cpu := int64(1 + shape)
	switch w.Ask {
	case 1:
		cpu += 2 * worstCPU * 1000
	case 2:
		cpu += worstCPU * 1000 / int64(max(1, w.Each)) * 3
	case 3:
		cpu = worstCPU*1000*9/10 + cpu%(worstCPU*50)
	}
	pod.Spec.Containers[0].Resources.Requests["cpu"] = *resource.NewMilliQuantity(cpu, resource.DecimalSI)
	pod.Spec.Containers[0].Resources.Requests["memory"] = resource.MustParse("1Mi")
	w.giveClaims(pod, shape)
	for l := range w.Ports {
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{HostPort: int32(1000 + l),
			ContainerPort: int32(1000 + l)})
	}
	for l := range w.Tolerations {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{Key: fmt.Sprintf("taint-%d", l),
			Operator: corev1.TolerationOpEqual, Value: "none"})
	}
	if w.NodeTerms > 0 {
		terms := &corev1.NodeSelector{}
		for t := range w.NodeTerms {
			var values []string
			for v := range 64 {
				values = append(values, fmt.Sprintf("other-%d-%d", t, v))
			}
			terms.NodeSelectorTerms = append(terms.NodeSelectorTerms,
				corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{
					{Key: fmt.Sprintf("key-%d", t%max(1, w.NodeLabels)), Operator: corev1.NodeSelectorOpIn, Values: values}}})
		}
		terms.NodeSelectorTerms[w.NodeTerms-1].MatchExpressions[0] = corev1.NodeSelectorRequirement{Key: hostKey,
			Operator: corev1.NodeSelectorOpExists}
		if pod.Spec.Affinity == nil {
			pod.Spec.Affinity = &corev1.Affinity{}
		}
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms}
	}
	return pod
}

// nominate gives one who waits a node, and a victim there.
func (w *worstWorld) nominate(i int) fsm.Command {
	at := i % w.placed()
	victim := w.placedName(at)
	name := w.waitingName(i)
	return &fsm.ApplyPlan{Revision: w.State.View().Revision(), Preemptions: []fsm.PreemptDecision{{
		Key: "default/" + name, UID: "uid-" + name, Node: w.nodeName(w.nodeOfPlaced(at)),
		Diagnosis: &fsm.Diagnosis{Nodes: int32(w.Nodes), Message: "no room"}, Alternatives: &berthv1.PreemptionAlternatives{},
		Victims: []fsm.PlannedVictim{{Key: "default/" + victim, UID: "uid-" + victim}}}}}
}

// give adds the terms to a pod.
func (r worstRules) give(pod *corev1.Pod, kind string) {
	key := func(term int) string { return [...]string{hostKey, zoneKey, fmt.Sprintf("key-%d", term)}[r.Key] }
	selector := func(term int) *metav1.LabelSelector {
		switch r.About {
		case 0:
			return &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind},
				MatchExpressions: []metav1.LabelSelectorRequirement{
					{Key: fmt.Sprintf("no-%d", term), Operator: metav1.LabelSelectorOpDoesNotExist}}}
		case 1:
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "kind", Operator: metav1.LabelSelectorOpIn, Values: []string{kind, fmt.Sprintf("placed-%d", term)}}}}
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("not-%s-%d", kind, term)}}}}
	}
	terms := func(n, from int) []corev1.PodAffinityTerm {
		var out []corev1.PodAffinityTerm
		for i := range n {
			out = append(out, corev1.PodAffinityTerm{TopologyKey: key(from + i), LabelSelector: selector(from + i)})
		}
		return out
	}
	if r.Anti+r.Affinity+r.Preferred > 0 {
		pod.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}, PodAffinity: &corev1.PodAffinity{}}
		pod.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = terms(r.Anti, 0)
		pod.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = terms(r.Affinity, r.Anti)
		for i, t := range terms(r.Preferred, r.Anti+r.Affinity) {
			of := &pod.Spec.Affinity.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution
			*of = append(*of, corev1.WeightedPodAffinityTerm{Weight: int32(1 + i), PodAffinityTerm: t})
		}
	}
	for i := range r.Spread {
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			TopologyKey: key(i), MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(i)})
	}
}

// worstEvents are what happens before a step.
func worstEvents() []string {
	return []string{"leader", "nothing", "reload", "relabel", "taint", "images", "budget", "budgets", "config", "gone",
		"relabel-pods", "namespace", "disputes", "volume"}
}

// happen lets something happen.
func (w *worstWorld) happen(event string) {
	changeNode := func(f func(n *corev1.Node)) func(i int) fsm.Command {
		return func(i int) fsm.Command {
			old, _ := w.State.View().Nodes.Get(w.nodeName(i))
			n := old.DeepCopy()
			f(n)
			return &fsm.PutNode{Node: fsm.NodeWire{Object: n}}
		}
	}
	w.fresh++
	zero := int64(0)
	switch event {
	case "leader":
		w.sched = New(w.State)
	case "reload":
		w.sched.broken = true
	case "relabel":
		w.many(w.Nodes, changeNode(func(n *corev1.Node) { n.Labels["more"] = fmt.Sprint(w.fresh) }))
	case "taint":
		w.many(w.Nodes, changeNode(func(n *corev1.Node) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: fmt.Sprintf("new-%d", w.fresh),
				Effect: corev1.TaintEffectPreferNoSchedule})
		}))
	case "images":
		w.many(w.Nodes, changeNode(func(n *corev1.Node) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("more-%d", w.fresh)},
				SizeBytes: 100 << 20})
		}))
	case "budget", "budgets":
		n := 1
		if event == "budgets" {
			n = 100
		}
		w.many(n, func(i int) fsm.Command {
			b := w.budgetOf(1000*w.fresh + i)
			return &fsm.PutDisruptionBudget{Create: true, Budget: fsm.BudgetWire{Object: b}}
		})
	case "config":
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) { s.HardPodAffinityWeight = new(int32(w.fresh % 100)) })
	case "gone":
		w.many(min(1000, w.placed()), func(i int) fsm.Command {
			return &fsm.DeletePod{Key: "default/" + w.placedName(w.fresh%7+i*7%w.placed()), GraceSeconds: &zero}
		})
	case "relabel-pods":
		w.many(min(1000, w.placed()), func(i int) fsm.Command {
			old, ok := w.State.View().Pods.Get("default/" + w.placedName(i))
			if !ok {
				return &fsm.Checkpoint{}
			}
			pod := old.DeepCopy()
			pod.Labels["kind"] = fmt.Sprintf("relabelled-%d-%d", w.fresh, i)
			return &fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}}
		})
	case "namespace":
		old, _ := w.State.View().Namespaces.Get("default")
		ns := old.DeepCopy()
		ns.Labels = map[string]string{"new": fmt.Sprint(w.fresh)}
		w.Must(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: ns}})
	case "volume":
		w.many(1, func(int) fsm.Command { return w.storeNew(fsm.PersistentVolumes, w.volumes().Volume(1_000_000+w.fresh)) })
	case "disputes":
		for i := range min(1000, w.Waiting) {
			if e, ok := w.State.View().Queue.Get("default/" + w.waitingName(i)); ok {
				for range rereadAt {
					w.sched.disputed(newAssumption(e, assumeBind, w.nodeName(i%w.Nodes)), "because")
				}
			}
		}
	}
}

// worstCost is what one step took.
type worstCost struct {
	Time  time.Duration // of the processor, on this thread
	Work  int64         // as it was charged
	Bytes int           // allocated
}

func (c *worstCost) perUnit() float64 { return float64(c.Time.Nanoseconds()) / float64(max(1, c.Work)) }

// measure makes one step. What else the machine does is not counted, and no collection begins by itself.
func (w *worstWorld) measure() (worstCost, *Plan) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc > worstHeap {
		runtime.GC() // before the step: one that begins within makes whoever allocates help
		runtime.ReadMemStats(&m)
	}
	allocated, began := m.TotalAlloc, threadTime()
	plan := w.sched.Step(w.NowUnixNano, 1024)
	took := threadTime() - began
	runtime.ReadMemStats(&m)
	return worstCost{Time: took, Work: w.sched.stepWork - w.sched.meter.left, Bytes: int(m.TotalAlloc - allocated)}, plan
}

// threadTime is the processor's time that this thread used: what else the machine does must not count.
func threadTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		panic(err)
	}
	return time.Duration(at.Nano())
}
