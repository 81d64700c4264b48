package worker

import (
	"context"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/sample"
	"github.com/berth-dev/berth/worker/runtime"
)

// What is told of processor time: by two measurements, or by a container's whole life, and nothing by a count that
// began anew.
func TestRates(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(seconds int) time.Time { return begin.Add(time.Duration(seconds) * time.Second) }
	id := func(container string, attempt int32) runtime.ID {
		return runtime.ID{Pod: "uid", Container: container, Attempt: attempt}
	}
	use := func(name string, attempt int32, started, now int, cpu time.Duration) runtime.ContainerUse {
		return runtime.ContainerUse{ID: id(name, attempt), StartedAt: at(started), At: at(now),
			Counted: runtime.Counted{CPU: cpu, WorkingSetBytes: 100}}
	}
	first := compare(nil, runtime.Counted{CPU: 100 * time.Second, WorkingSetBytes: 1000},
		[]runtime.ContainerUse{use("old", 0, -50, 0, time.Second), use("again", 0, -50, 0, time.Second), use("odd", 0, -50, 0, time.Minute)}, at(0))
	if first.Sample(Part{}) != nil {
		t.Errorf("the first measurement says %+v", first.Sample(Part{}))
	}
	second := compare(first, runtime.Counted{CPU: 120 * time.Second, WorkingSetBytes: 2000}, []runtime.ContainerUse{
		use("old", 0, -50, 10, 6*time.Second), use("again", 0, -50, 10, time.Second), use("again", 1, 8, 10, time.Second),
		use("odd", 0, -50, 10, time.Second), use("young", 0, 6, 10, 2*time.Second),
	}, at(10))
	n := second.Sample(Part{})
	if n == nil {
		t.Fatal("the second measurement says nothing")
	}
	if _, err := n.Encode(); err != nil {
		t.Error(err)
	}
	if n.WindowNano != int64(10*time.Second) || n.Used != (sample.Amount{NanoCPU: 2_000_000_000, MemoryBytes: 2000}) || len(n.Pods) != 1 {
		t.Fatalf("it says %+v", n)
	}
	// A node that has only a part of its machine uses of that what its pods do. Memory is known also where the rate of processor time is not.
	if part := second.Sample(Part{CPU: true}); part.Used != (sample.Amount{NanoCPU: 1_500_000_000, MemoryBytes: 2000}) {
		t.Errorf("of a part of the processors it says %+v", part.Used)
	}
	if part := second.Sample(Part{Memory: true}); part.Used != (sample.Amount{NanoCPU: 2_000_000_000, MemoryBytes: 400}) {
		t.Errorf("of a part of the memory it says %+v", part.Used)
	}
	want := map[string]int64{"old": 500_000_000, "again": 500_000_000, "young": 500_000_000}
	for _, c := range n.Pods[0].Containers {
		if want[c.Name] != c.Used.NanoCPU || c.Used.MemoryBytes != 100 {
			t.Errorf("%s uses %+v", c.Name, c.Used)
		}
		delete(want, c.Name)
	}
	if len(want) > 0 {
		t.Errorf("nothing is said of %v", want)
	}
}

type meterFunc func() ([]runtime.ContainerUse, error)

func (f meterFunc) Use(context.Context) ([]runtime.ContainerUse, error) { return f() }

// Where the runtime cannot measure what the pods use, a node that has only a part of its machine uses what the machine does. One whose pods are
// measured, and are none, uses nothing.
func TestPartOfWhatIsNotMeasured(t *testing.T) {
	for _, c := range []struct {
		err  error
		want sample.Amount
	}{
		{runtime.ErrUnmeasured, sample.Amount{NanoCPU: 1_000_000_000, MemoryBytes: 1000}},
		{nil, sample.Amount{}},
	} {
		var now time.Time
		var got *sample.Node
		s := &Sampler{Part: Part{CPU: true, Memory: true}, Clock: passing{clock.RealClock{}, &now},
			Meter: meterFunc(func() ([]runtime.ContainerUse, error) { return nil, c.err }),
			Machine: func() (runtime.Counted, error) {
				return runtime.Counted{CPU: now.Sub(time.Time{}), WorkingSetBytes: 1000}, nil
			},
			Take: func(n *sample.Node) { got = n }}
		for range 2 {
			if err := s.measure(t.Context(), time.Minute); err != nil {
				t.Fatal(err)
			}
			now = now.Add(10 * time.Second)
		}
		if got == nil || got.Used != c.want {
			t.Errorf("with %v it says %+v, want %+v", c.err, got, c.want)
		}
	}
}

// passing is a clock that somebody moves.
type passing struct {
	clock.RealClock
	now *time.Time
}

func (p passing) Now() time.Time { return *p.now }
