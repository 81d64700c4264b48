package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// binary is the program under test, root the directory of everything. TestMain
// sets both, once.
var binary, root string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		if what := os.Getenv(holdVariable); what != "" {
			if err := holdConnections(what); err != nil {
				fmt.Fprintln(os.Stderr, err)
				return 1
			}
			return 0
		}
		var err error
		if root, err = os.MkdirTemp("", "berth-e2e-"); err == nil {
			defer func() { _ = os.RemoveAll(root) }() // the tests are over
			err = build()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		stopShared()
		defer removeCgroups()
		if err := stopRealContainers(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
		if left := reap(root); left > 0 {
			fmt.Fprintf(os.Stderr, "%d processes were left behind, and have been ended\n", left)
			code = max(code, 1)
		}
		return code
	}())
}

// build makes the binary. BERTH_E2E_BINARY names one that is there already.
func build() error {
	if binary = os.Getenv("BERTH_E2E_BINARY"); binary != "" {
		return nil
	}
	binary = filepath.Join(root, "berth")
	cmd := exec.Command("go", "build", "-o", binary, "../cmd/berth")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build the binary: %w", err)
	}
	return nil
}

// removeCgroups takes away what killed workers could not: their pods' cgroups and the parents of these, as far as
// nothing runs in them.
func removeCgroups() {
	left, err := filepath.Glob("/sys/fs/cgroup/*/berth")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for _, dir := range append(left, "/sys/fs/cgroup/berth") {
		removeEmptyCgroups(dir)
	}
}

// removeEmptyCgroups goes from the leaves up: the kernel removes only a cgroup with neither processes nor children.
func removeEmptyCgroups(dir string) {
	entries, _ := os.ReadDir(dir) // it may never have been there
	for _, e := range entries {
		if e.IsDir() {
			removeEmptyCgroups(filepath.Join(dir, e.Name()))
		}
	}
	_ = os.Remove(dir) // unless somebody lives in it
}

// reap kills the processes that belong to a directory: agents, and pods that
// outlived their worker. It returns how many there were.
func reap(dir string) int {
	killed := 0
	for range 100 { // a killed shim's children are found in the next round
		found := processesIn(dir)
		if len(found) == 0 {
			break
		}
		for _, pid := range found {
			if syscall.Kill(pid, syscall.SIGKILL) == nil {
				killed++
			}
		}
		<-time.After(20 * time.Millisecond)
	}
	return killed
}

// processesIn are the processes whose program, arguments or working directory
// lie in a directory.
func processesIn(dir string) []int {
	var out []int
	entries, _ := os.ReadDir("/proc") // none: nothing is found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		at := filepath.Join("/proc", e.Name())
		args, _ := os.ReadFile(filepath.Join(at, "cmdline"))
		cwd, _ := os.Readlink(filepath.Join(at, "cwd")) // it may have just ended
		stat, _ := os.ReadFile(filepath.Join(at, "stat"))
		_, state, _ := strings.Cut(string(stat), ") ")
		if strings.HasPrefix(state, "Z") {
			continue // dead, and somebody's to wait for
		}
		if strings.Contains(string(args), dir+"/") || cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			out = append(out, pid)
		}
	}
	return out
}
