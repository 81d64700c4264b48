package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/config"
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

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}

func TestNodeConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "berth.hcl")
	err := os.WriteFile(file, []byte(`
name     = "w1"
data_dir = "data"
join     = ["10.0.0.1", "10.0.0.2:99"]
worker {
  enabled  = true
  labels   = { zone = "a" }
  taints   = ["dedicated=gpu:NoSchedule", "slow:PreferNoSchedule"]
  max_pods = 7
  capacity {
    cpu      = "2500m"
    extended = { "example.com/gpu" = "2" }
  }
  reserved {
    memory = "1Gi"
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
	n, err := nodeConfig(c, "10.0.0.9")
	if err != nil {
		t.Fatal(err)
	}
	n.Version = ""
	const want = `{"Name":"w1","Addresses":["10.0.0.9"],"Hostname":"","Labels":{"zone":"a"},"Annotations":null,` +
		`"Taints":[{"key":"dedicated","value":"gpu","effect":"NoSchedule"},{"key":"slow","effect":"PreferNoSchedule"}],` +
		`"Capacity":{"cpu":"2500m","example.com/gpu":"2","pods":"7"},"Reserved":{"memory":"1Gi"},"Version":"","Runtime":""}`
	if got := asJSON(n); got != want {
		t.Errorf("want %s\n got %s", want, got)
	}
	if got, want := joinAddresses(c.Join), []string{"10.0.0.1:7643", "10.0.0.2:99"}; !slices.Equal(got, want) {
		t.Errorf("join %v, want %v", got, want)
	}
}
