package apiserver

import (
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/apps"
	core "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// setPods bounds how many pods a StatefulSet has, whose template takes so much as JSON.
func (l *limits) setPods(set *apps.StatefulSet, bytes int) {
	most := model.MostSetPods(bytes)
	if set.Spec.Replicas <= most {
		return
	}
	why := fmt.Sprintf("must be at most %d", most)
	if most < model.MaxSetPods {
		why += fmt.Sprintf(", for the pods of a StatefulSet may take %d bytes as JSON together, and one of these takes %d", model.MaxSetBytes, bytes)
	}
	l.ErrorList = append(l.ErrorList, field.Invalid(field.NewPath("spec", "replicas"), set.Spec.Replicas, why))
}

func templateBytes(template *core.PodTemplateSpec) int {
	var stored corev1.PodTemplateSpec
	if err := corev1conversion.Convert_core_PodTemplateSpec_To_v1_PodTemplateSpec(template, &stored, nil); err != nil {
		return 0 // nor can it be stored
	}
	b, err := json.Marshal(&stored)
	if err != nil {
		return 0
	}
	return len(b)
}

// checkPodsOfBefore bounds how many pods a StatefulSet has by the template before, from which its controller may make
// them still.
func checkPodsOfBefore(v *fsm.View, before, next runtime.Object) error {
	set, ok := next.(*apps.StatefulSet)
	if old, is := before.(*apps.StatefulSet); !ok || !is || set.Spec.Replicas <= old.Spec.Replicas {
		return nil
	}
	row, ok := v.Objects.Get(fsm.ObjectKey("controllerrevisions", set.Namespace, set.Status.CurrentRevision))
	if !ok {
		return nil
	}
	var l limits
	l.setPods(set, len(row.Value.(*appsv1.ControllerRevision).Data.Raw))
	if len(l.ErrorList) == 0 {
		return nil
	}
	return apierrors.NewInvalid(apps.Kind("StatefulSet"), set.Name, few(l.ErrorList))
}
