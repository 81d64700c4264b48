package process

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/runtime"
)

func TestLimitsAndOutOfMemory(t *testing.T) {
	h := open(t, Options{PIDs: 50})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	c := shell(`cat /proc/self/cgroup; exec tail /dev/zero`)
	c.Resources.Limits = corev1.ResourceList{"memory": resource.MustParse("32Mi"), "cpu": resource.MustParse("500m")}
	p := pod("greedy", c)
	id := h.start(p, 0)
	x := h.exit()
	if x.Reason != runtime.ReasonOOMKilled || x.Code == 0 {
		t.Errorf("exit is %+v, log %.300q", x, h.logs(id, runtime.LogOptions{}))
	}
	if log := h.logs(id, runtime.LogOptions{}); !strings.Contains(log, string(p.UID)+"/main_0") {
		t.Errorf("it ran in another cgroup: %s", log)
	}
	dirs, err := h.rt.cgroups.Dirs(h.rt.cgroups.name(id))
	if err != nil {
		t.Fatal(err)
	}
	if err := h.rt.Remove(context.Background(), p.UID); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("cgroup %s is left: %v", d, err)
		}
	}
	if _, err := os.Stat(h.rt.podDir(p.UID)); !os.IsNotExist(err) {
		t.Errorf("the pod's directory is left: %v", err)
	}
}

// What a pod may have as a whole bounds all its containers together, those without limits of their own too.
func TestLimitsOfThePod(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	p := pod("together", shell(`x=$(head -c 200000000 /dev/zero | tr '\0' x); echo survived`))
	p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse("32Mi"), "cpu": resource.MustParse("500m")}}
	id := h.start(p, 0)
	dirs, err := h.rt.cgroups.Dirs(string(p.UID))
	if err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Reason != runtime.ReasonOOMKilled || x.Code == 0 {
		t.Errorf("exit is %+v, log %.300q", x, h.logs(id, runtime.LogOptions{}))
	}
	memory, quota := "", ""
	for _, dir := range dirs {
		for file, into := range map[string]*string{"memory.max": &memory, "memory.limit_in_bytes": &memory, "cpu.max": &quota, "cpu.cfs_quota_us": &quota} {
			if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
				*into = strings.TrimSpace(string(b))
			}
		}
	}
	if memory != "33554432" || strings.Fields(quota + " -")[0] != "50000" {
		t.Errorf("the pod's cgroup has memory %q and quota %q", memory, quota)
	}
	if err := h.rt.Remove(context.Background(), p.UID); err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		if _, err := os.Stat(d); !os.IsNotExist(err) {
			t.Errorf("cgroup %s is left: %v", d, err)
		}
	}
}

// A pod that runs has more as a whole at first and less at last, and never less memory than it uses.
func TestResizeOfAll(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	limited := func(cpu, memory string) *corev1.Pod {
		p := pod("whole", shell(`{ head -c 50000000 /dev/zero; exec sleep 1000; } | tail`))
		p.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse(memory)}}
		return p
	}
	p := limited("500m", "200Mi")
	id := h.start(p, 0)
	bounds := func() string {
		t.Helper()
		dirs, err := h.rt.cgroups.Dirs(string(p.UID))
		if err != nil {
			t.Fatal(err)
		}
		memory, quota := "", ""
		for _, dir := range dirs {
			for file, into := range map[string]*string{"memory.max": &memory, "memory.limit_in_bytes": &memory, "cpu.max": &quota, "cpu.cfs_quota_us": &quota} {
				if b, err := os.ReadFile(filepath.Join(dir, file)); err == nil {
					*into = strings.Fields(string(b) + " -")[0]
				}
			}
		}
		return memory + " " + quota
	}
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		used, err := h.rt.cgroups.Use(string(p.UID))
		if err != nil {
			t.Fatal(err)
		}
		if used.MemoryBytes > 48_000_000 {
			break
		}
		select {
		case <-deadline:
			t.Fatalf("it uses %+v", used)
		case <-tick.C:
		}
	}
	for _, c := range []struct {
		is, most *corev1.Pod
		last     bool
		want     string
		refused  string
	}{
		{limited("250m", "100Mi"), limited("500m", "200Mi"), false, "209715200 50000", ""},
		{limited("250m", "100Mi"), limited("500m", "200Mi"), true, "104857600 25000", ""},
		{limited("1", "32Mi"), limited("1", "100Mi"), true, "104857600 25000", "attempting to set pod memory limit (33554432) below current usage"},
		{limited("1", "32Mi"), limited("1", "32Mi"), true, "104857600 25000", "attempting to set pod memory limit (33554432) below current usage"},
		{limited("1", "300Mi"), limited("1", "300Mi"), true, "314572800 100000", ""},
	} {
		err := h.rt.Resize(t.Context(), runtime.Resize{Pod: c.is, Most: c.most, Last: c.last})
		if (err != nil) != (c.refused != "") || err != nil && !strings.Contains(err.Error(), c.refused) {
			t.Errorf("%v: %v", c.is.Spec.Resources.Limits, err)
		}
		if got := bounds(); got != c.want {
			t.Errorf("the pod has %s, want %s", got, c.want)
		}
	}
	if err := h.rt.Signal(t.Context(), id, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	h.exit()
	if err := h.rt.Resize(t.Context(), runtime.Resize{Pod: p, Most: p, Last: true}); err != nil {
		t.Errorf("of a pod of which nothing runs: %v", err)
	}
}

// What a runtime made to put containers below goes with the last of them.
func TestNoCgroupIsLeft(t *testing.T) {
	opts := Options{CgroupParent: fmt.Sprintf("/berth-test-%d", os.Getpid())}
	h := open(t, opts)
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	dirs, err := h.rt.cgroups.Dirs("")
	if err != nil {
		t.Fatal(err)
	}
	are := func(when string, there bool) {
		t.Helper()
		for _, d := range dirs {
			if _, err := os.Stat(d); os.IsNotExist(err) == there {
				t.Errorf("%s, cgroup %s: %v", when, d, err)
			}
		}
	}
	p := pod("long", shell("sleep 1000"))
	id := h.start(p, 0)
	h = h.reopen()
	are("with a container", true)
	if err := h.rt.Signal(context.Background(), id, runtime.Kill); err != nil {
		t.Fatal(err)
	}
	h.exit()
	if err := h.rt.Remove(context.Background(), p.UID); err != nil {
		t.Fatal(err)
	}
	h.rt.Close()
	are("after the end", false)
}

// What a container uses is counted: a burner's processor time, and the memory that one holds.
func TestUse(t *testing.T) {
	h := open(t, Options{})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	burner := h.start(pod("burner", shell(`while :; do :; done`)), 0)
	holder := h.start(pod("holder", shell(`{ head -c 50000000 /dev/zero; exec sleep 1000; } | tail`)), 0)
	use := func(id runtime.ID) runtime.ContainerUse {
		all, err := h.rt.Use(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, u := range all {
			if u.ID == id {
				return u
			}
		}
		return runtime.ContainerUse{}
	}
	until := func(what string, ask func() bool) {
		t.Helper()
		deadline := time.After(30 * time.Second)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for !ask() {
			select {
			case <-deadline:
				t.Fatalf("waited too long for %s", what)
			case <-tick.C:
			}
		}
	}
	until("the burner's time to be counted", func() bool { return use(burner).CPU > 200*time.Millisecond })
	if u := use(burner); u.StartedAt.IsZero() || u.At.Before(u.StartedAt) || u.CPU > u.At.Sub(u.StartedAt)+time.Second {
		t.Errorf("the burner uses %+v", u)
	}
	until("the holder's memory to be counted", func() bool {
		u := use(holder)
		return u.WorkingSetBytes > 40<<20 && u.MemoryBytes >= u.WorkingSetBytes && u.AnonymousBytes > 40<<20
	})
}

// Where a disk is full, what is left of runs before the newest goes, and what runs stays.
func TestReclaim(t *testing.T) {
	h := open(t, Options{})
	p := pod("again", shell(`echo said`))
	var ids []runtime.ID
	for attempt := range int32(2) {
		ids = append(ids, h.start(p, attempt))
		h.exit()
	}
	runs := h.start(pod("runs", shell(`exec sleep 1000`)), 0)
	if err := h.rt.Reclaim(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, id := range ids {
		if _, err := os.Stat(h.rt.dir(id)); os.IsNotExist(err) != (i == 0) {
			t.Errorf("run %d: %v", i, err)
		}
	}
	if _, err := os.Stat(h.rt.dir(runs)); err != nil {
		t.Errorf("what runs: %v", err)
	}
	if got := h.logs(ids[1], runtime.LogOptions{}); got != "said\n" {
		t.Errorf("the newest run's log is %q", got)
	}
}
