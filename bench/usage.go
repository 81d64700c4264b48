package bench

import (
	"bytes"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
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
