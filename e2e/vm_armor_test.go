package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/fleet"
)

// armorProfile lets everything be done but to write a file of this name.
const (
	armorName    = "berth-e2e"
	armorProfile = `profile ` + armorName + ` flags=(attach_disconnected,mediate_deleted) {
  file,
  network,
  capability,
  signal,
  ptrace,
  mount,
  umount,
  deny /**/refused w,
}
`
)

// What pods say of AppArmor, their containers run under, and the kernel does; where it cannot be honoured they are refused, or do not begin.
// TestVM runs this in a machine whose kernel has it.
func TestAppArmorInVM(t *testing.T) {
	if os.Getenv(inVM) == "" {
		t.Skip("`make e2e-vm` runs this in a virtual machine")
	}
	file := filepath.Join(t.TempDir(), "profile")
	if err := os.WriteFile(file, []byte(armorProfile), 0o600); err != nil {
		t.Fatal(err)
	}
	shell(t, "mount -t securityfs none /sys/kernel/security && apparmor_parser -K -r "+file)
	process, cri := worker("worker-1", `runtime = "process"`), criWorker(realContainers(t), "worker-2", "cri")
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"), process, cri)
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, test := range []func(*testing.T, *cluster, fleet.Spec, fleet.Spec){armorOfContainers, armorThatIsNotThere, armorOfProcesses} {
		test(t, c, process, cri)
	}
}

// armored is a pod of a node that says under which profile it runs.
func armored(name, command string, node fleet.Spec, pod, container *corev1.AppArmorProfile) *corev1.Pod {
	return imaged(name, command, on(node.Name), policy(corev1.RestartPolicyNever), lastWord, func(p *corev1.Pod) {
		if pod != nil {
			p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: pod}
		}
		if container != nil {
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: container}
		}
	})
}

var (
	armorUnconfined = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
	armorDefault    = &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
)

func armorLocalhost(name string) *corev1.AppArmorProfile {
	return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
}

// armorOfContainers: a container's profile goes before its pod's, and who says nothing has the runtime's own.
func armorOfContainers(t *testing.T, c *cluster, _, cri fleet.Spec) {
	const command = `read -r as rest < /proc/self/attr/current; echo "$as $(if echo x > /tmp/refused; then echo writes; else echo may not; fi)" > /dev/termination-log`
	own := armorLocalhost(armorName)
	cases := map[string]struct {
		pod, container *corev1.AppArmorProfile
		says           string
	}{
		"nothing":            {nil, nil, "cri-containerd.apparmor.d writes"},
		"default":            {armorDefault, nil, "cri-containerd.apparmor.d writes"},
		"own":                {own, nil, armorName + " may not"},
		"container":          {armorUnconfined, own, armorName + " may not"},
		"container-of-none":  {own, armorUnconfined, "unconfined writes"},
		"container-of-rules": {own, armorDefault, "cri-containerd.apparmor.d writes"},
	}
	for name, one := range cases {
		create(t, c.Reader().Kube, armored(name, command, cri, one.pod, one.container))
	}
	for name, one := range cases {
		t.Run(name, func(t *testing.T) {
			p := c.waitFor(t, name, "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
			if said := strings.TrimSpace(p.Status.ContainerStatuses[0].State.Terminated.Message); said != one.says {
				t.Errorf("it says %q, not %q", said, one.says)
			}
		})
	}
}

// armorThatIsNotThere: a profile that the kernel does not know is named, and the container does not begin without it.
func armorThatIsNotThere(t *testing.T, c *cluster, _, cri fleet.Spec) {
	create(t, c.Reader().Kube, armored("nobodys", "exit 0", cri, nil, armorLocalhost("nobodys-profile")))
	c.waitFor(t, "nobodys", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerError" })
	c.hasEvent(t, "nobodys", "Failed", "nobodys-profile")
}

// armorOfProcesses: processes have none, so who asks for one waits and is told, whether a container does or a whole pod.
func armorOfProcesses(t *testing.T, c *cluster, process, _ fleet.Spec) {
	create(t, c.Reader().Kube, armored("process-container", "exit 0", process, nil, armorDefault), armored("process-pod", "exit 0", process, armorDefault, nil),
		armored("process-unconfined", "exit 0", process, armorUnconfined, nil))
	for name, field := range map[string]string{"process-container": "spec.containers[0].securityContext.appArmorProfile", "process-pod": "spec.securityContext.appArmorProfile"} {
		p := c.waitFor(t, name, "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
		if said := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.HasPrefix(said, field+": ") {
			t.Errorf("it says %q", said)
		}
		c.hasEvent(t, name, "AppArmor", field)
	}
	c.waitFor(t, "process-unconfined", "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
}
