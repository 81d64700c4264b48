package server

import (
	"io/fs"
	"math"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

const (
	// statePart is which part of its memory a server lets the state take: a restore has it twice, and Go lets the heap
	// grow to twice what is live.
	statePart = 4
	// leastState is what the state may take where there is little memory, or it is not known how much.
	leastState = 256 << 20
)

// defaultMaxState is how many bytes the state may take on a machine of these files.
func defaultMaxState(root fs.FS) int64 {
	memory := min(machineMemory(root), cgroupMemory(root), debug.SetMemoryLimit(-1)) // which sets none
	if memory == math.MaxInt64 {
		return leastState
	}
	return max(memory/statePart, leastState)
}

// machineMemory is what the machine has, in bytes; the largest number if that is not known.
func machineMemory(root fs.FS) int64 {
	b, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "MemTotal:" {
			if kib, err := strconv.ParseInt(f[1], 10, 64); err == nil && kib > 0 && kib <= math.MaxInt64>>10 {
				return kib << 10
			}
		}
	}
	return math.MaxInt64
}

// cgroupMemory is what the process may use by its cgroup and those above it, of either version; the largest number if
// they do not bound it.
func cgroupMemory(root fs.FS) int64 {
	b, _ := fs.ReadFile(root, "proc/self/cgroup")
	least := int64(math.MaxInt64)
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		top, file := "sys/fs/cgroup", "memory.max"
		switch {
		case f[0] == "0" && f[1] == "":
		case strings.Contains(","+f[1]+",", ",memory,"):
			top, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for dir := path.Clean("/" + f[2]); ; dir = path.Dir(dir) {
			b, _ := fs.ReadFile(root, path.Join(top, dir, file))
			if n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64); err == nil && n > 0 {
				least = min(least, n)
			}
			if dir == "/" {
				break
			}
		}
	}
	return least
}
