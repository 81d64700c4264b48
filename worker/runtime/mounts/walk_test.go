package mounts

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// chain makes directories one in the other, and calls each with the descriptor of every one of them, and its depth. It returns the path of the
// outermost, and what is to be counted of them.
func chain(t *testing.T, in string, depth int, name func(i int) string, each func(dir, i int) error) (at string) {
	t.Helper()
	at = filepath.Join(in, "volume")
	if err := os.Mkdir(at, 0o700); err != nil {
		t.Fatal(err)
	}
	dir, err := unix.Open(at, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	for i := 0; err == nil && i <= depth; i++ {
		if each != nil {
			err = each(dir, i)
		}
		if err == nil && i < depth {
			var below int
			if err = unix.Mkdirat(dir, name(i), 0o700); err == nil {
				below, err = unix.Openat(dir, name(i), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			}
			_ = unix.Close(dir)
			dir = below
		}
	}
	_ = unix.Close(dir)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

func fileIn(dir int, name string, bytes int) error {
	fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	_, werr := unix.Write(fd, make([]byte, bytes))
	return errors.Join(werr, unix.Close(fd))
}

// fewDescriptors bounds how many this process may have open.
func fewDescriptors(t *testing.T, n uint64) {
	t.Helper()
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: before.Max}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
			t.Error(err)
		}
	})
}

// However deep directories lie one in the other, they are measured and removed with a few descriptors, and a name for each: what is beside them at every depth, too.
func TestDeepDirectories(t *testing.T) {
	const depth, bytes = 3000, 100_000
	long := strings.Repeat("d", 250)
	files := 0
	at := chain(t, t.TempDir(), depth, func(int) string { return long }, func(dir, i int) error {
		if i%100 != 0 && i != depth {
			return nil
		}
		var errs []error
		for j := range 50 { // they do not fit into what is read at a time
			files++
			errs = append(errs, fileIn(dir, fmt.Sprintf("%s.%d", long, j), 1))
		}
		errs = append(errs, unix.Mkdirat(dir, "beside", 0o700))
		files++
		if i == depth {
			files++
			errs = append(errs, fileIn(dir, "large", bytes))
		}
		return errors.Join(errs...)
	})
	fewDescriptors(t, 128)
	used, err := Usage(t.Context(), at)
	if err != nil || used.Inodes != int64(depth+1+files) || used.Bytes < bytes {
		t.Errorf("it holds %+v, %v; want %d inodes", used, err, depth+1+files)
	}
	if err := RemoveAll(t.Context(), at); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(at); !os.IsNotExist(err) {
		t.Errorf("it is there: %v", err)
	}
}

// Nothing lies so deep that it is not removed; what lies deeper than a walk goes is told.
func TestTooDeep(t *testing.T) {
	in, err := os.MkdirTemp("/dev/shm", "berth")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(in); err != nil {
			t.Error(err)
		}
	})
	at := chain(t, in, maxLevels+10, func(int) string { return "d" }, nil)
	used, err := Usage(t.Context(), at)
	if !errors.Is(err, ErrTooDeep) || used.Inodes < maxLevels {
		t.Errorf("it holds %+v, %v", used, err)
	}
	if err := RemoveAll(t.Context(), at); err != nil {
		t.Fatal(err)
	}
}

// walked are the names that a walk came by, sorted.
func walked(t *testing.T, at string, each func(e *Entry) error) (names []string, err error) {
	t.Helper()
	dir, err := os.Open(at)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	w := Walk{Enter: func(e *Entry) error {
		names = append(names, e.Name)
		return each(e)
	}}
	err = w.Below(t.Context(), int(dir.Fd()))
	slices.Sort(names)
	return names, err
}

// Who moves directories while they are walked through hides what is in those that cannot be found again, which is told, and nothing else.
func TestMovedMeanwhile(t *testing.T) {
	const depth = 3 * openLevels
	name := func(i int) string { return fmt.Sprintf("d%03d", i) }
	path := func(at string, i int) string {
		for j := range i {
			at = filepath.Join(at, name(j))
		}
		return at
	}
	for _, c := range []struct {
		what  string
		moved []int // from so deep to the top
		lost  bool
	}{
		{"nothing", nil, false},
		{"the directory below one that is closed", []int{20}, false}, // what it was in has its old names
		{"that, and one above it", []int{20, 10}, true},
	} {
		t.Run(c.what, func(t *testing.T) {
			at := chain(t, t.TempDir(), depth, name, func(dir, i int) error {
				return fileIn(dir, fmt.Sprintf("f%03d", i), 1)
			})
			names, err := walked(t, at, func(e *Entry) error {
				if e.Name == name(depth-1) {
					for _, i := range c.moved {
						if err := os.Rename(path(at, i), filepath.Join(filepath.Dir(at), fmt.Sprint("moved", i))); err != nil {
							t.Fatal(err)
						}
					}
				}
				return nil
			})
			if (err != nil) != c.lost || c.lost && !strings.Contains(err.Error(), "moved") {
				t.Errorf("it says %v", err)
			}
			for i := range depth {
				found := slices.Contains(names, fmt.Sprintf("f%03d", i))
				if must := !c.lost || i < 10 || i >= 20; must && !found {
					t.Errorf("the file at depth %d is missing", i)
				}
			}
			if s := slices.Compact(slices.Clone(names)); len(s) != len(names) {
				t.Error("something was come by twice")
			}
		})
	}
}

// What goes wrong with one entry is told, and of many the number; the others have their turn.
func TestOneGoesWrong(t *testing.T) {
	at := t.TempDir()
	for i := range 30 {
		if err := errors.Join(os.MkdirAll(filepath.Join(at, fmt.Sprint("bad", i)), 0o700),
			os.WriteFile(filepath.Join(at, fmt.Sprint("bad", i), "in"), nil, 0o600), os.WriteFile(filepath.Join(at, fmt.Sprint("good", i)), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	names, err := walked(t, at, func(e *Entry) error {
		if strings.HasPrefix(e.Name, "bad") {
			return unix.EIO
		}
		return nil
	})
	if len(names) != 90 || !errors.Is(err, unix.EIO) || !strings.Contains(err.Error(), "and 22 more") {
		t.Errorf("%d entries, %v", len(names), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := RemoveAll(ctx, at); !errors.Is(err, context.Canceled) {
		t.Errorf("of what nobody waits for: %v", err)
	}
}

// What is mounted does not count, be it a directory or a file; what its mount point hides does not, either. Directories do.
func TestUsage(t *testing.T) {
	at, others := t.TempDir(), t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(at, "dir"), 0o700), os.WriteFile(filepath.Join(at, "file"), nil, 0o600), os.WriteFile(filepath.Join(at, "own"), make([]byte, 10_000), 0o600),
		os.WriteFile(filepath.Join(others, "much"), make([]byte, 1<<20), 0o600), os.Symlink(others, filepath.Join(at, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	blocks := func(path string) int64 {
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Blocks * 512
	}
	want := Used{blocks(at) + blocks(filepath.Join(at, "own")) + blocks(filepath.Join(at, "link")) + blocks(filepath.Join(at, "dir")), 5} // "file" is empty
	if got, err := Usage(t.Context(), at); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
	for path, want := range map[string]int64{filepath.Join(at, "own"): 1, filepath.Join(at, "link"): 1, filepath.Join(at, "none"): 0} {
		if got, err := Usage(t.Context(), path); err != nil || got.Inodes != want {
			t.Errorf("%s: %+v, %v", path, got, err)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	for from, to := range map[string]string{others: "dir", filepath.Join(others, "much"): "file"} {
		if err := unix.Mount(from, filepath.Join(at, to), "", unix.MS_BIND, ""); err != nil {
			t.Skipf("this machine does not let mount: %v", err)
		}
		defer func() { _ = unix.Unmount(filepath.Join(at, to), unix.MNT_DETACH) }()
	}
	want = Used{blocks(at) + blocks(filepath.Join(at, "own")) + blocks(filepath.Join(at, "link")), 3}
	if got, err := Usage(t.Context(), at); err != nil || got != want {
		t.Errorf("with mounts: %+v, %v; want %+v", got, err, want)
	}
}
