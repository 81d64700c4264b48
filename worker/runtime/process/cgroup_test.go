package process

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker/runtime"
)

func TestLimitsAndOutOfMemory(t *testing.T) {
	h := open(t, Options{PIDs: 50})
	if h.rt.cgroups == nil {
		t.Skip("cgroups are not writable here")
	}
	c := shell(`cat /proc/self/cgroup; x=$(head -c 200000000 /dev/zero | tr '\0' x); echo survived`)
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
