package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-dev/berth/worker/runtime"
)

// ErrNotCounted says that the kernel does not count what a cgroup uses, or not both processor time and memory.
var ErrNotCounted = errors.New("what the cgroup uses is not counted")

// Use is what the processes of a cgroup use, and have used; fs.ErrNotExist: there is no such cgroup.
func (t *Tree) Use(name string) (runtime.Counted, error) {
	dirs, err := t.Dirs(name)
	if err != nil {
		return runtime.Counted{}, err
	}
	if t.Unified {
		return useUnified(dirs[0])
	}
	return useV1(dirs)
}

// Processes are how many there are in a cgroup and those below it, with their threads; fs.ErrNotExist: there is no such cgroup, or
// none are counted.
func (t *Tree) Processes(name string) (int64, error) {
	dirs, err := t.Dirs(name)
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		n, err := number(filepath.Join(dir, "pids.current"))
		if !errors.Is(err, fs.ErrNotExist) {
			return n, err
		}
	}
	return 0, fs.ErrNotExist
}

func useUnified(dir string) (runtime.Counted, error) {
	var out runtime.Counted
	cpu, err := values(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return out, err
	}
	out.CPU = time.Duration(cpu["usage_usec"]) * time.Microsecond
	if out.MemoryBytes, err = number(filepath.Join(dir, "memory.current")); err != nil {
		return out, err
	}
	stat, err := values(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return out, err
	}
	out.WorkingSetBytes = max(out.MemoryBytes-stat["inactive_file"], 0)
	out.AnonymousBytes = stat["anon"]
	out.Processes, _ = number(filepath.Join(dir, "pids.current")) // it may not be counted
	return out, nil
}

func useV1(dirs []string) (runtime.Counted, error) {
	var out runtime.Counted
	cpu, memory, there := false, false, false
	for _, dir := range dirs {
		if _, err := os.Stat(dir); err == nil {
			there = true
		}
		if n, err := number(filepath.Join(dir, "cpuacct.usage")); err == nil {
			cpu, out.CPU = true, time.Duration(n)
		}
		if n, err := number(filepath.Join(dir, "pids.current")); err == nil {
			out.Processes = n
		}
		used, err := number(filepath.Join(dir, "memory.usage_in_bytes"))
		if err != nil {
			continue
		}
		stat, err := values(filepath.Join(dir, "memory.stat"))
		if err != nil {
			return out, err
		}
		memory, out.MemoryBytes = true, used
		out.WorkingSetBytes = max(used-stat["total_inactive_file"], 0)
		out.AnonymousBytes = stat["total_rss"]
	}
	switch {
	case !there:
		return out, fs.ErrNotExist
	case !cpu || !memory:
		return out, ErrNotCounted
	}
	return out, nil
}

// values reads lines of a name and a number.
func values(path string) (map[string]int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("reading what a cgroup uses: %w", err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(b)) {
		if name, n, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			if v, err := strconv.ParseInt(n, 10, 64); err == nil {
				out[name] = v
			}
		}
	}
	return out, nil
}

func number(path string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("reading what a cgroup uses: %w", err)
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("reading what a cgroup uses: %w", err)
	}
	return n, nil
}
