package runtime

import (
	"fmt"
	"os"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Refusal is why nothing of a pod is started here.
type Refusal struct {
	Reason  string // of the event: ReasonUnsupported, or Kubernetes' own
	Message string // names the field
}

// ReasonUnsupported is the reason of a pod that asks for something that this node does not have.
const ReasonUnsupported = "PodFeatureUnsupported"

// Wish is a field that a pod may have set, and why a runtime does not have it.
type Wish struct {
	Field string // its path from the pod on
	Set   bool
	Why   string
}

// Unmet is a wish that the runtime does not meet where it is set.
func Unmet(field string, set bool, why string) Wish { return Wish{Field: field, Set: set, Why: why} }

// FirstRefused is the refusal of the first wish that is set; nil: none is.
func FirstRefused(wishes []Wish) *Refusal {
	for _, w := range wishes {
		if w.Set {
			return Refuse(w.Field, w.Why)
		}
	}
	return nil
}

// Refuse is the refusal of a field.
func Refuse(field, why string) *Refusal {
	x := &Refusal{Reason: ReasonUnsupported, Message: fmt.Sprintf("%s: this node does not have it: %s", field, why)}
	switch last := field[strings.LastIndexByte(field, '.')+1:]; {
	case last == "appArmorProfile":
		x.Reason = "AppArmor"
	case strings.HasPrefix(last, "sysctls"):
		x.Reason = "SysctlForbidden"
	}
	return x
}

// EachContainer visits the containers of a pod in the order of its spec, with their paths: "spec.initContainers[0]".
func EachContainer(pod *corev1.Pod, visit func(c *corev1.Container, at string)) {
	for i := range pod.Spec.InitContainers {
		visit(&pod.Spec.InitContainers[i], fmt.Sprintf("spec.initContainers[%d]", i))
	}
	for i := range pod.Spec.Containers {
		visit(&pod.Spec.Containers[i], fmt.Sprintf("spec.containers[%d]", i))
	}
	for i := range pod.Spec.EphemeralContainers {
		visit(Ephemeral(&pod.Spec.EphemeralContainers[i]), fmt.Sprintf("spec.ephemeralContainers[%d]", i))
	}
}

// Ephemeral is an ephemeral container as a container, which it is but for what it must not have.
func Ephemeral(c *corev1.EphemeralContainer) *corev1.Container {
	return (*corev1.Container)(&c.EphemeralContainerCommon)
}

// ForSELinux are the fields by which a pod wishes for labels of SELinux. Where the host has none they mean nothing, as in Kubernetes, and
// are told; where it has, a runtime that cannot meet them refuses the pod.
func ForSELinux(pod *corev1.Pod) []string {
	var out []string
	if c := pod.Spec.SecurityContext; c != nil {
		if c.SELinuxOptions != nil {
			out = append(out, "spec.securityContext.seLinuxOptions")
		}
		if c.SELinuxChangePolicy != nil {
			out = append(out, "spec.securityContext.seLinuxChangePolicy")
		}
	}
	EachContainer(pod, func(c *corev1.Container, at string) {
		if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
			out = append(out, at+".securityContext.seLinuxOptions")
		}
	})
	return out
}

// HostHasSELinux: the kernel labels what is on it.
func HostHasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// ToldOfSELinux is what a pod that wishes for labels is told where there are none.
func ToldOfSELinux(pod *corev1.Pod) []string {
	if HostHasSELinux() {
		return nil
	}
	out := ForSELinux(pod)
	for i, field := range out {
		out[i] = field + " changes nothing: the host has no SELinux"
	}
	return out
}

// ShowsObjects: the volume's files are made of what objects of the API hold.
func ShowsObjects(v *corev1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}
