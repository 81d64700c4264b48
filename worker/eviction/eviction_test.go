package eviction

import (
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// A node's life with one hard and one soft threshold: conditions come at once and stay a while, a soft threshold waits, and
// what was begun goes on until enough was reclaimed.
func TestALook(t *testing.T) {
	c := &Config{Transition: 5 * time.Minute, Thresholds: []Threshold{
		{Signal: MemoryAvailable, Least: Amount{Absolute: 100}, Reclaim: Amount{Absolute: 50}},
		{Signal: NodeFSAvailable, Least: Amount{PerMyriad: 1000}, Grace: time.Minute},
		{Signal: PIDAvailable, Least: Amount{Absolute: 10}},
	}}
	var s State
	at := time.Unix(0, 0)
	for i, step := range []struct {
		after             time.Duration
		memory, disk, pid int64
		shows             string
		act               Signal
	}{
		{0, 100, 100, 10, "", ""},
		{10 * time.Second, 99, 100, 10, "memory", MemoryAvailable},
		{10 * time.Second, 149, 100, 10, "memory", MemoryAvailable},
		{10 * time.Second, 150, 99, 10, "memory disk", ""},
		{50 * time.Second, 150, 99, 10, "memory disk", ""},
		{10 * time.Second, 150, 99, 10, "memory disk", NodeFSAvailable},
		{10 * time.Second, 99, 99, 9, "memory disk pid", MemoryAvailable},
		{10 * time.Second, 150, 100, 9, "memory disk pid", PIDAvailable},
		{10 * time.Second, 150, 99, 10, "memory disk pid", ""},
		{4*time.Minute + 39*time.Second, 150, 100, 10, "memory disk pid", ""},
		{time.Second, 150, 100, 10, "disk pid", ""},
		{10 * time.Second, 150, 100, 10, "disk", ""},
		{10 * time.Second, 150, 100, 10, "", ""},
	} {
		at = at.Add(step.after)
		v := s.Look(c, Observations{MemoryAvailable: {step.memory, 1000}, NodeFSAvailable: {step.disk, 1000}, PIDAvailable: {step.pid, 1000}}, at)
		var shows []string
		for name, shown := range map[string]bool{"memory": v.Memory, "disk": v.Disk, "pid": v.PID} {
			if shown {
				shows = append(shows, name)
			}
		}
		slices.SortFunc(shows, func(a, b string) int {
			return strings.Index("memory disk pid", a) - strings.Index("memory disk pid", b)
		})
		act := Signal("")
		if v.Act != nil {
			act = v.Act.Signal
		}
		if got := strings.Join(shows, " "); got != step.shows || act != step.act {
			t.Errorf("step %d: it shows %q and acts for %q; want %q and %q", i, got, act, step.shows, step.act)
		}
	}
}

// What cannot be measured is not short, and thresholds of zero are none.
func TestNothingKnown(t *testing.T) {
	c, s := Default(), State{}
	if v := s.Look(&c, Observations{}, time.Unix(0, 0)); v != (Verdict{}) {
		t.Errorf("it comes to %+v", v)
	}
}

// What is not known for a while has been short since it was: a soft threshold does not begin anew, nor is it acted upon meanwhile.
func TestNotKnownForAWhile(t *testing.T) {
	c := &Config{Thresholds: []Threshold{{Signal: ImageFSAvailable, Least: Amount{Absolute: 100}, Grace: time.Minute}}}
	var s State
	short, enough := Observations{ImageFSAvailable: {50, 1000}}, Observations{ImageFSAvailable: {500, 1000}}
	for i, step := range []struct {
		at   time.Duration
		seen Observations
		acts bool
	}{
		{0, short, false}, {50 * time.Second, Observations{}, false}, {70 * time.Second, nil, false}, {80 * time.Second, short, true},
		{90 * time.Second, nil, false}, {100 * time.Second, enough, false}, {110 * time.Second, nil, false}, {170 * time.Second, short, false},
	} {
		if v := s.Look(c, step.seen, time.Unix(0, 0).Add(step.at)); (v.Act != nil) != step.acts {
			t.Errorf("step %d: it acts for %+v", i, v.Act)
		}
	}
}

// The order is Kubernetes', by an oracle that goes through its rules one by one and is stable.
func TestRank(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		signal := rapid.SampledFrom(Signals()).Draw(t, "signal")
		pods := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) Pod {
			return Pod{
				Priority: rapid.Int32Range(-1, 2).Draw(t, "priority"), Start: time.Unix(rapid.Int64Range(0, 3).Draw(t, "start"), 0),
				Request: rapid.Int64Range(0, 4).Draw(t, "request"), Used: rapid.Int64Range(0, 4).Draw(t, "used"), Known: rapid.IntRange(0, 4).Draw(t, "known") > 0,
			}
		}), 0, 12).Draw(t, "pods")
		for i := range pods {
			pods[i].UID = types.UID([]byte{byte(97 + i)})
		}
		pods = slices.CompactFunc(pods, func(a, b Pod) bool { return a.UID == b.UID })
		got := slices.Clone(pods)
		Rank(signal, got)
		// Stable sorts from the last rule to the first one.
		want := slices.Clone(pods)
		sort.SliceStable(want, func(i, j int) bool { return want[i].UID < want[j].UID })
		sort.SliceStable(want, func(i, j int) bool { return want[i].Start.After(want[j].Start) })
		use := func(p Pod) int64 {
			if !p.Known {
				return 0
			}
			return p.Used - p.Request
		}
		known := func(p Pod) bool { return p.Known }
		if signal == PIDAvailable {
			sort.SliceStable(want, func(i, j int) bool { return use(want[i]) > use(want[j]) })
			sort.SliceStable(want, func(i, j int) bool { return !known(want[i]) && known(want[j]) })
			sort.SliceStable(want, func(i, j int) bool { return want[i].Priority < want[j].Priority })
		} else {
			sort.SliceStable(want, func(i, j int) bool { return use(want[i]) > use(want[j]) })
			sort.SliceStable(want, func(i, j int) bool { return want[i].Priority < want[j].Priority })
			sort.SliceStable(want, func(i, j int) bool { return use(want[i]) > 0 && use(want[j]) <= 0 })
			sort.SliceStable(want, func(i, j int) bool { return !known(want[i]) && known(want[j]) })
		}
		if !slices.Equal(got, want) {
			t.Fatalf("for %s it is\n%v, want\n%v", signal, got, want)
		}
	})
}

func TestAmounts(t *testing.T) {
	for _, tt := range []struct {
		amount         Amount
		capacity, want int64
	}{
		{Amount{Absolute: 7}, 1000, 7}, {Amount{PerMyriad: 1000}, 1 << 62, (1 << 62) / 10}, {Amount{PerMyriad: 10_000}, 12_345, 12_345}, {Amount{PerMyriad: 50}, 1000, 5},
	} {
		if got := tt.amount.Of(tt.capacity); got != tt.want {
			t.Errorf("%+v of %d is %d, want %d", tt.amount, tt.capacity, got, tt.want)
		}
	}
}

func TestWords(t *testing.T) {
	threshold := &Threshold{Signal: MemoryAvailable, Least: Amount{Absolute: 100 << 20}}
	got := Message(threshold, Observed{Available: 50 << 20, Capacity: 1 << 30}, []Share{{"main", 300 << 20, 64 << 20}, {"side", 1 << 20, 64 << 20}})
	want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
		"Container main was using 300Mi, request is 64Mi, has larger consumption of memory. "
	if got != want {
		t.Errorf("it says %q", got)
	}
	if r := (Signal("nodefs.inodesFree")).Resource(); r != corev1.ResourceName("inodes") {
		t.Errorf("it is %s", r)
	}
	own, c := int64(5), Config{MaxGrace: 10 * time.Second}
	soft := &Threshold{Grace: time.Minute}
	if c.Grace(threshold, &own) != time.Second || c.Grace(soft, &own) != 5*time.Second || c.Grace(soft, nil) != 10*time.Second {
		t.Error("the graces are wrong")
	}
}
