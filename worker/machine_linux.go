package worker

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/worker/runtime"
)

// ReadMachine reads what the machine has: cpus that this process may use, memory, and the size of the disk that holds
// dataDir.
func ReadMachine(dataDir string) (Machine, error) {
	mem, err := meminfo()
	if err != nil {
		return Machine{}, err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dataDir, &fs); err != nil {
		return Machine{}, fmt.Errorf("reading the size of the disk of %s: %w", dataDir, err)
	}
	m := Machine{Capacity: corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(goruntime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(mem["MemTotal"], resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(fs.Blocks)*fs.Bsize, resource.BinarySI),
	}}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Machine{}, fmt.Errorf("reading the kernel's version: %w", err)
	}
	m.Info = corev1.NodeSystemInfo{
		MachineID:       firstLine("/etc/machine-id"),
		SystemUUID:      firstLine("/sys/class/dmi/id/product_uuid"),
		BootID:          firstLine("/proc/sys/kernel/random/boot_id"),
		KernelVersion:   unix.ByteSliceToString(uts.Release[:]),
		OSImage:         osImage(),
		OperatingSystem: goruntime.GOOS,
		Architecture:    goruntime.GOARCH,
	}
	return m, nil
}

// ReadObservations measures what the machine may run short of: its memory, the disk of a directory, and that of the directory
// of images, where there are images ("": there are none, or it is not known where). With an error it is what could be measured.
func ReadObservations(dataDir, imageDir string) (eviction.Observations, error) {
	out := eviction.Observations{}
	var errs []error
	if mem, err := meminfo(); err != nil {
		errs = append(errs, err)
	} else {
		used := max(mem["MemTotal"]-mem["MemFree"]-mem["Inactive(file)"], 0)
		out[eviction.MemoryAvailable] = eviction.Observed{Available: mem["MemTotal"] - used, Capacity: mem["MemTotal"]}
	}
	disk := func(dir string, available, inodes eviction.Signal) {
		d, err := ReadDisk(dir)
		if err != nil {
			errs = append(errs, err)
			return
		}
		out[available] = eviction.Observed{Available: d.AvailableBytes, Capacity: d.CapacityBytes}
		if d.Inodes > 0 { // some file systems make them as they are needed
			out[inodes] = eviction.Observed{Available: d.FreeInodes, Capacity: d.Inodes}
		}
	}
	disk(dataDir, eviction.NodeFSAvailable, eviction.NodeFSInodes)
	if imageDir != "" {
		disk(imageDir, eviction.ImageFSAvailable, eviction.ImageFSInodes)
	}
	if tasks, most, known := ReadTasks(); known {
		out[eviction.PIDAvailable] = eviction.Observed{Available: most - tasks, Capacity: most}
	}
	return out, errors.Join(errs...)
}

// ReadTasks reads how many processes the machine has, with their threads, and how many it can have.
func ReadTasks() (tasks, most int64, known bool) {
	most, err := strconv.ParseInt(firstLine("/proc/sys/kernel/pid_max"), 10, 64)
	if err != nil {
		return 0, 0, false
	}
	if limit, err := strconv.ParseInt(firstLine("/proc/sys/kernel/threads-max"), 10, 64); err == nil {
		most = min(most, limit)
	}
	// The second number of the fourth field of loadavg is how many tasks there are.
	f := strings.Fields(firstLine("/proc/loadavg"))
	if len(f) < 4 {
		return 0, 0, false
	}
	_, all, _ := strings.Cut(f[3], "/")
	tasks, err = strconv.ParseInt(all, 10, 64)
	return tasks, most, err == nil
}

// meminfo returns /proc/meminfo in bytes.
func meminfo() (map[string]int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return nil, fmt.Errorf("reading the machine's memory: %w", err)
	}
	defer f.Close()
	out := map[string]int64{}
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			out[strings.TrimSuffix(fields[0], ":")] = n << 10
		}
	}
	if out["MemTotal"] == 0 {
		return nil, fmt.Errorf("reading the machine's memory: /proc/meminfo has no MemTotal")
	}
	return out, nil
}

func firstLine(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line)
}

func osImage() string {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return goruntime.GOOS
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(v, `"`)
		}
	}
	return goruntime.GOOS
}

// ticks are how many of the units of /proc/stat are in a second: the kernel shows them so on every machine.
const ticks = 100

// ReadUse reads what everything on the machine uses.
func ReadUse() (runtime.Counted, error) {
	var out runtime.Counted
	mem, err := meminfo()
	if err != nil {
		return out, err
	}
	out.MemoryBytes = mem["MemTotal"] - mem["MemFree"]
	out.WorkingSetBytes = max(out.MemoryBytes-mem["Inactive(file)"], 0)
	out.AnonymousBytes = mem["AnonPages"]
	f := strings.Fields(firstLine("/proc/stat"))
	if len(f) < 5 || f[0] != "cpu" {
		return out, fmt.Errorf("reading the machine's processor time: /proc/stat begins with %q", strings.Join(f, " "))
	}
	// user, nice, system, not idle and not waiting, irq, softirq, steal; those of guests are in user and nice.
	for i, v := range f[1:min(len(f), 9)] {
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return out, fmt.Errorf("reading the machine's processor time: %w", err)
		}
		if i != 3 && i != 4 {
			out.CPU += time.Duration(n) * (time.Second / ticks)
		}
	}
	return out, nil
}

// ReadDisk reads how large the file system of a directory is, and what of it is free.
func ReadDisk(dir string) (Disk, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return Disk{}, fmt.Errorf("reading the free space of the disk of %s: %w", dir, err)
	}
	return Disk{
		CapacityBytes: int64(fs.Blocks) * fs.Bsize, AvailableBytes: int64(fs.Bavail) * fs.Bsize,
		UsedBytes: int64(fs.Blocks-fs.Bfree) * fs.Bsize, Inodes: int64(fs.Files), FreeInodes: int64(fs.Ffree),
	}, nil
}
