package fsm

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/model"
)

// Pods, nodes, reports and plans from the words of a directive.

func amountsOf(a words, otherwise bool) corev1.ResourceList {
	l := corev1.ResourceList{}
	set := func(name corev1.ResourceName, key, standard string) {
		if v, ok := a.get(key); ok {
			l[name] = apiresource.MustParse(v)
		} else if otherwise && standard != "" {
			l[name] = apiresource.MustParse(standard)
		}
	}
	set(corev1.ResourceCPU, "cpu", "4")
	set(corev1.ResourceMemory, "mem", "8Gi")
	set(corev1.ResourcePods, "pods", "110")
	set("example.com/gpu", "gpu", "")
	return l
}

// fillNode: cpu= mem= pods= labels=k:v,… taints=key:value:effect,… cordon
// uncordon machine=UUID images=COUNT
func (a words) fillNode(n *corev1.Node) {
	fresh := n.Status.Allocatable == nil
	if fresh {
		amounts := amountsOf(a, true)
		n.Status.Allocatable, n.Status.Capacity = amounts, amounts
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	} else {
		n.Status.Allocatable = mergeAmounts(n.Status.Allocatable, amountsOf(a, false))
	}
	if _, ok := a.get("labels"); ok {
		n.Labels = pairs(a.list("labels"))
	}
	if _, ok := a.get("taints"); ok {
		n.Spec.Taints = nil
		for _, t := range a.list("taints") {
			p := strings.Split(t, ":")
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: p[0], Value: p[1], Effect: corev1.TaintEffect(p[2])})
		}
	}
	if a.has("kubelet") {
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	}
	for _, c := range a.list("conditions") { // conditions=TYPE:STATUS,…
		t, status, _ := strings.Cut(c, ":")
		setNodeCondition(n, corev1.NodeCondition{Type: corev1.NodeConditionType(t), Status: corev1.ConditionStatus(status), Reason: "Said"})
	}
	if why, ok := a.get("unready"); ok { // as its worker says
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse,
			Reason: model.ReasonWorkerUnready, Message: why}}
	}
	if k := a.number("images"); k != nil {
		n.Status.Images = nil
		for i := range *k {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{"image:" + strconv.Itoa(int(i))}, SizeBytes: 1})
		}
	}
	if v, ok := a.get("capacity"); ok { // capacity=RESOURCE:AMOUNT, or RESOURCE: for none
		name, amount, _ := strings.Cut(v, ":")
		n.Status.Capacity = mergeAmounts(n.Status.Capacity, nil)
		delete(n.Status.Capacity, corev1.ResourceName(name))
		if amount != "" {
			n.Status.Capacity[corev1.ResourceName(name)] = apiresource.MustParse(amount)
		}
	}
	n.Spec.Unschedulable = a.has("cordon") || n.Spec.Unschedulable && !a.has("uncordon")
	n.Status.NodeInfo.SystemUUID = a.or("machine", n.Status.NodeInfo.SystemUUID)
}

func (s *transcript) putNode(a words, _ string) []Command {
	n := &corev1.Node{ObjectMeta: s.meta(a, "")}
	old, known := s.view().Nodes.Get(a.name())
	if known && !a.has("anew") {
		n = old.DeepCopy()
	}
	a.fillNode(n)
	s.endIn(a, &n.ObjectMeta)
	_, update := a.get("at")
	return one(&PutNode{Node: NodeWire{Object: n}, Create: !(known || update) || a.has("anew"), Revision: s.revision(a)})
}

// pod: ns= priority= class= cpu= mem= node= labels=k:v,… selector=k:v,…
// tolerate=key:effect,… gates=a,b grace= port= never (with priority=) init-cpu=
// set-priority= set-policy= finalizers= uid= owner=[KIND:]NAME annotations=k:v,… scheduler=
// runtime= overhead= limits=RESOURCE:AMOUNT,… deadline= and the words of fillTerms
func (s *transcript) pod(a words) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: s.meta(a, "default"), Spec: corev1.PodSpec{
		SchedulerName: a.or("scheduler", "default-scheduler"), NodeName: a.or("node", ""), ServiceAccountName: a.or("sa", ""), PriorityClassName: a.or("class", ""),
		NodeSelector: pairs(a.list("selector")), TerminationGracePeriodSeconds: a.number("grace"),
		Containers: []corev1.Container{{Name: "main", Image: "image", Resources: corev1.ResourceRequirements{Requests: amountsOf(a, false)}}},
	}}
	if v, ok := a.get("priority"); ok {
		p.Spec.PriorityClassName = s.classFor(v, a.has("never"))
	}
	if n := a.number("set-priority"); n != nil {
		v := int32(*n)
		p.Spec.Priority = &v
	}
	if v, ok := a.get("set-policy"); ok {
		policy := corev1.PreemptionPolicy(v)
		p.Spec.PreemptionPolicy = &policy
	}
	for _, t := range a.list("tolerate") {
		key, effect, _ := strings.Cut(t, ":")
		p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)})
	}
	for _, g := range a.list("gates") {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	if v, ok := a.get("runtime"); ok {
		p.Spec.RuntimeClassName = &v
	}
	if v, ok := a.get("overhead"); ok {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(v)}
	}
	a.fillTerms(p)
	for _, l := range a.list("limits") { // limits=RESOURCE:AMOUNT,…
		name, amount, _ := strings.Cut(l, ":")
		r := &p.Spec.Containers[0].Resources
		if r.Limits == nil {
			r.Limits = corev1.ResourceList{}
		}
		r.Limits[corev1.ResourceName(name)] = apiresource.MustParse(amount)
	}
	p.Spec.ActiveDeadlineSeconds = a.number("deadline")
	a.fillClaims(p)
	if port := a.number("port"); port != nil {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: int32(*port)}}
	}
	return p
}

// classFor is a class of a priority, made when it is first needed.
func (s *transcript) classFor(priority string, never bool) string {
	name := "p" + strings.ReplaceAll(priority, "-", "minus")
	policy := corev1.PreemptLowerPriority
	if never {
		name, policy = name+"-never", corev1.PreemptNever
	}
	if _, ok := s.view().PriorityClasses.Get(name); !ok {
		v, err := strconv.Atoi(priority)
		if err != nil {
			s.t.Fatal(err)
		}
		s.apply(&CreatePriorityClass{Class: PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Value: int32(v), PreemptionPolicy: &policy}}})
		s.shown = s.view().Revision()
	}
	return name
}

// updatePod: resize labels= cpu= ungate phase= unfinalize end (a deletion that the API
// has begun) set-priority= node= uid= at=
func (s *transcript) updatePod(a words, _ string) []Command {
	old, ok := s.view().Pods.Get(a.key())
	if !ok {
		return one(&UpdatePod{Pod: PodWire{Object: s.pod(a)}, Revision: s.revision(a)})
	}
	p := old.DeepCopy()
	p.UID = types.UID(a.or("uid", string(p.UID)))
	if _, ok := a.get("labels"); ok {
		p.Labels = pairs(a.list("labels"))
	}
	if _, ok := a.get("cpu"); ok {
		p.Spec.Containers[0].Resources.Requests = amountsOf(a, false)
	}
	if n := a.number("deadline"); n != nil {
		p.Spec.ActiveDeadlineSeconds = n
	}
	if _, ok := a.get("annotations"); ok {
		p.Annotations = pairs(a.list("annotations"))
	}
	if a.has("ungate") {
		p.Spec.SchedulingGates = nil
	}
	a.namedClaims(p)
	if v, ok := a.get("phase"); ok {
		p.Status.Phase = corev1.PodPhase(v)
	}
	if v, ok := a.get("node"); ok {
		p.Spec.NodeName = v
	}
	if n := a.number("set-priority"); n != nil {
		v := int32(*n)
		p.Spec.Priority = &v
	}
	if _, ok := a.get("owners"); ok {
		p.OwnerReferences = nil
		for _, owner := range a.list("owners") {
			p.OwnerReferences = append(p.OwnerReferences, ownerReference(owner))
		}
	}
	if a.has("resize") {
		p.Generation++
	}
	s.endIn(a, &p.ObjectMeta)
	return one(&UpdatePod{Pod: PodWire{Object: p}, Revision: s.revision(a), Resize: a.has("resize")})
}

// endIn takes an object's finalizers (unfinalize), and begins its end as the API
// does (end).
func (s *transcript) endIn(a words, m *metav1.ObjectMeta) {
	if a.has("unfinalize") {
		m.Finalizers = nil
	}
	if a.has("end") {
		at, grace := metav1.NewTime(s.now), int64(0)
		m.DeletionTimestamp, m.DeletionGracePeriodSeconds = &at, &grace
	}
}

// report NODE, then a pod a line: NAME [PHASE] [ready|unready] [removed] [uid=] [has=CPU,SET-ASIDE] [deferred|infeasible]
func (s *transcript) report(a words, input string) []Command {
	c := &ReportPods{Node: a.name()}
	lines := strings.Split(strings.TrimSpace(input), "\n")
	if input == "" { // on one line: report NODE POD …
		lines = []string{strings.Join(a[1:], " ")}
	}
	for _, l := range lines {
		f := words(strings.Fields(l))
		ref := s.ref(f.name())
		r := PodReport{Key: ref.Key, UID: f.or("uid", ref.UID), Removed: f.has("removed"), Seen: s.views[f.or("seen", "")]}
		for _, phase := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
			if f.has(string(phase)) {
				start := metav1.NewTime(s.now)
				r.Status.Object = &corev1.PodStatus{Phase: phase, StartTime: &start}
			}
		}
		s.reportResize(f, &r)
		for word, status := range map[string]corev1.ConditionStatus{"ready": corev1.ConditionTrue, "unready": corev1.ConditionFalse} {
			if f.has(word) {
				r.Status.Object.Conditions = append(r.Status.Object.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: status})
			}
		}
		if f.has("preempted") { // by the node, for a critical pod
			r.Status.Object.Reason = "Preempting"
			r.Status.Object.Conditions = append(r.Status.Object.Conditions, corev1.PodCondition{Type: corev1.DisruptionTarget,
				Status: corev1.ConditionTrue, Reason: corev1.PodReasonTerminationByKubelet})
		}
		c.Reports = append(c.Reports, r)
	}
	return one(c)
}

// reportResize says what a pod's container has and what is set aside for it: what was said of it before, unless has= says
// something else.
func (s *transcript) reportResize(f words, r *PodReport) {
	status := r.Status.Object
	pod, ok := s.view().Pods.Get(r.Key)
	if status == nil || !ok {
		return
	}
	status.ContainerStatuses = pod.Status.DeepCopy().ContainerStatuses
	if has := f.list("has"); len(has) == 2 {
		with := func(cpu string) corev1.ResourceList {
			list := pod.Spec.Containers[0].Resources.Requests.DeepCopy()
			if list == nil {
				list = corev1.ResourceList{}
			}
			list[corev1.ResourceCPU] = apiresource.MustParse(cpu)
			return list
		}
		status.ContainerStatuses = []corev1.ContainerStatus{{Name: pod.Spec.Containers[0].Name, AllocatedResources: with(has[1]),
			Resources: &corev1.ResourceRequirements{Requests: with(has[0])}}}
	}
	for word, reason := range map[string]string{"deferred": corev1.PodReasonDeferred, "infeasible": corev1.PodReasonInfeasible} {
		if f.has(word) {
			status.Conditions = append(status.Conditions, corev1.PodCondition{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
				Reason: reason, ObservedGeneration: pod.Generation})
		}
	}
}

// plan [at=REVISION], then a decision a line:
//
//	bind POD NODE
//	reserve POD NODE
//	preempt POD NODE VICTIM,… [violating]
//	fail POD,… [cpu|mem|taint|affinity|capacity|port:COUNT …] [error] [clear]
func (s *transcript) plan(a words, input string) []Command {
	c := &ApplyPlan{Revision: s.view().Revision()}
	if _, ok := a.get("at"); ok {
		c.Revision = s.revision(a)
	}
	if input == "" { // on one line: plan preempt POD NODE VICTIM
		input = strings.Join(a, " ")
	}
	for _, l := range strings.Split(strings.TrimSpace(input), "\n") {
		f := words(strings.Fields(l))
		switch f[0] {
		case "reserve":
			r := s.ref(f[1])
			c.Reservations = append(c.Reservations, ReserveDecision{Key: r.Key, UID: r.UID, Node: f[2]})
		case "bind":
			r := s.ref(f[1])
			c.Bindings = append(c.Bindings, BindDecision{Key: r.Key, UID: f.or("uid", r.UID), Node: f[2]})
		case "preempt":
			r := s.ref(f[1])
			d := PreemptDecision{Key: r.Key, UID: r.UID, Node: f[2], Diagnosis: s.diagnosis(words{"cpu:1"})}
			for _, v := range strings.Split(f[3], ",") {
				r := s.ref(v)
				d.Victims = append(d.Victims, PlannedVictim{Key: r.Key, UID: f.or("victim-uid", r.UID), ViolatesBudget: f.has("violating")})
			}
			c.Preemptions = append(c.Preemptions, d)
		case "fail":
			d := FailDecision{Error: f.has("error"), ClearNomination: f.has("clear"), Diagnosis: s.diagnosis(f[2:])}
			if f.has("undiagnosed") {
				d.Diagnosis = nil
			}
			if what, ok := f.get("panic"); ok {
				d.Diagnosis, d.SetAside = nil, &SetAside{Kind: "Panic", Message: what}
			}
			for _, name := range strings.Split(f[1], ",") {
				d.Pods = append(d.Pods, s.ref(name))
			}
			c.Failures = append(c.Failures, d)
		default:
			s.t.Fatalf("plan: %q", l)
		}
	}
	return one(c)
}

// diagnosis is one as the scheduler words it, from words like cpu:2.
func (s *transcript) diagnosis(a words) *Diagnosis {
	kinds := map[string]model.Reason{
		"cpu":      {Kind: model.InsufficientResource, Resource: "cpu"},
		"mem":      {Kind: model.InsufficientResource, Resource: "memory"},
		"capacity": {Kind: model.ExceedsCapacity, Resource: "cpu"},
		"taint":    {Kind: model.Taint},
		"affinity": {Kind: model.NodeAffinity},
		"cordon":   {Kind: model.NodeUnschedulable},
		"port":     {Kind: model.Ports},
		"spread":   {Kind: model.TopologySpread},
		"missing":  {Kind: model.TopologyMissing},
		"near":     {Kind: model.PodAffinity},
		"apart":    {Kind: model.PodAntiAffinity},
		"kept-off": {Kind: model.ExistingAntiAffinity},
		"devices":  {Kind: model.DevicesAwaited, Resource: "waiting for devices"},
		"drivers":  {Kind: model.DeviceDrivers},
	}
	d := &Diagnosis{Nodes: int32(s.view().Nodes.Len())}
	var texts []string
	for _, w := range a {
		name, count, _ := strings.Cut(w, ":")
		r, ok := kinds[name]
		if !ok {
			continue
		}
		n, _ := strconv.Atoi(count)
		d.Reasons = append(d.Reasons, ReasonCount{Kind: r.Kind, Resource: r.Resource, Text: r.Text(), Nodes: int32(n)})
		texts = append(texts, count+" "+r.Text())
	}
	if a.has("error") {
		d.Message = "something broke"
		return d
	}
	d.Message = "0/" + strconv.Itoa(int(d.Nodes)) + " nodes are available: " + strings.Join(texts, ", ") + "."
	return d
}

// runtimeClass: overhead=CPU selector=k:v,… tolerate=key:effect,…
func (s *transcript) runtimeClass(a words) *nodev1.RuntimeClass {
	c := &nodev1.RuntimeClass{ObjectMeta: s.meta(a, ""), Handler: "handler"}
	if v, ok := a.get("overhead"); ok {
		c.Overhead = &nodev1.Overhead{PodFixed: corev1.ResourceList{corev1.ResourceCPU: apiresource.MustParse(v)}}
	}
	if len(a.list("selector")) > 0 || len(a.list("tolerate")) > 0 {
		like := s.pod(a)
		c.Scheduling = &nodev1.Scheduling{NodeSelector: like.Spec.NodeSelector, Tolerations: like.Spec.Tolerations}
	}
	return c
}
