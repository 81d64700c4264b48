package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Cgroups is where the machine's are mounted: a hierarchy of version 1 in each of its folders, or the one of version 2.
const Cgroups = "/sys/fs/cgroup"

// controllers are those of version 2 that agents of nodes bound pods by.
var controllers = [...]string{"cpuset", "cpu", "io", "memory", "hugetlb", "pids"}

// oneHierarchy: the machine's cgroups are of version 2.
func oneHierarchy() bool {
	_, err := os.Stat(filepath.Join(Cgroups, "cgroup.controllers"))
	return err == nil
}

// Unbounded says why no cgroup that is made here can be bounded; empty: they can. In a container cgroups of version 2 begin with its own, and
// what has processes gives no controllers to those below it.
func Unbounded() string {
	if !oneHierarchy() {
		return ""
	}
	if _, err := os.Stat(filepath.Join(Cgroups, "cgroup.type")); err != nil {
		return "" // only the kernel's first has none
	}
	given, err := os.ReadFile(filepath.Join(Cgroups, "cgroup.subtree_control"))
	if err != nil {
		return err.Error()
	}
	if !slices.Contains(strings.Fields(string(given)), "memory") {
		return Cgroups + " is a container's, and bounds none below it"
	}
	return ""
}

// MakeCgroups makes a cgroup in every hierarchy of version 1, or in the one of version 2, where it is given all that agents bound pods by. What
// it made before an error is returned as well, to be removed. What the machine's own cgroup has given once stays so.
func MakeCgroups(name string) ([]string, error) {
	parents := []string{Cgroups}
	if oneHierarchy() {
		if err := giveControllers(Cgroups); err != nil {
			return nil, err
		}
	} else {
		entries, err := os.ReadDir(Cgroups)
		if err != nil {
			return nil, err
		}
		parents = nil
		for _, e := range entries {
			if e.IsDir() {
				parents = append(parents, filepath.Join(Cgroups, e.Name()))
			}
		}
	}
	var out []string
	for _, parent := range parents {
		dir := filepath.Join(parent, name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return out, err
		}
		out = append(out, dir)
		// Nobody may join a cgroup of processors before it has some. In version 2 it has those of the one above.
		for _, file := range [...]string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(parent, file))
			if err != nil || len(strings.TrimSpace(string(value))) == 0 {
				continue
			}
			if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// giveControllers has a cgroup of version 2 bound those below it by all that agents need, of what it has itself.
func giveControllers(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(has)) {
		if !slices.Contains(controllers[:], name) {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+name), 0o644); err != nil {
			return fmt.Errorf("giving the controller %s to what is below %s: %w", name, dir, err)
		}
	}
	return nil
}

// enterScript joins the cgroups that are named before the first --, has its view of cgroups begin with them, and becomes what comes after. Where
// there is one hierarchy it goes to a cgroup of its own below: what has processes gives no controllers, and nobody may be left at its root.
const enterScript = `while [ "$1" != -- ]; do at=$1; echo $$ > "$at/cgroup.procs" || exit 1; shift; done
shift
exec unshare --cgroup sh -c '
at=$1
shift
if [ -e ` + Cgroups + `/cgroup.controllers ]; then
  mkdir "$at/first" && echo $$ > "$at/first/cgroup.procs" || exit 1
  for name in $(cat "$at/cgroup.controllers"); do echo "+$name" > "$at/cgroup.subtree_control" || exit 1; done
fi
exec unshare "$@"' sh "$at" "$@"`

// Enter is the command that runs another one in cgroups, those of MakeCgroups, and in namespaces of its own: of cgroups, and of those that
// unshare is told of. Its process becomes unshare's. What is mounted below Cgroups is as it was.
func Enter(cgroups, namespaces []string, command ...string) []string {
	args := append([]string{"sh", "-c", enterScript, "sh"}, cgroups...)
	args = append(append(args, "--"), namespaces...)
	return append(args, command...)
}

// RemoveCgroups removes cgroups and all below them, once the kernel has seen the last process of them off.
func RemoveCgroups(dirs []string) error {
	var errs []error
	for _, dir := range dirs {
		var err error
		for range 100 {
			if err = removeCgroup(dir); err == nil {
				break
			}
			<-time.After(50 * time.Millisecond)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func removeCgroup(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeCgroup(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return syscall.Rmdir(dir)
}
