package apiserver

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	restclient "k8s.io/client-go/rest"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

func TestQueueEntries(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := context.Background()
	client := s.client(t)
	if _, err := client.SchedulingV1().PriorityClasses().Create(ctx, class("high", 100, false), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	queue := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceQueueEntries)).Namespace("default")
	w, err := queue.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"low", "high"} {
		p := testPod(name)
		if name == "high" {
			p.Spec.PriorityClassName = "high"
		}
		if _, err := client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"low", "high"} {
		if e := next(t, w); e.Type != watch.Added || metaOf(e.Object).GetName() != name {
			t.Fatalf("got %v", e)
		}
	}
	list, err := queue.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	for _, item := range list.Items {
		var e berthv1.QueueEntry
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(item.Object, &e); err != nil {
			t.Fatal(err)
		}
		want := map[string]int32{"high": 1, "low": 2}[e.Name]
		if e.Status.Position != want || e.Status.State != berthv1.QueueActive || e.Status.PodUID == "" {
			t.Errorf("got %v", e)
		}
	}
	// QU2: the one with the higher priority is before the one that came first.
	table := tableOf(t, client.CoreV1().RESTClient(), "/apis/berth.dev/v1/namespaces/default/queueentries")
	var header []string
	for _, c := range table.ColumnDefinitions {
		header = append(header, c.Name)
	}
	if got := strings.Join(header, " "); got != "Name State Position Priority Attempts Reason Age Nominated Node Blocked" {
		t.Errorf("columns are %s", got)
	}
	if got := fmt.Sprint(table.Rows[0].Cells[:4]); got != "[high Active 1 100]" {
		t.Errorf("the first row is %s", got)
	}
	_, err = queue.Create(ctx, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "berth.dev/v1", "kind": "QueueEntry", "metadata": map[string]any{"name": "x"},
	}}, metav1.CreateOptions{})
	wantStatus(t, err, 405, "does not allow this method")
}

func tableOf(t testing.TB, client restclient.Interface, path string) *metav1.Table {
	t.Helper()
	table := new(metav1.Table)
	err := client.Get().AbsPath(path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(context.Background()).Into(table)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestSchedulerConfiguration(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	ctx := context.Background()
	configs := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceSchedulerConfigurations))
	got, err := configs.Get(ctx, "cluster", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(body string, options metav1.PatchOptions) error {
		_, err := configs.Patch(ctx, "cluster", types.MergePatchType, []byte(body), options)
		return err
	}
	if err := patch(`{"spec":{"queue":"fifo"}}`, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Fatal(err)
	}
	if q := d.View().SchedulerConfig().Spec.Queue; q != berthv1.QueueByPriority {
		t.Fatalf("a dry run made it %s", q)
	}
	if err := patch(`{"spec":{"queue":"fifo"}}`, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if q := d.View().SchedulerConfig().Spec.Queue; q != berthv1.QueueFIFO {
		t.Fatalf("the queue is %s", q)
	}
	wantStatus(t, patch(`{"spec":{"queue":"lifo"}}`, metav1.PatchOptions{}), 422, `spec.queue: Unsupported value: "lifo"`)
	wantStatus(t, patch(`{"spec":{"nodeGraceSeconds":0}}`, metav1.PatchOptions{}), 422, "must be between 1 and 86400")
	wantStatus(t, patch(`{"spec":{"podTopologySpread":{"defaultingType":"List","defaultConstraints":[{"maxSkew":0,"topologyKey":"zone","whenUnsatisfiable":"ScheduleAnyway"}]}}}`,
		metav1.PatchOptions{}), 422, "spec.podTopologySpread.defaultConstraints[0].maxSkew: Invalid value: 0")
	// A pod of another scheduler waits from when there is a profile for it.
	foreign := testPod("foreign")
	foreign.Spec.SchedulerName = "packed"
	if _, err := s.client(t).CoreV1().Pods("default").Create(ctx, foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, queued := d.View().Queue.Get("default/foreign"); queued {
		t.Fatal("a pod of another scheduler is queued")
	}
	if err := patch(`{"spec":{"profiles":[{"schedulerName":"default-scheduler"},{"schedulerName":"packed","plugins":{"weights":{"ImageLocality":0}}}]}}`, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, queued := d.View().Queue.Get("default/foreign"); !queued {
		t.Fatal("a pod whose scheduler has a profile now is not queued")
	}
	_, err = configs.Update(ctx, got, metav1.UpdateOptions{})
	wantStatus(t, err, 409, "the object has been modified")
	wantStatus(t, configs.Delete(ctx, "cluster", metav1.DeleteOptions{}), 405, "does not allow this method")
	// PC11: with preemption switched off no pod may name a class.
	if err := patch(`{"spec":{"preemption":{"enabled":false}}}`, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	p := testPod("p")
	p.Spec.PriorityClassName = "system-node-critical"
	_, err = s.client(t).CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	wantStatus(t, err, 403, "priority is switched off")
}

func TestPlans(t *testing.T) {
	s := share(t)
	ask := func(pods ...*corev1.Pod) (*berthv1.Plan, error) {
		spec := berthv1.PlanSpec{}
		for _, p := range pods {
			spec.Pods = append(spec.Pods, *p)
		}
		return askPlan(t, s, spec)
	}
	good, bad := testPod("good"), testPod("bad")
	bad.Spec.PriorityClassName = "none"
	answer, err := ask(good, bad)
	if err != nil {
		t.Fatal(err)
	}
	if p := answer.Status.Placements; len(p) != 2 || p[0].Node != "n1" || p[0].Pod.Namespace != "default" || !strings.Contains(p[1].Message, "no PriorityClass with name none was found") {
		t.Fatalf("got %v", p)
	}
	_, err = ask()
	wantStatus(t, err, 400, "there are none")
	invalid := testPod("invalid")
	invalid.Spec.Containers = nil
	_, err = ask(invalid)
	wantStatus(t, err, 422, "spec.containers: Required value")
	if _, ok := s.double.View().Pods.Get("default/good"); ok {
		t.Fatal("a plan has made a pod")
	}
}

func TestPlansOfAScale(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	k := newKubectl(t, s, ns)
	k.want(replicaSet, []string{"apply"}, "created")
	scale := func(replicas int32) berthv1.PlanSpec {
		return berthv1.PlanSpec{Scale: &berthv1.PlanScale{Resource: "replicasets", Namespace: ns, Name: "web", Replicas: replicas}}
	}
	answer, err := askPlan(t, s, scale(2))
	if err != nil {
		t.Fatal(err)
	}
	if p := answer.Status.Placements; len(p) != 2 || p[0].Pod.Namespace != ns || p[0].Node != "n1" {
		t.Errorf("two more would go to %+v", p)
	}
	rs, _ := s.double.View().ReplicaSet(ns, "web")
	yes := true
	for _, name := range []string{"web-a", "web-b", "web-c"} {
		pod := testPod(name)
		pod.Namespace, pod.UID = ns, types.UID(name)
		pod.Labels = map[string]string{"app": "web"}
		pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web", UID: rs.UID, Controller: &yes}}
		s.double.must(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
	}
	if answer, err = askPlan(t, s, scale(1)); err != nil {
		t.Fatal(err)
	}
	if r := answer.Status.Removals; len(r) != 2 || len(answer.Status.Placements) != 0 || r[0].Pod.Name != "web-a" || r[0].Rule != "first" {
		t.Errorf("two fewer: %+v", answer.Status)
	}
	if now, _ := s.double.View().ReplicaSet(ns, "web"); now != rs {
		t.Error("a plan has changed the ReplicaSet")
	}
	set := berthv1.PlanSpec{Objects: []runtime.RawExtension{{Raw: fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"web","namespace":%q},
		"spec":{"replicas":4,"selector":{"matchLabels":{"app":"web"}},"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"busybox"}]}}}}`, ns)}}}
	if answer, err = askPlan(t, s, set); err != nil || len(answer.Status.Placements) != 1 {
		t.Errorf("one more by its manifest: %+v, %v", answer, err)
	}
	set.Objects[0].Raw = bytes.ReplaceAll(set.Objects[0].Raw, []byte(`"app":"web"`), []byte(`"app":"other"`))
	_, err = askPlan(t, s, set)
	wantStatus(t, err, 422, "spec.selector: Invalid value")
	other := scale(1)
	other.Scale.Name = "none"
	_, err = askPlan(t, s, other)
	wantStatus(t, err, 404, `replicasets.apps "none" not found`)
	other.Scale.Resource = "deployments"
	_, err = askPlan(t, s, other)
	wantStatus(t, err, 400, "can not be planned")
	_, err = askPlan(t, s, scale(-1))
	wantStatus(t, err, 400, "there can not be -1 pods")
}

func askPlan(t *testing.T, s *testServer, spec berthv1.PlanSpec) (*berthv1.Plan, error) {
	t.Helper()
	return askPlanBy(t, dynamicClient(t, s), spec)
}

func askPlanBy(t *testing.T, client dynamic.Interface, spec berthv1.PlanSpec) (*berthv1.Plan, error) {
	t.Helper()
	plans := client.Resource(berthv1.GroupVersion.WithResource(berthv1.ResourcePlans))
	plan := &berthv1.Plan{TypeMeta: metav1.TypeMeta{APIVersion: "berth.dev/v1", Kind: "Plan"}, Spec: spec}
	in, err := runtime.DefaultUnstructuredConverter.ToUnstructured(plan)
	if err != nil {
		t.Fatal(err)
	}
	delete(in, "status")
	answer, err := plans.Create(context.Background(), &unstructured.Unstructured{Object: in}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	out := new(berthv1.Plan)
	return out, runtime.DefaultUnstructuredConverter.FromUnstructured(answer.Object, out)
}

// TestPlansOfObjects: classes and budgets of the plan count, and a ReplicaSet is planned as its pods; none of it is made.
func TestPlansOfObjects(t *testing.T) {
	s := share(t)
	object := func(text string) runtime.RawExtension { return runtime.RawExtension{Raw: []byte(text)} }
	class := object(`{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"planned"},"value":77}`)
	budget := object(`{"apiVersion":"policy/v1","kind":"PodDisruptionBudget","metadata":{"name":"planned"},"spec":{"minAvailable":1,"selector":{"matchLabels":{"app":"planned"}}}}`)
	set := object(`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"planned"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"planned"}},
		"template":{"metadata":{"labels":{"app":"planned"}},"spec":{"priorityClassName":"planned","containers":[{"name":"c","image":"i"}]}}}}`)
	answer, err := askPlan(t, s, berthv1.PlanSpec{Objects: []runtime.RawExtension{class, budget, set}})
	if err != nil {
		t.Fatal(err)
	}
	if p := answer.Status.Placements; len(p) != 2 || p[0].Node != "n1" || p[1].Pod.Name != "planned-planned-2" || p[1].Pod.Priority != 77 {
		t.Errorf("got %+v", p)
	}
	v := s.double.View()
	if _, ok := v.PriorityClasses.Get("planned"); ok {
		t.Error("a plan has made a class")
	}
	if _, ok := v.ReplicaSet("default", "planned"); ok {
		t.Error("a plan has made a ReplicaSet")
	}
	_, err = askPlan(t, s, berthv1.PlanSpec{Objects: []runtime.RawExtension{object(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"}}`)}})
	wantStatus(t, err, 400, "a Service of v1 can not be planned")
	_, err = askPlan(t, s, berthv1.PlanSpec{Objects: []runtime.RawExtension{object(`{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"planned"},"value":2000000000}`)}})
	wantStatus(t, err, 422, "maximum allowed value")
	_, err = askPlan(t, s, berthv1.PlanSpec{Objects: []runtime.RawExtension{object(strings.Replace(string(budget.Raw), `"metadata":{`,
		`"metadata":{"annotations":{"berth.dev/allow-disruption-by-priority-greater-than-or-equal":"abc"},`, 1))}})
	wantStatus(t, err, 422, "must be an integer of 32 bits")
	_, err = askPlan(t, s, berthv1.PlanSpec{Objects: []runtime.RawExtension{object(`{"apiVersion":"apps/v1","kind":"ReplicaSet","metadata":{"name":"many"},"spec":{"replicas":20000,"selector":{"matchLabels":{"app":"x"}},
		"template":{"metadata":{"labels":{"app":"x"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`)}})
	wantStatus(t, err, 400, "at most 10000 pods")
}

// A queue entry is shown to whoever may read those of its namespace: why a preemption was refused names no victim of another one (PR20).
func TestQueueEntriesNameNobodyElsewhere(t *testing.T) {
	s := start(t, newDouble(t), nil)
	s.node(t, "n1")
	if _, err := s.client(t).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "secret"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for namespace, name := range map[string]string{"secret": "boss", "default": "peer"} {
		p := testPod(name)
		p.Namespace, p.UID, p.Spec.NodeName = namespace, types.UID("uid-"+name), "n1"
		web := testPod("for-" + name)
		web.Namespace, web.UID, web.Spec.SchedulerName = "default", types.UID("uid-for-"+name), corev1.DefaultSchedulerName
		s.double.must(t, &fsm.AdmitPod{Pod: fsm.PodWire{Object: p}}, &fsm.AdmitPod{Pod: fsm.PodWire{Object: web}})
		s.double.must(t, &fsm.ApplyPlan{Revision: s.double.View().Revision(), Preemptions: []fsm.PreemptDecision{{
			Key: "default/for-" + name, UID: "uid-for-" + name, Node: "n1", Victims: []fsm.PlannedVictim{{Key: namespace + "/" + name, UID: "uid-" + name}},
		}}})
	}
	for name, want := range map[string]string{
		"for-boss": "a victim in another namespace has a priority that is not below 0", "for-peer": "victim default/peer has priority 0, which is not below 0",
	} {
		e, err := dynamicClient(t, s).Resource(berthv1.GroupVersion.WithResource(berthv1.ResourceQueueEntries)).Namespace("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(e.Object, "status", "refusal"); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
