package mounts

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// What is made has the mode of the volume, what is there keeps its own, and nothing is made outside.
func TestMakeBeneath(t *testing.T) {
	outside := t.TempDir()
	for name, mode := range map[string]fs.FileMode{"everybody's": 0o777, "of a group": 0o775 | fs.ModeSetgid, "private": 0o700, "in memory": 0o777 | fs.ModeSticky} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.Mkdir(filepath.Join(dir, "there"), 0o711); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(outside, filepath.Join(dir, "away")); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink("there", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := os.Chmod(dir, mode); err != nil {
				t.Fatal(err)
			}
			for path, wants := range map[string]map[string]fs.FileMode{
				"":             {},
				"a/b":          {"a": mode, "a/b": mode},
				"there/c/":     {"there": 0o711, "there/c": mode},
				"link/./d":     {"there/d": mode},
				"there":        {"there": 0o711},
				"a/e/../../f2": {"f2": mode},
			} {
				if err := MakeBeneath(dir, path); err != nil {
					t.Errorf("%q: %v", path, err)
				}
				for at, want := range wants {
					if fi, err := os.Stat(filepath.Join(dir, at)); err != nil || fi.Mode()&^fs.ModeDir != want {
						t.Errorf("%q: %s is %v and not %v: %v", path, at, fi.Mode(), want, err)
					}
				}
			}
			for _, path := range []string{"away/g", "../h", "there/../../i"} {
				if err := MakeBeneath(dir, path); err == nil {
					t.Errorf("%q is made", path)
				}
			}
		})
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("outside there are %v: %v", left, err)
	}
}
