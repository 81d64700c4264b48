package cri

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// away is a runtime that answers nothing: what it refuses does not depend on that.
func away(t *testing.T) *Runtime {
	t.Helper()
	dir := t.TempDir()
	r, err := New(Options{Endpoint: "unix://" + filepath.Join(dir, "none.sock"), Root: filepath.Join(dir, "cri"), Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// What the runtime cannot do it refuses, and names the field.
func TestRefuse(t *testing.T) {
	r := away(t)
	no, yes, name := false, true, "x"
	strict, enabled := corev1.SupplementalGroupsPolicyStrict, corev1.RecursiveReadOnlyEnabled
	signal, policy := corev1.SIGUSR1, corev1.SELinuxChangePolicyRecursive
	profile := &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &name}
	armor := &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
	sysctl := func(name string) func(*corev1.Pod, *corev1.Container) {
		return func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext.Sysctls = []corev1.Sysctl{{Name: "kernel.shm_rmid_forced", Value: "1"}, {Name: name, Value: "1"}}
		}
	}
	type change = func(p *corev1.Pod, c *corev1.Container)
	cases := map[string]change{
		"spec.hostUsers":                                func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = &no },
		"spec.setHostnameAsFQDN":                        func(p *corev1.Pod, _ *corev1.Container) { p.Spec.SetHostnameAsFQDN, p.Spec.Subdomain = &yes, "s" },
		"spec.runtimeClassName":                         func(p *corev1.Pod, _ *corev1.Container) { p.Spec.RuntimeClassName = &name },
		"spec.securityContext.sysctls[1]":               sysctl("kernel.msgmax"),
		"spec.securityContext.supplementalGroupsPolicy": func(p *corev1.Pod, _ *corev1.Container) { p.Spec.SecurityContext.SupplementalGroupsPolicy = &strict },
		"spec.securityContext.seccompProfile":           func(p *corev1.Pod, _ *corev1.Container) { p.Spec.SecurityContext.SeccompProfile = profile },
		"spec.securityContext.windowsOptions": func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext.WindowsOptions = &corev1.WindowsSecurityContextOptions{}
		},
		"spec.containers[0].securityContext.seccompProfile": func(_ *corev1.Pod, c *corev1.Container) { c.SecurityContext.SeccompProfile = profile },
		"spec.containers[0].securityContext.capabilities": func(_ *corev1.Pod, c *corev1.Container) {
			c.SecurityContext.Capabilities = &corev1.Capabilities{Drop: []corev1.Capability{"CHOWN", "NET_RAWW"}}
		},
		"spec.initContainers[0].securityContext.capabilities": func(p *corev1.Pod, c *corev1.Container) {
			init := *c.DeepCopy()
			init.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"NOSUCH"}}
			p.Spec.InitContainers = []corev1.Container{init}
		},
		"spec.containers[0].volumeDevices[0]": func(_ *corev1.Pod, c *corev1.Container) { c.VolumeDevices = []corev1.VolumeDevice{{}} },
		"spec.containers[0].volumeMounts[0].recursiveReadOnly": func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{RecursiveReadOnly: &enabled}}
		},
		"spec.containers[0].lifecycle.stopSignal": func(_ *corev1.Pod, c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: &signal} },
		"spec.initContainers[0].securityContext.windowsOptions": func(p *corev1.Pod, c *corev1.Container) {
			init := *c.DeepCopy()
			init.SecurityContext.WindowsOptions = &corev1.WindowsSecurityContextOptions{}
			p.Spec.InitContainers = []corev1.Container{init}
		},
	}
	if !r.Hugepages() {
		cases["spec.containers[0].resources.limits[hugepages]"] = func(_ *corev1.Pod, c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
		}
	}
	if !appArmor() {
		cases["spec.containers[0].securityContext.appArmorProfile"] = func(_ *corev1.Pod, c *corev1.Container) { c.SecurityContext.AppArmorProfile = armor }
	}
	if runtime.HostHasSELinux() {
		cases["spec.securityContext.seLinuxChangePolicy"] = func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.SecurityContext.SELinuxChangePolicy = &policy
		}
	}
	changed := func(change change) *corev1.Pod {
		p := pod("p", corev1.Container{SecurityContext: &corev1.SecurityContext{}})
		p.Spec.SecurityContext = &corev1.PodSecurityContext{}
		change(p, &p.Spec.Containers[0])
		return p
	}
	for field, change := range cases {
		if x := r.Refuse(changed(change)); x == nil || !strings.HasPrefix(x.Message, field+": this node does not have it: ") {
			t.Errorf("%s: %+v", field, x)
		}
	}
	if x := r.Refuse(changed(func(_ *corev1.Pod, c *corev1.Container) {
		c.SecurityContext.Capabilities = &corev1.Capabilities{Add: []corev1.Capability{"cap_net_admin", "SYS_TIME"}, Drop: []corev1.Capability{"ALL", "CAP_CHOWN"}}
	})); x != nil {
		t.Errorf("capabilities that there are: %+v", x)
	}
	if x := r.Refuse(changed(cases["spec.securityContext.sysctls[1]"])); x == nil || x.Reason != "SysctlForbidden" {
		t.Errorf("a sysctl: %+v", x)
	}
	onHost := changed(sysctl("net.ipv4.tcp_syncookies"))
	if x := r.Refuse(onHost); x != nil {
		t.Errorf("safe sysctls: %+v", x)
	}
	if onHost.Spec.HostNetwork = true; r.Refuse(onHost) == nil {
		t.Error("a sysctl of the host's network is taken")
	}
	// A profile that is there is taken.
	if err := os.MkdirAll(r.profileDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.profileDir(), name), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if x := r.Refuse(changed(cases["spec.securityContext.seccompProfile"])); x != nil {
		t.Errorf("a profile that is there: %+v", x)
	}
}

func TestTold(t *testing.T) {
	r := away(t)
	p := pod("p", corev1.Container{Stdin: true, TTY: true, Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}}})
	p.Spec.Subdomain = "s"
	if got := r.Told(p); len(got) != 1 || !strings.Contains(got[0], "spec.subdomain") {
		t.Errorf("told %q", got)
	}
	var _ runtime.Refuser = r
}

// Labels of SELinux are wishes that only a host which has it can meet. Elsewhere the pod runs as it would without them, and is told.
func TestLabelsWhereTheHostHasNone(t *testing.T) {
	if runtime.HostHasSELinux() {
		t.Skip("the host has SELinux")
	}
	r := away(t)
	options, policy := &corev1.SELinuxOptions{Level: "s0:c1"}, corev1.SELinuxChangePolicyRecursive
	p := pod("p", corev1.Container{SecurityContext: &corev1.SecurityContext{SELinuxOptions: options}})
	p.Spec.SecurityContext = &corev1.PodSecurityContext{SELinuxOptions: options, SELinuxChangePolicy: &policy}
	if x := r.Refuse(p); x != nil {
		t.Errorf("refused: %+v", x)
	}
	if got := sandboxSecurity(p).SelinuxOptions; got != nil {
		t.Errorf("the runtime is asked for %v", got)
	}
	got := strings.Join(r.Told(p), "\n")
	for _, field := range []string{"spec.securityContext.seLinuxOptions", "spec.securityContext.seLinuxChangePolicy",
		"spec.containers[0].securityContext.seLinuxOptions"} {
		if !strings.Contains(got, field+" changes nothing") {
			t.Errorf("%s is not told: %s", field, got)
		}
	}
}

// What the runtime shows of its configuration is read; what is not understood is not there.
func TestConfigured(t *testing.T) {
	var a about
	a.configured(`{"sandboxImage":"p:1","containerd":{"defaultRuntimeName":"runc","runtimes":{"runc":{"options":{"SystemdCgroup":true}}}}}`)
	if a.pause != "p:1" || !a.systemd {
		t.Errorf("%+v", a)
	}
	for _, text := range []string{"", "[]", `{"containerd":null}`, `{"containerd":{"runtimes":{"runc":{"options":null}}}}`} {
		a = about{}
		if a.configured(text); a.systemd || a.pause != "" {
			t.Errorf("%s: %+v", text, a)
		}
	}
}

// The kubelet's layout: where a pod's cgroup is, by its class and by who makes it.
func TestCgroupParent(t *testing.T) {
	r := away(t)
	best := pod("best", corev1.Container{})
	burst := pod("burst", corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"memory": resource.MustParse("1Gi")}}})
	sure := pod("sure", corev1.Container{Resources: corev1.ResourceRequirements{Limits: corev1.ResourceList{
		"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}, Requests: corev1.ResourceList{
		"cpu": resource.MustParse("1"), "memory": resource.MustParse("1Gi")}}})
	r.opts.MemoryBytes = 4 << 30
	for _, c := range []struct {
		pod           *corev1.Pod
		path, slice   string
		badness       int64
		shares, quota int64
	}{
		{best, "/kubepods/besteffort/poduid-best", "kubepods-besteffort-poduid_best.slice", 1000, 2, 0},
		{burst, "/kubepods/burstable/poduid-burst", "kubepods-burstable-poduid_burst.slice", 750, 2, 0},
		{sure, "/kubepods/poduid-sure", "kubepods-poduid_sure.slice", -997, 1024, 100000},
	} {
		r.about.systemd = false
		if got := r.cgroupParent(c.pod); r.cgroups != nil && got != c.path {
			t.Errorf("%s: %s", c.pod.Name, got)
		}
		k := r.resources(c.pod, &c.pod.Spec.Containers[0])
		if k.OomScoreAdj != c.badness || k.CpuShares != c.shares || k.CpuQuota != c.quota {
			t.Errorf("%s: %+v", c.pod.Name, k)
		}
		r.about.systemd = true
		if got := r.cgroupParent(c.pod); got != c.slice {
			t.Errorf("%s: %s", c.pod.Name, got)
		}
	}
}

// A container without a limit has its pod's, also when that becomes another; one with a limit keeps it.
func TestLimitsOfThePodAsAWhole(t *testing.T) {
	r := away(t)
	of := func(cpu, memory string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}}
	}
	p := pod("p", corev1.Container{Name: "without"}, corev1.Container{Name: "with", Resources: of("100m", "1Mi")})
	whole := of("200m", "256Mi")
	p.Spec.Resources = &whole
	if k := r.resources(p, &p.Spec.Containers[0]); k.CpuQuota != 20000 || k.MemoryLimitInBytes != 256<<20 || len(p.Spec.Containers[0].Resources.Limits) > 0 {
		t.Errorf("a container without limits: %+v", k)
	}
	if k := r.resources(p, &p.Spec.Containers[1]); k.CpuQuota != 10000 || k.MemoryLimitInBytes != 1<<20 {
		t.Errorf("a container with limits: %+v", k)
	}
	for i, want := range []int64{256 << 20, 0} {
		if k := borrowed(p, &p.Spec.Containers[i].Resources); k.GetMemoryLimitInBytes() != want || k.GetCpuShares() != 0 {
			t.Errorf("of the pod's container %d has %+v", i, k)
		}
	}
	without, with := runtime.ID{Pod: p.UID, Container: "without"}, runtime.ID{Pod: p.UID, Container: "with"}
	r.running = map[runtime.ID]running{without: {}, with: {}, {Pod: "other", Container: "without"}: {}}
	if got := r.others(&runtime.Resize{Pod: p, Containers: []runtime.ContainerResize{{ID: with}}}); !slices.Equal(got, []runtime.ID{without}) {
		t.Errorf("with the pod %v are changed", got)
	}
	p.Spec.Resources = nil
	if k := borrowed(p, &p.Spec.Containers[0].Resources); k != nil {
		t.Errorf("of a pod without limits of its own it has %+v", k)
	}
}

// A container's stop signal is the runtime's to send where it lets itself be told, and else nobody's.
func TestStopSignals(t *testing.T) {
	r := away(t)
	quit, none := corev1.SIGQUIT, corev1.Signal("SIGNONE")
	for _, c := range []struct {
		name, version string
		signal        corev1.Signal
		taken         bool
	}{
		{containerd, "1.6.20~ds1", quit, false}, {containerd, "v2.2.1", quit, false}, {containerd, "v2.3.0", quit, true}, {containerd, "v3.0.0", quit, true},
		{crio, "1.32.9", quit, false}, {crio, "1.33.0", quit, true}, {"other", "9.9.9", quit, false}, {containerd, "v2.3.0", none, false},
	} {
		r.about = about{name: c.name, version: c.version, signals: stopSignals(c.name, c.version)}
		p := pod("p", corev1.Container{Lifecycle: &corev1.Lifecycle{StopSignal: &c.signal}})
		x := r.Refuse(p)
		if (x == nil) != c.taken || x != nil && !strings.HasPrefix(x.Message, "spec.containers[0].lifecycle.stopSignal: ") {
			t.Errorf("%s %s, %s: %+v", c.name, c.version, c.signal, x)
		}
		if !c.taken {
			continue
		}
		r.users["i"] = imageUser{uid: new(int64)}
		config, err := r.containerConfig(t.Context(), &runtime.Spec{ID: runtime.ID{Pod: p.UID}, Pod: p, Container: &p.Spec.Containers[0], Image: "i"})
		if err != nil || config.StopSignal != criv1.Signal_SIGQUIT {
			t.Errorf("the runtime is told %v, %v", config.GetStopSignal(), err)
		}
	}
}
