// Package overlay lays changed sources over a build (go build -overlay), so that
// neither the product nor the toolchain has anything of it.
//
// Its patches are of three kinds: those that make the Go runtime repeat itself
// (Runtime); mutants: defects that are put into the product on purpose, to see
// whether the simulation finds them (Mutants); and mines: panics that nobody but
// the one they hit may notice (Mines).
package overlay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Edit replaces a text that is in a file exactly once.
type Edit struct {
	File     string // below the root that the edits are for
	Old, New string
}

// Write writes the edited files into a directory, and the list that go build
// -overlay wants, whose path it returns. A text that is not there, or is there
// twice, is an error: the sources have changed, and the edit has to follow.
func Write(dir string, roots map[string][]Edit) (list string, err error) {
	replaced := map[string]string{}
	for root, edits := range roots {
		for _, e := range edits {
			path := filepath.Join(root, e.File)
			from := path
			if to, again := replaced[path]; again {
				from = to
			}
			b, err := os.ReadFile(from)
			if err != nil {
				return "", fmt.Errorf("overlay: %w", err)
			}
			if n := bytes.Count(b, []byte(e.Old)); n != 1 {
				return "", fmt.Errorf("overlay: %s has %d times what is to be replaced: %q", path, n, e.Old)
			}
			to := filepath.Join(dir, strings.ReplaceAll(strings.TrimPrefix(path, "/"), "/", "_"))
			if err := os.WriteFile(to, bytes.Replace(b, []byte(e.Old), []byte(e.New), 1), 0o600); err != nil {
				return "", fmt.Errorf("overlay: %w", err)
			}
			replaced[path] = to
		}
	}
	b, err := json.Marshal(map[string]any{"Replace": replaced})
	if err != nil {
		return "", fmt.Errorf("overlay: %w", err)
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, b, 0o600)
}

// GoRoot is where the toolchain's sources are.
func GoRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("overlay: go env GOROOT: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}
