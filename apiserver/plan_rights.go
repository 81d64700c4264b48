package apiserver

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/api/berthv1"
)

// planned is what a plan asks about. Its answer tells as much as the request would that it stands for: of quotas, of what there is by
// that name. So whoever may not make that request is told nothing, and nothing is looked up for him before that is known.
type planned struct {
	schema.GroupResource
	subresource, namespace, name string
}

// mayPlan refuses whoever may not do with it what the verb says.
func mayPlan(ctx context.Context, verb string, p planned) error {
	yes, err := may(ctx, authorizer.AttributesRecord{
		Verb: verb, APIGroup: p.Group, APIVersion: "v1", Resource: p.Resource, Subresource: p.subresource, Namespace: p.namespace, Name: p.name,
	})
	if yes || err != nil {
		return err
	}
	user := ""
	if who, ok := request.UserFrom(ctx); ok {
		user = who.GetName()
	}
	resource, in := p.Resource, "at the cluster scope"
	if p.subresource != "" {
		resource += "/" + p.subresource
	}
	if p.namespace != "" {
		in = fmt.Sprintf("in the namespace %q", p.namespace)
	}
	// The verb is not told: which of the two is needed says whether there is one.
	return apierrors.NewForbidden(p.GroupResource, p.name, fmt.Errorf("User %q cannot write resource %q %s, and so cannot plan it", user, resource, in))
}

// mayPlanPods asks once for each namespace.
func mayPlanPods(ctx context.Context, pods []corev1.Pod) error {
	asked := map[string]bool{}
	for i := range pods {
		ns := namespaceOf(&pods[i])
		if asked[ns] {
			continue
		}
		asked[ns] = true
		if err := mayPlan(ctx, "create", planned{GroupResource: corev1.Resource("pods"), namespace: ns}); err != nil {
			return err
		}
	}
	return nil
}

// mayPlanObject is mayPlan for an object that would be made or changed, by whether there is one.
func mayPlanObject(ctx context.Context, p planned, isThere func() bool) error {
	creates, updates := mayPlan(ctx, "create", p), mayPlan(ctx, "update", p)
	for _, err := range []error{creates, updates} {
		if err != nil && !apierrors.IsForbidden(err) {
			return err
		}
	}
	if creates != nil && updates != nil || creates == nil && updates == nil {
		return creates
	}
	if isThere() {
		return updates
	}
	return creates
}

// shownRemovals are pods that would go as whoever asks may see them (PR20): without the right to read them, how many and by which rule.
func shownRemovals(ctx context.Context, namespace string, removals []berthv1.PlanRemoval) ([]berthv1.PlanRemoval, error) {
	if yes, err := MayReadPods(ctx, namespace); yes || err != nil {
		return removals, err
	}
	for i := range removals {
		removals[i] = berthv1.PlanRemoval{Rule: removals[i].Rule, Reason: removals[i].Reason}
	}
	return removals, nil
}
