package devices

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/structured"

	"github.com/berth-dev/berth/fsm"
)

// features are what Kubernetes has by default.
var features = structured.Features{
	AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true, ConsumableCapacity: true,
}

// offer is what drivers offer in a state, and what of it is given away.
type offer struct {
	slices []*resourcev1.ResourceSlice
	given  structured.AllocatedState
	// on are the nodes that have devices of their own; anywhere: there are others, which more than one node may use.
	on       map[string]bool
	anywhere bool
}

func offerOf(v *fsm.View) *offer {
	o := &offer{on: map[string]bool{}, given: structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}}
	each(v, fsm.ObjectKey(fsm.ResourceSlices, "", ""), func(s *resourcev1.ResourceSlice) {
		o.slices = append(o.slices, s)
		switch {
		case s.Spec.NodeName != nil:
			o.on[*s.Spec.NodeName] = true
		case len(s.Spec.Devices) > 0:
			o.anywhere = true
		}
	})
	each(v, fsm.ResourceClaims+"/", func(c *resourcev1.ResourceClaim) { o.take(c.Status.Allocation) })
	return o
}

// take counts what a claim has been given.
func (o *offer) take(a *resourcev1.AllocationResult) {
	if a == nil {
		return
	}
	for i := range a.Devices.Results {
		r := &a.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess { // who looks at it takes it from nobody
			continue
		}
		id := structured.MakeDeviceID(r.Driver, r.Pool, r.Device)
		if r.ShareID == nil {
			o.given.AllocatedDevices.Insert(id)
			continue
		}
		o.given.AllocatedSharedDeviceIDs.Insert(structured.MakeSharedDeviceID(id, r.ShareID))
		if r.ConsumedCapacity != nil {
			o.given.AggregatedCapacity.Insert(structured.NewDeviceConsumedCapacity(id, r.ConsumedCapacity))
		}
	}
}

// has says whether there may be devices for a node.
func (o *offer) has(node string) bool { return o.anywhere || o.on[node] }

func (o *offer) allocator(ctx context.Context, v *fsm.View, compiled *cel.Cache) (structured.Allocator, error) {
	return structured.NewAllocator(ctx, features, o.given, classes{v}, o.slices, compiled)
}

func newCELCache() *cel.Cache {
	return cel.NewCache(celExpressions, cel.Features{EnableConsumableCapacity: true})
}

// celExpressions is how many compiled expressions are kept.
const celExpressions = 256

// classes are those of a state.
type classes struct{ view *fsm.View }

// List implements structured.DeviceClassLister.
func (c classes) List() (out []*resourcev1.DeviceClass, _ error) {
	each(c.view, fsm.ObjectKey(fsm.DeviceClasses, "", ""), func(class *resourcev1.DeviceClass) { out = append(out, class) })
	return out, nil
}

// Get implements structured.DeviceClassLister.
func (c classes) Get(name string) (*resourcev1.DeviceClass, error) {
	if o, ok := c.view.Objects.Get(fsm.ObjectKey(fsm.DeviceClasses, "", name)); ok {
		if class, ok := o.Value.(*resourcev1.DeviceClass); ok {
			return class, nil
		}
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Group: resourcev1.GroupName, Resource: fsm.DeviceClasses}, name)
}

// each calls f for the objects of a type whose keys begin so.
func each[T any](v *fsm.View, prefix string, f func(o *T)) {
	v.Objects.Scan(prefix, func(_ string, o *fsm.Object) bool {
		if value, ok := any(o.Value).(*T); ok {
			f(value)
		}
		return true
	})
}

// nodeOf is the one node that an allocation can be used from, "" where there is no such.
func nodeOf(a *resourcev1.AllocationResult) string {
	if a == nil || a.NodeSelector == nil || len(a.NodeSelector.NodeSelectorTerms) != 1 {
		return ""
	}
	for _, f := range a.NodeSelector.NodeSelectorTerms[0].MatchFields {
		if f.Key == "metadata.name" && f.Operator == corev1.NodeSelectorOpIn && len(f.Values) == 1 {
			return f.Values[0]
		}
	}
	return ""
}
