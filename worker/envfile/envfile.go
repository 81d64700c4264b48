// Package envfile reads variables from files that a pod wrote into a volume, by the kubelet's own parser. It must never follow a link out
// of the volume, nor wait for one who writes.
package envfile

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	envutil "k8s.io/kubernetes/pkg/kubelet/util/env"
)

// maxBytes is how large a file may be.
const maxBytes = 64 << 10

// Value is what the file at a path within a volume's directory says of a variable; empty: nothing.
func Value(dir, path, key string) (string, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return "", fmt.Errorf("opening the volume: %w", err)
	}
	defer root.Close()
	f, err := root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	fi, err := f.Stat()
	switch {
	case err != nil:
		return "", err
	case !fi.Mode().IsRegular():
		return "", errors.New("it is no regular file")
	case fi.Size() > maxBytes:
		return "", fmt.Errorf("it has more than %d bytes", maxBytes)
	}
	// The parser wants a path, and whatever becomes of the volume meanwhile this one leads to the file that was opened.
	return envutil.ParseEnv(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), key)
}
