// Package eviction decides what a node that runs short of something does about it, as Kubernetes' node agent does
// (PC13, PC14): which conditions it shows, when it begins to free something, and which pod goes first. It is a pure
// function of observations and the time. It must never measure anything, nor end a pod itself.
package eviction

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Signal is what a node may run short of, by Kubernetes' names.
type Signal string

const (
	MemoryAvailable  Signal = "memory.available"
	NodeFSAvailable  Signal = "nodefs.available"
	NodeFSInodes     Signal = "nodefs.inodesFree"
	ImageFSAvailable Signal = "imagefs.available"
	ImageFSInodes    Signal = "imagefs.inodesFree"
	PIDAvailable     Signal = "pid.available"
)

// Signals are all there are, in the order in which they are acted upon.
func Signals() []Signal {
	return []Signal{MemoryAvailable, NodeFSAvailable, ImageFSAvailable, NodeFSInodes, ImageFSInodes, PIDAvailable}
}

// Resource is what a signal is about, as messages call it.
func (s Signal) Resource() corev1.ResourceName {
	switch s {
	case MemoryAvailable:
		return corev1.ResourceMemory
	case NodeFSAvailable, ImageFSAvailable:
		return corev1.ResourceEphemeralStorage
	case PIDAvailable:
		return "pids"
	}
	return "inodes"
}

// Disk says whether the signal is about a file system: earlier runs of containers, and images that nobody uses, may go
// before a pod has to.
func (s Signal) Disk() bool { return s != MemoryAvailable && s != PIDAvailable }

// Inodes says whether the signal is about the number of files, not their size.
func (s Signal) Inodes() bool { return s == NodeFSInodes || s == ImageFSInodes }

func (s Signal) condition() corev1.NodeConditionType {
	switch {
	case s == MemoryAvailable:
		return corev1.NodeMemoryPressure
	case s == PIDAvailable:
		return corev1.NodePIDPressure
	}
	return corev1.NodeDiskPressure
}

// Amount is an absolute number of bytes, inodes or processes or, where PerMyriad is set, so many ten-thousandths of what there is.
type Amount struct{ Absolute, PerMyriad int64 }

// Of is the amount where there is so much in all.
func (a Amount) Of(capacity int64) int64 {
	if a.PerMyriad == 0 {
		return a.Absolute
	}
	return capacity/10_000*a.PerMyriad + capacity%10_000*a.PerMyriad/10_000
}

// Threshold is what less than which must not be available. With a Grace it is soft: it must have been so for that long
// before anybody goes.
type Threshold struct {
	Signal Signal
	Least  Amount
	Grace  time.Duration
	// Reclaim is how much above Least has to be available before it is over.
	Reclaim Amount
}

// Config is what an operator says. Of equal signals any number of thresholds may be there.
type Config struct {
	Thresholds []Threshold
	// Transition is how long a condition stays when nothing is short any more.
	Transition time.Duration
	// MaxGrace is the longest grace of a pod that goes for a soft threshold; its own may be shorter.
	MaxGrace time.Duration
}

// HardGrace is that of a pod that goes for a hard threshold.
const HardGrace = time.Second

// Observed is how much of something there is, and how much of it is available.
type Observed struct{ Available, Capacity int64 }

// Observations are what could be measured.
type Observations map[Signal]Observed

// State is what has to be remembered between two looks. Its zero value has seen nothing.
type State struct {
	since map[Threshold]time.Time
	acted map[Threshold]bool // its grace was over at the last look
	shown map[corev1.NodeConditionType]time.Time
}

// Verdict is what a look comes to.
type Verdict struct {
	Memory, Disk, PID bool
	// Act is the threshold for which something has to be freed now; nil: there is none.
	Act *Threshold
}

// Look compares what was observed with the thresholds.
func (s *State) Look(c *Config, seen Observations, now time.Time) Verdict {
	since, acted := map[Threshold]time.Time{}, map[Threshold]bool{}
	if s.shown == nil {
		s.shown = map[corev1.NodeConditionType]time.Time{}
	}
	var v Verdict
	for _, t := range c.Thresholds {
		o, known := seen[t.Signal]
		if !known { // what was begun waits until it is known again
			if at := s.since[t]; !at.IsZero() {
				since[t], acted[t] = at, s.acted[t]
			}
			continue
		}
		least := t.Least.Of(o.Capacity)
		if s.acted[t] {
			least += t.Reclaim.Of(o.Capacity)
		}
		if o.Available >= least {
			continue
		}
		if since[t] = now; !s.since[t].IsZero() {
			since[t] = s.since[t]
		}
		s.shown[t.Signal.condition()] = now
		if now.Sub(since[t]) < t.Grace {
			continue
		}
		acted[t] = true
		if v.Act == nil || before(&t, v.Act) {
			v.Act = &t
		}
	}
	s.since, s.acted = since, acted
	shown := func(condition corev1.NodeConditionType) bool {
		at, ever := s.shown[condition]
		return ever && (at.Equal(now) || now.Sub(at) < c.Transition)
	}
	v.Memory, v.Disk, v.PID = shown(corev1.NodeMemoryPressure), shown(corev1.NodeDiskPressure), shown(corev1.NodePIDPressure)
	return v
}

// before: memory comes before all else, and a hard threshold before a soft one.
func before(a, b *Threshold) bool {
	place := func(t *Threshold) int { return slices.Index(Signals(), t.Signal) }
	return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.Grace, b.Grace)) < 0
}

// Pod is one that may have to go.
type Pod struct {
	UID      types.UID
	Priority int32
	Start    time.Time
	// Request is what it asks for of what is short, Used what it uses. Of one that could not be measured Known is false:
	// it goes before all others.
	Request, Used int64
	Known         bool
}

// Rank orders pods: who goes first comes first. That is who uses more than it asks for, then who is of lower priority, then who
// uses most beyond what it asks for; of processes only priority and use count. Those that are equal go the youngest first.
func Rank(signal Signal, pods []Pod) {
	bit := func(b bool) int {
		if b {
			return 0
		}
		return 1
	}
	slices.SortFunc(pods, func(a, b Pod) int {
		unknown := cmp.Compare(bit(!a.Known), bit(!b.Known))
		above := cmp.Compare(bit(a.Used > a.Request), bit(b.Used > b.Request))
		priority := cmp.Compare(a.Priority, b.Priority)
		most := cmp.Compare(b.Used-b.Request, a.Used-a.Request)
		last := cmp.Or(b.Start.Compare(a.Start), cmp.Compare(a.UID, b.UID))
		if unknown != 0 || !a.Known {
			above, most = 0, 0
		}
		if signal == PIDAvailable {
			return cmp.Or(priority, unknown, most, last)
		}
		return cmp.Or(unknown, above, priority, most, last)
	})
}

// Grace is what a pod gets that goes for a threshold. own is its own.
func (c *Config) Grace(t *Threshold, own *int64) time.Duration {
	if t.Grace == 0 {
		return HardGrace
	}
	grace := c.MaxGrace
	if own != nil {
		grace = min(grace, time.Duration(*own)*time.Second)
	}
	return max(grace, HardGrace)
}

// Share is what one container uses of what is short, and asks for.
type Share struct {
	Container     string
	Used, Request int64
}

// Message says why a pod goes, in Kubernetes' words.
func Message(t *Threshold, o Observed, containers []Share) string {
	name, quantity := t.Signal.Resource(), t.Signal.Text
	text := fmt.Sprintf("The node was low on resource: %s. Threshold quantity: %s, available: %s. ", name, quantity(t.Least.Of(o.Capacity)), quantity(o.Available))
	for _, c := range containers {
		if c.Used > c.Request {
			text += fmt.Sprintf("Container %s was using %s, request is %s, has larger consumption of %s. ", c.Container, quantity(c.Used), quantity(c.Request), name)
		}
	}
	return text
}

// Text is an amount of what the signal is about, with its unit.
func (s Signal) Text(n int64) string {
	if name := s.Resource(); name == corev1.ResourceMemory || name == corev1.ResourceEphemeralStorage {
		return resource.NewQuantity(n, resource.BinarySI).String()
	}
	return resource.NewQuantity(n, resource.DecimalSI).String()
}

// Default are Kubernetes' thresholds.
func Default() Config {
	percent := func(n int64) Amount { return Amount{PerMyriad: n * 100} }
	return Config{
		Thresholds: []Threshold{
			{Signal: MemoryAvailable, Least: Amount{Absolute: 100 << 20}},
			{Signal: NodeFSAvailable, Least: percent(10)},
			{Signal: NodeFSInodes, Least: percent(5)},
			{Signal: ImageFSAvailable, Least: percent(15)},
			{Signal: ImageFSInodes, Least: percent(5)},
		},
		Transition: 5 * time.Minute,
	}
}
