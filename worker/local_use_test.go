package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// inPart is a runtime that knows some of what a pod holds.
type inPart struct {
	*fake.Runtime
	use runtime.DiskUse
	err error
}

func (r *inPart) DiskUse(context.Context, types.UID) (runtime.DiskUse, error) { return r.use, r.err }

// What is found before a measurement fails counts against the pod's limits, and that it failed is told, once.
func TestMeasuredInPart(t *testing.T) {
	pod := testPod("p")
	if err := yaml.UnmarshalStrict([]byte("containers: [{name: main, resources: {limits: {ephemeral-storage: 1Mi}}}]"), &pod.Spec); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("one cannot be looked at")
	for _, c := range []struct {
		what string
		use  runtime.DiskUse
		err  error
		over string
	}{
		{"less than it may", runtime.DiskUse{Bytes: map[string]int64{"main": 1 << 20}}, broken, ""},
		{"more than it may", runtime.DiskUse{Bytes: map[string]int64{"main": 1<<20 + 1}}, broken, "total limit of containers 1Mi"},
		{"more than it may, of the pod's", runtime.DiskUse{Shared: 1<<20 + 1}, nil, "total limit of containers 1Mi"},
		{"where nobody looks", runtime.DiskUse{}, fmt.Errorf("measuring: %w", mounts.ErrTooDeep), "cannot be measured"},
	} {
		t.Run(c.what, func(t *testing.T) {
			err := (&caller{runtime: &inPart{use: c.use, err: c.err}}).measure(t.Context(), pod)
			var over *overLimit
			if errors.As(err, &over) != (c.over != "") || c.over != "" && !strings.Contains(over.message, c.over) {
				t.Errorf("it says %v", err)
			}
		})
	}
	var classes model.Classes
	var told []string
	p := newPodState(pod, classes.Of(pod), &podEnv{event: func(_ *corev1.Pod, _, reason, _ string) { told = append(told, reason) }}, epoch)
	for _, err := range []error{broken, broken, nil, broken} {
		p.measured(err, epoch)
	}
	if len(told) != 2 || told[0] != "FailedMeasurement" {
		t.Errorf("told is %q", told)
	}
}

// No path is too long to be measured by.
func TestLimitOfLongPaths(t *testing.T) {
	r := testResolver(t, `
volumes: [{name: empty, emptyDir: {sizeLimit: 1Mi}}]
containers: [{name: main, volumeMounts: [{name: empty, mountPath: /empty}]}]
`)
	v := &Volumes{Root: filepath.Join(t.TempDir(), "pods")}
	if _, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	at, err := unix.Open(v.dir("u1", "empty"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for range 40 {
		below, name := -1, strings.Repeat("d", 200)
		if err == nil {
			err = unix.Mkdirat(at, name, 0o700)
		}
		if err == nil {
			below, err = unix.Openat(at, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
		_ = unix.Close(at)
		at = below
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(mounts.PathOf(at), "much"), make([]byte, 2<<20), 0o600)
	}
	_ = unix.Close(at)
	if err != nil {
		t.Fatal(err)
	}
	var over *overLimit
	if err := (&caller{volumes: v}).measure(t.Context(), r.pod); !errors.As(err, &over) {
		t.Errorf("it says %v", err)
	}
	if err := v.remove(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}
