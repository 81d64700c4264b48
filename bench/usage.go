package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// meter measures what a stretch of a workload costs this process.
type meter struct {
	began time.Time
	cpu   time.Duration
}

func startMeter() (meter, error) {
	cpu, err := cpuTime()
	return meter{time.Now(), cpu}, err
}

// stop returns the time that went by, and the time that the cores worked.
func (m meter) stop() (wall, cpu time.Duration, err error) {
	wall = time.Since(m.began)
	now, err := cpuTime()
	return wall, now - m.cpu, err
}

func cpuTime() (time.Duration, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0, fmt.Errorf("the processor time used: %w", err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), nil
}

// memory is what the process holds after a collection.
type memory struct {
	heap     uint64 // bytes of live objects
	resident uint64 // bytes
}

func measureMemory() (memory, error) {
	// Twice, as what was freed by finalizers goes with the second.
	runtime.GC()
	debug.FreeOSMemory()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	resident, err := residentBytes()
	return memory{heap: s.HeapAlloc, resident: resident}, err
}

func residentBytes() (uint64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("the resident memory: %w", err)
	}
	var size, resident uint64
	if _, err := fmt.Fscan(bytes.NewReader(b), &size, &resident); err != nil {
		return 0, fmt.Errorf("the resident memory: %w", err)
	}
	return resident * uint64(os.Getpagesize()), nil
}

// workedBy is the processor time of a process, as the kernel counts it: in hundredths of a second.
func workedBy(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("the processor time of process %d: %w", pid, err)
	}
	const user, system = 11, 12 // after the name, which may have anything in it
	fields := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	if len(fields) <= system {
		return 0, fmt.Errorf("the processor time of process %d: %q is not what a kernel tells", pid, b)
	}
	u, err1 := strconv.ParseInt(fields[user], 10, 64)
	s, err2 := strconv.ParseInt(fields[system], 10, 64)
	return time.Duration(u+s) * (time.Second / 100), errors.Join(err1, err2)
}

// peakOf is how many bytes a process has had resident at the most.
func peakOf(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("the memory of process %d: %w", pid, err)
	}
	var kib uint64
	_, rest, ok := strings.Cut(string(b), "\nVmHWM:")
	if _, err := fmt.Sscan(rest, &kib); !ok || err != nil {
		return 0, fmt.Errorf("the memory of process %d: the kernel does not tell its peak", pid)
	}
	return kib << 10, nil
}
