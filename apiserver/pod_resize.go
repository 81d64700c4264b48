package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/berth-dev/berth/fsm"
)

// resizing serves pods/resize: other resources for containers, and nothing else. Whether a pod's node has room for them is
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
