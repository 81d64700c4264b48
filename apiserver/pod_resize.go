package apiserver

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/plugin/pkg/admission/podresize"

	"github.com/berth-dev/berth/fsm"
)

// resizing serves pods/resize: other resources for containers, and nothing else. Whether a pod's node has room for them beside others is
// not asked here: the node says so in the pod's conditions.
type resizing struct{ narrowPart }

// Update implements rest.Updater.
func (r resizing) Update(ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, forceAllowCreate bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return r.narrowPart.Update(context.WithValue(ctx, resizeKey{}, true), name, info, create, update, forceAllowCreate, options)
}

type resizeKey struct{}

// asResize makes of the update of a pod a resize, where the request is one.
func asResize(ctx context.Context, c fsm.Command) fsm.Command {
	if resize, _ := ctx.Value(resizeKey{}).(bool); resize {
		if u, ok := c.(*fsm.UpdatePod); ok {
			u.Resize = true
		}
	}
	return c
}

// resizeGuard is Kubernetes' plugin that refuses what a pod's node could not hold if it had nothing else.
type resizeGuard struct{ admission.ValidationInterface }

func newResizeGuard(plugins admission.PluginInitializers) (admission.Interface, error) {
	plugin, err := kubernetesPlugin(podresize.Register, podresize.PluginName, nil, plugins)
	if err != nil {
		return nil, err
	}
	return resizeGuard{plugin.(admission.ValidationInterface)}, nil
}

// Validate implements admission.ValidationInterface. The plugin leaves alone what is of the generation that was there before, and here it is counted later.
func (g resizeGuard) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	pod, _ := a.GetObject().(*core.Pod)
	old, ok := a.GetOldObject().(*core.Pod)
	if a.GetSubresource() != "resize" || pod == nil || !ok || equality.Semantic.DeepEqual(&pod.Spec, &old.Spec) {
		return nil
	}
	before := *old
	before.Generation = pod.Generation - 1
	return g.ValidationInterface.Validate(ctx, resizeAttributes{a, &before}, o)
}

// resizeAttributes are those of a request, but for the object that was there before.
type resizeAttributes struct {
	admission.Attributes
	old runtime.Object
}

// GetOldObject implements admission.Attributes.
func (a resizeAttributes) GetOldObject() runtime.Object { return a.old }
