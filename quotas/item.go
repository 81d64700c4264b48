package quotas

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"

	"github.com/berth-dev/berth/model"
)

// Item is an object as quotas see it that has amounts beside its number: a claim of a volume, or of devices. It is
// immutable.
type Item struct {
	amounts amounts
	// volume: it is a claim of a volume, and attributes are the classes of attributes that it names, sorted.
	volume     bool
	attributes []string
}

// What is counted of claims of devices beside their number: the devices of one class, whose name comes before.
const ofDeviceClass = corev1.ResourceClaimsPerClass

// VolumeClaim is what is counted of a claim of a volume. What it has been given may be more than it asks for, as long as it
// is resized. It counts for every class of attributes that it has, is to have, or is being given.
func VolumeClaim(c *corev1.PersistentVolumeClaim) *Item {
	asked := c.Spec.Resources.Requests[corev1.ResourceStorage]
	bytes := model.AmountOf(asked)
	if given, ok := c.Status.AllocatedResources[corev1.ResourceStorage]; ok {
		bytes = max(bytes, model.AmountOf(given))
	}
	i := &Item{volume: true, attributes: attributesOf(c)}
	i.add(Count("", "persistentvolumeclaims"), 1)
	i.add(RequestsStorage, bytes)
	if class := model.ClaimClass(c); class != "" {
		i.add(class+ofStorageClass+RequestsStorage, bytes)
		i.add(class+ofStorageClass+"persistentvolumeclaims", 1)
	}
	i.sort()
	return i
}

func attributesOf(c *corev1.PersistentVolumeClaim) (names []string) {
	for _, name := range []*string{c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName} {
		if name != nil {
			names = append(names, *name)
		}
	}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		names = append(names, m.TargetVolumeAttributesClassName)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" })
}

// DeviceClaim is what is counted of a claim of devices: the most that it may be given of each class.
func DeviceClaim(c *resourcev1.ResourceClaim) *Item {
	i := &Item{}
	i.add(Count(resourcev1.GroupName, "resourceclaims"), 1)
	for k := range c.Spec.Devices.Requests {
		r := &c.Spec.Devices.Requests[k]
		if len(r.FirstAvailable) == 0 && r.Exactly != nil {
			i.add(r.Exactly.DeviceClassName+ofDeviceClass, devices(r.Exactly.AllocationMode, r.Exactly.Count))
		}
		most := Item{} // one of them is given
		for j := range r.FirstAvailable {
			sub := &r.FirstAvailable[j]
			name, n := sub.DeviceClassName+ofDeviceClass, total{lo: uint64(devices(sub.AllocationMode, sub.Count))}
			if at := most.at(name); at < 0 {
				most.amounts = append(most.amounts, amount{name, n})
			} else if n.more(most.amounts[at].n) {
				most.amounts[at].n = n
			}
		}
		for _, a := range most.amounts {
			i.add(a.name, int64(a.n.lo))
		}
	}
	i.sort()
	return i
}

// devices is how many a request may be given, as Kubernetes counts them.
func devices(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return min(max(count, 0), model.MaxAmount)
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}

func (i *Item) at(name string) int {
	return slices.IndexFunc(i.amounts, func(a amount) bool { return a.name == name })
}

func (i *Item) add(name string, n int64) {
	more := total{lo: uint64(n)}
	if at := i.at(name); at >= 0 {
		i.amounts[at].n = i.amounts[at].n.plus(more)
	} else if n > 0 {
		i.amounts = append(i.amounts, amount{name, more})
	}
}

func (i *Item) sort() {
	slices.SortFunc(i.amounts, func(a, b amount) int { return cmp.Compare(a.name, b.name) })
}

func (i *Item) uses() amounts {
	if i == nil {
		return nil
	}
	return i.amounts
}

// Same says whether two items use the same, and scopes take them for the same; nil stands for one that is not there.
func (i *Item) Same(other *Item) bool {
	if i == nil || other == nil {
		return i == other
	}
	return i.volume == other.volume && slices.Equal(i.attributes, other.attributes) && slices.Equal(i.amounts, other.amounts)
}

// key is under which items of a namespace are summed up: those that any scopes take for the same are together.
func (i *Item) key(namespace string) string {
	if !i.volume {
		return itemKey(namespace) + "-"
	}
	return itemKey(namespace) + "+" + strings.Join(i.attributes, ",")
}

func itemKey(namespace string) string { return namespace + "/" }

// itemOf is what scopes ask of the items that are summed up under a key.
func itemOf(key, namespace string) *Item {
	names, volume := strings.CutPrefix(strings.TrimPrefix(key, itemKey(namespace)), "+")
	i := &Item{volume: volume}
	if volume && names != "" {
		i.attributes = strings.Split(names, ",")
	}
	return i
}

// hasItem says whether scopes mean an item. Volumes' classes of attributes are the only scope that means others than pods.
func (s *scopes) hasItem(i *Item) bool {
	if s.any {
		return true
	}
	return i.volume && !s.podsAlone && !slices.ContainsFunc(s.attributes, func(r corev1.ScopedResourceSelectorRequirement) bool {
		return !selects(&r, i.attributes)
	})
}

// selects is a label selector's rule, of which one of the names has to hold; or of none, if there are none.
func selects(r *corev1.ScopedResourceSelectorRequirement, names []string) bool {
	switch r.Operator {
	case corev1.ScopeSelectorOpExists:
		return len(names) > 0
	case corev1.ScopeSelectorOpDoesNotExist:
		return len(names) == 0
	case corev1.ScopeSelectorOpIn:
		return slices.ContainsFunc(names, func(name string) bool { return slices.Contains(r.Values, name) })
	case corev1.ScopeSelectorOpNotIn:
		return len(names) == 0 || slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(r.Values, name) })
	}
	return false
}

// PutItem takes in that an item of a namespace came, changed or went: nil stands for one that is not there.
func (x *Index) PutItem(namespace string, was, is *Item) {
	if was != nil {
		sum(&x.items, was.key(namespace), was.uses(), amounts.minus)
	}
	if is != nil {
		sum(&x.items, is.key(namespace), is.uses(), amounts.plus)
	}
	x.recount(namespace, func(q *quota) (less, more amounts) {
		if was != nil && q.scopes.hasItem(was) {
			less = was.uses()
		}
		if is != nil && q.scopes.hasItem(is) {
			more = is.uses()
		}
		return less, more
	})
}

// itemsIn is what the items use that are meant by scopes.
func (x *Index) itemsIn(namespace string, s *scopes) (used amounts) {
	x.items.Scan(itemKey(namespace), func(key string, sum amounts) bool {
		x.work += workSum
		if s.hasItem(itemOf(key, namespace)) {
			used = used.plus(sum)
		}
		return true
	})
	return used
}

// RefuseItem is RefusePod for an item.
func (x *Index) RefuseItem(namespace string, was, is *Item) (why string) {
	x.of(namespace, func(q *quota) bool {
		x.work += workQuota
		if !q.scopes.hasItem(is) {
			return true
		}
		var before amounts
		if was != nil && q.scopes.hasItem(was) {
			before = was.uses()
		}
		why = x.exceeded(q, func(l *limit) total { return growth(is.uses().get(l.own), before.get(l.own)) })
		return why == ""
	})
	return why
}

// growth is by how much more is than was; none, if it is not.
func growth(is, was total) total {
	if !is.more(was) {
		return total{}
	}
	return is.minus(was)
}
