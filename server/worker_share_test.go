package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// eventOf is an event as a worker may send it.
func eventOf(t *testing.T, about corev1.ObjectReference, change func(e *corev1.Event)) []byte {
	t.Helper()
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: about.Namespace, Name: "chosen"}, InvolvedObject: about,
		Type: "Normal", Reason: "Pulled", Message: "it is there", LastTimestamp: metav1.Now(),
	}
	if change != nil {
		change(e)
	}
	raw, err := e.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// TestHostileWorker: a worker that lies says nothing of others' pods, overwrites
// no event, and fills nothing.
func TestHostileWorker(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	for _, name := range []string{"mine", "other"} {
		raw, err := workerNode(name).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WorkerHello(t.Context(), &rpc.Hello{Name: name, Node: raw}); err != nil {
			t.Fatal(err)
		}
	}
	c.propose(s, admit("own", "mine"))
	c.propose(s, admit("foreign", "other"))
	pod := func(name string) corev1.ObjectReference {
		p, ok := s.View().Pods.Get("default/" + name)
		if !ok {
			t.Fatalf("no pod %s", name)
		}
		return corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID}
	}
	told := func(b *rpc.StatusBatch) (events []*corev1.Event) {
		t.Helper()
		before := map[string]bool{}
		s.View().Events.Scan("", func(key string, _ *corev1.Event) bool { before[key] = true; return true })
		if err := s.WorkerStatus(t.Context(), "mine", b); err != nil {
			t.Fatal(err)
		}
		s.View().Events.Scan("", func(key string, e *corev1.Event) bool {
			if !before[key] {
				events = append(events, e)
			}
			return true
		})
		return events
	}
	elsewhere := pod("own")
	elsewhere.Namespace = "kube-system"
	renamed := pod("own")
	renamed.UID = "another"
	for name, raw := range map[string][]byte{
		"another node's pod":  eventOf(t, pod("foreign"), nil),
		"another namespace":   eventOf(t, elsewhere, nil),
		"another UID":         eventOf(t, renamed, nil),
		"another node":        eventOf(t, corev1.ObjectReference{Kind: "Node", Name: "other"}, nil),
		"another kind":        eventOf(t, corev1.ObjectReference{Kind: "Secret", Namespace: "default", Name: "x"}, nil),
		"nothing":             nil,
		"no event":            []byte("no event"),
		"too large":           eventOf(t, pod("own"), func(e *corev1.Event) { e.Message = strings.Repeat("x", maxEventBytes) }),
		"too large elsewhere": eventOf(t, pod("own"), func(e *corev1.Event) { e.Annotations = map[string]string{"a": strings.Repeat("x", maxEventBytes)} }),
	} {
		if got := told(&rpc.StatusBatch{Events: [][]byte{raw}}); len(got) != 0 {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
	got := told(&rpc.StatusBatch{Events: [][]byte{eventOf(t, pod("own"), func(e *corev1.Event) {
		e.Namespace, e.Annotations, e.Finalizers = "kube-system", map[string]string{"a": "b"}, []string{"example.com/stay"}
		e.Type, e.Message, e.Source.Component = "Alarm", strings.Repeat("é", maxEventMessage), "default-scheduler"
		e.LastTimestamp, e.Count = metav1.NewTime(time.Now().Add(time.Hour*24*365*74)), 1<<30
	})}})
	if len(got) != 1 {
		t.Fatalf("its own pod: %d events", len(got))
	}
	e := got[0]
	if e.Namespace != "default" || e.Name == "chosen" || e.Annotations != nil || e.Finalizers != nil || e.Type != "Normal" ||
		len(e.Message) > maxEventMessage || e.Source.Component != nodeAgent || e.Count != 1 || time.Until(e.LastTimestamp.Time) > time.Minute {
		t.Errorf("taken as it was said: %+v", e)
	}
	if got := told(&rpc.StatusBatch{Events: [][]byte{eventOf(t, corev1.ObjectReference{Kind: "Node", Name: "mine"}, nil)}}); len(got) != 1 {
		t.Errorf("its own node: %d events", len(got))
	}
	// Of another's pod it says nothing, and the rest of its batch counts.
	raw := readyStatus(t)
	err := s.WorkerStatus(t.Context(), "mine", &rpc.StatusBatch{Pods: []rpc.PodReport{
		{Namespace: "default", Name: "foreign", UID: string(pod("foreign").UID), Status: raw, Removed: true},
		{Namespace: "default", Name: "own", UID: string(pod("own").UID), Status: raw},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if p, _ := s.View().Pods.Get("default/foreign"); len(p.Status.Conditions) != 0 {
		t.Error("it reported another node's pod")
	}
	if p, _ := s.View().Pods.Get("default/own"); len(p.Status.Conditions) == 0 {
		t.Error("the rest of the batch was lost")
	}
	// Ten thousand events are bounded by the worker's share.
	var many [][]byte
	for i := range 2 * workerEvents {
		many = append(many, eventOf(t, pod("own"), func(e *corev1.Event) { e.Reason = "R" + time.Duration(i).String() }))
	}
	if got := told(&rpc.StatusBatch{Events: many}); len(got) > workerEvents+workerEventsPerSecond*60 || len(got) == 0 {
		t.Errorf("%d events were taken", len(got))
	}
}

// TestSharesAreBounded: who has used its share waits, and nobody else does; a new
// stream is no new share.
func TestSharesAreBounded(t *testing.T) {
	s := newShares()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	big := &rpc.StatusBatch{NodeStatus: make([]byte, workerBytesAtOnce)}
	if err := s.waitBytes(t.Context(), "liar", big); err != nil {
		t.Fatal(err)
	}
	if err := s.waitBytes(ended, "liar", big); !errors.Is(err, rpc.ErrBusy) {
		t.Errorf("more than its share: %v", err)
	}
	if err := s.waitBytes(t.Context(), "honest", big); err != nil {
		t.Errorf("another worker: %v", err)
	}
	for range workerHellos {
		if err := s.waitHello(t.Context(), "liar"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.waitHello(ended, "liar"); !errors.Is(err, rpc.ErrBusy) {
		t.Errorf("too many streams: %v", err)
	}
	for i := range 2 * idleShares {
		s.get(time.Duration(i).String())
	}
	if n := len(s.of); n > idleShares+2 {
		t.Errorf("%d shares are kept", n)
	}
	if s.get("liar").whole() {
		t.Error("a share that was used was forgotten")
	}
}

// TestFewOfAWorkersRequestsWait: what a worker has sent lies in memory while it is held up, so few of its requests are; the next one is refused at
// once, and another worker's is not.
func TestFewOfAWorkersRequestsWait(t *testing.T) {
	for name, wait := range map[string]func(s *shares, ctx context.Context, node string) (func(), error){
		"hellos": func(s *shares, ctx context.Context, node string) (func(), error) {
			leave, err := s.begin(node)
			if err != nil {
				return nil, err
			}
			return leave, s.waitHello(ctx, node)
		},
		"tokens": func(s *shares, ctx context.Context, node string) (func(), error) {
			return func() {}, s.waitToken(ctx, node)
		},
		"mirrors": func(s *shares, ctx context.Context, node string) (func(), error) { return s.waitMirror(ctx, node) },
	} {
		s := newShares()
		of := s.get("liar")
		// All of the share is taken, and as many wait as may.
		of.tokens.AllowN(time.Now(), workerTokens)
		for _, n := range []*atomic.Int32{&of.helloing, &of.wanting, &of.mirroring} {
			n.Store(maxWaiting)
		}
		if _, err := wait(s, t.Context(), "liar"); !errors.Is(err, rpc.ErrBusy) {
			t.Errorf("%s: one more than may wait: %v", name, err)
		}
		if n := of.helloing.Load() + of.wanting.Load() + of.mirroring.Load(); n != 3*maxWaiting {
			t.Errorf("%s: one that was refused is counted: %d", name, n)
		}
		leave, err := wait(s, t.Context(), "honest")
		if err != nil {
			t.Fatalf("%s of another worker: %v", name, err)
		}
		leave()
		if is := s.get("honest"); is.helloing.Load()+is.wanting.Load()+is.mirroring.Load() != 0 {
			t.Errorf("%s: what is over counts", name)
		}
	}
}

// TestNothingIsForNothing: the smallest batch costs, and so does each report in it; what says nothing makes no entry of the log.
func TestNothingIsForNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		b    rpc.StatusBatch
		most int // of these at once
	}{
		"nothing":       {rpc.StatusBatch{}, 2048},
		"a byte":        {rpc.StatusBatch{NodeStatus: []byte{1}}, 2048},
		"empty reports": {rpc.StatusBatch{Pods: make([]rpc.PodReport, 4096)}, 32},
		"events":        {rpc.StatusBatch{Events: [][]byte{make([]byte, 256<<10)}}, 32},
		"names":         {rpc.StatusBatch{Pods: []rpc.PodReport{{Name: strings.Repeat("x", 256<<10)}}}, 32},
	} {
		if cost := costOf(&tt.b); workerBytesAtOnce/cost > tt.most {
			t.Errorf("%s: it costs %d bytes", name, cost)
		}
	}
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	if err := s.WorkerStatus(t.Context(), "mine", &rpc.StatusBatch{Pods: make([]rpc.PodReport, maxBatchReports+1)}); !errors.Is(err, rpc.ErrInvalid) {
		t.Errorf("more reports than there may be: %v", err)
	}
	view := s.View()
	for name, r := range map[string]rpc.PodReport{
		"no UID": {Namespace: "default", Name: "p", Removed: true}, "nothing": {Namespace: "default", Name: "p", UID: "uid"},
	} {
		s.reportedPods("mine", []rpc.PodReport{r}, func(fsm.Command) { t.Errorf("%s: it makes a command", name) })
		if s.mayReport(view, "mine", &r) {
			t.Errorf("%s: it is heard", name)
		}
	}
	left := s.shares.get("liar").drops.Tokens()
	for range 10 {
		s.drop("pod", "liar")
	}
	if told := s.shares.get("liar").drops.Tokens(); told >= left {
		t.Errorf("of what it may have told %v was left, and then %v", left, told)
	}
}

// TestHostileNode: what a worker may not say of its node is refused, with the
// field, and its node is as it was; it does not grow by what is said of it.
func TestHostileNode(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	hello := func(change func(n *corev1.Node)) error {
		t.Helper()
		n := workerNode("mine")
		change(n)
		raw, err := n.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return s.WorkerHello(t.Context(), &rpc.Hello{Name: "mine", Node: raw})
	}
	lies := map[string]func(n *corev1.Node){
		"metadata.finalizers":      func(n *corev1.Node) { n.Finalizers = []string{"stays.example/for-ever"} },
		"metadata.ownerReferences": func(n *corev1.Node) { n.OwnerReferences = []metav1.OwnerReference{{Name: "gone", UID: "gone"}} },
		"metadata.deletionTimestamp": func(n *corev1.Node) {
			now := metav1.Unix(1, 0)
			n.DeletionTimestamp = &now
		},
		"metadata.uid":                           func(n *corev1.Node) { n.UID = "chosen" },
		"node-restriction.kubernetes.io/secrets": func(n *corev1.Node) { n.Labels = map[string]string{"node-restriction.kubernetes.io/secrets": "yes"} },
		"spec but for its taints":                func(n *corev1.Node) { n.Spec.PodCIDR = "10.0.0.0/8" },
	}
	tell := func(when string) {
		t.Helper()
		for _, field := range slices.Sorted(maps.Keys(lies)) {
			if err := hello(lies[field]); !errors.Is(err, rpc.ErrInvalid) || !strings.Contains(err.Error(), field) {
				t.Errorf("%s, %s: %v", when, field, err)
			}
		}
	}
	tell("before it is registered")
	if _, there := s.View().Nodes.Get("mine"); there {
		t.Fatal("a node that was refused is there")
	}
	if err := hello(func(*corev1.Node) {}); err != nil {
		t.Fatal(err)
	}
	before, _ := s.View().Nodes.Get("mine")
	tell("afterwards")
	refusals := func() float64 { return testutil.ToFloat64(s.metrics.workerDropped.WithLabelValues("node")) }
	refused := refusals()
	for i := range 10 {
		status := workerNode("mine").Status
		for j := range 30 {
			status.Conditions = append(status.Conditions, corev1.NodeCondition{Type: corev1.NodeConditionType(fmt.Sprintf("Lie%d", 30*i+j)), Status: "True"})
		}
		raw, err := status.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		if err := s.WorkerStatus(t.Context(), "mine", &rpc.StatusBatch{NodeStatus: raw}); err != nil {
			t.Errorf("it would be said again for ever: %v", err)
		}
	}
	after, _ := s.View().Nodes.Get("mine")
	if refusals() == refused || len(after.Status.Conditions) > 64 {
		t.Errorf("a node with %d conditions", len(after.Status.Conditions))
	}
	if after.UID != before.UID || len(after.Finalizers)+len(after.OwnerReferences) > 0 || after.Spec.PodCIDR != "" {
		t.Errorf("it became %+v", after)
	}
}

// TestARefusedNodeStatusHoldsUpNoPod: a status of the node that is refused however often it is said is told and dropped, one for which
// there is no room now is said again, and neither holds up what the same batch says of pods.
func TestARefusedNodeStatusHoldsUpNoPod(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	node, err := workerNode("mine").Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.WorkerHello(t.Context(), &rpc.Hello{Name: "mine", Node: node}); err != nil {
		t.Fatal(err)
	}
	large, err := (&corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: "Ready", Status: "True", Message: strings.Repeat("x", 4000)}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	for name, raw := range map[string][]byte{"garbled": []byte("no status"), "large": large} {
		c.propose(s, admit(name, "mine"))
		pod, _ := s.View().Pods.Get("default/" + name)
		if err := s.WorkerStatus(t.Context(), "mine", &rpc.StatusBatch{NodeStatus: raw, Pods: []rpc.PodReport{
			{Namespace: "default", Name: name, UID: string(pod.UID), Status: readyStatus(t)},
		}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if pod, _ = s.View().Pods.Get("default/" + name); pod.Status.Phase != corev1.PodRunning {
			t.Errorf("%s: the pod is %s", name, pod.Status.Phase)
		}
	}
	if n := testutil.ToFloat64(s.metrics.workerDropped.WithLabelValues("node")); n != 2 {
		t.Errorf("%v statuses of the node were told as refused", n)
	}

	ps := []fsm.Proposal{{Command: &fsm.ReportPods{Reports: []fsm.PodReport{{Key: "default/p", UID: "p"}}}}, {Command: &fsm.RegisterNode{}}}
	for code, want := range map[int32]*rpc.NotTaken{
		http.StatusTooManyRequests: {Node: true}, http.StatusConflict: nil, http.StatusUnprocessableEntity: nil, http.StatusInternalServerError: nil,
	} {
		got := s.notTaken("mine", ps, []fsm.Result{{}, {Code: code}})
		var not *rpc.NotTaken
		if errors.As(got, &not); (not == nil) != (want == nil) || not != nil && (!not.Node || len(not.Pods) > 0) || not == nil && got != nil {
			t.Errorf("%d: %v", code, got)
		}
	}
	if err := s.notTaken("mine", ps, []fsm.Result{{Code: http.StatusTooManyRequests}, {}}); !errors.Is(err, rpc.ErrBusy) {
		t.Errorf("no room for the pods: %v", err)
	}
}

// TestLastWordsAreTakenByThemselves: what is said of pods that are to go is a command of its own, for which a full state has room, and counts
// as taken although there is none for the rest of its batch.
func TestLastWordsAreTakenByThemselves(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	c.propose(s, admit("stays", "mine"))
	c.propose(s, admit("goes", "mine"))
	c.propose(s, &fsm.DeletePod{Key: "default/goes", GraceSeconds: ptr.To[int64](30)})
	var ps []fsm.Proposal
	s.reportedPods("mine", []rpc.PodReport{
		{Namespace: "default", Name: "stays", UID: "uid-stays", Status: readyStatus(t)}, {Namespace: "default", Name: "goes", UID: "uid-goes", Status: readyStatus(t)},
		{Namespace: "default", Name: "new", UID: "uid-new", Status: readyStatus(t)},
	}, func(c fsm.Command) { ps = append(ps, fsm.Proposal{Command: c}) })
	var keys [][]string
	for _, p := range ps {
		var of []string
		for _, r := range p.Command.(*fsm.ReportPods).Reports {
			of = append(of, r.UID)
		}
		keys = append(keys, of)
	}
	if fmt.Sprint(keys) != "[[uid-goes] [uid-stays uid-new]]" {
		t.Fatalf("the commands are of %v", keys)
	}
	var not *rpc.NotTaken
	if err := s.notTaken("mine", ps, []fsm.Result{{}, {Code: http.StatusTooManyRequests}}); !errors.As(err, &not) || !slices.Equal(not.Pods, keys[1]) || not.Node {
		t.Errorf("without room for the others: %v", err)
	}
}

// TestALaggingViewDropsNoReport: a server that does not have what the worker was told by another one, takes what is said of the pod, and
// leaves it to the state in which it is committed.
func TestALaggingViewDropsNoReport(t *testing.T) {
	c := newTestCluster(t)
	s := c.start("s1", func(cfg *Config) { cfg.BootstrapExpect = 1 })
	await(t, s, "the namespaces", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })
	c.propose(s, admit("waits", ""))
	c.propose(s, admit("namesake", "other"))
	view := s.View()
	for _, tt := range []struct {
		what, name, uid string
		taken           bool
	}{
		{"a pod that has no node here yet", "waits", "uid-waits", true},
		{"an older pod of that name on another node", "namesake", "uid-newer", true},
		{"a pod that is not known here yet", "newer", "uid-newer", true},
		{"another node's pod", "namesake", "uid-namesake", false},
	} {
		if s.mayReport(view, "mine", &rpc.PodReport{Namespace: "default", Name: tt.name, UID: tt.uid, Removed: true}) != tt.taken {
			t.Errorf("%s: want it taken: %t", tt.what, tt.taken)
		}
	}
	// What is not the worker's to say is passed over all the same.
	if err := s.WorkerStatus(t.Context(), "mine", &rpc.StatusBatch{Pods: []rpc.PodReport{
		{Namespace: "default", Name: "waits", UID: "uid-waits", Status: readyStatus(t)},
		{Namespace: "default", Name: "namesake", UID: "uid-newer", Status: readyStatus(t), Removed: true},
	}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"waits", "namesake"} {
		if pod, ok := s.View().Pods.Get("default/" + name); !ok || pod.Status.Phase == corev1.PodRunning {
			t.Errorf("%s is what a node said that it is not on", name)
		}
	}
}
