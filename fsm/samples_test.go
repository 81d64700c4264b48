package fsm

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// samples has every command once, with every field of it filled in. Their
// bytes are the golden files: what they are must never change.
func samples() []Command {
	grace, seven := int64(7), int32(7)
	at := metav1.NewTime(worldStart)
	object := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "default", Name: name, UID: "uid", ResourceVersion: "5", CreationTimestamp: at,
			Labels: map[string]string{"b": "2", "a": "1", "c": "3"}, Annotations: map[string]string{"z": "1", "y": "2"}}
	}
	policy := corev1.PreemptNever
	class := &schedulingv1.PriorityClass{ObjectMeta: object("high"), Value: 7, GlobalDefault: true, Description: "d", PreemptionPolicy: &policy}
	pod := &corev1.Pod{ObjectMeta: object("web"), Spec: corev1.PodSpec{
		Priority: &seven, NodeSelector: map[string]string{"b": "2", "a": "1"},
		Containers: []corev1.Container{{Name: "main", Image: "image", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			"memory": apiresource.MustParse("1Gi"), "cpu": apiresource.MustParse("500m"), "example.com/gpu": apiresource.MustParse("1")}}}},
	}}
	template := pod.DeepCopy()
	template.Name, template.GenerateName = "", "web-"
	node := &corev1.Node{ObjectMeta: object("n1"), Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "k", Effect: "NoExecute", TimeAdded: &at}}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{"pods": apiresource.MustParse("110"), "cpu": apiresource.MustParse("4")}}}
	configMap, err := (&corev1.ConfigMap{ObjectMeta: object("settings"), Data: map[string]string{"y": "1", "x": "2"}}).Marshal()
	if err != nil {
		panic(err)
	}
	most := intstr.FromString("25%")
	budget := &policyv1.PodDisruptionBudget{ObjectMeta: object("web"), Spec: policyv1.PodDisruptionBudgetSpec{
		MaxUnavailable: &most, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"b": "2", "a": "1"}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptedPods: map[string]metav1.Time{"web-2": at, "web-1": at}}}
	precondition := Precondition{UID: "uid", Revision: 7}
	diagnosis := &Diagnosis{Nodes: 7, Budgets: []string{"default/web"}, Preemption: "no victims", Message: "0/7 nodes are available: 7 Insufficient cpu.", Reasons: []ReasonCount{
		{Kind: model.InsufficientResource, Resource: "cpu", Text: "Insufficient cpu", Nodes: 7, ShortBy: 500, Detail: "detail"}}}
	owner := ObjectRef{Resource: "replicasets", Namespace: "default", Name: "web", UID: "uid"}
	pods := []PodRef{{Key: "default/web", UID: "uid"}}
	status, err := (&appsv1.ReplicaSetStatus{Replicas: 7}).Marshal()
	if err != nil {
		panic(err)
	}
	return []Command{
		&StageSnapshot{ID: "restore", Offset: 7, Data: []byte("data")},
		&AbandonSnapshot{ID: "restore"},
		&AddSigningKey{ID: "key", Private: []byte("private"), Public: []byte("public"), Revoke: true, OnlyIfNone: true},
		&RestoreSnapshot{ID: "restore", Bytes: 7, SHA256: []byte("sum")},
		&CreatePriorityClass{Class: PriorityClassWire{Object: class}},
		&UpdatePriorityClass{Class: PriorityClassWire{Object: class}, Revision: 7},
		&DeletePriorityClass{Name: "high", Precondition: precondition},
		&AdmitPod{Pod: PodWire{Object: pod}},
		&AdmitPods{Template: PodWire{Object: template}, Count: 7, Owner: &owner, Generation: 7},
		&UpdatePod{Pod: PodWire{Object: pod}, Revision: 7, Resize: true},
		&DeletePod{Key: "default/web", Precondition: precondition, GraceSeconds: &grace, DisruptionReason: "Reason", DisruptionMessage: "message", Fail: true, Propagation: "Foreground"},
		&ReleasePod{Key: "default/web", Precondition: precondition, Finalizers: []string{"example.com/hold"}},
		&BindPod{Key: "default/web", UID: "uid", Node: "n1"},
		&EvictPod{Key: "default/web", Precondition: precondition, GraceSeconds: &grace},
		&ReportPods{Node: "n1", Reports: []PodReport{{Key: "default/web", UID: "uid", Removed: true, Seen: 7,
			Status: PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &at}}}}},
		&ApplyPlan{Revision: 7, Number: 7, Over: []int64{5, 6}, StepUnixNano: 7,
			Reservations: []ReserveDecision{{Key: "default/big", UID: "uid", Node: "n1", BackfillSeconds: 8}},
			Bindings:     []BindDecision{{Key: "default/web", UID: "uid", Node: "n1", Feasible: 7, Score: 70, RunnerUp: "n2"}},
			Preemptions: []PreemptDecision{{Key: "default/high", UID: "uid", Node: "n1", Diagnosis: diagnosis,
				Victims:      []PlannedVictim{{Key: "default/low", UID: "uid", ViolatesBudget: true}},
				Alternatives: &berthv1.PreemptionAlternatives{NodesConsidered: 7, Candidates: 3, RunnerUp: "n2", DecidedBy: "fewest victims"},
				Minimal:      true, SearchLimit: 1000}},
			Failures: []FailDecision{{Pods: []PodRef{{Key: "default/huge", UID: "uid"}}, Diagnosis: diagnosis, Error: true, ClearNomination: true,
				SetAside: &SetAside{Kind: "Panic", Message: "message"}}}},
		&RegisterNode{Node: NodeWire{Object: node}},
		&PutNode{Node: NodeWire{Object: node}, Create: true, Revision: 7},
		&DeleteNode{Name: "n1", Precondition: precondition},
		&SetNodeHealth{Nodes: []NodeHealth{{Name: "n1", Ready: "Unknown", Reason: "Silent", Message: "message", LetGo: true}}},
		&PutNamespace{Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: object("team")}}, Create: true, Revision: 7, RootCA: "PEM", Furnish: true},
		&DeleteNamespace{Name: "team", Precondition: precondition},
		&PutObject{Resource: "configmaps", Raw: configMap, Create: true, Revision: 7},
		&DeleteObject{Resource: "configmaps", Namespace: "default", Name: "settings", Precondition: precondition, Propagation: "Orphan"},
		&ConfigureScheduler{JSON: []byte(`{"metadata":{"name":"cluster"},"spec":{"queue":"fifo"}}`), Revision: 7, OnlyIfAbsent: true},
		&ReleaseNominations{Pods: []PodRef{{Key: "default/web", UID: "uid"}}},
		&PutEvent{Event: EventWire{Object: &corev1.Event{ObjectMeta: object("event"), Reason: "Reason", Count: 7}}, Create: true, Revision: 7},
		&DeleteEvents{Key: "default/event", Precondition: precondition, BeforeUnixNano: 7, Limit: 7},
		&Checkpoint{},
		&PutDisruptionBudget{Budget: BudgetWire{Object: budget}, Create: true, Revision: 7},
		&DeleteDisruptionBudget{Namespace: "default", Name: "web", Precondition: precondition},
		&ScaleIn{Owner: owner, Victims: pods},
		&ClaimPods{Owner: owner, Adopt: pods, Release: pods},
		&SetStatus{Owner: owner, Status: status, WarningReason: "Reason", WarningMessage: "message"},
		&CollectGarbage{Objects: []ObjectRef{owner}},
	}
}
