package fsm

import (
	"fmt"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/codec"
)

// Object is a stored object of a kind that no command of its own is for.
type Object struct {
	// Resource is the kind's plural name, as in URLs.
	Resource string
	// Value is the Kubernetes object: *corev1.ConfigMap, …
	Value codec.Object
}

// ObjectKind is a kind that the table of plain objects can hold.
type ObjectKind struct {
	// Resource is what its objects are under in the table: the plural name, for a
	// custom kind with its group behind ("widgets.example.com").
	Group, Resource, Kind string
	// Custom: users have defined it (see customKind).
	Custom bool
	// ClusterScoped objects are in no namespace.
	ClusterScoped bool
	// Since is the version of the rules that brought the kind; 0: it was always there.
	Since int
	New   func() codec.Object
	// MostInNamespace is how many there may be in one namespace, or in the cluster; 0: any
	// number.
	MostInNamespace int
	// Workload is what a kind that keeps pods says of them; nil for others.
	Workload *Workload
}

// names are the kind's in the API.
func (k ObjectKind) names() resource {
	if k.Custom {
		return resource{k.Group, strings.TrimSuffix(k.Resource, "."+k.Group), k.Kind}
	}
	return resource{k.Group, k.Resource, k.Kind}
}

// GroupResource names the kind as the API does.
func (k ObjectKind) GroupResource() schema.GroupResource { return k.names().groupResource() }

func (k ObjectKind) apiVersion() string {
	if k.Group == "" {
		return "v1"
	}
	return k.Group + "/v1"
}

// Workload is how the state machine reads a kind whose objects keep pods. What
// has no meaning here for a kind is nil.
type Workload struct {
	// Replicas is how many pods the object wants whose controller it is.
	Replicas func(o codec.Object) int32
	// Selector says which pods can be the object's.
	Selector func(o codec.Object) *metav1.LabelSelector
	// Template is what the object's pods are made from in the end.
	Template func(o codec.Object) *corev1.PodTemplateSpec
	// WithStatus gives a copy that has another status, in protobuf bytes, and
	// shares all else. Kinds that have it are kept by commands.
	WithStatus func(o codec.Object, status []byte) (codec.Object, error)
}

// ObjectKinds are the kinds that the table of plain objects can hold.
func ObjectKinds() []ObjectKind {
	return append([]ObjectKind{
		{Group: "", Resource: "configmaps", Kind: "ConfigMap", New: func() codec.Object { return new(corev1.ConfigMap) }},
		{Group: "", Resource: "secrets", Kind: "Secret", New: func() codec.Object { return new(corev1.Secret) }},
		{Group: "", Resource: "serviceaccounts", Kind: "ServiceAccount", New: func() codec.Object { return new(corev1.ServiceAccount) }},
		{Group: "", Resource: "services", Kind: "Service", New: func() codec.Object { return new(corev1.Service) }},
		{Group: "", Resource: "podtemplates", Kind: "PodTemplate", New: func() codec.Object { return new(corev1.PodTemplate) }},
		{Group: "coordination.k8s.io", Resource: "leases", Kind: "Lease", New: func() codec.Object { return new(coordinationv1.Lease) }},
		replicaSetKind(),
		runtimeClassKind(),
		limitRangeKind(),
		resourceQuotaKind(),
		definitionKind(),
		certificateRequestKind(),
		autoscalerKind(),
		flowSchemaKind(),
		priorityLevelKind(),
		serviceCIDRKind(),
		ipAddressKind(),
		apiServiceKind(),
	}, slices.Concat(workloadKinds(), roleKinds(), volumeKinds(), admissionKinds(), driverKinds())...)
}

var objectKinds = func() map[string]ObjectKind {
	m := map[string]ObjectKind{}
	for _, k := range ObjectKinds() {
		m[k.Resource] = k
	}
	return m
}()

// KindOf is the kind that is under a resource in the table of plain objects.
func KindOf(resource string) (ObjectKind, bool) {
	if kind, ok := objectKinds[resource]; ok {
		return kind, true
	}
	return customKind(resource)
}

// objectKind is a kind that objects of may be stored by the rules as they are now.
func (v *View) objectKind(resource string) (ObjectKind, bool) {
	kind, ok := KindOf(resource)
	return kind, ok && v.Version() >= kind.Since
}

// checkRoom refuses one more object of a kind in a namespace that has as many as it may
// have.
func (v *View) checkRoom(kind ObjectKind, namespace, name string) (Result, bool) {
	if kind.MostInNamespace == 0 {
		return Result{}, true
	}
	n := 0
	v.Objects.Scan(ObjectKey(kind.Resource, namespace, ""), func(string, *Object) bool {
		n++
		return n < kind.MostInNamespace
	})
	if n < kind.MostInNamespace {
		return Result{}, true
	}
	if kind.ClusterScoped {
		return refuseForbidden(kind.GroupResource(), name, fmt.Sprintf("there may be %d of them at most, and there are as many", kind.MostInNamespace)), false
	}
	return refuseForbidden(kind.GroupResource(), name,
		fmt.Sprintf("a namespace may have %d of them at most, and %s has as many", kind.MostInNamespace, namespace)), false
}

// ObjectKey is the key of an object in the table of plain objects. What is
// cluster-scoped has an empty namespace.
func ObjectKey(resource, namespace, name string) string {
	return resource + "/" + namespace + "/" + name
}

var objectTable = &tableDef[*Object]{
	Name: "objects",
	Marshal: func(o *Object) ([]byte, error) {
		b, err := o.Value.Marshal()
		if err != nil {
			return nil, err
		}
		return append(append([]byte(o.Resource), 0), b...), nil
	},
	Unmarshal: func(b []byte) (*Object, error) {
		resource, rest, ok := strings.Cut(string(b), "\x00")
		kind, known := KindOf(resource)
		if !ok || !known {
			return nil, fmt.Errorf("an object of unknown kind %.40q", resource)
		}
		o := &Object{Resource: resource, Value: kind.New()}
		return o, codec.Unmarshal([]byte(rest), o.Value)
	},
	Canonical: func() func(row, before *Object, had bool) {
		kinds := map[string]func(o, before codec.Object){}
		// order does not matter: it fills a map.
		for resource, k := range objectKinds {
			kinds[resource] = codec.CanonicalObject(k.New(), codec.Protobuf)
		}
		custom := codec.CanonicalObject(new(codec.CustomObject), codec.Protobuf)
		return func(row, before *Object, had bool) {
			var was codec.Object
			if had && before.Resource == row.Resource {
				was = before.Value
			}
			if canonical := kinds[row.Resource]; canonical != nil {
				canonical(row.Value, was)
				return
			}
			custom(row.Value, was)
		}
	}(),
	Revise: func(o *Object, revision int64) { o.Value.SetResourceVersion(formatRevision(revision)) },
	Size:   objectBytes,
	Bytes:  whole(objectBytes),
	Index: func(v *live, key string, old, now *Object, hadOld, hasNow bool) {
		v.budgets.PutScale(scaleOf(old), scaleOf(now))
		indexObjectOwners(v, old, now)
		indexService(v, old, now)
		indexGiven(v, old, now)
		indexObjectUse(v, old, now)
		indexRoles(v, old, now)
		indexDefinition(v, old, now)
		indexVolumes(v, old, now)
		indexDevices(v, old, now)
	},
}

func indexObjectOwners(v *live, old, now *Object) {
	var was, is metav1.Object
	var resource string
	if old != nil {
		was, resource = old.Value, old.Resource
	}
	if now != nil {
		is, resource = now.Value, now.Resource
	}
	v.owners.Put(resource, was, is)
}
