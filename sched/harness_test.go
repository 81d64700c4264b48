package sched

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// harness runs a scheduler on a real state machine, with no log and no server: commands are applied at once, plans when
// the test says so.
type harness struct {
	state *fsm.State
	sched *Scheduler
	now   int64 // unix nanoseconds
	pods  int   // created so far
	log   *memoryLog
}

const second = int64(1_000_000_000)

func newHarness() *harness { return newHarnessOn(nil) }

// newHarnessOn is newHarness with all that is applied in a log, which may be nil.
func newHarnessOn(log *memoryLog) *harness {
	h := &harness{state: newState(), now: 1000 * second, log: log}
	if log != nil {
		h.state = fsm.NewState() // the log's first entry says by which rules it goes
	}
	h.sched = New(h.state)
	h.must(&fsm.PutNamespace{Create: true, Namespace: defaultNamespace()})
	return h
}

// newState is an empty state that goes by the newest rules.
func newState() *fsm.State {
	s := fsm.NewState()
	entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion}, nil)
	if err == nil {
		_, err = s.Apply(1, 1, entry)
	}
	if err != nil {
		panic(err)
	}
	return s
}

func defaultNamespace() fsm.NamespaceWire {
	return fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "ns"}}}
}

// restored is a state as a server has it that comes from a snapshot.
func restored(state *fsm.State) *fsm.State {
	var snapshot bytes.Buffer
	if err := state.View().Write(&snapshot); err != nil {
		panic(err)
	}
	out := fsm.NewState()
	if err := out.Restore(&snapshot); err != nil {
		panic(err)
	}
	return out
}

func (h *harness) apply(c fsm.Command) fsm.Result {
	if h.log != nil {
		return h.log.apply(h.state, h.now, c)
	}
	return h.state.Try(h.now, fsm.Proposal{User: "test", Groups: []string{"system:masters"}, Command: c})[0]
}

func (h *harness) must(c fsm.Command) fsm.Result {
	r := h.apply(c)
	if r.Refused() {
		panic(fmt.Sprintf("%T: %s", c, r.Message))
	}
	return r
}

// node stores a node, or changes one that is there.
func (h *harness) node(n *corev1.Node) {
	n = n.DeepCopy()
	old, known := h.state.View().Nodes.Get(n.Name)
	if known {
		n.UID, n.ResourceVersion, n.CreationTimestamp = old.UID, old.ResourceVersion, old.CreationTimestamp
	} else {
		n.UID = types.UID("node-" + n.Name)
	}
	h.must(&fsm.PutNode{Create: !known, Node: fsm.NodeWire{Object: n}})
}

// pod admits a pod; its priority gets a class of its own.
func (h *harness) pod(p *corev1.Pod) {
	p = p.DeepCopy()
	h.pods++
	if p.Namespace == "" {
		p.Namespace = "default"
	}
	if p.UID == "" {
		p.UID = types.UID("uid-" + p.Name)
	}
	h.namespace(p.Namespace, nil)
	if p.Spec.Priority == nil && p.Spec.PreemptionPolicy != nil {
		p.Spec.Priority = new(int32) // a policy comes from a class
	}
	if p.Spec.Priority != nil {
		p.Spec.PriorityClassName = h.class(*p.Spec.Priority, p.Spec.PreemptionPolicy)
	}
	p.CreationTimestamp = metav1.Unix(h.now/second, 0)
	start, conditions := p.Status.StartTime, p.Status.Conditions
	if start != nil { // it was made when it started: nothing starts before
		p.CreationTimestamp = *start
	}
	h.must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	if start != nil || conditions != nil {
		status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: start, Conditions: conditions}
		h.must(&fsm.ReportPods{Node: p.Spec.NodeName, Reports: []fsm.PodReport{
			{Key: fsm.PodKey(p.Namespace, p.Name), UID: string(p.UID), Status: fsm.PodStatusWire{Object: &status}}}})
	}
}

// report has a running pod say whether it is ready.
func (h *harness) report(key string, ready bool) {
	p, _ := h.state.View().Pods.Get(key)
	status := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: p.Status.StartTime, ContainerStatuses: p.Status.ContainerStatuses}
	status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
	if ready {
		status.Conditions[0].Status = corev1.ConditionTrue
	}
	h.must(&fsm.ReportPods{Node: p.Spec.NodeName,
		Reports: []fsm.PodReport{{Key: key, UID: string(p.UID), Status: fsm.PodStatusWire{Object: &status}}}})
}

// budget stores a disruption budget, in words: its name, app=<label> or all, min=<pods>, from=<priority>, always-allow.
func (h *harness) budget(words []string) {
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: words[0]}}
	b.Spec.Selector = &metav1.LabelSelector{}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "app":
			b.Spec.Selector.MatchLabels = map[string]string{"app": value}
		case "min":
			n := intstr.Parse(value)
			b.Spec.MinAvailable = &n
		case "max":
			n := intstr.Parse(value)
			b.Spec.MaxUnavailable = &n
		case "from":
			b.Annotations = map[string]string{model.ViolatorPriorityAnnotation: value}
		case "always-allow":
			always := policyv1.AlwaysAllow
			b.Spec.UnhealthyPodEvictionPolicy = &always
		}
	}
	old, known := h.state.View().Budgets.Get("default/" + b.Name)
	b.UID = types.UID("budget-" + b.Name)
	if known {
		b.ResourceVersion, b.CreationTimestamp = old.ResourceVersion, old.CreationTimestamp
	}
	h.must(&fsm.PutDisruptionBudget{Create: !known, Budget: fsm.BudgetWire{Object: b}})
}

func (h *harness) class(priority int32, policy *corev1.PreemptionPolicy) string {
	name := "p" + strings.ReplaceAll(strconv.Itoa(int(priority)), "-", "minus")
	if policy != nil && *policy == corev1.PreemptNever {
		name += "-never"
	}
	if system := model.SystemClasses(); priority >= model.SystemCriticalPriority {
		i := slices.IndexFunc(system, func(c *schedulingv1.PriorityClass) bool { return c.Value == priority })
		if _, ok := h.state.View().PriorityClasses.Get(system[i].Name); !ok {
			h.must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: system[i]}})
		}
		return system[i].Name
	}
	if _, ok := h.state.View().PriorityClasses.Get(name); !ok {
		h.must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Value: priority, PreemptionPolicy: policy}}})
	}
	return name
}

// remove takes a pod off its node at once, as a worker's confirmation does.
func (h *harness) remove(key string) {
	zero := int64(0)
	h.must(&fsm.DeletePod{Key: key, GraceSeconds: &zero})
}

// confirm removes every pod that is ending.
func (h *harness) confirm() {
	var ending []string
	h.state.View().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if p.DeletionTimestamp != nil {
			ending = append(ending, key)
		}
		return true
	})
	for _, key := range ending {
		h.remove(key)
	}
}

func (h *harness) configure(change func(*berthv1.SchedulerConfigurationSpec)) {
	c := h.state.View().SchedulerConfig().DeepCopy()
	change(&c.Spec)
	c.ResourceVersion = ""
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	h.must(&fsm.ConfigureScheduler{JSON: b})
}

// run steps until nothing is left to decide, applying every plan, and returns the refusals.
func (h *harness) run() []fsm.PlanRefusal {
	var refused []fsm.PlanRefusal
	for plans := 0; ; plans++ {
		p := h.next(1024)
		if p == nil {
			return refused
		}
		if plans == 1000 {
			panic("the scheduler goes round in circles: " + describe(p.Command) +
				describeRefused(refused[max(0, len(refused)-3):]))
		}
		refused = append(refused, h.commit(p)...)
	}
}

// commit applies a plan and settles it.
func (h *harness) commit(p *Plan) []fsm.PlanRefusal {
	r := h.must(p.Command)
	h.sched.Settle(p)
	return r.Plan.Refused
}

// Builders in the words of the transcripts.

func buildNode(words []string) (*corev1.Node, error) {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: words[0], Labels: map[string]string{}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("110")}}}
	for _, w := range words[1:] {
		key, value, _ := strings.Cut(w, "=")
		switch key {
		case "cordoned":
			n.Spec.Unschedulable = true
		case "label":
			k, v, _ := strings.Cut(value, "=")
			n.Labels[k] = v
		case "image": // image=name@size
			name, size, _ := strings.Cut(value, "@")
			q := resource.MustParse(size)
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{name}, SizeBytes: q.Value()})
		case "taint":
			kv, effect, _ := strings.Cut(value, ":")
			k, v, _ := strings.Cut(kv, "=")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: k, Value: v, Effect: corev1.TaintEffect(effect)})
		default:
			q, err := resource.ParseQuantity(value)
			if err != nil {
				return nil, fmt.Errorf("node %s: %s: %w", n.Name, w, err)
			}
			n.Status.Allocatable[resourceOf(key)] = q
		}
	}
	return n, nil
}

func resourceOf(word string) corev1.ResourceName {
	switch word {
	case "mem":
		return corev1.ResourceMemory
	case "disk":
		return corev1.ResourceEphemeralStorage
	}
	return corev1.ResourceName(word)
}

func buildPod(words []string) (*corev1.Pod, error) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: words[0]}, Spec: corev1.PodSpec{
		SchedulerName: "default-scheduler",
		Containers: []corev1.Container{{Name: "c", Image: "i",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{}}}}}}
	for _, w := range words[1:] {
		if err := addToPod(p, w); err != nil {
			return nil, fmt.Errorf("pod %s: %s: %w", p.Name, w, err)
		}
	}
	return p, nil
}

// addToPod adds what one word of a transcript says of a pod.
func addToPod(p *corev1.Pod, w string) error {
	c := &p.Spec.Containers[0]
	key, value, _ := strings.Cut(w, "=")
	switch key {
	case "priority":
		n, err := strconv.Atoi(value)
		if err != nil {
			return err
		}
		priority := int32(n)
		p.Spec.Priority = &priority
	case "never":
		never := corev1.PreemptNever
		p.Spec.PreemptionPolicy = &never
	case "node":
		p.Spec.NodeName = value
	case "start":
		n, _ := strconv.Atoi(value)
		start := metav1.Unix(int64(n), 0)
		p.Status.StartTime = &start
	case "ready":
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
	case "strict":
		p.Annotations = map[string]string{model.DisruptionPolicyAnnotation: model.StrictBudgets}
	case "deadline":
		n, _ := strconv.ParseInt(value, 10, 64)
		p.Spec.ActiveDeadlineSeconds = &n
	case "grace":
		n, _ := strconv.ParseInt(value, 10, 64)
		p.Spec.TerminationGracePeriodSeconds = &n
	case "port":
		ip, port, found := strings.Cut(value, ":")
		if !found {
			ip, port = "", value
		}
		n, _ := strconv.Atoi(port)
		c.Ports = append(c.Ports, corev1.ContainerPort{HostPort: int32(n), ContainerPort: int32(n), HostIP: ip})
	case "select":
		k, v, _ := strings.Cut(value, "=")
		if p.Spec.NodeSelector == nil {
			p.Spec.NodeSelector = map[string]string{}
		}
		p.Spec.NodeSelector[k] = v
	case "prefer": // prefer=weight:key=value
		weight, kv, _ := strings.Cut(value, ":")
		prefer(p, weight, kv)
	case "tolerate":
		k, effect, _ := strings.Cut(value, ":")
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: k, Operator: corev1.TolerationOpExists,
			Effect: corev1.TaintEffect(effect)})
	case "label":
		k, v, _ := strings.Cut(value, "=")
		if p.Labels == nil {
			p.Labels = map[string]string{}
		}
		p.Labels[k] = v
	case "ns":
		p.Namespace = value
	case "scheduler":
		p.Spec.SchedulerName = value
	case "image":
		if c.Image != "i" {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", len(p.Spec.Containers))})
			c = &p.Spec.Containers[len(p.Spec.Containers)-1]
		}
		c.Image = value
	case "owner":
		yes := true
		p.OwnerReferences = append(p.OwnerReferences, metav1.OwnerReference{
			APIVersion: "apps/v1", Kind: "ReplicaSet", Name: value, UID: types.UID("uid-" + value), Controller: &yes})
	case "spread":
		return addSpread(p, value)
	case "near", "far":
		return addTerm(p, key == "near", value)
	case "gate":
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: value})
	default:
		q, err := resource.ParseQuantity(value)
		if err != nil {
			return err
		}
		c.Resources.Requests[resourceOf(key)] = q
	}
	return nil
}

func prefer(p *corev1.Pod, weight, label string) {
	k, v, _ := strings.Cut(label, "=")
	n, _ := strconv.Atoi(weight)
	if p.Spec.Affinity == nil {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}
	}
	terms := &p.Spec.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution
	*terms = append(*terms, corev1.PreferredSchedulingTerm{Weight: int32(n), Preference: corev1.NodeSelectorTerm{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: k, Operator: corev1.NodeSelectorOpIn,
			Values: []string{v}}}}})
}

func mkNode(spec string) *corev1.Node {
	n, err := buildNode(strings.Fields(spec))
	if err != nil {
		panic(err)
	}
	return n
}

func mkPod(spec string) *corev1.Pod {
	p, err := buildPod(strings.Fields(spec))
	if err != nil {
		panic(err)
	}
	return p
}

// describe writes a plan in the order of its decisions' kinds.
func describe(c *fsm.ApplyPlan) string {
	var b strings.Builder
	for _, d := range c.Reservations {
		fmt.Fprintf(&b, "reserve %s for %s\n", d.Node, d.Key)
	}
	for _, d := range c.Bindings {
		fmt.Fprintf(&b, "bind %s -> %s\n", d.Key, d.Node)
	}
	for _, d := range c.Preemptions {
		var victims []string
		for _, v := range d.Victims {
			name := v.Key
			if v.ViolatesBudget {
				name += " (violates a budget)"
			}
			victims = append(victims, name)
		}
		fmt.Fprintf(&b, "preempt for %s on %s: %s\n", d.Key, d.Node, strings.Join(victims, ", "))
		if !d.Minimal {
			fmt.Fprintf(&b, "  not proven minimal within %d steps\n", d.SearchLimit)
		}
		if a := d.Alternatives; a != nil && a.RunnerUp != "" {
			fmt.Fprintf(&b, "  %d candidates of %d nodes; before %s by %s\n", a.Candidates, a.NodesConsidered, a.RunnerUp,
				a.DecidedBy)
		}
	}
	for _, d := range c.Failures {
		for _, ref := range d.Pods {
			if d.SetAside != nil {
				fmt.Fprintf(&b, "set aside %s: %s\n", ref.Key, d.SetAside.Message)
				continue
			}
			fmt.Fprintf(&b, "unschedulable %s: %s\n", ref.Key, d.Diagnosis.Message)
		}
	}
	return b.String()
}

// explainAll is Explain for whoever waits for as long as it takes.
func explainAll(state *fsm.View, pod *corev1.Pod) []NodeVerdict {
	out, err := Explain(context.Background(), state, pod)
	if err != nil {
		panic(err)
	}
	return out
}

// next makes the next plan, by as many steps as that takes.
func (h *harness) next(most int) *Plan { return nextOf(h.sched, h.now, most) }

func nextOf(s *Scheduler, now int64, most int) *Plan {
	for {
		if p := s.Step(now, most); p != nil || !s.Behind() {
			return p
		}
	}
}

// followAll brings the view up to the newest state, whatever work that is.
func (s *Scheduler) followAll() {
	s.lookAway()
	s.seen.state = s.state.View()
	s.meter.boundless = true
	s.follow()
	s.meter.boundless = false
	s.seen = glimpse{}
}
