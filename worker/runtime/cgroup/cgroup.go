// Package cgroup makes the cgroups of pods and containers, of version 1 and 2, and says what a request and a limit are in
// the kernel's terms. It must never look at a process that is not in a cgroup of its own making.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	corev1 "k8s.io/api/core/v1"
)

const (
	unifiedRoot = "/sys/fs/cgroup"
	// PeriodMicros is the time that a quota is of.
	PeriodMicros = 100_000
	minQuota     = 1000
	// MinShares is the kernel's least.
	MinShares = 2
)

// Tree is where cgroups are made: below Parent, from the root of each hierarchy.
type Tree struct {
	Parent  string
	Unified bool // version 2
	// Hugepages are bounded, too. It must not change while there are cgroups of the tree.
	Hugepages bool
}

// HasHugepages says whether the machine's cgroups can bound hugepages.
func HasHugepages() bool {
	if Unified() {
		b, err := os.ReadFile(filepath.Join(unifiedRoot, "cgroup.controllers"))
		return err == nil && slices.Contains(strings.Fields(string(b)), string(cgroup1.Hugetlb))
	}
	_, err := os.Stat(filepath.Join(unifiedRoot, string(cgroup1.Hugetlb), "cgroup.procs")) // else it is no cgroup
	return err == nil
}

// Unified: the machine has cgroups of version 2, and no others.
func Unified() bool { return cgroups.Mode() == cgroups.Unified }

// Open finds out whether this process may make cgroups below parent.
func Open(parent string) (*Tree, error) {
	t := &Tree{Parent: path.Join("/", parent), Unified: Unified()}
	if cgroups.Mode() == cgroups.Unavailable {
		return nil, errors.New("the host has no cgroups")
	}
	probe := fmt.Sprintf("probe-%d", os.Getpid())
	one := uint64(MinShares)
	if _, err := t.Create(probe, &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &one}, Memory: &specs.LinuxMemory{}}); err != nil {
		return nil, err
	}
	dirs, err := t.Dirs(probe)
	if err == nil {
		err = t.Remove(probe)
	}
	for _, d := range dirs {
		_ = os.Remove(filepath.Dir(d)) // unless something is in it
	}
	return t, err
}

// Shares are the weight of a request in thousandths of a processor.
func Shares(milli int64) uint64 { return max(uint64(milli)*1024/1000, MinShares) }

// Quota is how many microseconds of a period a limit in thousandths of a processor is.
func Quota(milli int64) int64 { return max(milli*PeriodMicros/1000, minQuota) }

// Resources are a container's requests and limits as the kernel knows them: shares by the request, a quota and a bound by
// the limits, and a bound on processes, where pids is not 0.
func Resources(r *corev1.ResourceRequirements, pids int64) *specs.LinuxResources {
	request := r.Requests.Cpu().MilliValue()
	if request == 0 {
		request = r.Limits.Cpu().MilliValue()
	}
	shares := Shares(request)
	out := &specs.LinuxResources{CPU: &specs.LinuxCPU{Shares: &shares}, Memory: &specs.LinuxMemory{}}
	if limit := r.Limits.Cpu().MilliValue(); limit > 0 {
		quota, period := Quota(limit), uint64(PeriodMicros)
		out.CPU.Quota, out.CPU.Period = &quota, &period
	}
	if limit := r.Limits.Memory().Value(); limit > 0 {
		out.Memory.Limit = &limit
	}
	if pids > 0 {
		out.Pids = &specs.LinuxPids{Limit: &pids}
	}
	return out
}

// Create makes a cgroup and returns its directories: one, or with version 1 one for each controller. Somebody else who has
// the same parent may be taking it away, empty, at the same time.
func (t *Tree) Create(name string, r *specs.LinuxResources) (dirs []string, err error) {
	for range 3 {
		if dirs, err = t.tryToCreate(name, r); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return dirs, err
}

func (t *Tree) tryToCreate(name string, r *specs.LinuxResources) ([]string, error) {
	group := path.Join(t.Parent, name)
	if t.Unified {
		if _, err := cgroup2.NewManager(unifiedRoot, group, cgroup2.ToResources(r)); err != nil {
			return nil, fmt.Errorf("making cgroup %s: %w", group, err)
		}
		return []string{filepath.Join(unifiedRoot, group)}, nil
	}
	if _, err := cgroup1.New(cgroup1.StaticPath(group), r, cgroup1.WithHierarchy(t.controllers)); err != nil {
		return nil, fmt.Errorf("making cgroup %s: %w", group, err)
	}
	return t.Dirs(name)
}

// EndTogether lets all processes of a cgroup end when memory is short and one of them would have to, as Kubernetes has it. Version 1 has no
// means for it.
func (t *Tree) EndTogether(name string) error {
	if !t.Unified {
		return nil
	}
	if err := os.WriteFile(filepath.Join(unifiedRoot, t.Parent, name, "memory.oom.group"), []byte("1"), 0o644); err != nil { // #nosec G306 -- the file is the kernel's, and has its mode already
		return fmt.Errorf("changing cgroup %s: %w", path.Join(t.Parent, name), err)
	}
	return nil
}

// Update changes what the processes of a cgroup may have. What is not said stays as it is.
func (t *Tree) Update(name string, r *specs.LinuxResources) error {
	group := path.Join(t.Parent, name)
	if t.Unified {
		m, err := cgroup2.Load(group)
		if err == nil {
			err = m.Update(cgroup2.ToResources(r))
		}
		if err != nil {
			return fmt.Errorf("changing cgroup %s: %w", group, err)
		}
		return nil
	}
	c, err := cgroup1.Load(cgroup1.StaticPath(group), cgroup1.WithHierarchy(t.controllers))
	if err == nil {
		err = c.Update(r)
	}
	if err != nil {
		return fmt.Errorf("changing cgroup %s: %w", group, err)
	}
	return nil
}

// controllers are those of version 1 that containers use.
func (t *Tree) controllers() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	var out []cgroup1.Subsystem
	for _, s := range all {
		switch s.Name() {
		case cgroup1.Cpu, cgroup1.Cpuacct, cgroup1.Memory, cgroup1.Pids:
			out = append(out, s)
		case cgroup1.Hugetlb:
			if t.Hugepages {
				out = append(out, s)
			}
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the host has none of the controllers cpu, memory and pids")
	}
	return out, nil
}

// Dirs are the directories of a cgroup.
func (t *Tree) Dirs(name string) ([]string, error) {
	group := path.Join(t.Parent, name)
	if t.Unified {
		return []string{filepath.Join(unifiedRoot, group)}, nil
	}
	subsystems, err := t.controllers()
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

// Remove deletes a cgroup, with those that others made below it, and, when it was the last one there, the one above it. Of the
// tree's parent it deletes nothing but itself.
func (t *Tree) Remove(name string) error {
	dirs, err := t.Dirs(name)
	if err != nil {
		return err
	}
	remove := removeBelow
	if name == "" {
		remove = os.Remove
	}
	for _, d := range dirs {
		if rerr := remove(d); rerr != nil && !os.IsNotExist(rerr) {
			err = errors.Join(err, rerr)
		}
		if up := path.Dir(name); up != "." {
			_ = os.Remove(filepath.Dir(d))
		}
	}
	return err
}

// roots are where every hierarchy is mounted.
func (t *Tree) roots() ([]string, error) {
	if t.Unified {
		return []string{unifiedRoot}, nil
	}
	return filepath.Glob(filepath.Join(unifiedRoot, "*"))
}

// RemoveAll deletes a cgroup with those below it, in every hierarchy, also where others made them, and the ones above it
// that are empty then, the tree's parent included. It fails where something still runs in one of them.
func (t *Tree) RemoveAll(name string) error {
	roots, err := t.roots()
	if err != nil {
		return err
	}
	var errs []error
	for _, root := range roots {
		dir := filepath.Join(root, t.Parent, name)
		if err := removeBelow(dir); err != nil {
			errs = append(errs, err)
			continue
		}
		top := filepath.Join(root, strings.SplitN(strings.TrimPrefix(t.Parent, "/"), "/", 2)[0])
		for up := filepath.Dir(dir); len(up) >= len(top); up = filepath.Dir(up) {
			if os.Remove(up) != nil {
				break // others are in it
			}
		}
	}
	return errors.Join(errs...)
}

func removeBelow(dir string) error {
	entries, err := os.ReadDir(dir)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeBelow(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
