package worker

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/worker/runtime"
)

// A summary shows a pod's volumes, those in memory by their own size, and its processes, whoever counts them.
func TestSummaryOfAPod(t *testing.T) {
	node := Disk{CapacityBytes: 1000, AvailableBytes: 600, UsedBytes: 400}
	m := &Measured{At: epoch, Containers: []MeasuredContainer{
		{ID: runtime.ID{Pod: "web", Container: "a"}, Rated: Rated{Counted: runtime.Counted{Processes: 2}}},
		{ID: runtime.ID{Pod: "web", Container: "b"}, Rated: Rated{Counted: runtime.Counted{Processes: 3}}},
	}}
	pods := &held{uses: map[types.UID]localUse{"web": {
		volumes: map[string]int64{"disk": 10}, memory: map[string]Disk{"memory": {CapacityBytes: 64, AvailableBytes: 60, UsedBytes: 4}},
	}}, processes: map[types.UID]int64{"other": 7}}
	web := podStats(knownPod{name: "web", uid: "web", startTime: epoch}, m, pods, node.stats(epoch))
	if web.ProcessStats == nil || *web.ProcessStats.ProcessCount != 5 {
		t.Errorf("its processes: %+v", web.ProcessStats)
	}
	got := map[string][2]uint64{}
	for _, v := range web.VolumeStats {
		got[v.Name] = [2]uint64{*v.UsedBytes, *v.CapacityBytes}
	}
	if len(got) != 2 || got["disk"] != [2]uint64{10, 1000} || got["memory"] != [2]uint64{4, 64} {
		t.Errorf("its volumes: %v", got)
	}
	if *web.EphemeralStorage.UsedBytes != 10 {
		t.Errorf("it holds %d of the disk", *web.EphemeralStorage.UsedBytes)
	}
	other := podStats(knownPod{name: "other", uid: "other", startTime: epoch}, m, pods, node.stats(epoch))
	if other.ProcessStats == nil || *other.ProcessStats.ProcessCount != 7 {
		t.Errorf("those of one whose containers are not counted: %+v", other.ProcessStats)
	}
	if only := podStats(knownPod{name: "web", uid: "web", startTime: epoch}, m, nil, nil); only.ProcessStats != nil || only.VolumeStats != nil {
		t.Errorf("only processors and memory: %+v", only)
	}
}

// A volume in memory is measured by its file system, and is none of the disk's.
func TestUseOfVolumesInMemory(t *testing.T) {
	r := testResolver(t, `
volumes: [{name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}, {name: unmade, emptyDir: {medium: Memory}}]
containers: [{name: main, volumeMounts: [{name: memory, mountPath: /memory}]}]
`)
	v := &Volumes{Root: filepath.Join(t.TempDir(), "pods")}
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	if _, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil); err != nil {
		t.Skipf("this machine does not let mount: %v", err)
	}
	defer func() {
		if err := v.remove(t.Context(), "u1"); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(v.dir("u1", "memory"), "file"), make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	use, err := v.use(t.Context(), r.pod, true)
	if d := use.memory["memory"]; err != nil || len(use.memory) != 1 || d.CapacityBytes != 1<<20 || d.UsedBytes < 100<<10 || use.total() != 0 {
		t.Errorf("%+v, %v", use, err)
	}
	if use, err := v.use(t.Context(), r.pod, false); err != nil || len(use.memory) != 0 {
		t.Errorf("of what has limits on the disk: %+v, %v", use, err)
	}
}

// The machine has tasks, and room for more.
func TestReadTasks(t *testing.T) {
	tasks, most, known := ReadTasks()
	if !known || tasks < 1 || most < tasks {
		t.Errorf("%d of %d, %v", tasks, most, known)
	}
}
