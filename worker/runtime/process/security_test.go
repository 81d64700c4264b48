package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/runtime"
)

// isolated opens a runtime that gives containers a root of their own.
func isolated(t *testing.T, opts Options) *harness {
	t.Helper()
	h := open(t, opts)
	if !h.rt.bind || os.Geteuid() != 0 {
		t.Skip("this host has no mount namespaces for us")
	}
	return h
}

// output runs a script to its end and returns what it wrote.
func (h *harness) output(spec runtime.Spec) string {
	h.t.Helper()
	id := h.startSpec(spec)
	x := h.exit()
	out := h.logs(id, runtime.LogOptions{})
	if x.Code != 0 {
		h.t.Errorf("exit is %+v, output %q", x, out)
	}
	return out
}

func number(n int64) *int64 { return &n }

func yes() *bool { b := true; return &b }

func no() *bool { b := false; return &b }

// A container is born with its three descriptors and no other, whatever the agent's parent left open, and with an
// environment that is not the agent's.
func TestNothingIsInherited(t *testing.T) {
	h := open(t, Options{})
	t.Setenv("BERTH_TEST_SECRET", "the agent's")
	fd, err := syscall.Open(filepath.Join(t.TempDir(), "secret"), syscall.O_CREAT|syscall.O_RDWR, 0o600) // kept at an exec
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(fd)
	// The fourth is that by which ls reads the directory.
	list, four := []string{"/bin/ls", "/proc/self/fd"}, "0\n1\n2\n3\n"
	p := pod("clean", corev1.Container{Command: list})
	if got := h.output(h.spec(p, 0)); got != four {
		t.Errorf("inherited descriptors: %q", got)
	}
	p = pod("environment", shell(`env | cut -d= -f1 | sort`))
	if got := h.output(h.spec(p, 0)); got != "BERTH_TERMINATION_LOG\nHOSTNAME\nPATH\nPWD\n" {
		t.Errorf("inherited environment: %q", got)
	}
	// Nor does a command inherit anything that is run beside it.
	id := h.start(pod("asked", shell("sleep 1000")), 0)
	r, err := h.rt.Exec(context.Background(), id, list)
	if err != nil || string(r.Output) != four {
		t.Errorf("a command inherited %q, %v", r.Output, err)
	}
}

func hostMountTable(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Whatever a container mounts, and wherever: the host shows nothing of it, and keeps nothing.
func TestMountsLeaveNothing(t *testing.T) {
	h := isolated(t, Options{})
	host, data := t.TempDir(), t.TempDir()
	file := filepath.Join(data, "file")
	for name, text := range map[string]string{file: "text\n", filepath.Join(host, "there"): "host's\n"} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, target := range []string{"/berth-test/deep/point", "/etc/berth-test/point", filepath.Join(host, "a/b"), "/dev/berth-test/point", "/proc-like"} {
		before := hostMountTable(t)
		spec := h.spec(pod("p"+strings.ReplaceAll(target, "/", "-"), shell(fmt.Sprintf(
			`set -e; cat %[1]s/file %[1]s.file %[2]s; test -c /dev/null; test -e /etc/passwd; test -d /proc/1; test -d /sys/kernel; echo x > /dev/null`,
			target, filepath.Join(host, "there")))), 0)
		spec.Mounts = []runtime.Mount{{Volume: "v", Source: data, Target: target}, {Volume: "f", Source: file, Target: target + ".file"}}
		if got := h.output(spec); got != "text\ntext\nhost's\n" {
			t.Errorf("%s: it saw %q", target, got)
		}
		if after := hostMountTable(t); after != before {
			t.Errorf("%s: the host's mounts were\n%s\nand are\n%s", target, before, after)
		}
		for _, path := range []string{target, target + ".file", filepath.Dir(target)} {
			if _, err := os.Lstat(path); path != host && path != "/" && !os.IsNotExist(err) {
				t.Errorf("%s is on the host: %v", path, err)
			}
		}
	}
	if entries, err := os.ReadDir(host); err != nil || len(entries) != 1 {
		t.Errorf("the host's directory has %v, %v", entries, err)
	}
	// A mount over a thing of another kind is refused, and says so.
	spec := h.spec(pod("kind", shell("true")), 0)
	spec.Mounts = []runtime.Mount{{Volume: "v", Source: data, Target: "/etc/passwd"}}
	if err := h.rt.Start(context.Background(), spec); err == nil || !strings.Contains(err.Error(), "a directory and the path is a file") {
		t.Errorf("a directory over a file: %v", err)
	}
}

// Containers of several mounts, read-only ones, those that hide others, and inner mounts below a layer.
func TestMountsWithin(t *testing.T) {
	h := isolated(t, Options{})
	a, b := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(a, "sub", "dir"), 0o777); err != nil {
		t.Fatal(err)
	}
	spec := h.spec(pod("within", shell(`set -e; echo a > /m/a; echo b > /m/inner/b; (echo x > /ro/x) 2>/dev/null && exit 3
		mkdir /dev/shm/berth-test-$$ && rmdir /dev/shm/berth-test-$$; ls /x`)), 0)
	spec.Mounts = []runtime.Mount{{Volume: "b", Source: b, Target: "/m/inner"}, {Volume: "a", Source: a, Target: "/m"},
		{Volume: "a", Source: a, Target: "/ro", ReadOnly: true}, {Volume: "d", Source: a, SubPath: "sub", Target: "/x"},
		{Volume: "d", Source: a, Target: "/dev/berth/x"}}
	if got := h.output(spec); got != "dir\n" {
		t.Errorf("output %q", got)
	}
	for _, f := range []string{filepath.Join(a, "a"), filepath.Join(b, "b")} {
		if _, err := os.Stat(f); err != nil {
			t.Error(err)
		}
	}
}

// A sub path never leads out of its volume: not over a link, nor over one that is changed meanwhile.
func TestSubPathStaysInside(t *testing.T) {
	h := isolated(t, Options{})
	volume, outside := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(volume, "link")
	for name, to := range map[string]string{"absolute": outside, "relative": "../" + filepath.Base(outside), "proc": "/proc/self/root" + outside} {
		if err := errors.Join(os.RemoveAll(link), os.Symlink(to, link)); err != nil {
			t.Fatal(err)
		}
		for _, sub := range []string{"link", "link/new"} {
			spec := h.spec(pod(name+strings.ReplaceAll(sub, "/", "-"), shell("cat /v/secret")), 0)
			spec.Mounts = []runtime.Mount{{Volume: "v", Source: volume, SubPath: sub, Target: "/v"}}
			if err := h.rt.Start(context.Background(), spec); err == nil || !strings.Contains(err.Error(), "sub path") {
				t.Errorf("%s %s: %v", name, sub, err)
			}
		}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // another container of the pod
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			_ = os.RemoveAll(link)
			_ = os.MkdirAll(link, 0o777)
			_ = os.Remove(link)
			_ = os.Symlink(outside, link)
		}
	}()
	for i := range 20 {
		spec := h.spec(pod(fmt.Sprintf("race-%d", i), shell("cat /v/secret 2>/dev/null; true")), 0)
		spec.Mounts = []runtime.Mount{{Volume: "v", Source: volume, SubPath: "link", Target: "/v"}}
		if err := h.rt.Start(context.Background(), spec); err != nil {
			continue
		}
		h.event()
		h.exit()
		if got := h.logs(spec.ID, runtime.LogOptions{}); got != "" {
			t.Fatalf("it read %q", got)
		}
	}
	close(stop)
	<-stopped
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("outside: %v", entries)
	}
}

// Another user's container works below a directory that is root's alone, and sees nothing of other pods.
func TestOtherUser(t *testing.T) {
	private := t.TempDir()
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	pods, kept := filepath.Join(private, "pods"), filepath.Join(private, "volumes")
	h := isolated(t, Options{Root: filepath.Join(private, "containers"), Hide: []string{pods, kept}})
	volume, claim := filepath.Join(pods, "uid-a", "volumes", "secret"), filepath.Join(kept, "pvc-uid-claim")
	for _, dir := range []string{volume, claim} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "key"), []byte("secret"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	other := pod("other", shell("sleep 1000"))
	h.start(other, 0)
	for _, user := range []int64{0, 12345} {
		c := shell(fmt.Sprintf(`id -u; cat /s/key /v/key; echo; echo mine > file && cat file; echo last > $BERTH_TERMINATION_LOG; ls %s %s %s 2>&1 | grep -v '^/\|^$'; true`,
			h.opts.Root, pods, kept))
		c.SecurityContext = &corev1.SecurityContext{RunAsUser: &user}
		spec := h.spec(pod(fmt.Sprintf("user-%d", user), c), 0)
		spec.Mounts = []runtime.Mount{{Volume: "s", Source: volume, Target: "/s"}, {Volume: "v", Source: claim, Target: "/v"}}
		id := h.startSpec(spec)
		if x := h.exit(); x.Message != "last\n" {
			t.Errorf("exit is %+v", x)
		}
		got := h.logs(id, runtime.LogOptions{})
		want := fmt.Sprintf("%d\nsecretsecret\nmine\n", user)
		if got = strings.ReplaceAll(got, "ls: cannot access '"+h.opts.Root+"': Permission denied\n", ""); !strings.HasPrefix(got, want) ||
			strings.Contains(got, "uid-") {
			t.Errorf("user %d: output %q", user, got)
		}
	}
}

// status of a process, as the kernel says it.
const statusScript = `grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp|CapBnd|CapEff):' /proc/self/status | tr -s '\t ' ' '; `

// A container that asks for less gets less.
func TestSecurityContext(t *testing.T) {
	h := isolated(t, Options{})
	everything := capabilitySet(t)
	for _, tt := range []struct {
		name   string
		pod    *corev1.PodSecurityContext
		own    *corev1.SecurityContext
		script string
		want   []string
	}{
		{"nothing asked", nil, nil, "", []string{"Uid: 0 0 0 0", "Groups: ", "NoNewPrivs: 0", "Seccomp: 0", "CapBnd: " + everything}},
		{"user and groups", &corev1.PodSecurityContext{RunAsUser: number(1001), RunAsGroup: number(1002), FSGroup: number(1003), SupplementalGroups: []int64{1004}},
			nil, "", []string{"Uid: 1001 1001 1001 1001", "Gid: 1002 1002 1002 1002", "Groups: 1003 1004", "CapEff: 0000000000000000"}},
		{"its own before the pod's", &corev1.PodSecurityContext{RunAsUser: number(1001)}, &corev1.SecurityContext{RunAsUser: number(2001), RunAsGroup: number(2002)},
			"", []string{"Uid: 2001 ", "Gid: 2002 "}},
		{"no escalation", nil, &corev1.SecurityContext{AllowPrivilegeEscalation: no()}, "", []string{"NoNewPrivs: 1"}},
		{"no capabilities", nil, &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}},
			`chown 1:1 $BERTH_TERMINATION_LOG 2>/dev/null && echo chowned; true`,
			[]string{"CapBnd: 0000000000000000", "CapEff: 0000000000000000", "!chowned"}},
		{"one capability", nil, &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"all"}, Add: []corev1.Capability{"CAP_NET_BIND_SERVICE"}}},
			"", []string{"CapBnd: 0000000000000400", "CapEff: 0000000000000400"}},
		{"default profile", &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}, nil,
			`unshare -m true 2>&1; mount -t tmpfs x /mnt 2>/dev/null && echo mounted; (echo forked); true`,
			[]string{"Seccomp: 2", "Operation not permitted", "!mounted", "forked"}},
		{"its own profile", &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}},
			&corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}}, "", []string{"Seccomp: 0"}},
		{"read-only root", nil, &corev1.SecurityContext{ReadOnlyRootFilesystem: yes()},
			`for d in / /etc /tmp /var /m; do (: > $d/berth-test) 2>/dev/null && echo wrote $d; done; : > file && echo works; : > /dev/null && echo null; true`,
			[]string{"works", "null", "!wrote"}},
		{"masked", nil, &corev1.SecurityContext{ProcMount: mask(corev1.DefaultProcMount)},
			`head -c1 /proc/kcore | wc -c; (echo 1 > /proc/sys/kernel/domainname) 2>/dev/null && echo wrote; cat /proc/sys/kernel/ostype`,
			[]string{"0\n", "!wrote", "Linux"}},
		{"unmasked", nil, &corev1.SecurityContext{ProcMount: mask(corev1.UnmaskedProcMount)},
			`cat /proc/sys/kernel/domainname > /proc/sys/kernel/domainname && echo wrote`, []string{"wrote"}},
	} {
		c := shell(statusScript + tt.script)
		c.SecurityContext = tt.own
		p := pod(strings.ReplaceAll(tt.name, " ", "-"), c)
		p.Spec.SecurityContext = tt.pod
		if x := h.rt.Refuse(p); x != nil {
			t.Errorf("%s: refused: %+v", tt.name, x)
			continue
		}
		spec := h.spec(p, 0)
		spec.Mounts = []runtime.Mount{{Volume: "m", Source: t.TempDir(), Target: "/m/below", ReadOnly: true}}
		got := h.output(spec)
		for _, want := range tt.want {
			if not, ok := strings.CutPrefix(want, "!"); ok && strings.Contains(got, not) || !ok && !strings.Contains(got, want) {
				t.Errorf("%s: %q is not so:\n%s", tt.name, want, got)
			}
		}
	}
	// Exec gets no more than the container.
	c := shell("sleep 1000")
	c.SecurityContext = &corev1.SecurityContext{RunAsUser: number(1001), AllowPrivilegeEscalation: no(), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}}}
	id := h.start(pod("exec", c), 0)
	r, err := h.rt.Exec(context.Background(), id, []string{"/bin/sh", "-c", statusScript})
	if out := string(r.Output); err != nil || !strings.Contains(out, "NoNewPrivs: 1") || !strings.Contains(out, "CapBnd: 0000000000000000") || !strings.Contains(out, "Uid: 1001") {
		t.Errorf("exec has %q, %v", out, err)
	}
}

func mask(m corev1.ProcMountType) *corev1.ProcMountType { return &m }

// capabilitySet is what this process may have at most.
func capabilitySet(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			return strings.TrimSpace(v)
		}
	}
	t.Fatal("no capabilities in /proc/self/status")
	return ""
}

// What a pod adds to the host's names is in its files, and its host name is its own.
func TestNames(t *testing.T) {
	h := isolated(t, Options{})
	before, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	p := pod("named", shell(`hostname; tail -n 2 /etc/hosts; cat /etc/resolv.conf`))
	p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.1.2.3", Hostnames: []string{"foo", "bar"}}, {IP: "10.1.2.4", Hostnames: []string{"baz"}}}
	two := "2"
	p.Spec.DNSPolicy = corev1.DNSNone
	p.Spec.DNSConfig = &corev1.PodDNSConfig{Nameservers: []string{"1.2.3.4"}, Searches: []string{"a.b", "c.d"}, Options: []corev1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
	want := "named\n10.1.2.3\tfoo\tbar\n10.1.2.4\tbaz\nsearch a.b c.d\nnameserver 1.2.3.4\noptions ndots:2 edns0\n"
	if got := h.output(h.spec(p, 0)); got != want {
		t.Errorf("it sees %q", got)
	}
	own := h.spec(pod("own", shell(`getent ahostsv4 own | cut -d' ' -f1 | uniq; tail -n 1 /etc/hosts`)), 0)
	own.IPs = []string{"192.0.2.7"}
	if got := h.output(own); got != "192.0.2.7\n192.0.2.7\town\n" {
		t.Errorf("it finds itself at %q", got)
	}
	p = pod("on-host", shell(`hostname`))
	p.Spec.HostNetwork = true
	if got := h.output(h.spec(p, 0)); got != before+"\n" {
		t.Errorf("in the host's network: %q", got)
	}
	if after, err := os.Hostname(); err != nil || after != before {
		t.Errorf("the host is called %q, %v", after, err)
	}
}

// What the runtime cannot do it refuses, and names the field.
func TestRefuse(t *testing.T) {
	h := isolated(t, Options{})
	word := "x"
	bidirectional := corev1.MountPropagationBidirectional
	signal := corev1.Signal("SIGNONE")
	for field, change := range map[string]func(p *corev1.Pod, c *corev1.Container){
		"spec.hostUsers":                                    func(p *corev1.Pod, _ *corev1.Container) { p.Spec.HostUsers = no() },
		"spec.runtimeClassName":                             func(p *corev1.Pod, _ *corev1.Container) { p.Spec.RuntimeClassName = &word },
		"spec.setHostnameAsFQDN":                            func(p *corev1.Pod, _ *corev1.Container) { p.Spec.SetHostnameAsFQDN, p.Spec.Subdomain = yes(), "s" },
		"spec.securityContext.sysctls":                      podContext(corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "a", Value: "b"}}}),
		"spec.securityContext.appArmorProfile":              podContext(corev1.PodSecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}),
		"spec.securityContext.seccompProfile":               podContext(corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &word}}),
		"spec.containers[0].securityContext.windowsOptions": context1(corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{}}),
		"spec.containers[0].securityContext.capabilities":   context1(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"NET_ADMNI"}}}),
		"spec.containers[0].ports[0].hostPort": func(_ *corev1.Pod, c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		},
		"spec.containers[0].ports[0].hostIP": func(_ *corev1.Pod, c *corev1.Container) {
			c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: "127.0.0.1"}}
		},
		"spec.containers[0].volumeMounts[0].mountPropagation": func(_ *corev1.Pod, c *corev1.Container) {
			c.VolumeMounts = []corev1.VolumeMount{{MountPropagation: &bidirectional}}
		},
		"spec.containers[0].resources.limits[hugepages]": func(_ *corev1.Pod, c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{"hugepages-2Mi": resource.MustParse("4Mi")}
		},
		"spec.resources.limits[hugepages]": func(p *corev1.Pod, _ *corev1.Container) {
			p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"hugepages-1Gi": resource.MustParse("1Gi")}}
		},
		"spec.containers[0].volumeDevices[0]":     func(_ *corev1.Pod, c *corev1.Container) { c.VolumeDevices = []corev1.VolumeDevice{{}} },
		"spec.containers[0].lifecycle.stopSignal": func(_ *corev1.Pod, c *corev1.Container) { c.Lifecycle = &corev1.Lifecycle{StopSignal: &signal} },
	} {
		p := pod("a", shell("true"))
		change(p, &p.Spec.Containers[0])
		x := h.rt.Refuse(p)
		if x == nil || !strings.HasPrefix(x.Message, field+": ") || x.Reason == "" {
			t.Errorf("%s: %+v", field, x)
		}
	}
	p := pod("a", shell("true"))
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: "0.0.0.0"}, {ContainerPort: 81, HostPort: 81, HostIP: "::"}, {ContainerPort: 82, HostIP: "127.0.0.1"}}
	if x := h.rt.Refuse(p); x != nil {
		t.Errorf("addresses that bound nothing: %+v", x)
	}
	p = pod("a", shell("true"))
	p.Spec.HostNetwork = true
	p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 80, HostIP: "127.0.0.1"}}
	if x := h.rt.Refuse(p); x != nil {
		t.Errorf("in the host's network: %+v", x)
	}
	p = pod("a", shell("true"))
	p.Spec.Subdomain = "s"
	p.Spec.Containers[0].TTY = true // of that it has all
	p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceEphemeralStorage: resource.MustParse("1Gi")}
	if told := h.rt.Told(p); len(told) != 2 || !strings.Contains(told[1], "spec.containers[0].resources.limits[ephemeral-storage]") {
		t.Errorf("told: %q", told)
	}
	p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{ReadOnlyRootFilesystem: yes()}
	if told := h.rt.Told(p); len(told) != 1 {
		t.Errorf("of a container that cannot write into the node's directories, told: %q", told)
	}
}

// The runtime labels nothing. Where the host does not either nothing is lost, and the pod runs.
func TestLabelsOfSELinux(t *testing.T) {
	h := isolated(t, Options{})
	for field, change := range map[string]func(p *corev1.Pod, c *corev1.Container){
		"spec.securityContext.seLinuxOptions":               podContext(corev1.PodSecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}),
		"spec.containers[0].securityContext.seLinuxOptions": context1(corev1.SecurityContext{SELinuxOptions: &corev1.SELinuxOptions{}}),
	} {
		p := pod("a", shell("true"))
		change(p, &p.Spec.Containers[0])
		x, told := h.rt.Refuse(p), h.rt.Told(p)
		if runtime.HostHasSELinux() {
			if x == nil || !strings.HasPrefix(x.Message, field+": ") {
				t.Errorf("%s: %+v", field, x)
			}
		} else if x != nil || len(told) != 1 || !strings.HasPrefix(told[0], field+" changes nothing") {
			t.Errorf("%s: %+v, told %q", field, x, told)
		}
	}
}

func podContext(s corev1.PodSecurityContext) func(*corev1.Pod, *corev1.Container) {
	return func(p *corev1.Pod, _ *corev1.Container) { p.Spec.SecurityContext = &s }
}

func context1(s corev1.SecurityContext) func(*corev1.Pod, *corev1.Container) {
	return func(_ *corev1.Pod, c *corev1.Container) { c.SecurityContext = &s }
}

// What cannot be run is told as what it is.
func TestStartTellsWhat(t *testing.T) {
	h := open(t, Options{})
	for want, change := range map[string]func(c *corev1.Container){
		`the working directory "/no/such": no such file`:    func(c *corev1.Container) { c.WorkingDir = "/no/such" },
		`the working directory "/etc/passwd": not a direct`: func(c *corev1.Container) { c.WorkingDir = "/etc/passwd" },
		`exec: "/no/such" in "/": no such file`:             func(c *corev1.Container) { c.Command, c.WorkingDir = []string{"/no/such"}, "/" },
	} {
		p := pod("a", shell("true"))
		change(&p.Spec.Containers[0])
		err := h.rt.Start(context.Background(), h.spec(p, 0))
		var se *runtime.StartError
		if !errors.As(err, &se) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
