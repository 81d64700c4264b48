package shim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

// writeJSON puts v into a file of the directory, whole and for good.
func writeJSON(dir *os.Root, name string, v any) error {
	f, err := reserve(dir, name)
	if err != nil {
		return err
	}
	return f.write(v)
}

// WriteExit writes down how the container in a directory ended, in place of a shim that is gone.
func WriteExit(dir string, e Exit) error { return writeEnd(dir, ExitFile, e) }

// WriteTold writes down what is told of an end that is written down and cannot be read.
func WriteTold(dir string, e Exit) error { return writeEnd(dir, ToldFile, e) }

func writeEnd(dir, name string, e Exit) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	return errors.Join(writeJSON(root, name, e), root.Close())
}

// reservedBytes is more than a State or an Exit takes.
const reservedBytes = 1 << 10

// reserved is a file that is not written yet, and has its place: a disk that is full by then does not keep it from being written.
type reserved struct {
	dir  *os.Root
	name string
	file *os.File
}

// reserve takes the place for one file of the directory.
func reserve(dir *os.Root, name string) (*reserved, error) {
	f, err := dir.Create(name + ".tmp")
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(bytes.Repeat([]byte{' '}, reservedBytes)); err != nil {
		return nil, errors.Join(fmt.Errorf("making room for %s: %w", name, err), f.Close())
	}
	return &reserved{dir, name, f}, nil
}

// write puts v there, whole and for good. It is called once.
func (r *reserved) write(v any) error {
	b, err := json.Marshal(v)
	if err == nil && len(b) > reservedBytes {
		err = fmt.Errorf("%d bytes", len(b))
	}
	if err == nil {
		_, err = r.file.WriteAt(b, 0) // what was reserved and is not used is white space
	}
	if err = errors.Join(err, r.file.Sync(), r.file.Close()); err == nil {
		err = r.dir.Rename(r.name+".tmp", r.name)
	}
	if err == nil {
		err = syncDir(r.dir)
	}
	if err != nil {
		return fmt.Errorf("writing %s: %w", r.name, err)
	}
	return nil
}

// syncDir makes the names of a directory last.
func syncDir(dir *os.Root) error {
	d, err := dir.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// BootID is another one each time the machine starts.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("telling this start of the machine from others: %w", err)
	}
	return strings.TrimSpace(string(b)), nil
}
