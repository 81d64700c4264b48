package apiserver

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	core "k8s.io/kubernetes/pkg/apis/core"
	accountadmission "k8s.io/kubernetes/plugin/pkg/admission/serviceaccount"

	"github.com/berth-dev/berth/fsm"
)

// accountVolume is the volume with a pod's token. Its name is always the same, so
// that equal pods stay equal; Kubernetes draws the end of it.
const accountVolume = accountadmission.ServiceAccountVolumeName + "-berth"

// sinceTokens is the version of the rules from which on tokens can be signed.
var sinceTokens = fsm.Since(&fsm.AddSigningKey{})

// mountAccount is Kubernetes' rule: unless the pod or its account does not want
// it, every container that mounts nothing at the usual place gets the pod's token
// there, with the CA of the API and the name of the namespace. That the account
// is there is checked where the pod is admitted.
//
// Before all servers know of signing keys no token can be had, and a pod that asked
// for one would wait until they do.
func mountAccount(view *fsm.View, namespace string, pod *core.Pod) {
	if view.Version() < sinceTokens {
		return
	}
	name := pod.Spec.ServiceAccountName
	if name == "" {
		name = defaultServiceAccount
	}
	o, ok := view.Objects.Get(fsm.ObjectKey(serviceAccounts, namespace, name))
	if _, mirrored := pod.Annotations[corev1.MirrorPodAnnotationKey]; !ok || mirrored {
		return
	}
	wanted := pod.Spec.AutomountServiceAccountToken // what the pod says comes first
	if wanted == nil {
		wanted = o.Value.(*corev1.ServiceAccount).AutomountServiceAccountToken
	}
	if wanted != nil && !*wanted {
		return
	}
	volume, there := accountVolume, false
	if i := slices.IndexFunc(pod.Spec.Volumes, isAccountVolume); i >= 0 {
		volume, there = pod.Spec.Volumes[i].Name, true
	}
	used := false
	for _, containers := range [][]core.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			c := &containers[i]
			taken := slices.ContainsFunc(c.VolumeMounts, func(m core.VolumeMount) bool {
				return m.MountPath == accountadmission.DefaultAPITokenMountPath
			})
			if !taken {
				c.VolumeMounts = append(c.VolumeMounts, core.VolumeMount{
					Name: volume, ReadOnly: true, MountPath: accountadmission.DefaultAPITokenMountPath,
				})
				used = true
			}
		}
	}
	if used && !there {
		pod.Spec.Volumes = append(pod.Spec.Volumes, core.Volume{
			Name: volume, VolumeSource: core.VolumeSource{Projected: accountadmission.TokenVolumeSource()},
		})
	}
}

func isAccountVolume(v core.Volume) bool {
	return strings.HasPrefix(v.Name, accountadmission.ServiceAccountVolumeName+"-")
}
