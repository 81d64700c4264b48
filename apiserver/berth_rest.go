package apiserver

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

// configuration serves schedulerconfigurations: the one object is read and
// updated, and never goes away.
type configuration struct {
	readOnly
	backend Backend
}

var _ rest.Patcher = (*configuration)(nil)

// Update implements rest.Updater.
func (c *configuration) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return updateIn(ctx, c.store, c.backend, name, info, create, update, forceAllowCreate, options)
}

// plans answers questions; nothing is stored.
type plans struct {
	backend Backend
	planner Planner // nil: nobody answers
}

var (
	_ rest.Creater              = (*plans)(nil)
	_ rest.Scoper               = (*plans)(nil)
	_ rest.SingularNameProvider = (*plans)(nil)
)

// New implements rest.Storage.
func (p *plans) New() runtime.Object { return new(berthv1.Plan) }

// Destroy implements rest.Storage.
func (p *plans) Destroy() {}

// NamespaceScoped implements rest.Scoper: a plan may be about several
// namespaces.
func (p *plans) NamespaceScoped() bool { return false }

// GetSingularName implements rest.SingularNameProvider.
func (p *plans) GetSingularName() string { return "plan" }

// ConvertToTable implements rest.TableConvertor.
func (p *plans) ConvertToTable(ctx context.Context, object, options runtime.Object) (*metav1.Table, error) {
	return berthTable().ConvertToTable(ctx, object, options)
}

// maxPlannedPods bounds one question.
const maxPlannedPods = 10_000

// Create implements rest.Creater.
func (p *plans) Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, _ *metav1.CreateOptions) (runtime.Object, error) {
	plan, ok := obj.(*berthv1.Plan)
	if !ok {
		return nil, badObject("Plan", obj)
	}
	if validate != nil {
		if err := validate(ctx, obj.DeepCopyObject()); err != nil {
			return nil, err
		}
	}
	switch {
	case p.planner == nil:
		return nil, notImplemented("plans")
	case len(plan.Spec.Pods)+len(plan.Spec.Objects) == 0 && plan.Spec.Scale == nil:
		return nil, apierrors.NewBadRequest("a plan asks about the pods in spec.pods, the objects in spec.objects and the workload in spec.scale, and there are none")
	case len(plan.Spec.Pods) > maxPlannedPods || len(plan.Spec.Objects) > maxPlannedPods:
		return nil, tooManyPlanned()
	}
	if err := p.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	if err := mayPlanPods(ctx, plan.Spec.Pods); err != nil {
		return nil, err
	}
	ctx, mine, err := beginPlan(ctx)
	if err != nil {
		return nil, readError(err)
	}
	defer func() { mine.end(len(plan.Status.Placements)) }()
	if err := p.answer(ctx, plan); err != nil {
		return nil, err
	}
	return plan, nil
}

// answer fills in a plan's status.
func (p *plans) answer(ctx context.Context, plan *berthv1.Plan) error {
	pods := make([]*corev1.Pod, len(plan.Spec.Pods))
	for i := range plan.Spec.Pods {
		if err := GoOn(ctx); err != nil {
			return readError(err)
		}
		finished, err := finishPod(ctx, p.backend.View, &plan.Spec.Pods[i], admitAll)
		if err != nil {
			return err
		}
		pods[i] = finished
	}
	made := &plannedObjects{view: p.backend.View()}
	for i := range plan.Spec.Objects {
		if err := GoOn(ctx); err != nil {
			return readError(err)
		}
		if err := made.add(ctx, &plan.Spec.Objects[i]); err != nil {
			return err
		}
	}
	if plan.Spec.Scale != nil {
		if err := made.addScale(ctx, plan.Spec.Scale); err != nil {
			return err
		}
	}
	if pods = append(pods, made.pods...); len(pods) > maxPlannedPods {
		return tooManyPlanned()
	}
	who := proposal(ctx, nil)
	groups, err := plannedClassGroups(ctx, made.view, append(made.uses, usesOf(pods[:len(plan.Spec.Pods)])...))
	if err != nil {
		return err
	}
	who.Groups = append(who.Groups, groups...)
	status, err := p.planner.Plan(ctx, made.view, who.User, who.Groups, made.setup, pods)
	if err != nil {
		return readError(err)
	}
	for _, s := range made.shrinks {
		shown, err := shownRemovals(ctx, s.rs.Namespace, p.planner.ScaleIn(made.view, s.rs, s.fewer))
		if err != nil {
			return err
		}
		status.Removals = append(status.Removals, shown...)
	}
	plan.Status = *status
	return nil
}

// FinishTemplate does to the pod of a workload's template what the API does to a pod that is
// created, and refuses what it would refuse.
func (s *Server) FinishTemplate(pod *corev1.Pod) (*corev1.Pod, error) {
	return finishTemplate(s.config.Backend.View, pod, func(p *core.Pod) error { return s.admission.admitTemplate(context.Background(), p) })
}

// finishTemplate leaves the pod without a name: its metadata.generateName is what the pods' names
// begin with.
func finishTemplate(view func() *fsm.View, pod *corev1.Pod, admit func(*core.Pod) error) (*corev1.Pod, error) {
	finished, err := finishPod(context.Background(), view, pod, admit)
	if err != nil {
		return nil, err
	}
	finished.Name, finished.UID, finished.CreationTimestamp = "", "", metav1.Time{}
	return finished, nil
}

// finishPod is finish for a pod that somebody else may hold.
func finishPod(ctx context.Context, view func() *fsm.View, in *corev1.Pod, admit func(*core.Pod) error) (*corev1.Pod, error) {
	return finish(ctx, in.DeepCopy(), podCreation{pod.Strategy, view}, func(p *core.Pod) error {
		if err := limitTemplate(view(), p); err != nil {
			return err
		}
		return admit(p)
	})
}

func admitAll(*core.Pod) error { return nil }
