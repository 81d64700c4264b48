package fsm

import (
	"reflect"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/queue"
)

// bytesOfRows adds up every row of every table, by itself.
func bytesOfRows(t failer, v *View) (sum int64) {
	t.Helper()
	for _, table := range v.tables() {
		eachRow(table, func(key string, row any) {
			n := 0
			switch r := row.(type) {
			case *corev1.Event, *eventArrival, *berthv1.Preemption, *PlanRecord, *ApplyFailure:
				return // bounded by themselves
			case *corev1.Pod:
				n = podTakes(r, specBytes(&r.Spec))
			case *Object:
				n = structBytes + r.Value.Size()
			case *berthv1.SchedulerConfiguration:
				n = configBytes(r, nil, true)
			case interface{ Size() int }:
				n = structBytes + r.Size()
			case *QueueEntry:
				n = entryTakes(r)
			case *Nomination:
				n = r.Bytes()
			case *queue.NodeMark:
				n = smallBytes
			case *queue.PodMark:
				n = smallBytes + 16*len(r.Labels) + len(strings.Join(r.Labels, ""))
			case *queue.Pending:
				n = smallBytes + len(r.From)
			case *stagedPiece:
				n = smallBytes + len(r.Data)
			case *SigningKey:
				n = smallBytes + len(r.Private) + len(r.Public)
			case *countedRules:
				n = smallBytes + len(r.Pod)
			default:
				t.Fatalf("a row of %s is a %T, and nobody says whether it counts", table.Name(), row)
			}
			sum += int64(64 + len(key) + n)
		})
	}
	return sum
}

func rawOf(t *testing.T, o codec.Object) []byte {
	t.Helper()
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func configMap(name string, bytes int) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Data: map[string]string{"d": strings.Repeat("x", bytes)}}
}

// grown is a world with something of everything that can be replaced.
func grown(t *testing.T) *world {
	w := newWorld(t)
	put := func(name string, finalizers ...string) {
		cm := configMap(name, 5000)
		cm.Finalizers = finalizers
		w.apply(&PutObject{Resource: "configmaps", Raw: rawOf(t, cm), Create: true})
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "leads"}}
	w.apply(&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}}, Create: true},
		&PutNode{Create: true, Node: NodeWire{Object: benchNodeObject(0)}}, &AdmitPod{Pod: PodWire{Object: benchPod(0)}},
		&BindPod{Key: "default/web-0000000", Node: benchNode(0)},
		&CreatePriorityClass{Class: PriorityClassWire{Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 7}}},
		&PutDisruptionBudget{Create: true, Budget: BudgetWire{Object: &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "b"}}}},
		&PutObject{Resource: "leases", Raw: rawOf(t, lease), Create: true})
	put("there")
	put("ending", "example.com/hold")
	w.apply(&DeleteObject{Resource: "configmaps", Namespace: "default", Name: "ending"})
	if cm, ok := w.view().Objects.Get("configmaps/default/ending"); !ok || cm.Value.GetDeletionTimestamp() == nil {
		t.Fatal("nothing is ending")
	}
	return w
}

// TestWhatMakesTheStateGrow: for each command whether it does, and what for.
func TestWhatMakesTheStateGrow(t *testing.T) {
	w := grown(t)
	pod, _ := w.view().Pods.Get("default/web-0000000")
	withPod := func(change func(p *corev1.Pod)) PodWire {
		p := pod.DeepCopy()
		change(p)
		return PodWire{Object: p}
	}
	note := func(o metav1.Object, bytes int) { o.SetAnnotations(map[string]string{"n": strings.Repeat("x", bytes)}) }
	object := func(resource string, create bool, o codec.Object) *PutObject {
		return &PutObject{Resource: resource, Raw: rawOf(t, o), Create: create}
	}
	leaseIn := func(namespace, name, holder string) *coordinationv1.Lease {
		return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder}}
	}
	report := func(s corev1.PodStatus) *ReportPods {
		return &ReportPods{Node: benchNode(0), Reports: []PodReport{{Key: "default/web-0000000", UID: string(pod.UID), Status: PodStatusWire{Object: &s}}}}
	}
	w.apply(&AdmitPod{Pod: PodWire{Object: benchPod(7)}}, &BindPod{Key: "default/web-0000007", Node: benchNode(0)}, &DeletePod{Key: "default/web-0000007", GraceSeconds: ptr.To[int64](30)})
	going, _ := w.view().Pods.Get("default/web-0000007")
	lastWord := func(bytes int, removed bool) *ReportPods {
		return &ReportPods{Node: benchNode(0), Reports: []PodReport{{Key: "default/web-0000007", UID: string(going.UID), Removed: removed,
			Status: PodStatusWire{Object: &corev1.PodStatus{Message: strings.Repeat("x", bytes)}}}}}
	}
	noted := func(bytes int) *corev1.Node { n := benchNodeObject(0); note(n, bytes); return n }
	classOf := func(name string, bytes int) PriorityClassWire {
		return PriorityClassWire{Object: &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: 7, Description: strings.Repeat("x", bytes)}}
	}
	namespaceOf := func(name string, bytes int) NamespaceWire {
		n := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
		note(n, bytes)
		return NamespaceWire{Object: n}
	}
	budgetOf := func(name string, bytes int) BudgetWire {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		note(b, bytes)
		return BudgetWire{Object: b}
	}
	template := benchPod(0)
	template.GenerateName, template.Name = "web-", ""
	seen := map[reflect.Type]bool{}
	for _, tt := range []struct {
		what    string
		command Command
		kind    GrowthKind
		atLeast int64
	}{
		{"a pod", &AdmitPod{Pod: PodWire{Object: benchPod(1)}}, GrowsByPods, 3000},
		{"pods of a workload", &AdmitPods{Template: PodWire{Object: template}, Count: 100}, GrowsByPods, 300_000},
		{"a piece of a snapshot", &StageSnapshot{Data: make([]byte, 5000)}, GrowsByPods, 5000},
		{"an object", object("configmaps", true, configMap("new", 5000)), GrowsByObjects, 5000},
		{"an object that exists", object("configmaps", true, configMap("there", 50_000)), GrowsNot, 0},
		{"one that does not", object("configmaps", false, configMap("new", 5000)), GrowsNot, 0},
		{"of a kind that there is not", &PutObject{Resource: "things", Raw: make([]byte, 5000), Create: true}, GrowsNot, 0},
		{"a smaller object", object("configmaps", false, configMap("there", 4000)), GrowsNot, 0},
		{"a somewhat larger one", object("configmaps", false, configMap("there", 5500)), GrowsSlightly, 490},
		{"a larger one", object("configmaps", false, configMap("there", 9000)), GrowsInPlace, 3990},
		{"a larger one on its way out", object("configmaps", false, configMap("ending", 9000)), GrowsSlightly, 3900},
		{"a lease", object("leases", true, leaseIn("default", "new", "me")), GrowsByObjects, 1000},
		{"the lease of a node", object("leases", true, leaseIn(corev1.NamespaceNodeLease, "new", "me")), GrowsAsNeeded, 1000},
		{"the renewal of a lease", object("leases", false, leaseIn("default", "leads", "somebody")), GrowsAsNeeded, 1},
		{"a namespace", &PutNamespace{Namespace: namespaceOf("new", 0), Create: true, RootCA: strings.Repeat("x", 2000)}, GrowsByObjects, 6000},
		{"a larger namespace", &PutNamespace{Namespace: namespaceOf("default", 4000)}, GrowsInPlace, 3900},
		{"a budget", &PutDisruptionBudget{Budget: budgetOf("new", 0), Create: true}, GrowsByObjects, 1500},
		{"a larger budget", &PutDisruptionBudget{Budget: budgetOf("b", 4000)}, GrowsInPlace, 3900},
		{"a class", &CreatePriorityClass{Class: classOf("new", 0)}, GrowsByObjects, 1500},
		{"a larger class", &UpdatePriorityClass{Class: classOf("high", 4000)}, GrowsInPlace, 3900},
		{"a pod that is noted on", &UpdatePod{Pod: withPod(func(p *corev1.Pod) { note(p, 300) })}, GrowsSlightly, 300},
		{"more than noted on", &UpdatePod{Pod: withPod(func(p *corev1.Pod) { note(p, 3000) })}, GrowsInPlace, 3000},
		{"a pod without notes", &UpdatePod{Pod: withPod(func(p *corev1.Pod) { p.ManagedFields = nil })}, GrowsNot, 0},
		{"a node", &PutNode{Create: true, Node: NodeWire{Object: benchNodeObject(1)}}, GrowsAsNeeded, 1500},
		{"a larger node", &PutNode{Node: NodeWire{Object: noted(4000)}}, GrowsAsNeeded, 3900},
		{"a node that is as it was", &RegisterNode{Node: NodeWire{Object: benchNodeObject(0)}}, GrowsNot, 0},
		{"a worker", &RegisterNode{Node: NodeWire{Object: benchNodeObject(1)}}, GrowsAsNeeded, 1500},
		{"a pod that runs", report(*runningStatus()), GrowsNot, 0}, // it was counted when the pod was made
		{"a pod that says much", report(corev1.PodStatus{Message: strings.Repeat("x", 9000)}), GrowsAsNeeded, 7000},
		{"a pod that is to go", lastWord(9000, false), GrowsNot, 0},
		{"one that says very much", lastWord(2*lastWordBytes, false), GrowsAsNeeded, 30_000},
		{"one that is gone", lastWord(2*lastWordBytes, true), GrowsNot, 0},
		{"an owner's pods", &ClaimPods{Adopt: make([]PodRef, 3)}, GrowsAsNeeded, 300},
		{"a configuration", &ConfigureScheduler{JSON: make([]byte, 500)}, GrowsAsNeeded, 500},
		{"a key", &AddSigningKey{Private: make([]byte, 500)}, GrowsAsNeeded, 500},
		{"an event", &PutEvent{Create: true, Event: EventWire{Object: &corev1.Event{Message: strings.Repeat("x", 9000)}}}, GrowsNot, 0},
		{"a plan", &ApplyPlan{Bindings: make([]BindDecision, 100)}, GrowsNot, 0},
		{"", &DeletePriorityClass{}, GrowsNot, 0}, {"", &DeletePod{}, GrowsNot, 0}, {"", &BindPod{}, GrowsNot, 0}, {"", &EvictPod{}, GrowsNot, 0},
		{"", &DeleteNode{}, GrowsNot, 0}, {"", &SetNodeHealth{}, GrowsNot, 0}, {"", &DeleteNamespace{}, GrowsNot, 0}, {"", &DeleteObject{}, GrowsNot, 0},
		{"", &ReleaseNominations{}, GrowsNot, 0}, {"", &DeleteEvents{}, GrowsNot, 0}, {"", &Checkpoint{}, GrowsNot, 0},
		{"", &DeleteDisruptionBudget{}, GrowsNot, 0}, {"", &ScaleIn{}, GrowsNot, 0}, {"", &SetStatus{}, GrowsNot, 0}, {"", &CollectGarbage{}, GrowsNot, 0},
		{"", &AbandonSnapshot{}, GrowsNot, 0}, {"", &RestoreSnapshot{}, GrowsNot, 0}, {"", &ReleasePod{}, GrowsNot, 0},
	} {
		seen[reflect.TypeOf(tt.command)] = true
		g := GrowthOf(w.view(), tt.command)
		if g.Kind != tt.kind || g.Bytes < tt.atLeast || (g.Bytes == 0) != (tt.kind == GrowsNot) {
			t.Errorf("%T, %s: %+v, want kind %d and %d bytes at least", tt.command, tt.what, g, tt.kind, tt.atLeast)
		}
		if most := MostGrowth(tt.command); most < g.Bytes {
			t.Errorf("%T, %s: it adds %d, and %d at most", tt.command, tt.what, g.Bytes, most)
		}
	}
	for _, c := range commands {
		if kind := reflect.TypeOf(c.New()); !seen[kind] {
			t.Errorf("nobody says whether %s makes the state grow", kind)
		}
	}
}

// TestGrowthIsNotLessThanWhatIsAdded: what is told before a command is applied, and what it added.
func TestGrowthIsNotLessThanWhatIsAdded(t *testing.T) {
	w := grown(t)
	template := benchPod(0)
	template.GenerateName, template.Name = "web-", ""
	try := func(what string, c Command) {
		t.Helper()
		g, before := GrowthOf(w.view(), c), w.view().Bytes()
		if r := w.apply(c)[0]; r.Refused() {
			t.Fatalf("%s: %s", what, r.Message)
		}
		added := w.view().Bytes() - before
		if added > g.Bytes+16 || // a revision of more digits
			g.Bytes > added+added/4+2000 {
			t.Errorf("%s: %d bytes were told, and %d added", what, g.Bytes, added)
		}
	}
	try("pod", &AdmitPod{Pod: PodWire{Object: benchPod(1)}})
	try("pods", &AdmitPods{Template: PodWire{Object: template}, Count: 50})
	try("object", &PutObject{Resource: "configmaps", Raw: rawOf(t, configMap("new", 70_000)), Create: true})
	try("larger object", &PutObject{Resource: "configmaps", Raw: rawOf(t, configMap("there", 70_000))})
	try("namespace", &PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "new"}}}, Create: true, RootCA: strings.Repeat("x", 2000)})
	try("node", &RegisterNode{Node: NodeWire{Object: benchNodeObject(1)}})
	// A pod that was made is bound and runs within what it was counted for.
	before := w.view().Bytes()
	w.apply(&BindPod{Key: "default/web-0000001", Node: benchNode(1)})
	pod, _ := w.view().Pods.Get("default/web-0000001")
	w.apply(&ReportPods{Node: benchNode(1), Reports: []PodReport{{Key: "default/web-0000001", UID: string(pod.UID), Status: PodStatusWire{Object: runningStatus()}}}})
	if after := w.view().Bytes(); after > before {
		t.Errorf("a pod that came to run took %d bytes more than it was counted for", after-before)
	}
}
