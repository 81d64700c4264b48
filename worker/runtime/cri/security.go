package cri

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/capability"
	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// maskedPaths and readOnlyPaths are the kernel's inner parts that a container with the procMount Default does not see, or
// cannot change: Kubernetes' lists.
func maskedPaths() []string {
	return []string{"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap"}
}

func readOnlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

func isTrue(b *bool) bool { return b != nil && *b }

func namespaces(pod *corev1.Pod) *criv1.NamespaceOption {
	n := &criv1.NamespaceOption{Network: criv1.NamespaceMode_POD, Pid: criv1.NamespaceMode_CONTAINER, Ipc: criv1.NamespaceMode_POD}
	if pod.Spec.HostNetwork {
		n.Network = criv1.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		n.Ipc = criv1.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		n.Pid = criv1.NamespaceMode_NODE
	case isTrue(pod.Spec.ShareProcessNamespace):
		n.Pid = criv1.NamespaceMode_POD
	}
	return n
}

func sandboxSecurity(pod *corev1.Pod) *criv1.LinuxSandboxSecurityContext {
	out := &criv1.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces(pod),
		Seccomp:          &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault},
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			out.Privileged = out.Privileged || privileged(&list[i])
		}
	}
	s := pod.Spec.SecurityContext
	if s == nil {
		return out
	}
	out.SelinuxOptions = selinux(s.SELinuxOptions)
	out.RunAsUser, out.RunAsGroup = number(s.RunAsUser), number(s.RunAsGroup)
	if s.RunAsUser == nil {
		out.RunAsGroup = nil // the interface takes none without a user
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(s)
	return out
}

func number(n *int64) *criv1.Int64Value {
	if n == nil {
		return nil
	}
	return &criv1.Int64Value{Value: *n}
}

// selinux is what the host is to label; where it labels nothing no runtime is asked to.
func selinux(o *corev1.SELinuxOptions) *criv1.SELinuxOption {
	if o == nil || !runtime.HostHasSELinux() {
		return nil
	}
	return &criv1.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// groups are those that every container of the pod is in beside its own.
func groups(s *corev1.PodSecurityContext) ([]int64, criv1.SupplementalGroupsPolicy) {
	out := append([]int64(nil), s.SupplementalGroups...)
	if s.FSGroup != nil {
		out = append(out, *s.FSGroup)
	}
	policy := criv1.SupplementalGroupsPolicy_Merge
	if p := s.SupplementalGroupsPolicy; p != nil && *p == corev1.SupplementalGroupsPolicyStrict {
		policy = criv1.SupplementalGroupsPolicy_Strict
	}
	return out, policy
}

func privileged(c *corev1.Container) bool {
	return c.SecurityContext != nil && isTrue(c.SecurityContext.Privileged)
}

// effective is a container's security context with what its pod says for all.
type effective struct {
	user, group *int64
	nonRoot     *bool
	seccomp     *corev1.SeccompProfile
	armor       *corev1.AppArmorProfile
	linux       *corev1.SELinuxOptions
}

func effectiveOf(pod *corev1.PodSecurityContext, c *corev1.SecurityContext) effective {
	var e effective
	if pod != nil {
		e = effective{pod.RunAsUser, pod.RunAsGroup, pod.RunAsNonRoot, pod.SeccompProfile, pod.AppArmorProfile, pod.SELinuxOptions}
	}
	if c == nil {
		return e
	}
	e.user, e.group, e.nonRoot = over(c.RunAsUser, e.user), over(c.RunAsGroup, e.group), over(c.RunAsNonRoot, e.nonRoot)
	e.seccomp, e.armor, e.linux = over(c.SeccompProfile, e.seccomp), over(c.AppArmorProfile, e.armor), over(c.SELinuxOptions, e.linux)
	return e
}

func over[T any](own, otherwise *T) *T {
	if own != nil {
		return own
	}
	return otherwise
}

// security is what a container may do and whom it runs as. Its errors are *runtime.ConfigError where the spec is to blame.
func (r *Runtime) security(ctx context.Context, spec *runtime.Spec) (*criv1.LinuxContainerSecurityContext, error) {
	pod, c := spec.Pod.Spec.SecurityContext, spec.Container.SecurityContext
	e := effectiveOf(pod, c)
	out := &criv1.LinuxContainerSecurityContext{
		Privileged: privileged(spec.Container), NamespaceOptions: namespaces(spec.Pod), SelinuxOptions: selinux(e.linux),
		Seccomp: r.seccomp(e.seccomp), Apparmor: armor(e.armor), MaskedPaths: maskedPaths(), ReadonlyPaths: readOnlyPaths(),
	}
	if spec.Target.Container != "" && out.NamespaceOptions.Pid == criv1.NamespaceMode_CONTAINER {
		target, err := r.find(spec.Target)
		if err != nil {
			return nil, &runtime.ConfigError{Err: fmt.Errorf("whose processes it is to see: %w", err)}
		}
		out.NamespaceOptions.Pid, out.NamespaceOptions.TargetId = criv1.NamespaceMode_TARGET, target.ref
	}
	if pod != nil {
		out.SupplementalGroups, out.SupplementalGroupsPolicy = groups(pod)
	}
	if err := r.identity(ctx, spec, e, out); err != nil {
		return nil, err
	}
	if c == nil {
		return out, nil
	}
	out.ReadonlyRootfs = isTrue(c.ReadOnlyRootFilesystem)
	out.NoNewPrivs = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	if c.Capabilities != nil {
		out.Capabilities = &criv1.Capability{AddCapabilities: capabilities(c.Capabilities.Add), DropCapabilities: capabilities(c.Capabilities.Drop)}
	}
	if out.Privileged || c.ProcMount != nil && *c.ProcMount == corev1.UnmaskedProcMount {
		out.MaskedPaths, out.ReadonlyPaths = nil, nil
	}
	return out, nil
}

// identity says whom the container runs as: where its spec does not say it, whom its image names.
func (r *Runtime) identity(ctx context.Context, spec *runtime.Spec, e effective, out *criv1.LinuxContainerSecurityContext) error {
	out.RunAsUser, out.RunAsGroup = number(e.user), number(e.group)
	image := imageUser{uid: e.user}
	if e.user == nil {
		var err error
		if image, err = r.userOf(ctx, spec.Image); err != nil {
			return err
		}
		if image.uid != nil {
			out.RunAsUser = number(image.uid)
		} else {
			out.RunAsUsername = image.name
		}
	}
	if !isTrue(e.nonRoot) {
		return nil
	}
	where := fmt.Sprintf("(pod: %q, container: %s)", spec.Pod.Namespace+"/"+spec.Pod.Name, spec.Container.Name)
	switch {
	case e.user != nil && *e.user == 0:
		return &runtime.ConfigError{Err: fmt.Errorf("container's runAsUser breaks non-root policy %s", where)}
	case image.uid != nil && *image.uid == 0:
		return &runtime.ConfigError{Err: fmt.Errorf("container has runAsNonRoot and image will run as root %s", where)}
	case image.uid == nil:
		return &runtime.ConfigError{Err: fmt.Errorf(
			"container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", image.name, where)}
	}
	return nil
}

// unknownCapability finds one that this kernel does not have. Runtimes pass over such a name: what it was to take away would be kept.
func unknownCapability(s *corev1.SecurityContext) (corev1.Capability, bool) {
	if s.Capabilities == nil || isTrue(s.Privileged) {
		return "", false
	}
	known := []string{"ALL"}
	all, _ := capability.ListSupported() // where the kernel does not say it, none is known
	for _, c := range all {
		known = append(known, strings.ToUpper(c.String()))
	}
	named := slices.Concat(s.Capabilities.Add, s.Capabilities.Drop)
	for i, name := range capabilities(named) {
		if !slices.Contains(known, name) {
			return named[i], true
		}
	}
	return "", false
}

func capabilities(list []corev1.Capability) []string {
	var out []string
	for _, c := range list {
		out = append(out, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
	}
	return out
}

// profileDir is where seccomp profiles of the type Localhost are looked for.
func (r *Runtime) profileDir() string { return filepath.Join(filepath.Dir(r.opts.Root), "seccomp") }

func (r *Runtime) seccomp(p *corev1.SeccompProfile) *criv1.SecurityProfile {
	switch {
	case p != nil && p.Type == corev1.SeccompProfileTypeRuntimeDefault:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	case p != nil && p.Type == corev1.SeccompProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Localhost, LocalhostRef: filepath.Join(r.profileDir(), *p.LocalhostProfile)}
	}
	return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}
}

// armor is nil where the pod says nothing: the runtime applies its own profile where the host has AppArmor.
func armor(p *corev1.AppArmorProfile) *criv1.SecurityProfile {
	switch {
	case p == nil:
		return nil
	case p.Type == corev1.AppArmorProfileTypeRuntimeDefault:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_RuntimeDefault}
	case p.Type == corev1.AppArmorProfileTypeLocalhost && p.LocalhostProfile != nil:
		return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile}
	}
	return &criv1.SecurityProfile{ProfileType: criv1.SecurityProfile_Unconfined}
}
