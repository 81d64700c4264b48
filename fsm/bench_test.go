package fsm

import (
	"fmt"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// The benchmarks apply entries of 1,000 commands or decisions to a state of a
// real cluster's size; ns/op is per pod, the publishing of the view and the
// decoding of the entry included.

const batch = 1000

type benchState struct {
	*State
	b     *testing.B
	index uint64
	cpu   int64 // nanoseconds of what is measured

	logBytes int // of the entries
}

func newBenchState(b *testing.B, nodes int) *benchState {
	s := &benchState{State: NewState(), b: b}
	s.apply(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, Create: true})
	var cs []Command
	for i := range nodes {
		cs = append(cs, &PutNode{Create: true, Node: NodeWire{Object: benchNodeObject(i)}})
	}
	s.apply(cs...)
	return s
}

func benchNodeObject(i int) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: benchNode(i), UID: types.UID(benchNode(i)), Labels: map[string]string{"zone": "a"}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": apiresource.MustParse("100"), "memory": apiresource.MustParse("1000Gi"), "pods": apiresource.MustParse("1000")}},
	}
}

func benchNode(i int) string { return fmt.Sprintf("node-%05d", i) }

func (s *benchState) entry(cs ...Command) []byte {
	ps := make([]Proposal, len(cs))
	for i, c := range cs {
		ps[i] = Proposal{User: "admin", Groups: []string{"system:masters"}, Command: c}
	}
	entry, err := EncodeEntry(Header{Version: LogVersion, TimeUnixNano: worldStart.UnixNano() + int64(s.index)*1e6, Server: "s1"}, ps)
	if err != nil {
		s.b.Fatal(err)
	}
	return entry
}

func (s *benchState) apply(cs ...Command) []Result { return s.applyEntry(s.entry(cs...)) }

func (s *benchState) applyEntry(entry []byte) []Result {
	s.index++
	s.logBytes += len(entry)
	rs, err := s.Apply(s.index, 1, entry)
	if err != nil {
		s.b.Fatal(err)
	}
	for _, r := range rs {
		if r.Refused() {
			s.b.Fatal(r.Message)
		}
		if r.Plan != nil && len(r.Plan.Refused) > 0 {
			s.b.Fatal(r.Plan.Refused[0])
		}
	}
	return rs
}

// benchPod is what the API stores for an ordinary pod of a template.
func benchPod(i int) *corev1.Pod {
	yes, grace, timeout := true, int64(30), int64(300)
	name := fmt.Sprintf("web-%07d", i)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("00000000-0000-0000-0000-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(worldStart), Labels: map[string]string{"app": "web", "pod-template-hash": "abcdef"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: "owner", Controller: &yes}},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "bench", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: &metav1.FieldsV1{Raw: []byte(`{"f:metadata":{"f:labels":{".":{},"f:app":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"main\"}":{".":{},"f:image":{},"f:name":{},"f:resources":{}}},"f:restartPolicy":{},"f:terminationGracePeriodSeconds":{}}}`)}}}},
		Spec: corev1.PodSpec{
			SchedulerName: "default-scheduler", RestartPolicy: "Always", DNSPolicy: "ClusterFirst", TerminationGracePeriodSeconds: &grace,
			ServiceAccountName: "default", EnableServiceLinks: &yes, SecurityContext: &corev1.PodSecurityContext{},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &timeout},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: &timeout}},
			Containers: []corev1.Container{{Name: "main", Image: "registry.example.com/web:1", ImagePullPolicy: "IfNotPresent",
				TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: "File",
				Env: []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}},
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					"cpu": apiresource.MustParse("100m"), "memory": apiresource.MustParse("128Mi")}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending, QOSClass: corev1.PodQOSBurstable},
	}
}

func (s *benchState) admit(first, n int, change func(*corev1.Pod, int)) []byte {
	cs := make([]Command, n)
	for i := range cs {
		p := benchPod(first + i)
		if change != nil {
			change(p, first+i)
		}
		cs[i] = &AdmitPod{Pod: PodWire{Object: p}}
	}
	return s.entry(cs...)
}

func (s *benchState) bindAll(first, n, nodes int) []byte {
	plan := &ApplyPlan{Revision: s.View().Revision()}
	for i := range n {
		p := benchPod(first + i)
		plan.Bindings = append(plan.Bindings, BindDecision{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID), Node: benchNode((first + i) % nodes)})
	}
	return s.entry(plan)
}

// measured applies the entry that the benchmark is about.
func (s *benchState) measured(entry []byte) {
	s.b.StartTimer()
	before := cpuNanos()
	s.applyEntry(entry)
	s.cpu += cpuNanos() - before
}

func (s *benchState) report() { s.reportOf(batch) }

// reportOf is report where an entry was about so many pods.
func (s *benchState) reportOf(batch float64) {
	s.b.ReportMetric(float64(s.b.Elapsed().Nanoseconds())/float64(s.b.N)/batch, "ns/pod")
	s.b.ReportMetric(float64(s.cpu)/float64(s.b.N)/batch, "cpu-ns/pod")
}

// cpuNanos is the CPU time of the process: what counts on a busy machine.
func cpuNanos() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkAdmitPod(b *testing.B) {
	b.ReportAllocs()
	s := newBenchState(b, 5000)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s.measured(s.admit(i*batch, batch, nil))
	}
	s.report()
}

func BenchmarkAdmitPods(b *testing.B) {
	b.ReportAllocs()
	s := newBenchState(b, 5000)
	template := benchPod(0)
	template.GenerateName, template.Name = "web-", ""
	entry := s.entry(&AdmitPods{Template: PodWire{Object: template}, Count: batch})
	for b.Loop() {
		s.measured(entry)
	}
	s.report()
}

func BenchmarkApplyPlanBindings(b *testing.B) {
	b.ReportAllocs()
	s := newBenchState(b, 5000)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s.applyEntry(s.admit(i*batch, batch, nil))
		s.measured(s.bindAll(i*batch, batch, 5000))
	}
	s.report()
}

// BenchmarkApplyPlanBindingsWithRules is the same for pods that are spread over
// zones and keep away those of another kind.
func BenchmarkApplyPlanBindingsWithRules(b *testing.B) {
	b.ReportAllocs()
	s := newBenchState(b, 5000)
	web := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s.applyEntry(s.admit(i*batch, batch, func(p *corev1.Pod, _ int) {
			p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{
				{TopologyKey: "zone", MaxSkew: 1, WhenUnsatisfiable: corev1.DoNotSchedule, LabelSelector: web}}
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: "zone", LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "noise"}}}}}}
		}))
		s.measured(s.bindAll(i*batch, batch, 5000))
	}
	s.report()
}

func BenchmarkReportPods(b *testing.B) {
	b.ReportAllocs()
	s := newBenchState(b, 100)
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		s.applyEntry(s.admit(i*batch, batch, nil))
		s.applyEntry(s.bindAll(i*batch, batch, 100))
		byNode := map[string]*ReportPods{}
		var cs []Command
		for j := range batch {
			p, node := benchPod(i*batch+j), benchNode((i*batch+j)%100)
			if byNode[node] == nil {
				byNode[node] = &ReportPods{Node: node}
				cs = append(cs, byNode[node])
			}
			byNode[node].Reports = append(byNode[node].Reports, PodReport{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID), Status: PodStatusWire{Object: runningStatus()}})
		}
		s.measured(s.entry(cs...))
	}
	s.report()
}

func runningStatus() *corev1.PodStatus {
	at := metav1.NewTime(worldStart)
	condition := func(t corev1.PodConditionType) corev1.PodCondition {
		return corev1.PodCondition{Type: t, Status: corev1.ConditionTrue, LastTransitionTime: at}
	}
	return &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at, HostIP: "10.0.0.1", PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}},
		Conditions: []corev1.PodCondition{condition(corev1.PodInitialized), condition(corev1.PodReady), condition(corev1.ContainersReady), condition(corev1.PodReadyToStartContainers)},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "main", Ready: true, Image: "registry.example.com/web:1", ContainerID: "process://1",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at}}}}}
}

// BenchmarkDeletePod: pods leave full nodes while 100,000 others wait.
func BenchmarkDeletePod(b *testing.B) {
	for _, classes := range []int{0, 1, 1000, 100_000} {
		b.Run(fmt.Sprintf("waiting classes %d", classes), func(b *testing.B) {
			b.ReportAllocs()
			const nodes = 1000
			s := newBenchState(b, nodes)
			waiting := 100_000
			if classes == 0 {
				waiting = 0
			}
			// They ask for more than what any pod that leaves sets free.
			for first := 0; first < waiting; first += batch {
				s.applyEntry(s.admit(1_000_000+first, batch, func(p *corev1.Pod, i int) {
					cpu := apiresource.NewMilliQuantity(1000+int64(i%classes), apiresource.DecimalSI)
					p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": *cpu}
				}))
				plan := &ApplyPlan{Revision: s.View().Revision()}
				d := FailDecision{Diagnosis: &Diagnosis{Nodes: nodes, Message: "0/1000 nodes are available: 1000 Insufficient cpu.",
					Reasons: []ReasonCount{{Kind: model.InsufficientResource, Resource: "cpu", Text: "Insufficient cpu", Nodes: nodes}}}}
				for i := range batch {
					p := benchPod(1_000_000 + first + i)
					d.Pods = append(d.Pods, PodRef{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID)})
				}
				plan.Failures = []FailDecision{d}
				s.apply(&ReleaseNominations{})
				s.apply(&ApplyPlan{Revision: s.View().Revision(), Failures: plan.Failures})
			}
			fill := func(p *corev1.Pod, i int) {
				p.Spec.NodeName = benchNode(i % nodes)
				p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("99500m")}
				if i >= nodes {
					p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("400m")}
				}
			}
			s.applyEntry(s.admit(0, nodes, fill))
			b.ResetTimer()
			for i := 1; b.Loop(); i++ {
				b.StopTimer()
				s.applyEntry(s.admit(i*batch, batch, fill))
				cs := make([]Command, batch)
				zero := int64(0)
				for j := range cs {
					cs[j] = &DeletePod{Key: PodKey("default", benchPod(i*batch+j).Name), GraceSeconds: &zero}
				}
				s.measured(s.entry(cs...))
			}
			s.report()
			if q := s.View().QueueLengths(); q.Waiting != waiting {
				b.Fatalf("%d of %d still wait", q.Waiting, waiting)
			}
		})
	}
}

// BenchmarkPreempt: every pod evicts one of a full node.
func BenchmarkPreempt(b *testing.B) {
	b.ReportAllocs()
	// So many are what one plan may cost (MaxPlanWork), and some room.
	const nodes, batch = 5000, 200
	s := newBenchState(b, nodes)
	s.apply(&CreatePriorityClass{Class: PriorityClassWire{Object: words{"high", "value=100"}.class()}})
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		low, high := (2*i)*batch, (2*i+1)*batch
		s.applyEntry(s.admit(low, batch, func(p *corev1.Pod, j int) {
			p.Spec.NodeName = benchNode((j - i*batch) % nodes)
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("100")}
		}))
		s.applyEntry(s.admit(high, batch, func(p *corev1.Pod, _ int) {
			p.Spec.PriorityClassName = "high"
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": apiresource.MustParse("100")}
		}))
		plan := &ApplyPlan{Revision: s.View().Revision()}
		var gone []Command
		zero := int64(0)
		for j := range batch {
			h, l := benchPod(high+j), benchPod(low+j)
			plan.Preemptions = append(plan.Preemptions, PreemptDecision{Key: PodKey("default", h.Name), UID: string(h.UID), Node: benchNode((low + j - i*batch) % nodes),
				Diagnosis:    &Diagnosis{Nodes: nodes, Message: "0/5000 nodes are available: 5000 Insufficient cpu."},
				Victims:      []PlannedVictim{{Key: PodKey("default", l.Name), UID: string(l.UID)}},
				Alternatives: &berthv1.PreemptionAlternatives{NodesConsidered: nodes, Candidates: nodes, RunnerUp: "node-00001", DecidedBy: "fewest victims"}})
			gone = append(gone, &DeletePod{Key: PodKey("default", h.Name)}, &DeletePod{Key: PodKey("default", l.Name), GraceSeconds: &zero})
		}
		s.measured(s.entry(plan))
		b.StopTimer()
		s.apply(gone...)
		b.StartTimer()
	}
	s.reportOf(batch)
}

// BenchmarkRestore: a snapshot of 100,000 bound pods.
func BenchmarkRestore(b *testing.B) {
	s := newBenchState(b, 5000)
	for i := range 100 {
		s.applyEntry(s.admit(i*batch, batch, nil))
		s.applyEntry(s.bindAll(i*batch, batch, 5000))
	}
	b.ResetTimer()
	for b.Loop() {
		restoredFrom(b, s.View())
	}
}

func BenchmarkFork(b *testing.B) {
	s := newBenchState(b, 5000)
	s.applyEntry(s.admit(0, batch, nil))
	b.ResetTimer()
	for b.Loop() {
		s.View().Fork()
	}
}
