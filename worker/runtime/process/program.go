package process

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// The program of a shim alone (cmd/berth-shim), if `make build` has put it there.
//
//go:embed all:program
var programs embed.FS

const programName = "berth-shim"

// ownShim is the small program that this binary has of the shim, as installShim installs it.
func ownShim(dir string) (string, error) {
	program, err := programs.ReadFile("program/" + programName)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("it was built without a smaller one")
	}
	if err != nil {
		return "", err
	}
	return installShim(dir, program)
}

// installShim puts a program into a directory, and gives its path. It fails if the program cannot be started from there, or is not made
// of the sources of this binary's shim.
func installShim(dir string, program []byte) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	path := filepath.Join(dir, programName)
	// Another one is replaced, not written over: shims that run go on with theirs.
	if old, err := os.ReadFile(path); err != nil || !bytes.Equal(old, program) {
		if err := atomicfile.Write(path, program, 0o700); err != nil {
			return "", err
		}
	}
	if err := os.Chmod(path, 0o700); err != nil { // #nosec G302 -- it is a program
		return "", err
	}
	sum, err := exec.Command(path, shim.SumArg).Output()
	if err != nil {
		return "", fmt.Errorf("starting %s: %w", path, err)
	}
	if strings.TrimSpace(string(sum)) != shim.Sum() {
		return "", fmt.Errorf("%s was built from other sources than this binary", path)
	}
	return path, nil
}
