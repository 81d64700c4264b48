package worker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
)

// Modes and owners are those that Kubernetes gives volumes, and a limit is kept in memory as on disk.
func TestVolumesOwners(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	r := testResolver(t, `
securityContext: {fsGroup: 1234}
volumes:
- {name: empty, emptyDir: {sizeLimit: 64Ki}}
- {name: memory, emptyDir: {medium: Memory, sizeLimit: 64Ki}}
- {name: secret, secret: {secretName: s, defaultMode: 0400}}
containers:
- name: main
  volumeMounts:
  - {name: empty, mountPath: /empty}
  - {name: memory, mountPath: /memory}
  - {name: secret, mountPath: /secret}
`)
	v := &Volumes{Root: filepath.Join(t.TempDir(), "pods")}
	main := &r.pod.Spec.Containers[0]
	if _, err := v.mounts(context.Background(), r, main, nil); err != nil {
		t.Fatal(err)
	}
	removed := false
	defer func() {
		if err := v.remove(context.Background(), "u1"); err != nil && !removed {
			t.Error(err)
		}
	}()
	for path, want := range map[string]struct {
		mode os.FileMode
		gid  uint32
	}{
		"": {0o700, 0}, "u1": {0o700, 0}, "u1/volumes": {0o700, 0},
		"u1/volumes/empty":       {0o777 | os.ModeSetgid, 1234},
		"u1/volumes/memory":      {0o777 | os.ModeSetgid | os.ModeSticky, 1234},
		"u1/volumes/secret":      {0o755 | os.ModeSetgid, 1234},
		"u1/volumes/secret/pass": {0o440, 1234},
	} {
		fi, err := os.Stat(filepath.Join(v.Root, path))
		if err != nil {
			t.Error(err)
			continue
		}
		if got := fi.Mode() &^ os.ModeDir; got != want.mode || ownerGroup(fi) != want.gid {
			t.Errorf("%s: %v of group %d, want %v of %d", path, got, ownerGroup(fi), want.mode, want.gid)
		}
	}
	// In memory the file system keeps the limit, and a second container finds what the first one left.
	big := make([]byte, 128<<10)
	if err := os.WriteFile(filepath.Join(v.Root, "u1/volumes/memory/big"), big, 0o600); err == nil {
		t.Error("more fits than the limit")
	}
	if err := os.Chmod(filepath.Join(v.Root, "u1/volumes/empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := v.mounts(context.Background(), r, main, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(v.Root, "u1/volumes/memory/big")); err != nil {
		t.Error(err)
	}
	if fi, err := os.Stat(filepath.Join(v.Root, "u1/volumes/empty")); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("what the pod made of its volume was undone: %v, %v", fi.Mode(), err)
	}
	// On disk it is measured.
	c := caller{volumes: v}
	if err := c.measure(context.Background(), r.pod); err != nil {
		t.Error(err)
	}
	if err := os.MkdirAll(filepath.Join(v.Root, "u1/volumes/empty/deep"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(v.Root, "u1/volumes/empty/deep/big"), big, 0o600); err != nil {
		t.Fatal(err)
	}
	var over *overLimit
	if err := c.measure(context.Background(), r.pod); !errors.As(err, &over) || !strings.Contains(over.message, `"empty"`) {
		t.Errorf("too much is not noticed: %v", err)
	}
	if err := v.remove(context.Background(), "u1"); err != nil {
		t.Fatal(err)
	}
	removed = true
	if b, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(b), v.Root) {
		t.Errorf("something is mounted still: %v", err)
	}
}

// A volume of hugepages is a file system of theirs, of the size that is asked for.
func TestVolumesOfHugepages(t *testing.T) {
	pools, err := hugepages.Read(hugepages.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 || len(pools) == 0 {
		t.Skip("only root mounts, and only pages that the machine knows")
	}
	v := &Volumes{Root: filepath.Join(t.TempDir(), "pods")}
	for _, p := range pools {
		r := testResolver(t, fmt.Sprintf("volumes: [{name: huge, emptyDir: {medium: HugePages, sizeLimit: %[2]d}}]\n"+
			"containers: [{name: main, resources: {requests: {%[1]s: 0}}, volumeMounts: [{name: huge, mountPath: /huge}]}]",
			hugepages.Resource(p.PageBytes), 2*p.PageBytes))
		if x := v.refuse(r.pod); x != nil {
			t.Fatalf("refused: %+v", x)
		}
		_, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil)
		var at unix.Statfs_t
		if err == nil {
			err = unix.Statfs(filepath.Join(v.Root, "u1/volumes/huge"), &at)
		}
		if rerr := v.remove(context.Background(), "u1"); err != nil || rerr != nil {
			t.Fatal(err, rerr)
		}
		if at.Type != unix.HUGETLBFS_MAGIC || at.Bsize != p.PageBytes || at.Blocks != 2 {
			t.Errorf("pages of %d: its file system is %+v", p.PageBytes, at)
		}
	}
}

// A volume that the node cannot serve is refused before anything runs, by its field.
func TestVolumesUnsupported(t *testing.T) {
	for spec, field := range map[string]string{
		"emptyDir: {medium: HugePages}":                                            "emptyDir.medium",
		"projected: {sources: [{configMap: {}}, {clusterTrustBundle: {path: t}}]}": "projected.sources[1]",
		"iscsi: {targetPortal: p, iqn: iqn.2026-01.s:d, lun: 0}":                   "name",
	} {
		r := testResolver(t, "volumes: [{name: ok, emptyDir: {}}, {name: v, "+spec+"}]\ncontainers: [{name: a}]")
		x := (&Volumes{}).refuse(r.pod)
		if x == nil || x.Reason != "FailedMount" || !strings.HasPrefix(x.Message, "spec.volumes[1]."+field+": ") {
			t.Errorf("%s: %+v", spec, x)
		}
	}
	r := testResolver(t, "volumes: [{name: a, emptyDir: {}}, {name: b, hostPath: {path: /}}, {name: c, projected: {sources: [{secret: {}}]}}]\ncontainers: [{name: a}]")
	if x := (&Volumes{}).refuse(r.pod); x != nil {
		t.Errorf("refused: %+v", x)
	}
}

func ownerGroup(fi os.FileInfo) uint32 { return fi.Sys().(*syscall.Stat_t).Gid }

// TestVolumesGoBeforeTheRecords: the volumes of a pod that is to go can be given back while what the runtime wrote down of it is
// needed; that they are gone already is no reason to fail when all of it is removed.
func TestVolumesGoBeforeTheRecords(t *testing.T) {
	v := &Volumes{Root: t.TempDir()}
	record := filepath.Join(v.Root, "u1/record")
	if err := os.MkdirAll(v.dir("u1", "scratch"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(record, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	c := caller{volumes: v, runtime: fake.New(fake.NewTimeline(newStepClock()))}
	for _, kind := range []ActionKind{ActionUnmount, ActionUnmount, ActionRemove} {
		if o := c.do(t.Context(), Action{Kind: kind, Pod: testPod("u1"), ID: runtime.ID{Pod: "u1"}}); o.Err != nil {
			t.Errorf("%s: %v", kind, o.Err)
		}
		if _, err := os.Stat(v.dir("u1", "scratch")); !os.IsNotExist(err) {
			t.Errorf("%s: the volume: %v", kind, err)
		}
		if _, err := os.Stat(record); err != nil {
			t.Errorf("%s: the record: %v", kind, err)
		}
	}
}

// TestWhoWaitedHasTheNewVolumes: who has waited while a pod's volumes were removed goes on with what is remembered of the new ones, not of
// those that are gone.
func TestWhoWaitedHasTheNewVolumes(t *testing.T) {
	v := &Volumes{Root: t.TempDir()}
	synctest.Test(t, func(t *testing.T) {
		old := v.of("u1")
		old.writing <- struct{}{}
		old.reaching <- struct{}{}
		removed := make(chan error, 1)
		go func() { removed <- v.remove(t.Context(), "u1") }()
		synctest.Wait() // it waits for who writes
		wrote, reached := make(chan error, 1), make(chan error, 1)
		go func() {
			over, err := v.write(t.Context(), "u1")
			if err == nil {
				if len(old.writing) != 0 || len(v.of("u1").writing) != 1 {
					err = errors.New("it writes what is gone")
				}
				over()
			}
			wrote <- err
		}()
		go func() {
			reached <- v.reach(t.Context(), "u1", func() (string, error) { return "", nil }, func(kept *podVolumes) error { return kept.gone.Err() })
		}()
		synctest.Wait()
		<-old.writing
		synctest.Wait()
		<-old.reaching
		for _, err := range []error{<-removed, <-wrote, <-reached} {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// A volume in memory has no room for more than its own limit, the pod's and what the node has for pods.
func TestRoomOfVolumesInMemory(t *testing.T) {
	for _, c := range []struct{ volume, limits, wants string }{
		{"", "", "8589934592"},
		{"sizeLimit: 1Mi", "", "1048576"},
		{"sizeLimit: 0", "", "8589934592"},
		{"sizeLimit: 9Gi", "", "8589934592"},
		{"", "memory: 1Gi", "1073741824"},
		{"sizeLimit: 2Gi", "memory: 1Gi", "1073741824"},
		{"sizeLimit: 1Mi", "memory: 1Gi", "1048576"},
		{"", "memory: 9Gi", "8589934592"},
	} {
		r := testResolver(t, fmt.Sprintf(`
volumes: [{name: memory, emptyDir: {medium: Memory, %s}}]
containers: [{name: main, resources: {limits: {%s}}}]
`, c.volume, c.limits))
		kind, options, err := memoryOf(r.pod, r.pod.Spec.Volumes[0].EmptyDir, r.alloc)
		if err != nil || kind != "tmpfs" || !strings.HasSuffix(options, ",size="+c.wants) {
			t.Errorf("%+v: %s %s, %v", c, kind, options, err)
		}
	}
	// Where a container has no limit the pod has none.
	r := testResolver(t, `
volumes: [{name: memory, emptyDir: {medium: Memory}}]
containers: [{name: main, resources: {limits: {memory: 1Mi}}}, {name: other}]
`)
	if _, options, _ := memoryOf(r.pod, r.pod.Spec.Volumes[0].EmptyDir, r.alloc); !strings.HasSuffix(options, ",size=8589934592") {
		t.Errorf("with a container without a limit: %s", options)
	}
}
