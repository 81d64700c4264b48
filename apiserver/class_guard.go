package apiserver

import (
	"context"
	"slices"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// classGuard is an admission plugin that asks whether whoever writes a pod, or a template
// of pods, may use its PriorityClass (AD5). It refuses nobody: the answer goes with the
// command, and whether it is needed is known when that is applied.
type classGuard struct{ view func() *fsm.View }

var _ admission.ValidationInterface = classGuard{}

// Handles implements admission.Interface.
func (classGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (g classGuard) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	answer, ok := ctx.Value(classKey{}).(*atomic.Pointer[string])
	if !ok {
		return nil
	}
	answer.Store(nil)
	spec := podSpecOf(a.GetObject())
	if spec == nil {
		return nil
	}
	name := spec.PriorityClassName
	yes, err := mayUse(ctx, g.view(), name, a.GetNamespace())
	switch {
	case yes:
		answer.Store(&name)
	case err != nil && !wasAsked(a):
		return err
	}
	return nil
}

// wasAsked: the right to the class is not needed, since it was asked about when the pod was made, or the template written.
func wasAsked(a admission.Attributes) bool {
	if isController(a.GetUserInfo()) {
		return true
	}
	if _, isPod := a.GetObject().(*core.Pod); isPod {
		return a.GetOperation() == admission.Update
	}
	now, _ := podTemplateOf(a.GetObject())
	old, _ := podTemplateOf(a.GetOldObject())
	return old != nil && equality.Semantic.DeepEqual(old, now)
}

// mayUse says whether whoever makes a request has the right to use a class in a namespace, if it is
// one that not everybody may. An error says that it cannot be told now.
func mayUse(ctx context.Context, v *fsm.View, name, namespace string) (bool, error) {
	class, there := v.PriorityClasses.Get(name) // a template may name one that is not there yet
	who, _ := request.UserFrom(ctx)
	switch system := model.IsSystemClass(name); {
	case name == "", there && !system && !model.RestrictsUse(class):
		return false, nil
	case system && slices.Contains(groupsOf(who), access.Masters):
		return false, nil // the scheduler's configuration names them, or does not
	}
	return may(ctx, authorizer.AttributesRecord{
		Verb: "use", APIGroup: "scheduling.k8s.io", APIVersion: "v1", Resource: "priorityclasses", Name: name, Namespace: namespace,
	})
}

// classUse is a class that a plan's pods or templates name in a namespace.
type classUse struct {
	class, namespace string
	// asked: a template that is there names it, whose writer was asked. Its pods are made by a controller, which nobody asks.
	asked bool
}

func usesOf(pods []*corev1.Pod) []classUse {
	uses := make([]classUse, len(pods))
	for i, pod := range pods {
		uses[i] = classUse{class: pod.Spec.PriorityClassName, namespace: pod.Namespace}
	}
	return uses
}

// plannedClassGroups are the groups of the classes that whoever asks has the right to use wherever a plan
// names them. An error says that this cannot be told now.
func plannedClassGroups(ctx context.Context, v *fsm.View, uses []classUse) (groups []string, err error) {
	known, refused := map[classUse]bool{}, map[string]bool{}
	var classes []string
	for _, use := range uses {
		if use.class == "" || known[use] {
			continue
		}
		known[use] = true
		yes := use.asked
		if !yes {
			if yes, err = mayUse(ctx, v, use.class, use.namespace); err != nil {
				return nil, err
			}
		}
		if !yes {
			refused[use.class] = true
		} else if !slices.Contains(classes, use.class) {
			classes = append(classes, use.class)
		}
	}
	for _, class := range classes {
		if !refused[class] {
			groups = append(groups, access.ClassUsers(class))
		}
	}
	return groups, nil
}

// classKey is the key of a request's context that holds the class that its user was found to
// have the right to use.
type classKey struct{}

func withClass(ctx context.Context) context.Context {
	return context.WithValue(ctx, classKey{}, new(atomic.Pointer[string]))
}

// classGroups are the groups that a command carries for the class of the request's pods.
func classGroups(ctx context.Context) []string {
	if answer, ok := ctx.Value(classKey{}).(*atomic.Pointer[string]); ok {
		if class := answer.Load(); class != nil {
			return []string{access.ClassUsers(*class)}
		}
	}
	return nil
}

// classStrategy is upstream's strategy of PriorityClasses, which knows nothing of our
// annotation.
type classStrategy struct{ strategy }

func newClassStrategy() classStrategy { return classStrategy{priorityclass.Strategy} }

// Validate implements rest.RESTCreateStrategy.
func (s classStrategy) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.strategy.Validate(ctx, obj), model.ValidateRestrictedUse(metaOf(obj).GetAnnotations())...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s classStrategy) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.strategy.ValidateUpdate(ctx, obj, old), model.ValidateRestrictedUse(metaOf(obj).GetAnnotations())...)
}
