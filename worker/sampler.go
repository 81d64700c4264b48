package worker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/sample"
	"github.com/berth-dev/berth/worker/runtime"
)

const (
	// DefaultSampleInterval is how often a worker measures what its pods use.
	DefaultSampleInterval = 10 * time.Second
	// shortestWindow: the processor time of less is not told, because the kernel counts too coarsely.
	shortestWindow = 500 * time.Millisecond
)

// Disk is a file system.
type Disk struct {
	CapacityBytes, AvailableBytes, UsedBytes int64
	Inodes, FreeInodes                       int64
}

// Sampler measures, every now and then, what the machine and the containers on it use. It decides nothing.
type Sampler struct {
	// Meter is the runtime; Machine measures all of the machine (ReadUse).
	Meter   runtime.Meter
	Machine func() (runtime.Counted, error)
	// Part says of what the node has only a part of the machine's: it uses of that what its pods do, where the runtime measures them.
	Part Part
	// Interval; 0: DefaultSampleInterval.
	Interval time.Duration
	// Take is told each sample; it must not block.
	Take   func(*sample.Node)
	Clock  clock.WithTicker
	Logger hclog.Logger

	mu   sync.Mutex
	last *Measured
}

// Measured is one measurement, with what is known by the one before it.
type Measured struct {
	At         time.Time
	Window     time.Duration // 0: it was the first
	Machine    Rated
	Containers []MeasuredContainer // by pod and name
}

// Rated is what was counted, and how fast processor time is used; negative: that is not known yet.
type Rated struct {
	runtime.Counted
	NanoCPU int64
}

// MeasuredContainer is what a container uses.
type MeasuredContainer struct {
	runtime.ID
	StartedAt, At time.Time
	Rated
}

// Run measures until ctx ends.
func (s *Sampler) Run(ctx context.Context) {
	interval := cmp.Or(s.Interval, DefaultSampleInterval)
	tick := s.Clock.NewTicker(interval)
	defer tick.Stop()
	failed := false
	for {
		err := s.measure(ctx, interval)
		if err != nil && ctx.Err() == nil && !failed {
			s.Logger.Warn("what the pods use cannot be measured; trying again", "error", err)
		}
		failed = err != nil
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
		}
	}
}

// Last is the newest measurement; nil: there is none.
func (s *Sampler) Last() *Measured {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

func (s *Sampler) measure(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	machine, err := s.Machine()
	if err != nil {
		return err
	}
	now := s.Clock.Now()
	part := s.Part
	used, err := s.Meter.Use(ctx)
	if errors.Is(err, runtime.ErrUnmeasured) {
		part, err = Part{}, nil // all that is known is the machine's
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	m := compare(s.last, machine, used, now)
	s.last = m
	s.mu.Unlock()
	if n := m.Sample(part); n != nil {
		s.Take(n)
	}
	return nil
}

// compare finds out how fast processor time was used since the measurement before, or since a container has begun.
func compare(before *Measured, machine runtime.Counted, used []runtime.ContainerUse, now time.Time) *Measured {
	m := &Measured{At: now, Machine: Rated{machine, -1}}
	last := map[runtime.ID]*MeasuredContainer{}
	if before != nil {
		if window := now.Sub(before.At); window >= shortestWindow {
			m.Window = window
			m.Machine.NanoCPU = rate(before.Machine.CPU, machine.CPU, window)
		}
		for i := range before.Containers {
			last[before.Containers[i].ID] = &before.Containers[i]
		}
	}
	for _, u := range used {
		c := MeasuredContainer{ID: u.ID, StartedAt: u.StartedAt, At: u.At, Rated: Rated{u.Counted, -1}}
		switch old := last[u.ID]; {
		case old != nil && u.At.Sub(old.At) >= shortestWindow:
			c.NanoCPU = rate(old.CPU, u.CPU, u.At.Sub(old.At))
		case old != nil: // the runtime has not measured again
			c.NanoCPU = old.NanoCPU
		case before != nil && u.StartedAt.After(before.At) && u.At.Sub(u.StartedAt) >= shortestWindow:
			c.NanoCPU = rate(0, u.CPU, u.At.Sub(u.StartedAt))
		}
		m.Containers = append(m.Containers, c)
	}
	slices.SortFunc(m.Containers, func(a, b MeasuredContainer) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Attempt, b.Attempt))
	})
	return m
}

// rate is in billionths of a processor; negative: the count began anew.
func rate(from, to, over time.Duration) int64 {
	if to < from {
		return -1
	}
	return int64(float64(to-from) / over.Seconds())
}

// Part is what a node has less of than its machine.
type Part struct{ CPU, Memory bool }

// PartOf compares a node with its machine.
func PartOf(node, machine corev1.ResourceList) Part {
	return Part{CPU: node.Cpu().Cmp(*machine.Cpu()) < 0, Memory: node.Memory().Cmp(*machine.Memory()) < 0}
}

// narrow has the node use what its pods do, of what it has a part of.
func (part Part) narrow(n *sample.Node, all []MeasuredContainer) {
	var pods sample.Amount
	for i := range all {
		if k := i + 1; k < len(all) && all[k].Pod == all[i].Pod && all[k].Container == all[i].Container {
			continue // an earlier run of it
		}
		used := all[i].amount() // no processor time where its rate is not known yet
		pods.NanoCPU += used.NanoCPU
		pods.MemoryBytes += used.MemoryBytes
	}
	if part.CPU {
		n.Used.NanoCPU = min(pods.NanoCPU, sample.MaxAmount)
	}
	if part.Memory {
		n.Used.MemoryBytes = min(pods.MemoryBytes, sample.MaxAmount)
	}
}

// Sample is what the servers are told; nil: it is the first measurement, or of no window.
func (m *Measured) Sample(part Part) *sample.Node {
	if m.Window <= 0 || m.Machine.NanoCPU < 0 {
		return nil
	}
	n := &sample.Node{WindowNano: int64(min(m.Window, sample.MaxWindow)), Used: m.Machine.amount()}
	containers := 0
	for i := range m.Containers {
		c := &m.Containers[i]
		if c.NanoCPU < 0 {
			continue
		}
		if containers++; containers > sample.MaxContainers {
			break
		}
		if len(n.Pods) == 0 || n.Pods[len(n.Pods)-1].UID != string(c.Pod) {
			if len(n.Pods) == sample.MaxPods {
				break
			}
			n.Pods = append(n.Pods, sample.Pod{UID: string(c.Pod)})
		}
		p := &n.Pods[len(n.Pods)-1]
		if k := len(p.Containers); k > 0 && p.Containers[k-1].Name == c.Container {
			p.Containers = p.Containers[:k-1] // an earlier run of it
		}
		p.Containers = append(p.Containers, sample.Container{Name: c.Container, Used: c.amount()})
	}
	part.narrow(n, m.Containers)
	return n
}

func (r *Rated) amount() sample.Amount {
	return sample.Amount{NanoCPU: min(max(r.NanoCPU, 0), sample.MaxAmount), MemoryBytes: min(max(r.WorkingSetBytes, 0), sample.MaxAmount)}
}
