package apiserver

import (
	"context"
	"errors"
	"strings"
	"testing"

	apps "k8s.io/kubernetes/pkg/apis/apps"
	core "k8s.io/kubernetes/pkg/apis/core"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/fsm"
)

// askedOf is a request's context by somebody of whom one says what he may.
func askedOf(ctx context.Context, says authorizer.AuthorizerFunc, groups ...string) context.Context {
	return withClass(request.WithUser(context.WithValue(ctx, rightsKey{}, says), &user.DefaultInfo{Name: "ann", Groups: groups}))
}

// TestRightsThatCannotBeTold: whoever cannot be asked about is told that, and not that he may not.
func TestRightsThatCannotBeTold(t *testing.T) {
	d := newDouble(t)
	secretive := core.PodSpec{Volumes: []core.Volume{{VolumeSource: core.VolumeSource{Secret: &core.SecretVolumeSource{SecretName: "s"}}}}}
	classy := core.PodSpec{PriorityClassName: "later"}
	service := &core.Service{Spec: core.ServiceSpec{ExternalIPs: []string{"192.0.2.1"}}}
	asks := func(ctx context.Context, obj, old runtime.Object, guard admission.ValidationInterface) error {
		who, _ := request.UserFrom(ctx)
		op := admission.Create
		if old != nil {
			op = admission.Update
		}
		return guard.Validate(ctx, admission.NewAttributesRecord(obj, old, schema.GroupVersionKind{}, "team", "x", schema.GroupVersionResource{}, "", op, nil, false, who), nil)
	}
	set := func(spec core.PodSpec, label string) *apps.ReplicaSet {
		return &apps.ReplicaSet{Spec: apps.ReplicaSetSpec{Template: core.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": label}}, Spec: spec}}}
	}
	classes := classGuard{d.View}
	for what, ask := range map[string]func(ctx context.Context) error{
		"an external address":      func(ctx context.Context) error { return asks(ctx, service, nil, externalGuard{}) },
		"a pod with a secret":      func(ctx context.Context) error { return asks(ctx, &core.Pod{Spec: secretive}, nil, secretGuard{}) },
		"a template with a secret": func(ctx context.Context) error { return asks(ctx, set(secretive, ""), set(classy, ""), secretGuard{}) },
		"a shell beside a secret": func(ctx context.Context) error {
			return (&podStream{what: "exec"}).mayEnter(ctx, &core.Pod{Spec: secretive})
		},
		"a plan of pods": func(ctx context.Context) error { return mayPlanPods(ctx, make([]corev1.Pod, 1)) },
		"a plan of an object": func(ctx context.Context) error {
			return mayPlanObject(ctx, planned{name: "x"}, func() bool { return true })
		},
		"pods that a plan removes": func(ctx context.Context) error { _, err := shownRemovals(ctx, "team", nil); return err },
		"names of pods":            func(ctx context.Context) error { _, err := MayReadPods(ctx, "team"); return err },
		"names of budgets":         func(ctx context.Context) error { _, err := MayReadBudgets(ctx, "team"); return err },
		"a pod of a class":         func(ctx context.Context) error { return asks(ctx, &core.Pod{Spec: classy}, nil, classes) },
		"a template of a class":    func(ctx context.Context) error { return asks(ctx, set(classy, ""), nil, classes) },
		"another template of one":  func(ctx context.Context) error { return asks(ctx, set(classy, "new"), set(classy, "old"), classes) },
		"a plan of pods of a class": func(ctx context.Context) error {
			_, err := plannedClassGroups(ctx, d.View(), []classUse{{class: "later"}})
			return err
		},
	} {
		away := errors.New("no leader answers")
		says := func(decision authorizer.Decision, err error) authorizer.AuthorizerFunc {
			return func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
				return decision, "", err
			}
		}
		if err := ask(askedOf(t.Context(), says(authorizer.DecisionNoOpinion, away))); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), away.Error()) {
			t.Errorf("%s: when nobody can tell: %v", what, err)
		}
		if err := ask(askedOf(t.Context(), says(authorizer.DecisionNoOpinion, nil))); err != nil && !apierrors.IsForbidden(err) {
			t.Errorf("%s: when no role allows it: %v", what, err)
		}
		if err := ask(askedOf(t.Context(), says(authorizer.DecisionAllow, away))); err != nil {
			t.Errorf("%s: when it is allowed: %v", what, err)
		}
	}
	nobody := func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionNoOpinion, "", errors.New("no leader answers")
	}
	for what, err := range map[string]error{
		"a pod that has its class": asks(askedOf(t.Context(), nobody), &core.Pod{Spec: classy}, &core.Pod{Spec: classy}, classes),
		"a template as it was":     asks(askedOf(t.Context(), nobody), set(classy, ""), set(classy, ""), classes),
		"a controller's pod":       asks(askedOf(t.Context(), nobody, access.Controllers), &core.Pod{Spec: classy}, nil, classes),
		"a template of before":     asks(askedOf(t.Context(), nobody), set(secretive, "new"), set(secretive, "old"), secretGuard{}),
		"a pod without a secret":   asks(askedOf(t.Context(), nobody), &core.Pod{}, nil, secretGuard{}),
	} {
		if err != nil {
			t.Errorf("%s needs no right: %v", what, err)
		}
	}
}

// TestAPlanAsksWithoutATurn: who is asked about rights may take his time, and others compute meanwhile.
func TestAPlanAsksWithoutATurn(t *testing.T) {
	all := &turns{free: 1, plans: &turns{free: 1}}
	asked, lend := 0, false
	ctx, mine, err := beginPlan(plansFor(context.WithValue(t.Context(), rightsKey{}, authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			if asked++; all.free != 1 || all.plans.free != 0 {
				t.Errorf("%d turns are free while somebody is asked, and there is room for %d plans", all.free, all.plans.free)
			}
			if lend {
				all.free = 0
			}
			return authorizer.DecisionAllow, "", nil
		})), all, "ann"))
	if err != nil {
		t.Fatal(err)
	}
	made := &plannedObjects{view: fsm.NewState().View()}
	err = made.add(ctx, &runtime.RawExtension{Raw: []byte(`{"apiVersion":"scheduling.k8s.io/v1","kind":"PriorityClass","metadata":{"name":"huge"},"value":9}`)})
	if err != nil || asked != 2 || !mine.held || all.free != 0 {
		t.Errorf("after %d were asked it goes on with its turn: %t, %v", asked, mine.held, err)
	}
	over, cancel := context.WithCancel(ctx)
	cancel()
	lend = true
	if yes, err := MayReadPods(over, "team"); yes || err == nil {
		t.Errorf("a plan for which nobody waits: %t, %v", yes, err)
	}
	all.done()
	mine.end(0)
	if all.free != 1 || all.plans.free != 1 {
		t.Errorf("after it %d turns and %d rooms are free", all.free, all.plans.free)
	}
}
