package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"

	"github.com/berth-dev/berth/api/berthv1"
)

// berthStrategy is what upstream's registry asks of the resources of
// berth.dev.
type berthStrategy struct {
	runtime.ObjectTyper
	names.NameGenerator
	namespaced bool
}

var (
	_ rest.RESTCreateStrategy = berthStrategy{}
	_ rest.RESTUpdateStrategy = berthStrategy{}
	_ rest.RESTDeleteStrategy = berthStrategy{}
)

// NamespaceScoped implements the strategies.
func (s berthStrategy) NamespaceScoped() bool { return s.namespaced }

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s berthStrategy) PrepareForCreate(context.Context, runtime.Object) {}

// PrepareForUpdate implements rest.RESTUpdateStrategy.
func (s berthStrategy) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

// Validate implements rest.RESTCreateStrategy.
func (s berthStrategy) Validate(_ context.Context, obj runtime.Object) field.ErrorList {
	if config, ok := obj.(*berthv1.SchedulerConfiguration); ok {
		return config.Validate()
	}
	return nil
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s berthStrategy) ValidateUpdate(ctx context.Context, obj, _ runtime.Object) field.ErrorList {
	return s.Validate(ctx, obj)
}

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s berthStrategy) WarningsOnCreate(context.Context, runtime.Object) []string { return nil }

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s berthStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// Canonicalize implements the strategies.
func (s berthStrategy) Canonicalize(obj runtime.Object) {
	if config, ok := obj.(*berthv1.SchedulerConfiguration); ok {
		config.SetDefaults()
	}
}

// AllowCreateOnUpdate implements rest.RESTUpdateStrategy: the configuration can
// be put before anybody has proposed the first.
func (s berthStrategy) AllowCreateOnUpdate() bool { return true }

// AllowUnconditionalUpdate implements rest.RESTUpdateStrategy.
func (s berthStrategy) AllowUnconditionalUpdate() bool { return true }
