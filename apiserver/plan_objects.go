package apiserver

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/util/uuid"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/apis/scheduling"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"

	// The group's types, conversions and defaults register themselves.
	_ "k8s.io/kubernetes/pkg/apis/policy/install"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
)

// plannedObjects are what a plan's objects come to: the commands that make them
// on the copy, and the pods of the ReplicaSets among them.
type plannedObjects struct {
	view  *fsm.View
	setup []fsm.Command
	pods  []*corev1.Pod
	// shrinks are the ReplicaSets that would have fewer pods than they have.
	shrinks []shrink
	// uses are the classes that their templates name.
	uses []classUse
}

type shrink struct {
	rs    *appsv1.ReplicaSet
	fewer int
}

// addScale plans another number of pods for a ReplicaSet that is there.
func (p *plannedObjects) addScale(ctx context.Context, s *berthv1.PlanScale) error {
	gr := apps.Resource(fsm.ReplicaSets)
	if s.Resource != gr.Resource {
		return apierrors.NewBadRequest(fmt.Sprintf("the scale of %q can not be planned; that of %s can", s.Resource, gr.Resource))
	}
	if s.Replicas < 0 {
		return apierrors.NewBadRequest(fmt.Sprintf("there can not be %d pods", s.Replicas))
	}
	if err := mayPlan(ctx, "update", planned{gr, "scale", s.Namespace, s.Name}); err != nil {
		return err
	}
	old, ok := p.view.ReplicaSet(s.Namespace, s.Name)
	if !ok {
		return apierrors.NewNotFound(gr, s.Name)
	}
	rs := *old
	rs.Spec.Replicas = &s.Replicas
	return p.scale(ctx, &rs, old)
}

// add takes in one object of a plan.
func (p *plannedObjects) add(ctx context.Context, raw *runtime.RawExtension) error {
	kind, err := json.DefaultMetaFactory.Interpret(raw.Raw)
	if err != nil {
		return unreadable(err)
	}
	if !plannable[*kind] {
		return apierrors.NewBadRequest(fmt.Sprintf("a %s of %s can not be planned", kind.Kind, kind.GroupVersion()))
	}
	if err := (careful{scheme: legacyscheme.Scheme}).check(raw.Raw, nil, nil); err != nil {
		return unreadable(err)
	}
	obj, _, err := legacyscheme.Codecs.UniversalDeserializer().Decode(raw.Raw, nil, nil)
	if err != nil {
		return unreadable(err)
	}
	switch o := obj.(type) {
	case *schedulingv1.PriorityClass:
		return p.addClass(ctx, o)
	case *policyv1.PodDisruptionBudget:
		return p.addBudget(ctx, o)
	case *appsv1.ReplicaSet:
		return p.addReplicaSet(ctx, o)
	}
	return badObject("object of a plan", obj)
}

// plannable are the kinds of a plan's objects. No other is even decoded.
var plannable = map[schema.GroupVersionKind]bool{
	schedulingv1.SchemeGroupVersion.WithKind("PriorityClass"):   true,
	policyv1.SchemeGroupVersion.WithKind("PodDisruptionBudget"): true,
	appsv1.SchemeGroupVersion.WithKind("ReplicaSet"):            true,
}

func unreadable(err error) error {
	return apierrors.NewBadRequest(fmt.Sprintf("an object of the plan can not be read: %v", err))
}

func (p *plannedObjects) addClass(ctx context.Context, in *schedulingv1.PriorityClass) error {
	there := func() bool { _, ok := p.view.PriorityClasses.Get(in.Name); return ok }
	if err := mayPlanObject(ctx, planned{GroupResource: scheduling.Resource("priorityclasses"), name: in.Name}, there); err != nil {
		return err
	}
	class, err := finish[scheduling.PriorityClass, schedulingv1.PriorityClass](ctx, in, newClassStrategy())
	if err != nil {
		return err
	}
	if old, ok := p.view.PriorityClasses.Get(class.Name); ok {
		class.UID, class.CreationTimestamp = old.UID, old.CreationTimestamp
		p.setup = append(p.setup, &fsm.UpdatePriorityClass{Class: fsm.PriorityClassWire{Object: class}})
		return nil
	}
	p.setup = append(p.setup, &fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}})
	return nil
}

func (p *plannedObjects) addBudget(ctx context.Context, in *policyv1.PodDisruptionBudget) error {
	ns := namespaceOf(in)
	there := func() bool { _, ok := p.view.Budgets.Get(fsm.PodKey(ns, in.Name)); return ok }
	if err := mayPlanObject(ctx, planned{policy.Resource("poddisruptionbudgets"), "", ns, in.Name}, there); err != nil {
		return err
	}
	budget, err := finish[policy.PodDisruptionBudget, policyv1.PodDisruptionBudget](ctx, in, budgetCreation{poddisruptionbudget.Strategy})
	if err != nil {
		return err
	}
	old, known := p.view.Budgets.Get(fsm.PodKey(budget.Namespace, budget.Name))
	if known {
		budget.UID, budget.CreationTimestamp = old.UID, old.CreationTimestamp
	}
	p.setup = append(p.setup, &fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: budget}, Create: !known})
	return nil
}

// addReplicaSet plans the pods that a ReplicaSet would make, beyond those that it
// has.
func (p *plannedObjects) addReplicaSet(ctx context.Context, in *appsv1.ReplicaSet) error {
	ns := namespaceOf(in)
	there := func() bool { _, ok := p.view.ReplicaSet(ns, in.Name); return ok }
	if err := mayPlanObject(ctx, planned{apps.Resource(fsm.ReplicaSets), "", ns, in.Name}, there); err != nil {
		return err
	}
	rs, err := finish[apps.ReplicaSet, appsv1.ReplicaSet](ctx, in, scaleInCreation{replicaset.Strategy})
	if err != nil {
		return err
	}
	old, known := p.view.ReplicaSet(rs.Namespace, rs.Name)
	if known {
		rs.UID, rs.CreationTimestamp = old.UID, old.CreationTimestamp
		if err := checkReplicaSetChange(ctx, rs, old); err != nil {
			return err
		}
	}
	return p.scale(ctx, rs, old)
}

// checkReplicaSetChange refuses what the change of a ReplicaSet would be refused for, such as another selector.
func checkReplicaSetChange(ctx context.Context, rs, old *appsv1.ReplicaSet) error {
	now, before := new(apps.ReplicaSet), new(apps.ReplicaSet)
	if err := legacyscheme.Scheme.Convert(rs, now, nil); err != nil {
		return err
	}
	if err := legacyscheme.Scheme.Convert(old, before, nil); err != nil {
		return err
	}
	now.ResourceVersion = before.ResourceVersion
	return rest.BeforeUpdate(briefChanges(scaleInChange{replicaset.Strategy}), genericapirequest.WithNamespace(ctx, rs.Namespace), now, before)
}

// scale plans the pods that a ReplicaSet lacks, or has too many. old is the one
// that is there, if there is one.
func (p *plannedObjects) scale(ctx context.Context, rs, old *appsv1.ReplicaSet) error {
	have := 0
	if old != nil {
		have = int(p.view.TallyOf(owners.IDOf(old)).Active)
	}
	bytes, err := rs.Marshal()
	if err != nil {
		return err
	}
	p.setup = append(p.setup, &fsm.PutObject{Resource: fsm.ReplicaSets, Raw: bytes, Create: old == nil})
	p.uses = append(p.uses, classUse{
		class: rs.Spec.Template.Spec.PriorityClassName, namespace: rs.Namespace,
		asked: old != nil && equality.Semantic.DeepEqual(old.Spec.Template, rs.Spec.Template),
	})
	if fewer := have - int(fsm.ReplicasOf(rs)); fewer > 0 {
		p.shrinks = append(p.shrinks, shrink{rs, fewer})
	}
	want := int(fsm.ReplicasOf(rs))
	switch {
	case want <= have:
		return nil
	case len(p.pods)+want-have > maxPlannedPods:
		return tooManyPlanned()
	}
	pod := &corev1.Pod{ObjectMeta: *rs.Spec.Template.ObjectMeta.DeepCopy(), Spec: *rs.Spec.Template.Spec.DeepCopy()}
	pod.Namespace, pod.Name, pod.GenerateName = rs.Namespace, plannedName(rs, want), "" // the longest of the names
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))}
	finished, err := finishPod(ctx, func() *fsm.View { return p.view }, pod, admitAll)
	if err != nil {
		return err
	}
	for i := have + 1; i <= want; i++ {
		one := *finished // what it refers to is all of theirs, and nobody changes it
		one.Name, one.UID = plannedName(rs, i), uuid.NewUUID()
		p.pods = append(p.pods, &one)
	}
	return nil
}

func plannedName(rs *appsv1.ReplicaSet, number int) string {
	return fmt.Sprintf("%s-planned-%d", rs.Name, number)
}

// namespaceOf is where an object of a plan is that is in a namespace.
func namespaceOf(obj metav1.Object) string {
	if ns := obj.GetNamespace(); ns != "" {
		return ns
	}
	return metav1.NamespaceDefault
}

func tooManyPlanned() error {
	return apierrors.NewBadRequest(fmt.Sprintf("a plan can ask about at most %d pods", maxPlannedPods))
}

// finish does to an object what its creation would do before the state machine
// sees it: defaults, system fields, name, admission, validation.
func finish[I, V any, IP interface {
	*I
	runtime.Object
	metav1.Object
}, VP interface {
	*V
	runtime.Object
}](ctx context.Context, in VP, strategy rest.RESTCreateStrategy, admit ...func(obj IP) error) (VP, error) {
	obj, err := defaulted[I, IP](in)
	if err != nil {
		return nil, err
	}
	if strategy.NamespaceScoped() {
		obj.SetNamespace(namespaceOf(obj))
	}
	rest.FillObjectMetaSystemFields(obj)
	if obj.GetGenerateName() != "" && obj.GetName() == "" {
		obj.SetName(strategy.GenerateName(obj.GetGenerateName()))
	}
	for _, f := range admit {
		if err := f(obj); err != nil {
			return nil, err
		}
	}
	if err := checkLimits(obj); err != nil {
		return nil, err
	}
	if err := rest.BeforeCreate(brief(strategy), genericapirequest.WithNamespace(ctx, obj.GetNamespace()), obj); err != nil {
		return nil, err
	}
	return versioned[V, VP](obj)
}
