package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	corev1 "k8s.io/api/core/v1"
)

// Which runtime a worker has, where nothing answers: what it is told, and what its pods are of.
func TestChooseRuntime(t *testing.T) {
	for name, c := range map[string]struct {
		told, pods string
		want       string // or what the error says
		fails      bool
	}{
		"auto, nothing answers":     {"auto", "", "process", false},
		"auto, pods of cri":         {"auto", "cri", "cri", false}, // though it is away
		"auto, pods of process":     {"auto", "containers", "process", false},
		"cri, nothing there":        {"cri", "", "cri", false},
		"cri, pods of cri":          {"cri", "cri", "cri", false},
		"cri, pods of process":      {"cri", "containers", "1 pods of the runtime process", true},
		"process, pods of cri":      {"process", "cri", "1 pods of the runtime cri", true},
		"fake, whatever there were": {"fake", "cri", "fake", false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if c.pods != "" {
				if err := os.MkdirAll(filepath.Join(dir, c.pods, "uid"), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			w := &WorkerConfig{DataDir: dir, Runtime: c.told, CRI: CRIPart{Endpoint: "unix://" + filepath.Join(dir, "none.sock")}, Logger: hclog.NewNullLogger()}
			err := chooseRuntime(w)
			if c.fails != (err != nil) || err != nil && !strings.Contains(err.Error(), c.want) || err == nil && w.Runtime != c.want {
				t.Errorf("it is %s, %v; want %s", w.Runtime, err, c.want)
			}
		})
	}
}

// Wherever a worker keeps volumes, those of one pod and those that outlive pods: the containers of others do not see them.
func TestVolumesAreHidden(t *testing.T) {
	link := newUplink(hclog.NewNullLogger())
	c := &WorkerConfig{DataDir: t.TempDir(), Runtime: "process", Logger: hclog.NewNullLogger()}
	hidden := processOptions(c, link).Hide
	volumes := workerOptions(c, &corev1.Node{}, link, nil, nil).Volumes
	for _, dir := range []string{volumes.Root, volumes.Kept} {
		if !slices.Contains(hidden, dir) {
			t.Errorf("%s is not hidden, but %v", dir, hidden)
		}
	}
}
