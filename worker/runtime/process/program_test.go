package process

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestInstallShim: a program is taken if it is the shim of this binary, and replaced when it is another.
func TestInstallShim(t *testing.T) {
	built := filepath.Join(t.TempDir(), "built")
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", built, "../../../cmd/berth-shim")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	whole, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "shim")
	for _, tt := range []struct {
		name, want string
		program    []byte
	}{
		{"a damaged one", "starting " + dir, whole[:len(whole)/2]},
		{"of other sources", "built from other sources", []byte("#!/bin/sh\necho 0123\n")},
		{"the right one", "", whole},
		{"the right one, which is there", "", whole},
	} {
		path, err := installShim(dir, tt.program)
		switch {
		case tt.want == "" && (err != nil || path != filepath.Join(dir, programName)):
			t.Errorf("%s: %q, %v", tt.name, path, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: %v, want %q", tt.name, err, tt.want)
		}
	}
	// It is of no use to people, and says so.
	out, err := exec.Command(filepath.Join(dir, programName)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "workers of berth") {
		t.Errorf("started by hand: %v, %s", err, out)
	}
}
