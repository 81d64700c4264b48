package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodes "github.com/berth-dev/berth/e2e/machine"
	"github.com/berth-dev/berth/worker/runtime"
)

// refusedFor waits until a pod waits because its node does not have a field of it, and looks for the words.
func (c *cluster) refusedFor(t *testing.T, name string, words ...string) {
	t.Helper()
	p := c.waitFor(t, name, "to be refused", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
	has(t, "what "+name+" is told", p.Status.ContainerStatuses[0].State.Waiting.Message, words...)
	c.hasEvent(t, name, runtime.Refuse(words[0], "").Reason, words[0])
}

// Which of the host's namespaces a pod is in: those that it asks for, and with processes all of them.
func namespaces(t *testing.T, c *cluster, own bool) {
	script := fmt.Sprintf("readlink /proc/self/ns/pid; readlink /proc/self/ns/ipc; readlink /proc/self/ns/net; cat /proc/%d/comm 2>/dev/null || echo nobody", os.Getpid())
	named := func(set func(s *corev1.PodSpec)) func(p *corev1.Pod) { return func(p *corev1.Pod) { set(&p.Spec) } }
	create(t, c.Reader().Kube, imaged("apart", script, policy(corev1.RestartPolicyNever)),
		imaged("host-pid", script, policy(corev1.RestartPolicyNever), named(func(s *corev1.PodSpec) { s.HostPID = true })),
		imaged("host-ipc", script, policy(corev1.RestartPolicyNever), named(func(s *corev1.PodSpec) { s.HostIPC = true })),
		imaged("host-net", script, policy(corev1.RestartPolicyNever), named(func(s *corev1.PodSpec) { s.HostNetwork = true })))
	for name, shared := range map[string]string{"apart": "", "host-pid": "pid", "host-ipc": "ipc", "host-net": "net"} {
		c.waitFor(t, name, "to succeed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
		lines := strings.Split(strings.TrimSpace(c.berth(t, "logs", name)), "\n")
		if len(lines) != 4 {
			t.Fatalf("%s says %q", name, lines)
		}
		for i, kind := range [...]string{"pid", "ipc", "net"} {
			hosts, err := os.Readlink("/proc/self/ns/" + kind)
			if err != nil {
				t.Fatal(err)
			}
			if want := !own || kind == shared; (lines[i] == hosts) != want {
				t.Errorf("%s has the namespace %s, and the host's is %s", name, lines[i], hosts)
			}
		}
		comm, err := os.ReadFile("/proc/self/comm")
		if err != nil {
			t.Fatal(err)
		}
		if want := !own || shared == "pid"; (lines[3] == strings.TrimSpace(string(comm))) != want {
			t.Errorf("of a process of the host %s sees %q", name, lines[3])
		}
	}
	// The brackets keep the pattern from being found in the command that looks for it.
	all := imaged("one-of-all", "until grep -q 98765[4] /proc/[0-9]*/cmdline; do sleep 0.1; done; echo seen; exec sleep 1000")
	yes, other := true, *all.Spec.Containers[0].DeepCopy()
	other.Name, other.Command = "other", []string{"/bin/sh", "-c", "exec sleep 987654"}
	all.Spec.ShareProcessNamespace, all.Spec.Containers = &yes, append(all.Spec.Containers, other)
	create(t, c.Reader().Kube, all)
	c.waitRunning(t, "default", "one-of-all")
	waitLog(t, c, "one-of-all", "seen\n")
}

// A class of runtimes says what runs a pod, and what that costs beside it. One that the node does not have holds up its pod alone; processes
// have none.
func classed(t *testing.T, c *cluster, d realDaemon) {
	kube := c.Reader().Kube
	for name, class := range map[string]nodev1.RuntimeClass{
		"other":   {Handler: "other", Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("150m")}}},
		"nowhere": {Handler: "nowhere"},
		"huge":    {Handler: "other", Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("100k")}}},
	} {
		class.Name = name
		if _, err := kube.NodeV1().RuntimeClasses().Create(t.Context(), &class, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	of := func(class string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.RuntimeClassName = &class } }
	create(t, kube, imaged("class-huge", "true", of("huge")), imaged("class-other", "exec sleep 1000", of("other"), cpu("100m")),
		imaged("class-nowhere", "true", of("nowhere")), imaged("class-none", "exec sleep 1000"))
	c.hasEvent(t, "class-huge", "FailedScheduling", "Insufficient cpu")
	c.waitRunning(t, "default", "class-none")
	if d == nil {
		c.refusedFor(t, "class-other", "spec.runtimeClassName", "no handler of a runtime class runs them")
		c.refusedFor(t, "class-nowhere", "spec.runtimeClassName")
		return
	}
	p := c.waitRunning(t, "default", "class-other")[0]
	if h := handlerOf(t, d, p); h != "other" && *crioPrograms == "" { // CRI-O does not tell which it was
		t.Errorf("it is run by the handler %q", h)
	}
	// 100m of its own and 150m beside it, as shares or as what programs make of those.
	pod, _ := criGroups(p)
	switch _, err := os.Stat(filepath.Join(nodes.Cgroups, "cpu", "cpu.shares")); {
	case nodes.Unbounded() != "":
	case err == nil:
		kernelSays(t, filepath.Join("cpu", pod), "cpu.shares", "256")
	default:
		kernelSays(t, pod, "cpu.weight", "10", "35")
	}
	c.hasEvent(t, "class-nowhere", "FailedCreatePodSandBox", "nowhere")
	p = c.waitFor(t, "class-nowhere", "to be told", func(p *corev1.Pod) bool { return condition(p, corev1.PodReadyToStartContainers) != nil })
	if p.Status.Phase != corev1.PodPending || condition(p, corev1.PodReadyToStartContainers).Status != corev1.ConditionFalse {
		t.Errorf("without a sandbox it is %+v", p.Status)
	}
}

// handlerOf is which of its handlers a runtime says that a pod's sandbox is run by.
func handlerOf(t *testing.T, d realDaemon, p *corev1.Pod) string {
	t.Helper()
	list, err := runtimeService(t, d).ListPodSandbox(t.Context(), &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{LabelSelector: ofPod(p)}})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("the pod has the sandboxes %v, %v", list.GetItems(), err)
	}
	return list.Items[0].RuntimeHandler
}

// hostMount is a file system in memory of the host's, which goes with the test. What is mounted below shows wherever it does.
func hostMount(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mountDisk(t, dir, "size=1m")
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
}

// What is mounted on the host after a container has begun it sees as it asks for, and the other way round; what it has read-only is so with what
// is mounted below where it asks for that.
func propagated(t *testing.T, c *cluster, own bool) {
	if os.Geteuid() != 0 {
		t.Skip("nobody may mount anything here")
	}
	dir, err := os.MkdirTemp(root, "propagated-")
	if err != nil {
		t.Fatal(err)
	}
	hostMount(t, dir)
	hostMount(t, filepath.Join(dir, "below"))
	mounted := func(how func(m *corev1.VolumeMount)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			volume("shared", "/mounted", corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: dir}})(p)
			how(&p.Spec.Containers[0].VolumeMounts[0])
		}
	}
	by := func(mode corev1.MountPropagationMode) func(*corev1.Pod) {
		return mounted(func(m *corev1.VolumeMount) { m.MountPropagation = &mode })
	}
	readOnly := func(mode corev1.RecursiveReadOnlyMode) func(*corev1.Pod) {
		return mounted(func(m *corev1.VolumeMount) { m.ReadOnly, m.RecursiveReadOnly = true, &mode })
	}
	mighty := func(p *corev1.Pod) {
		yes := true
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &yes}
	}
	never := policy(corev1.RestartPolicyNever)
	const looks = "echo begun; until test -e /mounted/now; do sleep 0.1; done; cat /mounted/later/file 2>/dev/null || echo nothing"
	const writes = "for dir in /mounted /mounted/below; do (echo x > $dir/$HOSTNAME) 2>/dev/null && echo wrote $dir; done; exec sleep 1000"
	create(t, c.Reader().Kube, imaged("keeps", looks, by(corev1.MountPropagationNone), never), imaged("follows", looks, by(corev1.MountPropagationHostToContainer), never),
		imaged("gives", "mkdir /mounted/given && mount -t tmpfs none /mounted/given && echo given > /mounted/given/file; exec sleep 1000", by(corev1.MountPropagationBidirectional), mighty),
		imaged("ro", writes, readOnly(corev1.RecursiveReadOnlyDisabled), never), imaged("rro-maybe", writes, readOnly(corev1.RecursiveReadOnlyIfPossible), never),
		imaged("rro", writes, readOnly(corev1.RecursiveReadOnlyEnabled), never))
	c.waitRunning(t, "default", "keeps", "follows", "ro", "rro-maybe")
	for _, name := range [...]string{"keeps", "follows"} { // with processes what is mounted is so only then
		waitLog(t, c, name, "begun\n")
	}
	hostMount(t, filepath.Join(dir, "later"))
	for _, file := range [...]string{"later/file", "now"} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte("here\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	waitLog(t, c, "follows", "begun\nhere\n")
	waitLog(t, c, "keeps", "begun\nnothing\n")
	if own {
		c.eventually(t, "what a pod mounts to show on the host", func(context.Context) error {
			_, err := os.Stat(filepath.Join(dir, "given", "file"))
			return err
		})
	} else {
		c.refusedFor(t, "gives", "spec.containers[0].volumeMounts[0].mountPropagation", "shows on the host")
	}
	waitLog(t, c, "ro", "wrote /mounted/below\n")
	p, err := c.get(t.Context(), "rro-maybe")
	if err != nil {
		t.Fatal(err)
	}
	how := p.Status.ContainerStatuses[0].VolumeMounts[0].RecursiveReadOnly
	switch {
	case how == nil:
		t.Errorf("its status does not say how it has its volume: %+v", p.Status.ContainerStatuses[0].VolumeMounts)
	case *how == corev1.RecursiveReadOnlyEnabled:
		c.waitRunning(t, "default", "rro")
		waitLog(t, c, "rro", "")
		waitLog(t, c, "rro-maybe", "")
	case !own:
		t.Errorf("processes have it %s", *how)
	default:
		waitLog(t, c, "rro-maybe", "wrote /mounted/below\n")
		c.refusedFor(t, "rro", "spec.containers[0].volumeMounts[0].recursiveReadOnly", "cannot mount so")
	}
}

// noDirectories is a profile by which no directory can be made.
const noDirectories = `{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]}`

// What the kernel filters of a container's calls, by the runtime's profile or by a file of the node's; and AppArmor, where the host has it.
func confined(t *testing.T, c *cluster, own bool) {
	if os.Geteuid() != 0 {
		t.Skip("nobody may filter anything here")
	}
	profiles := filepath.Join(c.Workers()[0].DataDir, "worker", "seccomp", "tests")
	if err := os.MkdirAll(profiles, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(profiles, "no-directories.json"), []byte(noDirectories), 0o644); err != nil {
		t.Fatal(err)
	}
	by := func(kind corev1.SeccompProfileType, file string) func(*corev1.Pod) {
		profile := &corev1.SeccompProfile{Type: kind}
		if file != "" {
			profile.LocalhostProfile = &file
		}
		return func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: profile} }
	}
	armored := func(kind corev1.AppArmorProfileType, name string) func(*corev1.Pod) {
		profile := &corev1.AppArmorProfile{Type: kind}
		if name != "" {
			profile.LocalhostProfile = &name
		}
		return func(p *corev1.Pod) { p.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: profile} }
	}
	const script = "sed -n 's/^Seccomp:[^0-9]*//p' /proc/self/status; mkdir made 2>/dev/null && echo made"
	never := policy(corev1.RestartPolicyNever)
	create(t, c.Reader().Kube, imaged("unconfined", script, never, by(corev1.SeccompProfileTypeUnconfined, "")),
		imaged("by-default", script, never, by(corev1.SeccompProfileTypeRuntimeDefault, "")),
		imaged("by-file", script, never, by(corev1.SeccompProfileTypeLocalhost, "tests/no-directories.json")),
		imaged("by-no-file", script, by(corev1.SeccompProfileTypeLocalhost, "tests/none.json")),
		imaged("unarmored", script, never, armored(corev1.AppArmorProfileTypeUnconfined, "")),
		imaged("armored", script, armored(corev1.AppArmorProfileTypeLocalhost, "berth-none")))
	said := map[string]string{"unconfined": "0\nmade\n", "by-default": "2\nmade\n", "by-file": "2\n", "unarmored": "0\nmade\n"}
	const field = "spec.securityContext.seccompProfile"
	if own {
		c.refusedFor(t, "by-no-file", field, "there is no profile "+filepath.Join(profiles, "none.json"))
	} else {
		delete(said, "by-file")
		c.refusedFor(t, "by-file", field, "it reads no profiles from files")
		c.refusedFor(t, "by-no-file", field)
	}
	for name, want := range said {
		p := c.waitFor(t, name, "to end", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		if failed := p.Status.Phase == corev1.PodFailed; failed != !strings.Contains(want, "made") {
			t.Errorf("%s is %s: %+v", name, p.Status.Phase, p.Status.ContainerStatuses)
		}
		waitLog(t, c, name, want)
	}
	switch enabled, _ := os.ReadFile("/sys/module/apparmor/parameters/enabled"); { // without AppArmor there is no such file
	case !own:
		c.refusedFor(t, "armored", "spec.securityContext.appArmorProfile", "it loads no profiles")
	case !strings.HasPrefix(string(enabled), "Y"):
		c.refusedFor(t, "armored", "spec.securityContext.appArmorProfile", "the host has no AppArmor")
	default: // the profile is none that the kernel knows
		p := c.waitFor(t, "armored", "to wait", func(p *corev1.Pod) bool {
			return slices.Contains([]string{"CreateContainerError", "CrashLoopBackOff"}, waiting(p))
		})
		if s := fmt.Sprint(p.Status.ContainerStatuses); !strings.Contains(s, "berth-none") {
			t.Errorf("it is told %s", s)
		}
	}
}
