package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/server"
	"github.com/berth-dev/berth/worker/eviction"
	"github.com/berth-dev/berth/workloads"
)

// The two sets of defaults, of the file and of the replicated object, are one.
func TestDefaultsAgree(t *testing.T) {
	got := schedulerConfiguration(config.Default().Server.Scheduler)
	if want := berthv1.Default(); !reflect.DeepEqual(got, want) {
		t.Errorf("the file's defaults are %s, the object's %s", asJSON(got), asJSON(want))
	}
	// What the file accepts, the object accepts.
	if errs := got.Validate(); len(errs) != 0 {
		t.Error(errs.ToAggregate())
	}
}

// What the file can switch is what there is.
func TestControllersAgree(t *testing.T) {
	there := slices.Sorted(slices.Values(append(workloads.Names(), server.ReplicaSetController)))
	if known := config.ControllerNames(); !slices.Equal(known, there) {
		t.Errorf("the file knows %v, and there are %v", known, there)
	}
	c := config.Default()
	c.Server.Controllers = []string{"*", "-job"}
	if off := serverPart(c).ControllersOff; !slices.Equal(off, []string{"job"}) {
		t.Errorf("off are %v", off)
	}
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func TestWorkerSettings(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.hcl")
	err := os.WriteFile(file, []byte(`
name     = "w1"
data_dir = "data"
join     = ["10.0.0.1", "10.0.0.2:99"]
worker {
  enabled  = true
  runtime  = "fake"
  images   = { "example.com/web:1" = "600Mi" }
  labels   = { zone = "a" }
  taints   = ["dedicated=gpu:NoSchedule", "slow:PreferNoSchedule"]
  max_pods = 7
  pod_pids = 300
  capacity {
    cpu      = "2500m"
    extended = { "example.com/gpu" = "2" }
  }
  reserved {
    memory = "1Gi"
  }
  eviction {
    hard            = { "nodefs.available" = "5%", "imagefs.inodesFree" = "0" }
    soft            = { "memory.available" = "1Gi" }
    soft_grace      = { "memory.available" = "90s" }
    minimum_reclaim = { "nodefs.available" = "500Mi" }
    max_pod_grace   = "30s"
  }
}
`), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	c, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := agentConfig(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	const want = `["fake",{"zone":"a"},` +
		`[{"key":"dedicated","value":"gpu","effect":"NoSchedule"},{"key":"slow","effect":"PreferNoSchedule"}],` +
		`{"cpu":"2500m","example.com/gpu":"2","pods":"7"},{"memory":"1Gi"},10485760,5,300,[{"Ref":"","Names":["example.com/web:1"],"SizeBytes":629145600}]]`
	w := got.Worker
	if got := asJSON([]any{w.Runtime, w.Labels, w.Taints, w.Capacity, w.Reserved, w.LogBytes, w.LogFiles, w.PodPIDs, w.Images}); got != want {
		t.Errorf("want %s\n got %s", want, got)
	}
	amount := func(absolute, perMyriad int64) eviction.Amount {
		return eviction.Amount{Absolute: absolute, PerMyriad: perMyriad}
	}
	wanted := eviction.Config{Transition: 5 * time.Minute, MaxGrace: 30 * time.Second, Thresholds: []eviction.Threshold{
		{Signal: eviction.MemoryAvailable, Least: amount(100<<20, 0)},
		{Signal: eviction.MemoryAvailable, Least: amount(1<<30, 0), Grace: 90 * time.Second},
		{Signal: eviction.NodeFSAvailable, Least: amount(0, 500), Reclaim: amount(500<<20, 0)},
		{Signal: eviction.NodeFSInodes, Least: amount(0, 500)},
		{Signal: eviction.ImageFSAvailable, Least: amount(0, 1500)},
	}}
	if !reflect.DeepEqual(w.Eviction, wanted) {
		t.Errorf("the node evicts by %+v, want %+v", w.Eviction, wanted)
	}
	if want := []string{"10.0.0.1:7643", "10.0.0.2:99"}; !slices.Equal(got.Join, want) {
		t.Errorf("join %v, want %v", got.Join, want)
	}
	if got.Name != "w1" || got.AdvertiseAddr != "127.0.0.1" || got.Server != nil || got.TLS != nil {
		t.Errorf("got %+v", got)
	}
}

// Thresholds of which the file says nothing stay, and are a kubelet's.
func TestEvictionSettings(t *testing.T) {
	if got, want := asJSON(evictionConfig(config.Default().Worker.Eviction)), asJSON(eviction.Default()); got != want {
		t.Errorf("want %s\n got %s", want, got)
	}
}
