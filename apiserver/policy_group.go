package apiserver

import (
	"context"
	"strings"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/kubernetes/pkg/apis/policy"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

func budgetKind() *kind {
	return &kind{
		resource:  policy.Resource("poddisruptionbudgets"),
		rows:      rowsOf("poddisruptionbudgets", func(v *fsm.View) fsm.Table[*policyv1.PodDisruptionBudget] { return v.Budgets }),
		newObject: func() runtime.Object { return new(policy.PodDisruptionBudget) },
		present:   converting(asObject),
		create: func(obj runtime.Object) (fsm.Command, error) {
			b, err := versioned[policyv1.PodDisruptionBudget](obj)
			return &fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: b}, Create: true}, err
		},
		update: func(obj runtime.Object, revision int64) (fsm.Command, error) {
			b, err := versioned[policyv1.PodDisruptionBudget](obj)
			return &fsm.PutDisruptionBudget{Budget: fsm.BudgetWire{Object: b}, Revision: revision}, err
		},
		remove: removeBudget,
	}
}

func removeBudget(key string, p fsm.Precondition) fsm.Command {
	namespace, name, _ := strings.Cut(key, "/")
	return &fsm.DeleteDisruptionBudget{Namespace: namespace, Name: name, Precondition: p}
}

// policyGroup serves the disruption budgets. Their status can be written as in
// Kubernetes; what is counted in it stays the state machine's (PD3).
func (g *registry) policyGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	info := groupOf(policyv1.SchemeGroupVersion, resources)
	budgets, err := g.resource(description{
		kind: budgetKind(), singular: "poddisruptionbudget", shortNames: []string{"pdb"},
		version: policyv1.SchemeGroupVersion, table: kubernetesTable(),
		list:   func() runtime.Object { return new(policy.PodDisruptionBudgetList) },
		create: budgetCreation{poddisruptionbudget.Strategy}, update: budgetChange{poddisruptionbudget.Strategy},
		remove: poddisruptionbudget.Strategy, reset: poddisruptionbudget.Strategy,
		erase: func(key string, p fsm.Precondition, _ *metav1.DeleteOptions) fsm.Command {
			return removeBudget(key, p)
		},
		endsInApply: true,
	})
	if err != nil {
		return info, err
	}
	resources["poddisruptionbudgets"] = budgets
	resources["poddisruptionbudgets/status"] = partOf(budgets, poddisruptionbudget.StatusStrategy)
	return info, nil
}

// budgetCreation is upstream's strategy, which knows nothing of our annotation.
type budgetCreation struct{ rest.RESTCreateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s budgetCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), model.ValidateViolatorPriority(metaOf(obj).GetAnnotations())...)
}

// budgetChange is the same for changed budgets.
type budgetChange struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s budgetChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old), model.ValidateViolatorPriority(metaOf(obj).GetAnnotations())...)
}
