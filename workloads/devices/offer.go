package devices

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"

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
	// pools are the slices of each pool that some node has to itself, and shared those of all others.
	pools  map[poolID][]*resourcev1.ResourceSlice
	shared []*resourcev1.ResourceSlice
	given  structured.AllocatedState
	// on are the pools of a node. anywhere: there are devices that more than one node may use.
	on       map[string][]poolID
	anywhere bool
}

type poolID struct{ driver, pool string }

// shownOf is what drivers offer in a state, without what of it is given away.
func shownOf(v *fsm.View) *offer {
	o := &offer{on: map[string][]poolID{}, pools: map[poolID][]*resourcev1.ResourceSlice{}}
	type place struct {
		node string
		pool poolID
	}
	known := map[place]bool{}
	beyond := map[poolID]bool{} // pools that are not of nodes alone
	each(v, fsm.ObjectKey(fsm.ResourceSlices, "", ""), func(s *resourcev1.ResourceSlice) {
		of := poolID{s.Spec.Driver, s.Spec.Pool.Name}
		o.pools[of] = append(o.pools[of], s)
		if s.Spec.NodeName == nil {
			beyond[of] = true
			o.anywhere = o.anywhere || len(s.Spec.Devices) > 0
		} else if at := (place{*s.Spec.NodeName, of}); !known[at] {
			known[at] = true
			o.on[at.node] = append(o.on[at.node], of)
		}
	})
	for _, of := range slices.SortedFunc(maps.Keys(beyond), comparePools) {
		o.shared = append(o.shared, o.pools[of]...)
		delete(o.pools, of)
	}
	return o
}

// offerOf is what drivers offer, and what of it is given away by now.
func (a *Allocator) offerOf(v *fsm.View) *offer {
	if a.left != nil {
		return a.left
	}
	o := *a.offer
	o.given = structured.AllocatedState{
		AllocatedDevices: sets.New[structured.DeviceID](), AllocatedSharedDeviceIDs: sets.New[structured.SharedDeviceID](),
		AggregatedCapacity: structured.NewConsumedCapacityCollection(),
	}
	each(v, fsm.ResourceClaims+"/", func(c *resourcev1.ResourceClaim) { o.take(c.Status.Allocation) })
	a.left = &o
	return a.left
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
func (o *offer) has(node string) bool { return o.anywhere || len(o.on[node]) > 0 }

// allocate gives claims devices for a node. Kubernetes' allocator looks at all slices that it is shown, so it is shown those of the
// node's own pools, and of those that are of no node alone.
func (o *offer) allocate(ctx context.Context, v *fsm.View, compiled *cel.Cache, node *corev1.Node, claims []*resourcev1.ResourceClaim) ([]resourcev1.AllocationResult, error) {
	shown := slices.Clone(o.shared)
	for _, of := range o.on[node.Name] {
		shown = append(shown, o.pools[of]...)
	}
	allocator, err := structured.NewAllocator(ctx, features, o.given, classes{v}, shown, compiled)
	if err != nil {
		return nil, err
	}
	return allocator.Allocate(ctx, node, claims)
}

func comparePools(a, b poolID) int {
	return cmp.Or(strings.Compare(a.driver, b.driver), strings.Compare(a.pool, b.pool))
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
	if class, ok := c.view.DeviceClass(name); ok {
		return class, nil
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
