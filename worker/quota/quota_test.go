package quota

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// TestNoQuotas: where nobody bounds directories, it is told from all else that may go wrong.
func TestNoQuotas(t *testing.T) {
	for _, dir := range []string{"/proc", "/dev/shm"} {
		if err := Limit(dir, 1<<20); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", dir, err)
		}
		if err := Has(dir); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", dir, err)
		}
	}
	if err := Limit(filepath.Join(t.TempDir(), "none"), 1<<20); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of a directory that is not there: %v", err)
	}
}

// TestLimit: directories of a file system with project quotas hold as much as they may, each for itself, what was there
// before and what is made in directories within too. The virtual machines of `make e2e-vm` run it: few kernels that are made for
// machines within machines have quotas.
func TestLimit(t *testing.T) {
	at := quotaFS(t)
	if err := Has(at); err != nil {
		t.Fatal(err)
	}
	dir := func(name string) string {
		d := filepath.Join(at, name)
		within := filepath.Join(d, "within")
		if err := errors.Join(os.MkdirAll(within, 0o755), os.Chmod(d, 0o777), os.Chmod(within, 0o777)); err != nil { // for others, whatever the mask
			t.Fatal(err)
		}
		return d
	}
	one, other, before := dir("one"), dir("other"), dir("before")
	write(t, filepath.Join(before, "within", "old"), 3, true)
	for d, mib := range map[string]int64{one: 4, other: 8, before: 4} {
		for range 2 { // once more changes nothing
			if err := Limit(d, mib<<20); err != nil {
				t.Fatalf("%s: %v", d, err)
			}
		}
	}
	write(t, filepath.Join(one, "within", "file"), 3, true)
	write(t, filepath.Join(one, "much"), 2, false)
	write(t, filepath.Join(other, "file"), 7, true)
	write(t, filepath.Join(before, "file"), 2, false)
	if err := os.RemoveAll(one); err != nil {
		t.Fatal(err)
	}
	// Whoever comes after it may have its project, and not its limit.
	if err := Limit(dir("one"), 8<<20); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(at, "one", "file"), 7, true)
	// More is allowed once it is asked for.
	if err := Limit(before, 16<<20); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(before, "more"), 10, true)
}

// TestOneAtATime: nobody bounds a directory while another one does, by whatever name; others are not waited for.
func TestOneAtATime(t *testing.T) {
	at := t.TempDir()
	if err := os.Symlink(at, filepath.Join(at, "itself")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		begin := func(dir string) (over func()) {
			d, err := os.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if over, err = alone(d); err != nil {
				t.Fatal(err)
			}
			return over
		}
		first := begin(at)
		begun := make(chan struct{})
		for range 3 {
			go func() {
				defer begin(filepath.Join(at, "itself"))()
				begun <- struct{}{}
			}()
		}
		begin(filepath.Dir(at))()
		synctest.Wait()
		select {
		case <-begun:
			t.Error("two have begun")
		default:
		}
		first()
		for range 3 {
			<-begun
		}
		synctest.Wait()
		if len(chosen.dirs) > 0 {
			t.Errorf("there are %d left", len(chosen.dirs))
		}
	})
}

// TestSeveralForOne: however many bound a directory at the same time, all that is in it is one project's, and that is the directory's.
func TestSeveralForOne(t *testing.T) {
	dir := filepath.Join(quotaFS(t), "shared")
	var all []string
	for i := range 200 {
		within := filepath.Join(dir, fmt.Sprint(i))
		if err := errors.Join(os.MkdirAll(within, 0o755), os.WriteFile(filepath.Join(within, "file"), []byte("text"), 0o600)); err != nil {
			t.Fatal(err)
		}
		all = append(all, within, filepath.Join(within, "file"))
	}
	var together sync.WaitGroup
	for range 4 {
		together.Go(func() {
			if err := Limit(dir, 4<<20); err != nil {
				t.Error(err)
			}
		})
	}
	together.Wait()
	project := func(path string) uint32 {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		x, err := attributes(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		return x.project
	}
	want := project(dir)
	for _, path := range all {
		if got := project(path); got != want || !isOurs(got) {
			t.Fatalf("%s is of project %d, its volume of %d", path, got, want)
		}
	}
}

// write writes a file as somebody without privileges: who has CAP_SYS_RESOURCE has no limits.
func write(t *testing.T, path string, mib int, fits bool) {
	t.Helper()
	c := exec.CommandContext(t.Context(), "dd", "if=/dev/zero", "of="+path, "bs=1M", fmt.Sprint("count=", mib), "conv=fsync")
	c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	if out, err := c.CombinedOutput(); (err == nil) != fits {
		t.Fatalf("%d MiB more in %s: %v: %s", mib, path, err, out)
	}
	if !fits {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// quotaFS mounts a file system with project quotas.
func quotaFS(t *testing.T) string {
	lacks := t.Skipf
	if os.Getenv("BERTH_IN_VM") != "" {
		lacks = t.Fatalf
	}
	image, at := filepath.Join(t.TempDir(), "image"), t.TempDir()
	f, err := os.Create(image)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(f.Truncate(64<<20), f.Close(), os.Chmod(filepath.Dir(at), 0o755)); err != nil { // others go there, too
		t.Fatal(err)
	}
	for _, c := range [][]string{
		{"mkfs.ext4", "-q", "-O", "project,quota", "-E", "quotatype=prjquota", image},
		{"mount", "-o", "loop,prjquota", image, at},
	} {
		if out, err := exec.CommandContext(t.Context(), c[0], c[1:]...).CombinedOutput(); err != nil {
			lacks("%s: %v: %s", c[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Error(err)
		}
	})
	return at
}
