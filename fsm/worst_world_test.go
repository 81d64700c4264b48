package fsm

import (
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// worstPlan says what a big world is made of: all that the API admits, and that
// can make one command dear. Two equal plans make equal worlds.
type worstPlan struct {
	Nodes, Zones, NodeLabels int
	Placed, Kinds            int // pods on nodes, and of how many kinds they are
	Crowd                    int // more pods on the first node, all of different kinds
	Ports                    int // host ports of each of these, on an address of its own
	Waiting, Shapes          int
	Namespaces, Labels       int // of pods, beside the one that tells their kind
	PlacedRules              worstRules
	WaitingRules             worstRules
	Budgets                  int
	AnyBudget                bool // budgets demand no label: each covers all pods
	Levels                   int  // priorities
	Nominated                int  // waiting pods that are nominated
	Ask                      int  // what waiting pods ask for: 0 little, 1 more than there is, 2 something in between
	Where                    int  // conditions of the node affinity of waiting pods, all of which every node meets
	Services                 int  // of every namespace, and hard default constraints by them
	Replicas                 bool // placed pods are of one ReplicaSet
	Recorded                 bool `json:",omitempty"` // its log is kept
	Volumes                  worstVolumes
}

// worstRules are the terms of each pod about others.
type worstRules struct {
	Anti, Affinity, Spread int
	Key                    int  // the topology key: 0 host, 1 zone, 2 one of its own for each term
	About                  int  // 0: the pod's own kind, by a label; 1: a few kinds, without a label; 2: all pods, each term in words of its own
	Everywhere             bool // in all namespaces
}

// worstWorld is a state that is made by a plan.
type worstWorld struct {
	worstPlan
	t     failer
	state *State
	index uint64
	fresh int // names used so far
	log   [][]byte
}

const worstBatch = 1000

func (p worstPlan) build(t failer) *worstWorld {
	w := &worstWorld{worstPlan: p, t: t, state: NewState()}
	for i := range p.Namespaces {
		w.must(&PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: w.namespace(i), Labels: map[string]string{"team": w.namespace(i)}}}}})
		for s := range p.Services {
			w.must(w.service(i, s))
		}
	}
	w.configure("")
	for i := range p.Levels {
		w.must(&CreatePriorityClass{Class: PriorityClassWire{Object: words{fmt.Sprintf("level-%d", i), fmt.Sprintf("value=%d", i)}.class()}})
	}
	w.many(p.Nodes, func(i int) Command { return &PutNode{Create: true, Node: NodeWire{Object: w.node(i)}} })
	if p.Replicas {
		w.must(w.replicaSet(int32(p.Placed), true))
	}
	w.many(p.Placed, func(i int) Command { return &AdmitPod{Pod: PodWire{Object: w.placedPod(i, i%p.Nodes)}} })
	w.many(p.Crowd, func(i int) Command {
		pod := w.placedPod(p.Placed+i, 0)
		pod.Labels["crowd"] = fmt.Sprint(i)
		w.ports(pod, i)
		return &AdmitPod{Pod: PodWire{Object: pod}}
	})
	for i := range p.Budgets {
		w.must(&PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: w.budget(i)}})
	}
	w.makeVolumes()
	w.many(p.Waiting, func(i int) Command { return &AdmitPod{Pod: PodWire{Object: w.waitingPod(i)}} })
	for first := 0; first < p.Waiting; first += worstBatch {
		w.may(w.fail(first, min(worstBatch, p.Waiting-first)))
	}
	for first := 0; first < min(p.Nominated, p.Waiting); first += worstBatch {
		w.may(w.preempt(first, min(worstBatch, p.Nominated-first, p.Waiting-first)))
	}
	for range 200 {
		if !w.state.View().WorkPending() {
			break
		}
		w.must(&ApplyPlan{})
	}
	return w
}

func (w *worstWorld) configure(spec string) []byte {
	if spec == "" && w.Services > 0 {
		spec = `"podTopologySpread":{"defaultingType":"List","defaultConstraints":[{"maxSkew":1,"topologyKey":"zone","whenUnsatisfiable":"DoNotSchedule"}]}`
	}
	raw := []byte(`{"metadata":{"name":"cluster"},"spec":{` + spec + `}}`)
	w.must(&ConfigureScheduler{JSON: raw})
	return raw
}

func (w *worstWorld) namespace(i int) string { return fmt.Sprintf("ns-%d", i%w.Namespaces) }

func (w *worstWorld) nodeName(i int) string { return fmt.Sprintf("node-%05d", i) }

func (w *worstWorld) node(i int) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: w.nodeName(i), UID: types.UID(w.nodeName(i)), Labels: map[string]string{
			"host": w.nodeName(i), "zone": fmt.Sprintf("zone-%d", i%w.Zones)}},
		Status: corev1.NodeStatus{
			NodeInfo:   corev1.NodeSystemInfo{SystemUUID: w.nodeName(i)},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "WorkerReady"}},
			Allocatable: corev1.ResourceList{
				"cpu": apiresource.MustParse("1000"), "memory": apiresource.MustParse("1000Gi"), "pods": apiresource.MustParse("8191")}},
	}
	for l := range w.NodeLabels {
		n.Labels[fmt.Sprintf("key-%d", l)] = fmt.Sprintf("v%d", i%(l+2))
	}
	if w.Volumes.Free > 0 {
		n.Labels[corev1.LabelHostname], n.Labels[corev1.LabelTopologyZone] = n.Labels["host"], n.Labels["zone"]
	}
	return n
}

func (w *worstWorld) pod(name, kind string, namespace, level int, rules worstRules) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: w.namespace(namespace), Name: name, UID: types.UID("uid-" + name), Generation: 1,
			Labels: map[string]string{"kind": kind}},
		Spec: corev1.PodSpec{SchedulerName: "default-scheduler", Containers: []corev1.Container{{Name: "main", Image: "image",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": apiresource.MustParse("100m")}}}}},
	}
	for l := range w.Labels {
		pod.Labels[fmt.Sprintf("label-%d", l)] = fmt.Sprintf("v%d", l)
	}
	if w.Levels > 0 {
		pod.Spec.PriorityClassName = fmt.Sprintf("level-%d", level%w.Levels)
	}
	rules.give(pod, kind)
	return pod
}

// give adds the terms to a pod.
func (r worstRules) give(pod *corev1.Pod, kind string) {
	key := func(term int) string {
		return [...]string{"host", "zone", fmt.Sprintf("key-%d", term)}[r.Key]
	}
	selector := func(term int) *metav1.LabelSelector {
		switch r.About {
		case 0:
			return &metav1.LabelSelector{MatchLabels: map[string]string{"kind": kind}, MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: fmt.Sprintf("no-%d", term), Operator: metav1.LabelSelectorOpDoesNotExist}}}
		case 1:
			return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "kind", Operator: metav1.LabelSelectorOpIn, Values: []string{kind, fmt.Sprintf("other-%d", term)}}}}
		}
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{fmt.Sprintf("not-%s-%d", kind, term)}}}}
	}
	terms := func(n, from int) []corev1.PodAffinityTerm {
		var out []corev1.PodAffinityTerm
		for i := range n {
			t := corev1.PodAffinityTerm{TopologyKey: key(from + i), LabelSelector: selector(from + i)}
			if r.Everywhere {
				t.NamespaceSelector = &metav1.LabelSelector{}
			}
			out = append(out, t)
		}
		return out
	}
	if r.Anti+r.Affinity > 0 {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if r.Anti > 0 {
		pod.Spec.Affinity.PodAntiAffinity = &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(r.Anti, 0)}
	}
	if r.Affinity > 0 {
		pod.Spec.Affinity.PodAffinity = &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: terms(r.Affinity, r.Anti)}
	}
	for i := range r.Spread {
		pod.Spec.TopologySpreadConstraints = append(pod.Spec.TopologySpreadConstraints, corev1.TopologySpreadConstraint{
			TopologyKey: key(i), MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: selector(i)})
	}
}

func (w *worstWorld) placedPod(i, node int) *corev1.Pod {
	pod := w.pod(fmt.Sprintf("placed-%07d", i), fmt.Sprintf("placed-%d", i%w.Kinds), i%w.Kinds, i, w.PlacedRules)
	pod.Spec.NodeName = w.nodeName(node)
	if w.Nominated > 0 { // the first pod of a node fills it, and has to go for anybody else
		amount := "0"
		if i < w.Nodes {
			amount = "1000"
		}
		pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse(amount)}
	}
	if w.Replicas {
		yes := true
		pod.Namespace = w.namespace(0)
		pod.Labels["app"] = "set"
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", UID: "set", Controller: &yes}}
	}
	return pod
}

// ports gives a pod host ports, the i-th of a node others than the rest.
func (w *worstWorld) ports(pod *corev1.Pod, i int) {
	for p := range w.Ports {
		port := int32(1000 + p)
		pod.Spec.Containers[0].Ports = append(pod.Spec.Containers[0].Ports, corev1.ContainerPort{
			ContainerPort: port, HostPort: port, HostIP: fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255), Protocol: corev1.ProtocolTCP})
	}
}

func (w *worstWorld) waitingPod(i int) *corev1.Pod {
	shape := i % w.Shapes
	pod := w.pod(fmt.Sprintf("waiting-%07d", i), fmt.Sprintf("waiting-%d", shape), shape, w.Levels-1-shape%max(1, w.Levels), w.WaitingRules)
	cpu := int64(1 + shape)
	switch w.Ask {
	case 1:
		cpu += 2_000_000
	case 2:
		cpu += 1_000_000 - int64(w.Shapes/2)
	}
	pod.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *apiresource.NewMilliQuantity(cpu, apiresource.DecimalSI)}
	w.giveClaims(pod, shape)
	if w.Where > 0 {
		if pod.Spec.Affinity == nil {
			pod.Spec.Affinity = &corev1.Affinity{}
		}
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: w.where()}}
	}
	return pod
}

// where are terms with so many conditions, of which the last one's are met, and of the
// others all but one.
func (w *worstWorld) where() (terms []corev1.NodeSelectorTerm) {
	for left := w.Where; left > 0; {
		n := min(left, 63)
		var t corev1.NodeSelectorTerm
		for i := range n {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: fmt.Sprintf("nowhere-%d", i), Operator: corev1.NodeSelectorOpDoesNotExist})
		}
		if left -= n; left > 0 {
			t.MatchExpressions = append(t.MatchExpressions, corev1.NodeSelectorRequirement{Key: "nowhere", Operator: corev1.NodeSelectorOpExists})
		}
		terms = append(terms, t)
	}
	return terms
}

func (w *worstWorld) budget(i int) *policyv1.PodDisruptionBudget {
	half := intstr.FromString("50%")
	b := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(i), Name: fmt.Sprintf("budget-%05d", i), UID: types.UID(fmt.Sprintf("budget-%05d", i))},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &half, Selector: &metav1.LabelSelector{
			MatchLabels: map[string]string{"kind": fmt.Sprintf("placed-%d", i%w.Kinds)}}},
	}
	if w.AnyBudget {
		b.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{
			Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{b.Name}}}}
	}
	return b
}

func (w *worstWorld) service(namespace, i int) Command {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace(namespace), Name: fmt.Sprintf("service-%d", i), UID: types.UID(fmt.Sprintf("service-%d-%d", namespace, i))},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"kind": fmt.Sprintf("waiting-%d", i)}}}
	raw, err := s.Marshal()
	if err != nil {
		w.t.Fatal(err)
	}
	return &PutObject{Resource: "services", Raw: raw, Create: true}
}

// copy is a world of its own that begins as a copy. A fork has to count anew
// what the state had counted, and that is not what its commands cost.
func (w *worstWorld) copy() *worstWorld {
	own := *w
	own.state = w.state.View().Fork()
	own.state.live.topology()
	own.state.live.countAgain()
	own.may(&ApplyPlan{})
	return &own
}

// entry is what a command is in the log.
func (w *worstWorld) entry(cs ...Command) []byte {
	ps := make([]Proposal, len(cs))
	for i, c := range cs {
		ps[i] = Proposal{User: "admin", Groups: []string{"system:masters"}, Command: c}
	}
	entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: worldStart.UnixNano() + int64(w.index)*1e6, Server: "s1"}, ps)
	if err != nil {
		w.t.Fatal(err)
	}
	return entry
}

// may applies commands that may be refused.
func (w *worstWorld) may(cs ...Command) []Result {
	w.index++
	entry := w.entry(cs...)
	if w.Recorded {
		w.log = append(w.log, entry)
	}
	rs, err := w.state.Apply(w.index, 1, entry)
	if err != nil {
		w.t.Fatal(err)
	}
	return rs
}

func (w *worstWorld) must(cs ...Command) {
	for i, r := range w.may(cs...) {
		if r.Refused() {
			w.t.Fatalf("%T: %s", cs[i], r.Message)
		}
	}
}

func (w *worstWorld) many(n int, command func(i int) Command) {
	for first := 0; first < n; first += worstBatch {
		var cs []Command
		for i := first; i < min(n, first+worstBatch); i++ {
			cs = append(cs, command(i))
		}
		w.must(cs...)
	}
}

// fail parks waiting pods, each for a reason of its own.
func (w *worstWorld) fail(first, n int) Command {
	plan := &ApplyPlan{Revision: w.state.View().Revision()}
	for i := first; i < first+n; i++ {
		pod := w.waitingName(i)
		plan.Failures = append(plan.Failures, FailDecision{Pods: []PodRef{pod}, Diagnosis: &Diagnosis{
			Nodes: int32(w.Nodes), Message: fmt.Sprintf("no room for shape %d", i%w.Shapes),
			Reasons: []ReasonCount{{Kind: model.InsufficientResource, Resource: "cpu", Text: "Insufficient cpu", Nodes: int32(w.Nodes), ShortBy: 1}}}})
	}
	return plan
}

func (w *worstWorld) waitingName(i int) PodRef {
	name := fmt.Sprintf("waiting-%07d", i)
	return PodRef{Key: PodKey(w.namespace(i%w.Shapes), name), UID: "uid-" + name}
}

func (w *worstWorld) placedName(i int) PodRef {
	name := fmt.Sprintf("placed-%07d", i)
	namespace := w.namespace(i % w.Kinds)
	if w.Replicas {
		namespace = w.namespace(0)
	}
	return PodRef{Key: PodKey(namespace, name), UID: "uid-" + name}
}

// preempt nominates waiting pods, each for one victim.
func (w *worstWorld) preempt(first, n int) Command {
	plan := &ApplyPlan{Revision: w.state.View().Revision()}
	for i := first; i < first+n; i++ {
		at := i % max(1, min(w.Placed, w.Nodes))
		pod, victim := w.waitingName(i), w.placedName(at)
		plan.Preemptions = append(plan.Preemptions, PreemptDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(at),
			Diagnosis: &Diagnosis{Nodes: int32(w.Nodes), Message: "no room"}, Victims: []PlannedVictim{{Key: victim.Key, UID: victim.UID}},
			Alternatives: &berthv1.PreemptionAlternatives{}})
	}
	return plan
}

// worstCost is what one entry took.
type worstCost struct {
	Time    time.Duration // of the processor, on this thread
	Bytes   int           // allocated
	Kept    int           // of them, that are held afterwards; only where it is looked for
	Log     int           // of the entry
	Changes int           // revisions
	Refused int           // commands, or decisions
	Work    int64         // as the state counts it, see live.work
	Paced   time.Duration // Time, or what of it the proposer would put into one entry
}

// by is what the search maximises.
func (c worstCost) by() int64 {
	switch *worstByFlag {
	case "memory":
		return int64(c.Bytes)
	case "kept":
		return int64(c.Kept)
	case "log":
		return int64(c.Log)
	}
	return int64(c.Paced)
}

// pacedWork is what the proposer puts into one entry (raftnode's entryWork).
const pacedWork = 250_000

// pacedBytes is how long an entry may be that holds more than one command (raftnode's MaxEntryBytes).
const pacedBytes = 256 << 10

// measure applies one entry. What else the machine does is not counted, and no
// collection begins by itself.
func (w *worstWorld) measure(cs []Command) worstCost {
	entry := w.entry(cs...)
	before := w.state.View().Revision()
	w.index++
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	held := heldBytes()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	allocated, began := m.TotalAlloc, threadTime()
	rs, err := w.state.Apply(w.index, 1, entry)
	took := threadTime() - began
	if err != nil {
		w.t.Fatal(err)
	}
	runtime.ReadMemStats(&m)
	out := worstCost{Time: took, Bytes: int(m.TotalAlloc - allocated), Log: len(entry), Changes: int(w.state.View().Revision() - before)}
	for _, r := range rs {
		out.Work += r.Work
		if r.Refused() {
			out.Refused++
		}
		if r.Plan != nil {
			out.Refused += len(r.Plan.Refused)
		}
	}
	if *worstByFlag == "kept" {
		clear(cs)
		out.Kept = max(0, heldBytes()-held)
	}
	out.Paced = out.Time
	if len(cs) > 1 && out.Work > pacedWork {
		out.Paced = time.Duration(float64(out.Time) * pacedWork / float64(out.Work))
	}
	return out
}

// heldBytes is what is held of the heap, where it is asked for.
func heldBytes() int {
	if *worstByFlag != "kept" {
		return 0
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// threadTime is the processor's time that this thread used.
func threadTime() time.Duration {
	var at unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &at); err != nil {
		panic(err)
	}
	return time.Duration(at.Nano())
}
