package worker

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	statsv1alpha1 "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/berth-dev/berth/worker/runtime"
)

// diskUseAge is how old a measurement of what pods hold of the disk may be, for who asks for a summary: it reads every
// file's size.
const diskUseAge = time.Minute

// Summary is what a kubelet shows of its node below /stats/summary.
type Summary struct {
	Agent *Agent
	// Measured is the newest measurement of processors and memory; nil: there is none.
	Measured func() *Measured
	// Disk measures the disk of the pods, and that of images, where there is one.
	Disk func() (node Disk, images *Disk, err error)
	// Tasks counts the machine's processes (ReadTasks); nil: nobody does.
	Tasks func() (tasks, most int64, known bool)

	mu   sync.Mutex
	held *held
	at   time.Time
}

// held is what the pods hold of the node beside processors and memory.
type held struct {
	uses      map[types.UID]localUse
	processes map[types.UID]int64 // where the runtime counts those of pods, and not of containers
}

// Get gives the summary; onlyCPUAndMemory leaves out what is of disks.
func (s *Summary) Get(ctx context.Context, onlyCPUAndMemory bool) (*statsv1alpha1.Summary, error) {
	a := s.Agent
	m := s.Measured()
	if m == nil {
		m = &Measured{At: a.clock.Now(), Machine: Rated{NanoCPU: -1}}
	}
	out := &statsv1alpha1.Summary{Node: statsv1alpha1.NodeStats{NodeName: a.opts.Node.Name}}
	out.Node.CPU, out.Node.Memory = m.Machine.stats(m.At)
	if all := a.opts.Node.Status.Capacity.Memory(); all != nil && out.Node.Memory != nil {
		out.Node.Memory.AvailableBytes = count(all.Value() - m.Machine.WorkingSetBytes)
	}
	var pods *held
	if !onlyCPUAndMemory {
		if s.Tasks != nil {
			if tasks, most, known := s.Tasks(); known {
				out.Node.Rlimit = &statsv1alpha1.RlimitStats{Time: metav1.NewTime(a.clock.Now()), MaxPID: &most, NumOfRunningProcesses: &tasks}
			}
		}
		node, images, err := s.Disk()
		if err != nil {
			return nil, err
		}
		out.Node.Fs = node.stats(m.At)
		out.Node.Runtime = &statsv1alpha1.RuntimeStats{ImageFs: out.Node.Fs, ContainerFs: out.Node.Fs}
		if images != nil {
			out.Node.Runtime = &statsv1alpha1.RuntimeStats{ImageFs: images.stats(m.At), ContainerFs: images.stats(m.At)}
		}
		if pods, err = s.holds(ctx); err != nil {
			return nil, err
		}
	}
	for _, p := range a.known() {
		out.Pods = append(out.Pods, podStats(p, m, pods, out.Node.Fs))
	}
	return out, nil
}

// holds measures what the pods hold of the disk, and counts their processes, unless that was done lately. Who comes meanwhile waits.
func (s *Summary) holds(ctx context.Context) (*held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.Agent.clock.Now()
	if s.held != nil && now.Sub(s.at) < diskUseAge {
		return s.held, nil
	}
	uses, err := s.Agent.localUses(ctx)
	if err != nil {
		return nil, err
	}
	h := &held{uses: uses}
	if counter, ok := s.Agent.runtime.(runtime.ProcessCounter); ok {
		if h.processes, err = counter.Processes(ctx); err != nil {
			s.Agent.log.Warn("the pods' processes cannot be counted", "error", err)
		}
	}
	s.held, s.at = h, now
	return h, nil
}

// knownPod is a pod of this node.
type knownPod struct {
	namespace, name string
	uid             types.UID
	startTime       time.Time
}

// known are the pods of this node that have begun, by name.
func (a *Agent) known() []knownPod {
	var out []knownPod
	a.locked(func() {
		for _, p := range a.core.pods {
			if p.alive() {
				out = append(out, knownPod{p.pod.Namespace, p.pod.Name, p.pod.UID, p.startTime})
			}
		}
	})
	slices.SortFunc(out, func(x, y knownPod) int {
		return cmp.Or(cmp.Compare(x.namespace, y.namespace), cmp.Compare(x.name, y.name), cmp.Compare(x.uid, y.uid))
	})
	return out
}

// Names gives the namespace and the name of a pod of this node.
func (a *Agent) Names() map[types.UID]types.NamespacedName {
	out := map[types.UID]types.NamespacedName{}
	for _, p := range a.known() {
		out[p.uid] = types.NamespacedName{Namespace: p.namespace, Name: p.name}
	}
	return out
}

// localUses measures what every pod of this node holds of its disk. A pod that cannot be measured is missing.
func (a *Agent) localUses(ctx context.Context) (map[types.UID]localUse, error) {
	var pods []*corev1.Pod
	for _, p := range a.known() {
		a.mu.Lock()
		object, _, ok := a.core.Pod(p.uid, a.clock.Now())
		a.mu.Unlock()
		if ok {
			pods = append(pods, object)
		}
	}
	return a.caller.localUses(ctx, pods, measurePatience), ctx.Err()
}

// podStats is what a pod uses. Of what it holds, nil, nothing is said.
func podStats(p knownPod, m *Measured, pods *held, fs *statsv1alpha1.FsStats) statsv1alpha1.PodStats {
	out := statsv1alpha1.PodStats{
		PodRef:    statsv1alpha1.PodReference{Name: p.name, Namespace: p.namespace, UID: string(p.uid)},
		StartTime: metav1.NewTime(p.startTime), Containers: []statsv1alpha1.ContainerStats{},
	}
	var use localUse
	measured, processes := false, int64(0)
	if pods != nil {
		use, measured = pods.uses[p.uid]
		processes = pods.processes[p.uid]
	}
	var sum Rated
	at, _ := slices.BinarySearchFunc(m.Containers, p.uid, func(c MeasuredContainer, uid types.UID) int { return cmp.Compare(c.Pod, uid) })
	for ; at < len(m.Containers) && m.Containers[at].Pod == p.uid; at++ {
		c := &m.Containers[at]
		one := statsv1alpha1.ContainerStats{Name: c.Container, StartTime: metav1.NewTime(c.StartedAt)}
		one.CPU, one.Memory = c.stats(c.At)
		if measured {
			one.Rootfs = withUse(fs, use.containers[c.Container])
		}
		out.Containers = append(out.Containers, one)
		sum.NanoCPU += max(c.NanoCPU, 0)
		sum.CPU += c.CPU
		sum.MemoryBytes += c.MemoryBytes
		sum.WorkingSetBytes += c.WorkingSetBytes
		sum.AnonymousBytes += c.AnonymousBytes
		sum.Processes += c.Processes
	}
	if processes = max(processes, sum.Processes); pods != nil && processes > 0 {
		out.ProcessStats = &statsv1alpha1.ProcessStats{ProcessCount: count(processes)}
	}
	out.CPU, out.Memory = sum.stats(m.At)
	if measured {
		out.EphemeralStorage = withUse(fs, use.total())
		for _, name := range slices.Sorted(maps.Keys(use.volumes)) {
			out.VolumeStats = append(out.VolumeStats, statsv1alpha1.VolumeStats{Name: name, FsStats: *withUse(fs, use.volumes[name])})
		}
		for _, name := range slices.Sorted(maps.Keys(use.memory)) {
			out.VolumeStats = append(out.VolumeStats, statsv1alpha1.VolumeStats{Name: name, FsStats: *use.memory[name].stats(m.At)})
		}
	}
	return out
}

func count(n int64) *uint64 {
	v := uint64(max(n, 0))
	return &v
}

func (r *Rated) stats(at time.Time) (*statsv1alpha1.CPUStats, *statsv1alpha1.MemoryStats) {
	cpu := &statsv1alpha1.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: count(int64(r.CPU))}
	if r.NanoCPU >= 0 {
		cpu.UsageNanoCores = count(r.NanoCPU)
	}
	return cpu, &statsv1alpha1.MemoryStats{
		Time: metav1.NewTime(at), UsageBytes: count(r.MemoryBytes), WorkingSetBytes: count(r.WorkingSetBytes), RSSBytes: count(r.AnonymousBytes),
	}
}

func (d Disk) stats(at time.Time) *statsv1alpha1.FsStats {
	return &statsv1alpha1.FsStats{
		Time: metav1.NewTime(at), AvailableBytes: count(d.AvailableBytes), CapacityBytes: count(d.CapacityBytes), UsedBytes: count(d.UsedBytes),
		InodesFree: count(d.FreeInodes), Inodes: count(d.Inodes), InodesUsed: count(d.Inodes - d.FreeInodes),
	}
}

// withUse is a file system of which somebody holds so much.
func withUse(fs *statsv1alpha1.FsStats, used int64) *statsv1alpha1.FsStats {
	out := *fs
	out.UsedBytes, out.InodesUsed = count(used), nil
	return &out
}
