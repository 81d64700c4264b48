package e2e

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

var (
	// vmParts is what `make e2e-vm` takes out of Debian's packages: linux, a kernel with its modules, systemd, nfs, and apparmor.
	vmParts = flag.String("vm", "", "the directory of a kernel and of systemd for virtual machines; none: the tests in them are left out")
	vmPart  = flag.String("vm.part", "whole", "whole; brief: what is dear to run often is left out, and the machine with systemd; nfs: volumes of nfs alone; apparmor: it alone; or kubelet: a node of -kubelet alone")
)

const (
	// vmLimit ends a machine that hangs: it is emulated, and slow.
	vmLimit = 25 * time.Minute
	// inVM says to tests that they run in a machine, and who makes its cgroups.
	inVM = "BERTH_IN_VM"
)

// inner is a test binary that is run in a virtual machine.
type inner struct {
	name, dir, binary string
	run               string // which of its tests
	env, args         []string
}

// vmPlan says which tests run in machines: of the runtime of processes, of that of containers (none: empty), of quotas of directories, of
// pods, of volumes of nfs, of AppArmor, and of a node of a kubelet, and whether pods in a machine with systemd, too.
type vmPlan struct {
	process, cri, quota, pods, nfs, armor, kubelet string
	systemd                                        bool
}

var vmPlans = map[string]vmPlan{
	"whole": {
		process: "^Test(LimitsAndOutOfMemory|NoCgroupIsLeft|Use|Reclaim|TermThenKill|ChildrenEndToo|Exec|RestartedAgentTakesOver|ShimKilled|NothingIsLeftInACgroup|RemoveEndsWhatIsLeft|NeverTwice|DestroyNobody)$",
		cri:     "^Test(Life|Resources|Adopt|LostProcesses)$",
		quota:   "^TestLimit$",
		pods:    "^TestPodsInVM$",
		nfs:     "^TestNFSInVM$",
		armor:   "^TestAppArmorInVM$",
		systemd: true,
	},
	"nfs":      {nfs: "^TestNFSInVM$"},
	"apparmor": {armor: "^TestAppArmorInVM$"},
	"kubelet":  {kubelet: "^TestKubelet$/^(pods_of_every_kind_run|people_reach_into_them|pods_are_deleted)$"},
	"brief": {
		process: "^Test(LimitsAndOutOfMemory|NoCgroupIsLeft|Use)$",
		quota:   "^TestLimit$",
		pods:    "^TestPodsInVM$/.*/^what_is_asked_for$",
	},
}

// Cgroups of version 2 are shown on machines that have none: tests of what makes them, and pods with limits of both runtimes, run
// in virtual machines with Debian's kernel. In one of them there is nobody else who makes cgroups, in the other there is systemd.
func TestVM(t *testing.T) {
	if *vmParts == "" {
		t.Skip("`make e2e-vm` takes a kernel out of Debian's packages and runs this test with it")
	}
	plan, ok := vmPlans[*vmPart]
	if !ok {
		t.Fatalf("-vm.part is %q, and not whole, brief, nfs, apparmor or kubelet", *vmPart)
	}
	needsContainers(t)
	if _, err := os.Stat(filepath.Join(*vmParts, "whole")); err != nil && mayLackContainers() {
		t.Skipf("virtual machines need a kernel: %v", err)
	}
	v := &machines{dir: filepath.Join(root, "vm")}
	if err := v.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var tests []inner
	for _, p := range [...]inner{
		{name: "process", dir: "../worker/runtime/process", run: plan.process}, {name: "cri", dir: "../worker/runtime/cri", run: plan.cri},
		{name: "quota", dir: "../worker/quota", run: plan.quota, env: []string{inVM + "=any"}},
	} {
		if p.run == "" {
			continue
		}
		p.dir, p.binary = filepath.Join(here, p.dir), filepath.Join(v.dir, p.name+".test")
		if out, err := exec.CommandContext(t.Context(), "go", "test", "-vet=off", "-c", "-o", p.binary, p.dir).CombinedOutput(); err != nil {
			t.Fatalf("building the tests of %s: %v: %s", p.name, err, out)
		}
		tests = append(tests, p)
	}
	own := func(name, driver, run string) inner {
		return inner{name: name, dir: here, binary: self, run: run, env: []string{inVM + "=" + driver, "BERTH_E2E_BINARY=/machine" + binary}}
	}
	if plan.pods != "" {
		tests = append(tests, own("pods", "cgroupfs", plan.pods))
	}
	if plan.nfs != "" {
		tests = append(tests, own("nfs", "cgroupfs", plan.nfs))
	}
	if plan.armor != "" {
		tests = append(tests, own("apparmor", "cgroupfs", plan.armor))
	}
	if plan.kubelet != "" {
		if *kubeletProgram == "" {
			t.Fatal("`make e2e-vm PART=kubelet` names a kubelet, too")
		}
		program, err := filepath.Abs(*kubeletProgram)
		if err != nil {
			t.Fatal(err)
		}
		p := own("kubelet", "cgroupfs", plan.kubelet)
		p.args = []string{"-kubelet", "/machine" + program}
		tests = append(tests, p)
	}
	t.Run("nobody else makes cgroups", func(t *testing.T) { v.run(t, "", tests...) })
	if plan.systemd {
		t.Run("systemd makes cgroups", func(t *testing.T) { v.run(t, "systemd", own("pods", "systemd", plan.pods)) })
	}
}

// machines are made of the same parts.
type machines struct {
	dir, parts               string
	kernel, modules, initial string
}

// prepare finds the parts, and makes the file system that the kernel begins with.
func (v *machines) prepare(ctx context.Context) error {
	parts, err := filepath.Abs(*vmParts)
	if err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(parts, "linux", "boot", "vmlinuz-*"))
	if err == nil && len(found) != 1 {
		err = fmt.Errorf("in %s there are %d kernels and not one", parts, len(found))
	}
	if err == nil {
		err = os.MkdirAll(v.dir, 0o755)
	}
	if err != nil {
		return err
	}
	v.kernel, v.initial = found[0], filepath.Join(v.dir, "initial.img")
	v.parts, v.modules = parts, filepath.Join(parts, "linux", "lib", "modules")
	release := strings.TrimPrefix(filepath.Base(v.kernel), "vmlinuz-")
	out, err := exec.CommandContext(ctx, "sh", "testdata/vm/initial.sh", v.modules, release, "testdata/vm/init", v.dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("making what the kernel begins with: %w: %s", err, out)
	}
	return nil
}

// run starts a machine, has it run the tests, and fails for each that does not succeed there, is left out or is not come to.
func (v *machines) run(t *testing.T, init string, tests ...inner) {
	dir := t.TempDir()
	var plan strings.Builder
	for _, p := range tests {
		args := []string{"env"}
		args = append(append(args, p.env...), "/machine"+p.binary, "-test.v", "-test.timeout=15m", "-test.run='"+p.run+"'")
		args = append(args, p.args...)
		fmt.Fprintln(&plan, p.name, "/machine"+p.dir, strings.Join(args, " "))
	}
	program, err := os.ReadFile("testdata/vm/run.sh")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"plan": plan.String(), "run.sh": string(program)} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	words := []string{"console=ttyS0", "quiet", "panic=-1", "vm.modules=" + v.modules, "vm.dir=" + dir}
	if init != "" {
		words = append(words, "vm.init="+init)
	}
	began := time.Now()
	heard, err := v.boot(t, filepath.Join(dir, "console"), words)
	t.Logf("the machine ran for %s", time.Since(began).Round(time.Second))
	if err != nil {
		console, _ := os.ReadFile(filepath.Join(dir, "console")) // what is not there is not shown
		t.Errorf("the machine: %v; its kernel's last words:\n%s", err, console[max(0, len(console)-4000):])
	}
	for _, what := range judgeVM(heard, tests) {
		t.Error(what)
	}
}

// boot runs a machine to its end, and returns what it said on its second serial line.
func (v *machines) boot(t *testing.T, console string, words []string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), vmLimit, errors.New("it did not end"))
	defer cancel()
	args := []string{"-machine", "q35,accel=tcg", "-cpu", "max", "-smp", "2", "-m", "3072", "-nodefaults",
		"-display", "none", "-no-reboot", "-kernel", v.kernel, "-initrd", v.initial, "-append", strings.Join(words, " "),
		"-serial", "file:" + console, "-serial", "stdio",
		"-device", "virtio-rng-pci"}
	shown := map[string]string{"machine": "/"} // as they are, to be read
	for _, part := range [...]string{"systemd", "nfs", "apparmor"} {
		shown[part] = filepath.Join(v.parts, part)
	}
	for tag, path := range shown {
		args = append(args, "-fsdev", "local,id="+tag+",path="+path+",security_model=none,readonly=on,multidevs=remap",
			"-device", "virtio-9p-pci,fsdev="+tag+",mount_tag="+tag)
	}
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", fmt.Errorf("starting it: %w", err)
	}
	var heard strings.Builder
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		heard.WriteString(line + "\n")
		t.Log(line)
	}
	_, _ = io.Copy(io.Discard, out) // after a line that is too long
	if err := errors.Join(lines.Err(), cmd.Wait()); err != nil {
		return heard.String(), fmt.Errorf("%w: %s", errors.Join(err, context.Cause(ctx)), complaints.String())
	}
	return heard.String(), nil
}

var (
	leftOutInVM = regexp.MustCompile(`(?m)^\s*--- SKIP: .*`)
	passedInVM  = regexp.MustCompile(`(?m)^--- PASS: `)
)

// judgeVM is what of the tests inside did not succeed.
func judgeVM(heard string, tests []inner) (wrong []string) {
	for _, p := range tests {
		_, after, began := strings.Cut(heard, "=== vm: begin "+p.name+"\n")
		said, end, ended := strings.Cut(after, "=== vm: end "+p.name+" ")
		status, _, _ := strings.Cut(end, " ")
		switch {
		case !began || !ended:
			wrong = append(wrong, p.name+" did not come to an end")
		case status != "0":
			wrong = append(wrong, p.name+" failed: exit status "+status)
		case !passedInVM.MatchString(said):
			wrong = append(wrong, p.name+" ran no test")
		}
		for _, line := range leftOutInVM.FindAllString(said, -1) {
			wrong = append(wrong, p.name+": it was left out: "+strings.TrimSpace(line))
		}
	}
	if !strings.Contains(heard, "=== vm: done\n") {
		wrong = append(wrong, "the machine did not come to the end of its plan")
	}
	return wrong
}

// What does not succeed inside is no success outside.
func TestJudgeVM(t *testing.T) {
	const good = "=== vm: begin a\n--- PASS: TestOne (1s)\nPASS\n=== vm: end a 0 from 1 s to 2 s\n=== vm: done\n"
	for _, c := range []struct{ heard, wrong string }{
		{good, ""},
		{strings.Replace(good, "end a 0", "end a 1", 1), "a failed: exit status 1"},
		{strings.Replace(good, "--- PASS: TestOne (1s)\n", "testing: warning: no tests to run\n", 1), "a ran no test"},
		{strings.Replace(good, "PASS\n", "    --- SKIP: TestOne/part (0s)\nPASS\n", 1), "a: it was left out: --- SKIP: TestOne/part (0s)"},
		{strings.Replace(good, "=== vm: done\n", "", 1), "the machine did not come to the end of its plan"},
		{"=== vm: begin a\n=== vm: done\n", "a did not come to an end"},
		{"=== vm: done\n", "a did not come to an end"},
	} {
		if got := strings.Join(judgeVM(c.heard, []inner{{name: "a"}}), "; "); got != c.wrong {
			t.Errorf("%q: %s", c.heard, got)
		}
	}
}
