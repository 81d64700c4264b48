package clustertest

import (
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// PutBudget stores a disruption budget, in words: its name (in another namespace than default: namespace/name), app=<label> or all, min=<pods>, from=<priority>, always-allow.
func (cl *Cluster) PutBudget(words []string) {
	namespace, name, other := strings.Cut(words[0], "/")
	if !other {
		namespace, name = "default", words[0]
	}
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
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
	old, known := cl.State.View().Budgets.Get(fsm.PodKey(namespace, name))
	b.UID = types.UID("budget-" + b.Name)
	if known {
		b.ResourceVersion, b.CreationTimestamp = old.ResourceVersion, old.CreationTimestamp
	}
	cl.Must(&fsm.PutDisruptionBudget{Create: !known, Budget: fsm.BudgetWire{Object: b}})
}

// Class is the name of a priority class of a priority, which is made if it is not there.
func (cl *Cluster) Class(priority int32, policy *corev1.PreemptionPolicy) string {
	name := "p" + strings.ReplaceAll(strconv.Itoa(int(priority)), "-", "minus")
	if policy != nil && *policy == corev1.PreemptNever {
		name += "-never"
	}
	if system := model.SystemClasses(); priority >= model.SystemCriticalPriority {
		i := slices.IndexFunc(system, func(c *schedulingv1.PriorityClass) bool { return c.Value == priority })
		if _, ok := cl.State.View().PriorityClasses.Get(system[i].Name); !ok {
			cl.Must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: system[i]}})
		}
		return system[i].Name
	}
	if _, ok := cl.State.View().PriorityClasses.Get(name); !ok {
		cl.Must(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: &schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Value: priority, PreemptionPolicy: policy}}})
	}
	return name
}

// PutNamespace makes sure that a namespace is there; labels that are not nil become its labels.
func (cl *Cluster) PutNamespace(name string, labels map[string]string) {
	old, known := cl.State.View().Namespaces.Get(name)
	if known && labels == nil {
		return
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ns-" + name)}}
	if known {
		ns = old.DeepCopy()
	}
	ns.Labels = labels
	cl.Must(&fsm.PutNamespace{Create: !known, Namespace: fsm.NamespaceWire{Object: ns}})
}

// PutService stores a service in the namespace default.
func (cl *Cluster) PutService(name string, selector map[string]string) {
	cl.PutObject("services", &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("uid-" + name)},
		Spec: corev1.ServiceSpec{Selector: selector}})
}

// PutReplicaSet stores a ReplicaSet in the namespace default.
func (cl *Cluster) PutReplicaSet(name string, selector *metav1.LabelSelector, replicas int32) {
	cl.PutObject("replicasets", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
		UID: types.UID("uid-" + name)},
		Spec: appsv1.ReplicaSetSpec{Selector: selector, Replicas: &replicas}})
}

// PutObject stores an object of a resource that has no table of its own, or changes one that is there.
func (cl *Cluster) PutObject(resource string, o codec.Object) {
	_, known := cl.State.View().Objects.Get(fsm.ObjectKey(resource, o.GetNamespace(), o.GetName()))
	b, err := o.Marshal()
	if err != nil {
		panic(err)
	}
	cl.Must(&fsm.PutObject{Resource: resource, Raw: b, Create: !known})
}
