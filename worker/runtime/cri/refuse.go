package cri

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/naming"
)

// safeSysctls are those that only the pod feels, as in Kubernetes.
func safeSysctls() []string {
	return []string{"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range",
		"net.ipv4.ip_unprivileged_port_start", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time",
		"net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"}
}

const needsHugepages = "it has no cgroups of its own making that bound hugepages"

// Refuse implements runtime.Refuser.
func (r *Runtime) Refuse(pod *corev1.Pod) *runtime.Refusal {
	wishes := r.podWishes(pod)
	runtime.EachContainer(pod, func(c *corev1.Container, at string) { wishes = append(wishes, r.containerWishes(c, at)...) })
	return runtime.FirstRefused(wishes)
}

func (r *Runtime) podWishes(pod *corev1.Pod) []runtime.Wish {
	s := &pod.Spec
	known := r.known()
	out := []runtime.Wish{
		runtime.Unmet("spec.hostUsers", s.HostUsers != nil && !*s.HostUsers,
			"containers have no user namespace of their own"),
		runtime.Unmet("spec.setHostnameAsFQDN", naming.WantsFQDN(pod) && r.opts.Domain == "",
			"it was not told the cluster's domain (worker.services.cluster_domain)"),
		runtime.Unmet("spec.runtimeClassName", s.RuntimeClassName != nil && *s.RuntimeClassName != "" && r.opts.Handler == nil,
			"it knows no runtime classes"),
		runtime.Unmet("spec.resources", s.Resources != nil && len(s.Resources.Limits) > 0 && r.podCgroups() == nil,
			"pods have no cgroup that this agent may bound"),
	}
	out = append(out, runtime.Unmet("spec.resources.limits[hugepages]", hugepages.Wanted(s.Resources) && !r.Hugepages(), needsHugepages))
	for i := range s.Volumes {
		out = append(out, runtime.Unmet(fmt.Sprintf("spec.volumes[%d].image", i), s.Volumes[i].Image != nil && known.images == noImageMounts,
			fmt.Sprintf("%s %s has no volumes of images", known.name, known.version)))
	}
	c := s.SecurityContext
	if c == nil {
		return out
	}
	at := func(field string) string { return "spec.securityContext." + field }
	out = append(out, r.sharedWishes(at, c.AppArmorProfile, c.SeccompProfile)...)
	strict := c.SupplementalGroupsPolicy != nil && *c.SupplementalGroupsPolicy == corev1.SupplementalGroupsPolicyStrict
	out = append(out,
		runtime.Unmet(at("supplementalGroupsPolicy"), strict && !known.strictGroups,
			"the container runtime always adds the groups of the image"),
		runtime.Unmet(at("seLinuxChangePolicy"), c.SELinuxChangePolicy != nil && runtime.HostHasSELinux(), "it labels no volumes"),
		runtime.Unmet(at("windowsOptions"), c.WindowsOptions != nil, "this is not Windows"))
	for i, one := range c.Sysctls {
		field := at(fmt.Sprintf("sysctls[%d]", i))
		name := strings.ReplaceAll(one.Name, "/", ".")
		out = append(out,
			runtime.Unmet(field, !slices.Contains(safeSysctls(), name),
				fmt.Sprintf("%q is not among the safe sysctls", one.Name)),
			runtime.Unmet(field, strings.HasPrefix(name, "net.") && s.HostNetwork,
				fmt.Sprintf("%q is the host's, whose network the pod is in", one.Name)),
			runtime.Unmet(field, strings.HasPrefix(name, "kernel.") && s.HostIPC,
				fmt.Sprintf("%q is the host's, whose IPC the pod is in", one.Name)))
	}
	return out
}

// sharedWishes are those that pods and containers have in common.
func (r *Runtime) sharedWishes(at func(string) string, armor *corev1.AppArmorProfile, seccomp *corev1.SeccompProfile) []runtime.Wish {
	profile := ""
	if seccomp != nil && seccomp.Type == corev1.SeccompProfileTypeLocalhost && seccomp.LocalhostProfile != nil {
		profile = filepath.Join(r.profileDir(), *seccomp.LocalhostProfile)
	}
	return []runtime.Wish{
		runtime.Unmet(at("appArmorProfile"), armor != nil && armor.Type != corev1.AppArmorProfileTypeUnconfined && !appArmor(),
			"the host has no AppArmor"),
		runtime.Unmet(at("seccompProfile"), profile != "" && !exists(profile), "there is no profile "+profile),
	}
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func appArmor() bool {
	b, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	return err == nil && strings.HasPrefix(string(b), "Y")
}

func (r *Runtime) containerWishes(c *corev1.Container, path string) []runtime.Wish {
	var out []runtime.Wish
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		must := m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled
		out = append(out, runtime.Unmet(fmt.Sprintf("%s.volumeMounts[%d].recursiveReadOnly", path, i), must && !r.known().readOnlyBelow,
			"the container runtime cannot mount so"))
	}
	out = append(out, runtime.Unmet(path+".resources.limits[hugepages]", hugepages.Wanted(&c.Resources) && !r.Hugepages(), needsHugepages))
	for i := range c.VolumeDevices {
		out = append(out, runtime.Unmet(fmt.Sprintf("%s.volumeDevices[%d]", path, i), true, "it has no block devices"))
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		known := r.known()
		_, there := criv1.Signal_value[string(*l.StopSignal)]
		out = append(out,
			runtime.Unmet(path+".lifecycle.stopSignal", !known.signals,
				fmt.Sprintf("%s %s sends the one that the image names", known.name, known.version)),
			runtime.Unmet(path+".lifecycle.stopSignal", !there, "there is no such signal"))
	}
	s := c.SecurityContext
	if s == nil {
		return out
	}
	at := func(field string) string { return path + ".securityContext." + field }
	missing, none := unknownCapability(s)
	out = append(out, runtime.Unmet(at("capabilities"), none, fmt.Sprintf("there is no capability %q on this machine", missing)))
	return append(append(out, r.sharedWishes(at, s.AppArmorProfile, s.SeccompProfile)...),
		runtime.Unmet(at("windowsOptions"), s.WindowsOptions != nil, "this is not Windows"))
}

// ReadOnlyBelow implements runtime.Mounter.
func (r *Runtime) ReadOnlyBelow() bool { return r.known().readOnlyBelow }

// Told implements runtime.Refuser.
func (r *Runtime) Told(pod *corev1.Pod) []string {
	out := runtime.ToldOfSELinux(pod)
	if pod.Spec.Subdomain != "" && r.opts.ClusterDNS == nil {
		out = append(out, "spec.subdomain gives the pod no name: this node answers for no names of the cluster")
	}
	return out
}
