package process

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

const (
	unifiedRoot     = "/sys/fs/cgroup"
	cpuPeriodMicros = 100_000
	minShares       = 2 // the kernel's least
)

// cgroupTree is where containers get their cgroups. A nil *cgroupTree has none and does nothing.
type cgroupTree struct {
	parent  string
	unified bool
	pids    int64
}

// openCgroups finds out whether this process may make cgroups below parent.
func openCgroups(parent string, pids int64) (*cgroupTree, error) {
	t := &cgroupTree{parent: path.Join("/", parent), unified: cgroups.Mode() == cgroups.Unified, pids: pids}
	if cgroups.Mode() == cgroups.Unavailable {
		return nil, errors.New("the host has no cgroups")
	}
	probe := fmt.Sprintf("probe-%d", os.Getpid())
	one := uint64(minShares)
	if _, err := t.create(probe, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &one}, Memory: &specs.LinuxMemory{}}); err != nil {
		return nil, err
	}
	return t, t.remove(probe)
}

func (t *cgroupTree) name(id runtime.ID) string {
	return path.Join(string(id.Pod), fmt.Sprintf("%s_%d", id.Container, id.Attempt))
}

// forContainer makes the container's cgroup and tells the shim how to get into it.
func (t *cgroupTree) forContainer(spec *runtime.Spec, c *shim.Config) error {
	if t == nil {
		return nil
	}
	dirs, err := t.create(t.name(spec.ID), t.resources(&spec.Container.Resources))
	if err != nil {
		return err
	}
	if t.unified {
		c.CgroupV2 = dirs[0]
		return nil
	}
	for _, d := range dirs {
		c.TasksV1 = append(c.TasksV1, filepath.Join(d, "tasks"))
		root := strings.TrimSuffix(d, path.Join(t.parent, t.name(spec.ID)))
		c.HomeV1 = append(c.HomeV1, filepath.Join(root, "tasks"))
	}
	return nil
}

// resources are a container's requests and limits as the kernel knows them: shares by the request, a quota and a bound
// by the limits.
func (t *cgroupTree) resources(r *corev1.ResourceRequirements) *specs.LinuxResources {
	request := r.Requests.Cpu().MilliValue()
	if request == 0 {
		request = r.Limits.Cpu().MilliValue()
	}
	shares := max(uint64(request)*1024/1000, minShares)
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{}}
	if limit := r.Limits.Cpu().MilliValue(); limit > 0 {
		quota, period := max(limit*cpuPeriodMicros/1000, 1000), uint64(cpuPeriodMicros)
		out.CPU.Quota, out.CPU.Period = &quota, &period
	}
	if limit := r.Limits.Memory().Value(); limit > 0 {
		out.Memory.Limit = &limit
	}
	if t.pids > 0 {
		out.Pids = &specs.LinuxPids{Limit: &t.pids}
	}
	return out
}

// create makes a cgroup and returns its directories: one, or with version 1 one for each controller. Somebody else who has
// the same parent may be taking it away, empty, at the same time.
func (t *cgroupTree) create(name string, r *specs.LinuxResources) (dirs []string, err error) {
	for range 3 {
		if dirs, err = t.tryToCreate(name, r); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return dirs, err
}

func (t *cgroupTree) tryToCreate(name string, r *specs.LinuxResources) ([]string, error) {
	group := path.Join(t.parent, name)
	if t.unified {
		if _, err := cgroup2.NewManager(unifiedRoot, group, cgroup2.ToResources(r)); err != nil {
			return nil, fmt.Errorf("making cgroup %s: %w", group, err)
		}
		return []string{filepath.Join(unifiedRoot, group)}, nil
	}
	if _, err := cgroup1.New(cgroup1.StaticPath(group), r, cgroup1.WithHierarchy(controllers)); err != nil {
		return nil, fmt.Errorf("making cgroup %s: %w", group, err)
	}
	return t.dirs(name)
}

// controllers are those of version 1 that containers use.
func controllers() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	var out []cgroup1.Subsystem
	for _, s := range all {
		switch s.Name() {
		case cgroup1.Cpu, cgroup1.Memory, cgroup1.Pids:
			out = append(out, s)
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the host has none of the controllers cpu, memory and pids")
	}
	return out, nil
}

func (t *cgroupTree) dirs(name string) ([]string, error) {
	group := path.Join(t.parent, name)
	if t.unified {
		return []string{filepath.Join(unifiedRoot, group)}, nil
	}
	subsystems, err := controllers()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, s := range subsystems {
		if p, ok := s.(interface{ Path(string) string }); ok {
			out = append(out, p.Path(group))
		}
	}
	return out, nil
}

// outOfMemory says whether the kernel killed a process of the container for its memory limit.
func (t *cgroupTree) outOfMemory(id runtime.ID) bool {
	if t == nil {
		return false
	}
	dirs, err := t.dirs(t.name(id))
	if err != nil {
		return false
	}
	for _, d := range dirs {
		for _, file := range [...]string{"memory.events", "memory.oom_control"} {
			b, err := os.ReadFile(filepath.Join(d, file))
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(b)) {
				if v, ok := strings.CutPrefix(strings.TrimSpace(line), "oom_kill "); ok {
					n, _ := strconv.Atoi(v)
					return n > 0
				}
			}
		}
	}
	return false
}

// processes are those in the container's cgroup.
func (t *cgroupTree) processes(id runtime.ID) []int {
	if t == nil {
		return nil
	}
	dirs, err := t.dirs(t.name(id))
	if err != nil {
		return nil
	}
	var out []int
	for _, d := range dirs {
		b, err := os.ReadFile(filepath.Join(d, "cgroup.procs"))
		if err != nil {
			continue
		}
		for _, f := range strings.Fields(string(b)) {
			if pid, err := strconv.Atoi(f); err == nil && pid != os.Getpid() {
				out = append(out, pid)
			}
		}
	}
	return out
}

// close takes the parent away if nothing is left in it.
func (t *cgroupTree) close() {
	if t != nil {
		_ = t.remove("") // where containers run on it stays, for whoever comes next
	}
}

func (t *cgroupTree) removeContainer(id runtime.ID) error {
	if t == nil {
		return nil
	}
	return t.remove(t.name(id))
}

// remove deletes a cgroup and, when it was the last one there, the pod's.
func (t *cgroupTree) remove(name string) error {
	dirs, err := t.dirs(name)
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if rerr := os.Remove(d); rerr != nil && !os.IsNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
		if up := path.Dir(name); up != "." {
			_ = os.Remove(filepath.Dir(d))
		}
	}
	return err
}
