package apiserver

import (
	"fmt"

	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/apis/resource"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaim"
	"k8s.io/kubernetes/pkg/registry/resource/resourceclaimtemplate"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"

	"k8s.io/kubernetes/plugin/pkg/admission/network/defaultingressclass"

	_ "k8s.io/kubernetes/pkg/apis/resource/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/fsm"
)

// plainly describes a kind of plain objects by one strategy for everything: T is its internal type, V the one that is stored, L
// the internal list.
func plainly[T, V, L any, P interface {
	*T
	runtime.Object
}, W interface {
	*V
	runtime.Object
	codec.Object
}, M interface {
	*L
	runtime.Object
}](of schema.GroupResource, singular string, version schema.GroupVersion, s strategy) description {
	d := description{
		kind: plainKind[T, V, P, W](of), singular: singular, version: version,
		list: func() runtime.Object { return M(new(L)) },
	}.by(s)
	if !s.NamespaceScoped() {
		d.kind = inNoNamespace(d.kind)
	}
	return d
}

// ingresses adds what lets traffic in. No controller here acts on it.
func (g *registry) ingresses(resources map[string]rest.Storage) error {
	i := plainly[networking.Ingress, networkingv1.Ingress, networking.IngressList](
		networking.Resource(fsm.Ingresses), "ingress", networkingv1.SchemeGroupVersion, ingress.Strategy)
	i.shortNames = []string{"ing"}
	return errors.Join(
		g.workload(resources, i, ingress.StatusStrategy),
		g.workload(resources, plainly[networking.IngressClass, networkingv1.IngressClass, networking.IngressClassList](
			networking.Resource(fsm.IngressClasses), "ingressclass", networkingv1.SchemeGroupVersion, ingressclass.Strategy), nil),
	)
}

// newIngressClassDefault makes Kubernetes' admission plugin by which ingresses without a class get the default one.
func newIngressClassDefault(plugins admission.PluginInitializers) (admission.Interface, error) {
	return kubernetesPlugin(defaultingressclass.Register, defaultingressclass.PluginName, nil, plugins)
}

// volumeDrivers adds what drivers of volumes keep, and what is asked of them.
func (g *registry) volumeDrivers(resources map[string]rest.Storage) error {
	gv := storagev1.SchemeGroupVersion
	whole := func(d description) description {
		d.whole = true
		return d
	}
	capacities := plainly[storage.CSIStorageCapacity, storagev1.CSIStorageCapacity, storage.CSIStorageCapacityList](
		storage.Resource(fsm.CSIStorageCapacities), "csistoragecapacity", gv, csistoragecapacity.Strategy)
	capacities.table = rest.NewDefaultTableConvertor(storage.Resource(fsm.CSIStorageCapacities))
	attributes := plainly[storage.VolumeAttributesClass, storagev1.VolumeAttributesClass, storage.VolumeAttributesClassList](
		storage.Resource(fsm.VolumeAttributesClasses), "volumeattributesclass", gv, volumeattributesclass.Strategy)
	attributes.shortNames = []string{"vac"}
	return errors.Join(
		g.workload(resources, whole(plainly[storage.CSIDriver, storagev1.CSIDriver, storage.CSIDriverList](
			storage.Resource(fsm.CSIDrivers), "csidriver", gv, csidriver.Strategy)), nil),
		g.workload(resources, whole(plainly[storage.CSINode, storagev1.CSINode, storage.CSINodeList](
			storage.Resource(fsm.CSINodes), "csinode", gv, csinode.Strategy)), nil),
		g.workload(resources, capacities, nil),
		g.workload(resources, whole(plainly[storage.VolumeAttachment, storagev1.VolumeAttachment, storage.VolumeAttachmentList](
			storage.Resource(fsm.VolumeAttachments), "volumeattachment", gv, volumeattachment.Strategy)), volumeattachment.StatusStrategy),
		g.workload(resources, whole(attributes), nil),
	)
}

// devicesGroup serves what drivers of devices offer, and what is asked of them.
func (g *registry) devicesGroup() (genericapiserver.APIGroupInfo, error) {
	gv := resourcev1.SchemeGroupVersion
	resources := map[string]rest.Storage{}
	namespaces := seenNamespaces{view: g.backend.View}
	ofClaims := resourceclaim.NewStrategy(namespaces, g.rights)
	claims := plainly[resource.ResourceClaim, resourcev1.ResourceClaim, resource.ResourceClaimList](
		resource.Resource(fsm.ResourceClaims), "resourceclaim", gv, ofClaims)
	claims.attrs, claims.predicate = resourceclaim.GetAttrs, resourceclaim.Match
	templates := plainly[resource.ResourceClaimTemplate, resourcev1.ResourceClaimTemplate, resource.ResourceClaimTemplateList](
		resource.Resource(fsm.ResourceClaimTemplates), "resourceclaimtemplate", gv, resourceclaimtemplate.NewStrategy(namespaces))
	templates.attrs = resourceclaimtemplate.GetAttrs
	slices := plainly[resource.ResourceSlice, resourcev1.ResourceSlice, resource.ResourceSliceList](
		resource.Resource(fsm.ResourceSlices), "resourceslice", gv, resourceslice.Strategy)
	slices.attrs, slices.predicate = resourceslice.GetAttrs, resourceslice.Match
	classes := plainly[resource.DeviceClass, resourcev1.DeviceClass, resource.DeviceClassList](
		resource.Resource(fsm.DeviceClasses), "deviceclass", gv, deviceClassStrategy{deviceclass.Strategy})
	for _, d := range []*description{&claims, &templates, &slices, &classes} {
		d.whole = true
	}
	err := errors.Join(
		g.workload(resources, claims, resourceclaim.NewStatusStrategy(ofClaims)),
		g.workload(resources, templates, nil), g.workload(resources, slices, nil), g.workload(resources, classes, nil),
	)
	return groupOf(gv, resources), err
}

// deviceClassStrategy is upstream's, and tells what of a class nobody acts upon.
type deviceClassStrategy struct{ strategy }

// WarningsOnCreate implements rest.RESTCreateStrategy.
func (s deviceClassStrategy) WarningsOnCreate(ctx context.Context, obj runtime.Object) []string {
	return append(s.strategy.WarningsOnCreate(ctx, obj), toldOfClass(obj)...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy.
func (s deviceClassStrategy) WarningsOnUpdate(ctx context.Context, obj, old runtime.Object) []string {
	return append(s.strategy.WarningsOnUpdate(ctx, obj, old), toldOfClass(obj)...)
}

func toldOfClass(obj runtime.Object) []string {
	if class, ok := obj.(*resource.DeviceClass); !ok || class.Spec.ExtendedResourceName == nil {
		return nil
	}
	return []string{"spec.extendedResourceName: nobody here makes claims for pods that ask for this resource; they get devices of the class by resourceClaims"}
}

// seenNamespaces shows the namespaces of the state to upstream's strategies, which look for labels of one.
type seenNamespaces struct {
	clientcorev1.NamespaceInterface
	view func() *fsm.View
}

// Get implements clientcorev1.NamespaceInterface. What it gives is shared.
func (n seenNamespaces) Get(_ context.Context, name string, _ metav1.GetOptions) (*corev1.Namespace, error) {
	ns, ok := n.view().Namespaces.Get(name)
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("namespaces"), name)
	}
	return ns, nil
}

// drivers bounds what is looked at for pods; it says whether the object is such a one.
func (l *limits) drivers(spec *field.Path, obj runtime.Object) bool {
	switch o := obj.(type) {
	case *storage.CSINode:
		l.count(spec.Child("drivers"), len(o.Spec.Drivers), fsm.MaxNodeDrivers)
	case *storage.CSIStorageCapacity:
		l.selector(field.NewPath("nodeTopology"), o.NodeTopology)
	case *resource.ResourceClaim:
		l.expressions(spec.Child("devices"), deviceSelectors(&o.Spec))
	case *resource.ResourceClaimTemplate:
		l.expressions(spec.Child("spec", "devices"), deviceSelectors(&o.Spec.Spec))
	case *resource.DeviceClass:
		l.expressions(spec.Child("selectors"), o.Spec.Selectors)
	default:
		return false
	}
	return true
}

// maxExpressionBytes bounds the expressions of one object together: to compile them takes some eight microseconds for each byte.
const maxExpressionBytes = 64 << 10

func (l *limits) expressions(at *field.Path, selectors []resource.DeviceSelector) {
	n := 0
	for i := range selectors {
		if selectors[i].CEL != nil {
			n += len(selectors[i].CEL.Expression)
		}
	}
	if n > maxExpressionBytes {
		l.ErrorList = append(l.ErrorList, &field.Error{Type: field.ErrorTypeForbidden, Field: at.String(), BadValue: n,
			Detail: fmt.Sprintf("the expressions of its selectors have %d bytes together, and may have %d", n, maxExpressionBytes)})
	}
}

// deviceSelectors are all of a claim.
func deviceSelectors(claim *resource.ResourceClaimSpec) (all []resource.DeviceSelector) {
	for i := range claim.Devices.Requests {
		r := &claim.Devices.Requests[i]
		if r.Exactly != nil {
			all = append(all, r.Exactly.Selectors...)
		}
		for k := range r.FirstAvailable {
			all = append(all, r.FirstAvailable[k].Selectors...)
		}
	}
	return all
}
