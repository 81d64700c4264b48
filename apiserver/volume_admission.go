package apiserver

import (
	"context"
	"errors"
	"slices"

	"k8s.io/apiserver/pkg/admission"
	core "k8s.io/kubernetes/pkg/apis/core"
	corehelper "k8s.io/kubernetes/pkg/apis/core/helper"
	storage "k8s.io/kubernetes/pkg/apis/storage"

	"github.com/berth-dev/berth/fsm"
)

// The finalizers that hold a claim that a pod uses, a volume that a claim has, and a class of attributes that a claim or
// a volume names, until they do so no more.
const (
	claimInUse      = "kubernetes.io/pvc-protection"
	volumeInUse     = "kubernetes.io/pv-protection"
	attributesInUse = "kubernetes.io/vac-protection"
)

// volumeAdmission does what Kubernetes' admission plugins DefaultStorageClass,
// StorageObjectInUseProtection and PersistentVolumeClaimResize do, over the state.
type volumeAdmission struct{ view func() *fsm.View }

var (
	_ admission.MutationInterface   = volumeAdmission{}
	_ admission.ValidationInterface = volumeAdmission{}
)

// Handles implements admission.Interface.
func (volumeAdmission) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Admit implements admission.MutationInterface.
func (v volumeAdmission) Admit(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil
	}
	switch o := a.GetObject().(type) {
	case *core.PersistentVolume:
		o.Finalizers = withFinalizer(o.Finalizers, volumeInUse)
	case *storage.VolumeAttributesClass:
		o.Finalizers = withFinalizer(o.Finalizers, attributesInUse)
	case *core.PersistentVolumeClaim:
		o.Finalizers = withFinalizer(o.Finalizers, claimInUse)
		if corehelper.PersistentVolumeClaimHasClass(o) {
			return nil
		}
		if class := defaultStorageClass(v.view()); class != nil {
			o.Spec.StorageClassName = &class.Name
		}
	}
	return nil
}

func withFinalizer(all []string, one string) []string {
	if slices.Contains(all, one) {
		return all
	}
	return append(all, one)
}

// Validate implements admission.ValidationInterface: a claim grows where its class lets it.
func (v volumeAdmission) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	claim, is := a.GetObject().(*core.PersistentVolumeClaim)
	old, was := a.GetOldObject().(*core.PersistentVolumeClaim)
	if !is || !was || a.GetSubresource() != "" {
		return nil
	}
	asked, before := claim.Spec.Resources.Requests[core.ResourceStorage], old.Spec.Resources.Requests[core.ResourceStorage]
	if asked.Cmp(before) <= 0 {
		return nil
	}
	if old.Status.Phase != core.ClaimBound {
		return admission.NewForbidden(a, errors.New("Only bound persistent volume claims can be expanded")) //nolint:staticcheck // Kubernetes' words
	}
	name := corehelper.GetPersistentVolumeClaimClass(claim)
	class, ok := v.view().StorageClass(name)
	if name == "" || !ok || name != corehelper.GetPersistentVolumeClaimClass(old) || class.AllowVolumeExpansion == nil || !*class.AllowVolumeExpansion {
		return admission.NewForbidden(a, errors.New("only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"))
	}
	return nil
}
