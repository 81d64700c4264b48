package apiserver

import (
	"context"
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/storage"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"

	_ "k8s.io/kubernetes/pkg/apis/storage/install" // into Kubernetes' scheme

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

func persistentVolumeDescription() description {
	return description{
		kind:     inNoNamespace(plainKind[core.PersistentVolume, corev1.PersistentVolume](core.Resource(fsm.PersistentVolumes))),
		singular: "persistentvolume", shortNames: []string{"pv"}, version: corev1.SchemeGroupVersion, whole: true,
		list:  func() runtime.Object { return new(core.PersistentVolumeList) },
		attrs: persistentvolume.GetAttrs, predicate: persistentvolume.MatchPersistentVolumes,
	}.by(persistentvolume.Strategy)
}

func volumeClaimDescription() description {
	d := description{
		kind:     plainKind[core.PersistentVolumeClaim, corev1.PersistentVolumeClaim](core.Resource(fsm.VolumeClaims)),
		singular: "persistentvolumeclaim", shortNames: []string{"pvc"}, version: corev1.SchemeGroupVersion, whole: true,
		list:  func() runtime.Object { return new(core.PersistentVolumeClaimList) },
		attrs: persistentvolumeclaim.GetAttrs, predicate: persistentvolumeclaim.MatchPersistentVolumeClaim,
	}.by(persistentvolumeclaim.Strategy)
	d.create = claimCreation{persistentvolumeclaim.Strategy}
	return d
}

// claimCreation is upstream's strategy, with the phase that Kubernetes gives to claims that have none when it reads
// them.
type claimCreation struct{ rest.RESTCreateStrategy }

// PrepareForCreate implements rest.RESTCreateStrategy.
func (s claimCreation) PrepareForCreate(ctx context.Context, obj runtime.Object) {
	s.RESTCreateStrategy.PrepareForCreate(ctx, obj)
	obj.(*core.PersistentVolumeClaim).Status.Phase = core.ClaimPending
}

func storageClassDescription() description {
	return description{
		kind:     inNoNamespace(plainKind[storage.StorageClass, storagev1.StorageClass](storage.Resource(fsm.StorageClasses))),
		singular: "storageclass", shortNames: []string{"sc"}, version: storagev1.SchemeGroupVersion, whole: true,
		list:   func() runtime.Object { return new(storage.StorageClassList) },
		create: storageClassCreation{storageclass.Strategy}, update: storageClassChange{storageclass.Strategy}, remove: storageclass.Strategy,
	}
}

// volumes adds volumes and claims to the resources of the core group.
func (g *registry) volumes(resources map[string]rest.Storage) error {
	return errors.Join(
		g.workload(resources, persistentVolumeDescription(), persistentvolume.StatusStrategy),
		g.workload(resources, volumeClaimDescription(), claimStatusChange{persistentvolumeclaim.StatusStrategy, g.backend.View}),
	)
}

// claimStatusChange is upstream's strategy of statuses, by which no claim is lost whose
// volume is there, and none is said to have been given more than an amount can be. Volume and claim are bound in one entry; who hears of the claim first may
// think that there is no such volume.
type claimStatusChange struct {
	statusStrategy
	view func() *fsm.View
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s claimStatusChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	errs := s.statusStrategy.ValidateUpdate(ctx, obj, old)
	claim := obj.(*core.PersistentVolumeClaim)
	errs = append(errs, givenAmounts(&claim.Status, &old.(*core.PersistentVolumeClaim).Status)...)
	if claim.Status.Phase != core.ClaimLost || old.(*core.PersistentVolumeClaim).Status.Phase == core.ClaimLost {
		return errs
	}
	if v, ok := s.view().PersistentVolume(claim.Spec.VolumeName); ok && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == claim.UID {
		errs = append(errs, field.Invalid(field.NewPath("status", "phase"), claim.Status.Phase, "the claim's volume is there"))
	}
	return errs
}

// givenAmounts bounds what is newly said of what a claim was given, which is summed up.
func givenAmounts(is, was *core.PersistentVolumeClaimStatus) field.ErrorList {
	var l limits
	bound := func(name string, is, was core.ResourceList) {
		if !equality.Semantic.DeepEqual(is, was) {
			l.amounts(field.NewPath("status", name), is)
		}
	}
	bound("capacity", is.Capacity, was.Capacity)
	bound("allocatedResources", is.AllocatedResources, was.AllocatedResources)
	return l.ErrorList
}

// storageGroup serves the classes of volumes, and what drivers of volumes keep.
func (g *registry) storageGroup() (genericapiserver.APIGroupInfo, error) {
	resources := map[string]rest.Storage{}
	err := errors.Join(g.workload(resources, storageClassDescription(), nil), g.volumeDrivers(resources))
	return groupOf(storagev1.SchemeGroupVersion, resources), err
}

// storageClassCreation is upstream's strategy, with what volumes that Berth makes cannot
// have.
type storageClassCreation struct{ rest.RESTCreateStrategy }

// Validate implements rest.RESTCreateStrategy.
func (s storageClassCreation) Validate(ctx context.Context, obj runtime.Object) field.ErrorList {
	return append(s.RESTCreateStrategy.Validate(ctx, obj), checkLocalClass(obj.(*storage.StorageClass))...)
}

// storageClassChange is the same for what is changed.
type storageClassChange struct{ rest.RESTUpdateStrategy }

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s storageClassChange) ValidateUpdate(ctx context.Context, obj, old runtime.Object) field.ErrorList {
	return append(s.RESTUpdateStrategy.ValidateUpdate(ctx, obj, old), checkLocalClass(obj.(*storage.StorageClass))...)
}

// checkLocalClass refuses what a class of directories of the nodes does not honour.
func checkLocalClass(c *storage.StorageClass) (errs field.ErrorList) {
	if c.Provisioner != model.LocalProvisioner {
		return nil
	}
	if m := c.VolumeBindingMode; m == nil || *m != storage.VolumeBindingWaitForFirstConsumer {
		errs = append(errs, field.Invalid(field.NewPath("volumeBindingMode"), m,
			"volumes of "+model.LocalProvisioner+" are on the node of the first pod that uses them: it must be WaitForFirstConsumer"))
	}
	if len(c.Parameters) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("parameters"), model.LocalProvisioner+" has none"))
	}
	if len(c.MountOptions) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("mountOptions"), "volumes of "+model.LocalProvisioner+" are directories"))
	}
	if c.AllowVolumeExpansion != nil && *c.AllowVolumeExpansion {
		errs = append(errs, field.Forbidden(field.NewPath("allowVolumeExpansion"),
			"volumes of "+model.LocalProvisioner+" keep the size that they were made with"))
	}
	return errs
}

// volumeClaim bounds what every node is asked for, and what is summed up.
func (l *limits) volumeClaim(spec *field.Path, c *core.PersistentVolumeClaim) {
	l.selector(spec.Child("selector"), c.Spec.Selector)
	l.count(spec.Child("accessModes"), len(c.Spec.AccessModes), maxAccessModes)
	l.amounts(spec.Child("resources", "requests"), c.Spec.Resources.Requests)
	l.amounts(spec.Child("resources", "limits"), c.Spec.Resources.Limits)
}

// persistentVolume bounds what every node is compared with.
func (l *limits) persistentVolume(spec *field.Path, v *core.PersistentVolume) {
	l.count(spec.Child("accessModes"), len(v.Spec.AccessModes), maxAccessModes)
	l.amounts(spec.Child("capacity"), v.Spec.Capacity)
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		terms := spec.Child("nodeAffinity", "required", "nodeSelectorTerms")
		l.count(terms, len(a.Required.NodeSelectorTerms), maxNodeTerms)
		for i := range a.Required.NodeSelectorTerms {
			l.nodeTerm(terms.Index(i), &a.Required.NodeSelectorTerms[i])
		}
	}
}

// storageClass bounds which nodes it is for.
func (l *limits) storageClass(c *storage.StorageClass) {
	at := field.NewPath("allowedTopologies")
	l.count(at, len(c.AllowedTopologies), maxNodeTerms)
	for i := range c.AllowedTopologies {
		expressions := c.AllowedTopologies[i].MatchLabelExpressions
		l.count(at.Index(i).Child("matchLabelExpressions"), len(expressions), maxExpressions)
		for j := range expressions {
			l.count(at.Index(i).Child("matchLabelExpressions").Index(j).Child("values"), len(expressions[j].Values), maxValues)
		}
	}
}

const maxAccessModes = 8

// defaultStorageClass is the class of claims that name none: the newest of those that
// are marked so, as in Kubernetes; nil if there is none.
func defaultStorageClass(view *fsm.View) *storagev1.StorageClass {
	var found []*storagev1.StorageClass
	view.Objects.Scan(fsm.ObjectKey(fsm.StorageClasses, "", ""), func(_ string, o *fsm.Object) bool {
		if c := o.Value.(*storagev1.StorageClass); isDefaultClass(c) {
			found = append(found, c)
		}
		return true
	})
	if len(found) == 0 {
		return nil
	}
	return slices.MinFunc(found, func(a, b *storagev1.StorageClass) int { // of equals the first by name
		return b.CreationTimestamp.Compare(a.CreationTimestamp.Time)
	})
}

func isDefaultClass(c *storagev1.StorageClass) bool {
	return c.Annotations["storageclass.kubernetes.io/is-default-class"] == "true" ||
		c.Annotations["storageclass.beta.kubernetes.io/is-default-class"] == "true"
}
