package process

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// TestEveryDamage: whatever is done to whichever file of pods whose containers have ended, the runtime opens, and knows each pod by
// its UID or as gone; it hands out no other object than the pod's, and what is left of each can be removed.
func TestEveryDamage(t *testing.T) {
	h := open(t, Options{})
	kept := filepath.Join(t.TempDir(), "kept")
	for _, name := range []string{"a", "b"} {
		h.start(pod(name, shell("echo said")), 0)
		h.exit()
	}
	h.rt.Close()
	if err := os.CopyFS(kept, os.DirFS(h.opts.Root)); err != nil {
		t.Fatal(err)
	}
	var files []string
	err := filepath.WalkDir(kept, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, strings.TrimPrefix(path, kept+"/"))
		}
		return err
	})
	if err != nil || len(files) < 6 {
		t.Fatal(files, err)
	}
	lost := 0
	for seed := range 150 {
		r := rand.New(rand.NewPCG(uint64(seed), 1))
		opts := h.opts
		opts.Root = filepath.Join(t.TempDir(), "root")
		if err := os.CopyFS(opts.Root, os.DirFS(kept)); err != nil {
			t.Fatal(err)
		}
		what := spoil(t, r, opts.Root, files[r.IntN(len(files))])
		again := open(t, opts)
		for _, p := range again.found {
			uid := p.Pod.UID
			if uid != "uid-a" && uid != "uid-b" || !p.Lost && "uid-"+p.Pod.Name != string(uid) {
				t.Errorf("%s: there is %+v", what, p.Pod)
			}
			if p.Lost {
				lost++
			}
		}
		for _, uid := range []types.UID{"uid-a", "uid-b"} {
			if err := again.rt.Remove(context.Background(), uid); err != nil {
				t.Errorf("%s: %v", what, err)
			}
			if _, err := os.Lstat(again.rt.podDir(uid)); !os.IsNotExist(err) {
				t.Errorf("%s: something is left of pod %s: %v", what, uid, err)
			}
		}
		again.rt.Close()
	}
	if lost == 0 {
		t.Error("no record was damaged")
	}
}

// spoil does one random damage to a file, and says which.
func spoil(t *testing.T, r *rand.Rand, root, file string) string {
	t.Helper()
	path := filepath.Join(root, file)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	what := ""
	switch at := r.IntN(max(len(b), 1)); {
	case r.IntN(6) == 0:
		what, err = "is gone", os.Remove(path)
	case r.IntN(6) == 0:
		if err = os.Remove(path); err == nil {
			what, err = "is a directory", os.Mkdir(path, 0o700)
		}
	case r.IntN(2) == 0 && len(b) > 0:
		b[at] ^= 1 << r.IntN(8)
		what, err = fmt.Sprintf("byte %d is another", at), os.WriteFile(path, b, 0o600)
	case r.IntN(2) == 0:
		what, err = fmt.Sprintf("has %d bytes", at), os.WriteFile(path, b[:at], 0o600)
	default:
		what, err = "is zeroes", os.WriteFile(path, make([]byte, len(b)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return file + " " + what
}
