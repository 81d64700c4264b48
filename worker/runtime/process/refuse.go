package process

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
	"github.com/berth-dev/berth/worker/runtime/naming"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

const (
	needsRoot = "the agent does not run as root"
	needsBind = "this node has no mount namespaces for containers"

	noHugepages = "it bounds no hugepages"
)

// Refuse implements runtime.Refuser.
func (r *Runtime) Refuse(pod *corev1.Pod) *runtime.Refusal {
	refused := runtime.FirstRefused(r.podWishes(pod))
	runtime.EachContainer(pod, func(c *corev1.Container, at string) {
		if refused == nil {
			refused = r.refuseContainer(pod, c, at)
		}
	})
	return refused
}

// podWishes are the fields of a pod, beside its containers', that the runtime refuses where they are set.
func (r *Runtime) podWishes(pod *corev1.Pod) []runtime.Wish {
	s := &pod.Spec
	out := []runtime.Wish{
		runtime.Unmet("spec.hostAliases", len(s.HostAliases) > 0 && !r.bind, needsBind),
		runtime.Unmet("spec.dnsConfig", s.DNSConfig != nil && !r.bind, needsBind),
		runtime.Unmet("spec.dnsPolicy", s.DNSPolicy == corev1.DNSNone && !r.bind, needsBind),
		runtime.Unmet("spec.hostnameOverride", s.HostnameOverride != nil && !r.bind, needsBind),
		runtime.Unmet("spec.setHostnameAsFQDN", naming.WantsFQDN(pod) && r.opts.Domain == "",
			"it was not told the cluster's domain (worker.services.cluster_domain)"),
		runtime.Unmet("spec.setHostnameAsFQDN", naming.WantsFQDN(pod) && !r.bind, needsBind),
		runtime.Unmet("spec.runtimeClassName", s.RuntimeClassName != nil && *s.RuntimeClassName != "",
			"containers are processes of the host, and no handler of a runtime class runs them"),
		runtime.Unmet("spec.resources.limits[hugepages]", hugepages.Wanted(s.Resources), noHugepages),
		runtime.Unmet("spec.hostUsers", s.HostUsers != nil && !*s.HostUsers,
			"containers have no user namespace of their own"),
	}
	for i := range s.Volumes {
		out = append(out, runtime.Unmet(fmt.Sprintf("spec.volumes[%d].image", i), s.Volumes[i].Image != nil, "it has no images"))
	}
	c := s.SecurityContext
	if c == nil {
		return out
	}
	at := func(field string) string { return "spec.securityContext." + field }
	return append(out, append(r.sharedWishes(at, c.RunAsUser, c.RunAsGroup, c.SELinuxOptions, c.AppArmorProfile, c.SeccompProfile),
		runtime.Unmet(at("supplementalGroups"), len(c.SupplementalGroups) > 0 && os.Geteuid() != 0, needsRoot),
		runtime.Unmet(at("fsGroup"), c.FSGroup != nil && os.Geteuid() != 0, needsRoot),
		runtime.Unmet(at("sysctls"), len(c.Sysctls) > 0, "containers share the host's kernel settings"),
		runtime.Unmet(at("seLinuxChangePolicy"), c.SELinuxChangePolicy != nil && runtime.HostHasSELinux(), "it labels nothing"),
		runtime.Unmet(at("windowsOptions"), c.WindowsOptions != nil, "this is not Windows"))...)
}

// sharedWishes are those that pods and containers have in common.
func (r *Runtime) sharedWishes(at func(string) string, user, group *int64, linux *corev1.SELinuxOptions,
	armor *corev1.AppArmorProfile, seccomp *corev1.SeccompProfile,
) []runtime.Wish {
	other := func(id *int64, own int) bool { return id != nil && os.Geteuid() != 0 && *id != int64(own) }
	return []runtime.Wish{
		runtime.Unmet(at("runAsUser"), other(user, os.Getuid()), needsRoot),
		runtime.Unmet(at("runAsGroup"), other(group, os.Getgid()), needsRoot),
		// What is the pods' on the host is for root's eyes only; another user sees it only as mounted.
		runtime.Unmet(at("runAsUser"), user != nil && *user != 0 && os.Geteuid() == 0 && !r.bind, needsBind),
		runtime.Unmet(at("seLinuxOptions"), linux != nil && runtime.HostHasSELinux(), "it labels nothing"),
		runtime.Unmet(at("appArmorProfile"), armor != nil && armor.Type != corev1.AppArmorProfileTypeUnconfined,
			"it loads no profiles"),
		runtime.Unmet(at("seccompProfile"), seccomp != nil && seccomp.Type == corev1.SeccompProfileTypeLocalhost,
			"it reads no profiles from files"),
		runtime.Unmet(at("seccompProfile"), filtered(seccomp) && shim.FilterArch() == 0,
			"it has no profile for this processor"),
		runtime.Unmet(at("seccompProfile"), filtered(seccomp) && os.Geteuid() != 0, needsRoot),
	}
}

func filtered(p *corev1.SeccompProfile) bool {
	return p != nil && p.Type == corev1.SeccompProfileTypeRuntimeDefault
}

// ownCopy: the volume is a copy of objects that is the pod's own. Whatever it writes there nobody else sees. Every pod
// mounts such a one, with its token.
func ownCopy(pod *corev1.Pod, volume string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == volume && runtime.ShowsObjects(&v) })
}

func (r *Runtime) refuseContainer(pod *corev1.Pod, c *corev1.Container, path string) *runtime.Refusal {
	wishes := []runtime.Wish{runtime.Unmet(path+".resources.limits[hugepages]", hugepages.Wanted(&c.Resources), noHugepages)}
	for i := range c.Ports {
		p := &c.Ports[i]
		wishes = append(wishes, runtime.Unmet(fmt.Sprintf("%s.ports[%d].hostPort", path, i), p.HostPort != 0 && p.HostPort != p.ContainerPort,
			"containers listen on the host's ports as they are"))
		// In the host's network nobody honours it, Kubernetes neither: the container itself says where it listens.
		wishes = append(wishes, runtime.Unmet(fmt.Sprintf("%s.ports[%d].hostIP", path, i),
			p.HostPort != 0 && !anyAddress(p.HostIP) && !pod.Spec.HostNetwork, "containers listen at those of the host's addresses that they choose"))
	}
	for i := range c.VolumeMounts {
		m := &c.VolumeMounts[i]
		at := fmt.Sprintf("%s.volumeMounts[%d]", path, i)
		p := m.MountPropagation
		wishes = append(wishes,
			runtime.Unmet(at+".mountPropagation", p != nil && *p == corev1.MountPropagationBidirectional,
				"nothing that a container mounts shows on the host"),
			runtime.Unmet(at+".mountPropagation", p != nil && *p != corev1.MountPropagationNone && !r.bind,
				needsBind),
			runtime.Unmet(at+".readOnly", m.ReadOnly && !r.bind && !ownCopy(pod, m.Name), needsBind),
			runtime.Unmet(at+".recursiveReadOnly", m.RecursiveReadOnly != nil && *m.RecursiveReadOnly == corev1.RecursiveReadOnlyEnabled && !r.bind,
				needsBind))
	}
	for i := range c.VolumeDevices {
		wishes = append(wishes, runtime.Unmet(fmt.Sprintf("%s.volumeDevices[%d]", path, i), true,
			"it has no block devices"))
	}
	if l := c.Lifecycle; l != nil && l.StopSignal != nil {
		wishes = append(wishes, runtime.Unmet(path+".lifecycle.stopSignal", unix.SignalNum(string(*l.StopSignal)) == 0,
			"there is no such signal on this machine"))
	}
	wishes = append(wishes, r.contextWishes(c.SecurityContext, path+".securityContext.")...)
	if x := runtime.FirstRefused(wishes); x != nil {
		return x
	}
	if err := r.lessen(c.SecurityContext, pod.Spec.SecurityContext, &shim.Privileges{}); err != nil {
		return runtime.Refuse(path+".securityContext.capabilities", err.Error())
	}
	return nil
}

// anyAddress: the address bounds nothing.
func anyAddress(ip string) bool {
	at, err := netip.ParseAddr(ip)
	return ip == "" || err == nil && at.IsUnspecified()
}

func (r *Runtime) contextWishes(s *corev1.SecurityContext, path string) []runtime.Wish {
	if s == nil {
		return nil
	}
	at := func(field string) string { return path + field }
	return append(r.sharedWishes(at, s.RunAsUser, s.RunAsGroup, s.SELinuxOptions, s.AppArmorProfile, s.SeccompProfile),
		runtime.Unmet(at("privileged"), s.Privileged != nil && *s.Privileged && os.Geteuid() != 0, needsRoot),
		runtime.Unmet(at("readOnlyRootFilesystem"), s.ReadOnlyRootFilesystem != nil && *s.ReadOnlyRootFilesystem && !r.bind,
			needsBind),
		runtime.Unmet(at("windowsOptions"), s.WindowsOptions != nil, "this is not Windows"))
}

// ReadOnlyBelow implements runtime.Mounter.
func (r *Runtime) ReadOnlyBelow() bool { return r.bind }

// Told implements runtime.Refuser.
func (r *Runtime) Told(pod *corev1.Pod) []string {
	out := runtime.ToldOfSELinux(pod)
	if pod.Spec.Subdomain != "" {
		out = append(out, "spec.subdomain gives the pod no name: it shares the resolver of the node")
	}
	if s := pod.Spec.Resources; r.cgroups == nil && s != nil && len(s.Limits) > 0 {
		out = append(out, "spec.resources.limits are not enforced: this node has no cgroups for containers")
	}
	runtime.EachContainer(pod, func(c *corev1.Container, at string) {
		limits := c.Resources.Limits
		if r.cgroups == nil && (!limits.Cpu().IsZero() || !limits.Memory().IsZero()) {
			out = append(out, at+".resources.limits are not enforced: this node has no cgroups for containers")
		}
		if !limits.StorageEphemeral().IsZero() && !readOnlyRoot(c) {
			out = append(out, at+".resources.limits[ephemeral-storage] bounds logs, volumes and the scratch directory, and not what is written into directories of the node")
		}
		if masked(c) && !r.bind {
			out = append(out, at+".securityContext.procMount: the container sees the host's /proc as it is")
		}
	})
	return out
}

// masked: the container is not to see the kernel's inner parts.
func masked(c *corev1.Container) bool {
	s := c.SecurityContext
	return s != nil && s.ProcMount != nil && *s.ProcMount == corev1.DefaultProcMount && (s.Privileged == nil || !*s.Privileged)
}

// lessen says what a container is to have less than the agent. A container that asks for less gets less; that which it
// adds it has already, unless the agent itself does not.
func (r *Runtime) lessen(s *corev1.SecurityContext, pod *corev1.PodSecurityContext, p *shim.Privileges) error {
	var profile *corev1.SeccompProfile
	if pod != nil {
		profile = pod.SeccompProfile
	}
	if s != nil && s.SeccompProfile != nil {
		profile = s.SeccompProfile
	}
	privileged := s != nil && s.Privileged != nil && *s.Privileged
	p.Filter = filtered(profile) && !privileged
	if s == nil {
		return nil
	}
	p.NoNewPrivs = s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation
	if s.Capabilities == nil || privileged {
		return nil
	}
	known, err := shim.Capabilities()
	if err != nil {
		return err
	}
	all := func(c corev1.Capability) bool { return capabilityName(c) == "ALL" }
	dropAll := slices.ContainsFunc(s.Capabilities.Drop, all)
	added := map[string]bool{}
	for _, c := range s.Capabilities.Add {
		name := capabilityName(c)
		if name != "ALL" && !slices.Contains(known, name) {
			return fmt.Errorf("there is no capability %q on this machine", c)
		}
		added[name] = true
	}
	for _, c := range s.Capabilities.Drop {
		if name := capabilityName(c); name != "ALL" && !slices.Contains(known, name) {
			return fmt.Errorf("there is no capability %q on this machine", c)
		}
	}
	for _, name := range known {
		dropped := dropAll || slices.ContainsFunc(s.Capabilities.Drop, func(c corev1.Capability) bool { return capabilityName(c) == name })
		if dropped && !added[name] && !(added["ALL"] && dropAll) {
			p.Drop = append(p.Drop, name)
		}
	}
	switch {
	case os.Geteuid() == 0:
	case len(added) > 0:
		return errors.New(needsRoot)
	case len(p.Drop) > 0 && p.NoNewPrivs:
		p.Drop = nil // it has none, and gets none
	case len(p.Drop) > 0:
		return errors.New(needsRoot + "; with allowPrivilegeEscalation: false the container has none")
	}
	return nil
}

func capabilityName(c corev1.Capability) string {
	return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_")
}
