package worker

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime/mounts"
)

func modeOf(t *testing.T, path string) (mode, group uint32) {
	t.Helper()
	var is unix.Stat_t
	if err := unix.Lstat(path, &is); err != nil {
		t.Fatal(err)
	}
	return is.Mode & permissions, is.Gid
}

// A volume whose maker ended before it was given away is given away by the next one; and what it is made in the end is made of it once.
func TestVolumesBegun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	r := testResolver(t, `
securityContext: {fsGroup: 1234}
volumes: [{name: empty, emptyDir: {}}, {name: memory, emptyDir: {medium: Memory}}]
containers: [{name: main, volumeMounts: [{name: empty, mountPath: /empty}, {name: memory, mountPath: /memory}]}]
`)
	v := &Volumes{Root: filepath.Join(t.TempDir(), "pods"), Kept: filepath.Join(t.TempDir(), "kept")}
	kind, options, err := memoryOf(r.pod, r.pod.Spec.Volumes[1].EmptyDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{v.dir("u1", "empty"), v.dir("u1", "memory"), filepath.Join(v.Kept, "pv")} {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkdir(dir, unfinished); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount("berth", v.dir("u1", "memory"), kind, 0, options); err != nil {
		t.Skipf("this machine does not let mount: %v", err)
	}
	defer func() {
		if err := v.remove(context.Background(), "u1"); err != nil {
			t.Error(err)
		}
	}()
	if _, err := v.mounts(t.Context(), r, &r.pod.Spec.Containers[0], nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]uint32{"empty": 0o2777, "memory": 0o3777} {
		if mode, group := modeOf(t, v.dir("u1", name)); mode != want || group != 1234 {
			t.Errorf("%s: %o of group %d", name, mode, group)
		}
	}
	pv := &corev1.PersistentVolume{}
	pv.Name = "pv"
	dir, err := v.keep(t.Context(), pv, nil, false)
	if mode, _ := modeOf(t, filepath.Join(v.Kept, "pv")); err != nil || mode != 0o777 {
		t.Errorf("%s: %o, %v", dir, mode, err)
	}
}

// What is given away is the file whose mode was read, whatever has its name by then; nothing that is mounted in a volume is.
func TestGroupOfWhatIsThere(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	at, others, group := t.TempDir(), t.TempDir(), int64(1234)
	file, other := filepath.Join(at, "file"), filepath.Join(at, "other")
	for path, mode := range map[string]os.FileMode{file: 0o4755, other: 0o700} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := unix.Chmod(path, uint32(mode)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := openVolume(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	w := mounts.Walk{Enter: func(e *mounts.Entry) error {
		if e.Name != "file" {
			return nil
		}
		return e.Hold(func(fd int, is *unix.Stat_t) error {
			if err := os.Rename(other, file); err != nil {
				return err
			}
			return giveAway(fd, &group, is.Mode&permissions|writableBits)
		})
	}}
	if err := w.Below(t.Context(), int(dir.Fd())); err != nil {
		t.Fatal(err)
	}
	if mode, of := modeOf(t, file); mode != 0o700 || of != 0 {
		t.Errorf("what took its name is %o of group %d", mode, of)
	}

	within := filepath.Join(at, "within")
	if err := os.Mkdir(within, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(others, "theirs"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(others, within, "", unix.MS_BIND, ""); err != nil {
		t.Skipf("this machine does not let mount: %v", err)
	}
	defer func() { _ = unix.Unmount(within, unix.MNT_DETACH) }()
	if err := giveToGroup(t.Context(), dir, &group, writableBits); err != nil {
		t.Fatal(err)
	}
	if mode, of := modeOf(t, file); mode != 0o760 || of != 1234 {
		t.Errorf("the volume's own is %o of group %d", mode, of)
	}
	if _, of := modeOf(t, filepath.Join(others, "theirs")); of != 0 {
		t.Errorf("what is mounted there is of group %d", of)
	}
}

// Files that cannot be written leave nothing behind, and what leads to those that were is made by the next try.
func TestPublishedInPart(t *testing.T) {
	dir := t.TempDir()
	for range 3 {
		if err := publish(dir, map[string]volumeFile{"a": {}, "a/b": {}}, nil, nil); err == nil {
			t.Fatal("a file is a directory")
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("there is %v, %v", left, err)
	}
	files := map[string]volumeFile{"a": {data: []byte("1")}}
	if err := publish(dir, files, nil, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil { // as if its maker had ended before that
		t.Fatal(err)
	}
	if err := publish(dir, files, nil, nil); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "a")); err != nil || string(b) != "1" {
		t.Errorf("%q, %v", b, err)
	}
}

// A hostPath that is to be a file is no pipe, and nobody opens one to find out.
func TestHostPathOfAPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	both, err := os.OpenFile(pipe, os.O_RDWR, 0) // so that whoever opens it does not wait
	if err != nil {
		t.Fatal(err)
	}
	defer both.Close()
	kind := corev1.HostPathFileOrCreate
	if err := hostPath(&corev1.HostPathVolumeSource{Path: pipe, Type: &kind}); err == nil || !strings.Contains(err.Error(), "is not a") {
		t.Errorf("it says %v", err)
	}
	for range 2 {
		if err := hostPath(&corev1.HostPathVolumeSource{Path: filepath.Join(filepath.Dir(pipe), "file"), Type: &kind}); err != nil {
			t.Error(err)
		}
	}
}
