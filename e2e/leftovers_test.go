package e2e

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/berth-dev/berth/worker/runtime/process/shim"
)

// leftBehind ends what the tests that are over have left of a directory, and says what it was. The cgroups of pods whose worker was killed
// are taken away without a word.
func leftBehind(dir string) error {
	var err error
	killed, left := reap(dir)
	if killed > 0 {
		err = fmt.Errorf("%d processes were left behind, and have been ended", killed)
	}
	if len(left) > 0 {
		err = errors.Join(err, fmt.Errorf("processes are left that do not end: %v", left))
	}
	removeCgroups()
	for _, group := range podCgroups(dir) {
		err = errors.Join(err, fmt.Errorf("a cgroup is left behind: %s", group))
	}
	return err
}

// podCgroups are the cgroups that there are of the pods that workers in a directory have had to the last.
func podCgroups(dir string) (out []string) {
	var pods []string
	for _, way := range [...]string{"", "*", "*/*", "*/*/*"} { // to where a worker keeps what is its own
		some, err := filepath.Glob(filepath.Join(dir, way, "worker", "containers", "*"))
		if err != nil {
			panic(err) // the pattern is a good one
		}
		pods = append(pods, some...)
	}
	for _, pod := range pods {
		for _, above := range cgroupParents() {
			group := filepath.Join(above, filepath.Base(pod))
			if _, err := os.Stat(group); err == nil {
				out = append(out, group)
			}
		}
	}
	return out
}

// cgroupParents are where workers have their pods' cgroups, of either version.
func cgroupParents() []string {
	all, err := filepath.Glob("/sys/fs/cgroup/*/berth")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	return append(all, "/sys/fs/cgroup/berth")
}

// cgroupsOf are the cgroups of pods, of either version and whoever made them: their names have the UIDs of the pods, and those of systemd's
// underscores for dashes.
func cgroupsOf(uids ...string) (out []string, err error) {
	var names []string
	for _, uid := range uids {
		names = append(names, "pod"+uid, "pod"+strings.ReplaceAll(uid, "-", "_"))
	}
	err = filepath.WalkDir("/sys/fs/cgroup", func(path string, e fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // it is just gone
			return nil
		case err != nil:
			return err
		case e.IsDir() && slices.ContainsFunc(names, func(name string) bool { return strings.Contains(e.Name(), name) }):
			out = append(out, path)
			return fs.SkipDir
		}
		return nil
	})
	return out, err
}

// removeCgroups takes away what killed workers could not: their pods' cgroups and the parents of these, as far as
// nothing runs in them.
func removeCgroups() {
	for _, dir := range cgroupParents() {
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

// reap kills the processes that belong to a directory: agents, and pods that outlived their worker. It returns how many
// there were, and those that did not end.
func reap(dir string) (killed int, left []int) {
	told := map[int]bool{}
	for range 500 { // a killed shim's children are found in the next round
		left = nil
		for _, p := range processesIn(dir) {
			if syscall.Kill(p.pid, syscall.SIGKILL) == nil {
				told[p.pid] = true
			}
			left = append(left, p.pid)
		}
		if len(left) == 0 {
			break
		}
		<-time.After(20 * time.Millisecond)
	}
	return len(told), left
}

// found is a process of a directory.
type found struct {
	pid, parent int
	args        string
	inside      bool // it is in a container's root, and no shim
}

// processesIn are the processes whose program, arguments, variables or working directory lie in a directory, and those of containers, which see
// another root and nothing of where it comes from.
func processesIn(dir string) (out []found) {
	scratch := scratchIn(dir)
	own, _ := os.Readlink("/proc/self/ns/mnt") // which the kernel has
	entries, _ := os.ReadDir("/proc")          // none: nothing is found
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		at := filepath.Join("/proc", e.Name())
		args, _ := os.ReadFile(filepath.Join(at, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(at, "environ"))
		cwd, _ := os.Readlink(filepath.Join(at, "cwd")) // it may have just ended
		space, _ := os.Readlink(filepath.Join(at, "ns/mnt"))
		stat, _ := os.ReadFile(filepath.Join(at, "stat"))
		_, state, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(state)
		if len(fields) < 2 || fields[0] == "Z" {
			continue // dead, and somebody's to wait for
		}
		p := found{pid: pid, args: string(args)}
		p.parent, _ = strconv.Atoi(fields[1])
		p.inside = !strings.Contains(p.args, shim.Arg) && space != own && scratch(pid)
		if p.inside || strings.Contains(p.args, dir+"/") || strings.Contains(string(env), dir+"/") || cwd == dir || strings.HasPrefix(cwd, dir+"/") {
			out = append(out, p)
		}
	}
	return out
}

// scratchIn says of a process whether its scratch directory, which every container has at one place in its own root, lies in a directory.
func scratchIn(dir string) func(pid int) bool {
	above, err := mountinfo.GetMounts(mountinfo.ParentsFilter(dir))
	if err != nil || len(above) == 0 {
		return func(int) bool { return false }
	}
	slices.SortStableFunc(above, func(a, b *mountinfo.Info) int { return len(a.Mountpoint) - len(b.Mountpoint) })
	on := above[len(above)-1]
	within := filepath.Join(on.Root, strings.TrimPrefix(dir, on.Mountpoint)) + "/" // as the file system itself calls it
	return func(pid int) bool {
		all, _ := mountinfo.PidMountInfo(pid) // it may have just ended
		return slices.ContainsFunc(all, func(m *mountinfo.Info) bool {
			return strings.HasPrefix(m.Mountpoint, shim.Home+"/") && m.Major == on.Major && m.Minor == on.Minor && strings.HasPrefix(m.Root, within)
		})
	}
}

// strays are processes of containers whose shim is gone. A worker ends them before it tells that the container has ended, and when it is
// started: where no shim was killed there are none.
func strays(dir string) (out []string) {
	all := processesIn(dir)
	byPID := map[int]found{}
	for _, p := range all {
		byPID[p.pid] = p
	}
	for _, p := range all {
		up, ok := p, p.inside
		for ok && !strings.Contains(up.args, shim.Arg) {
			up, ok = byPID[up.parent]
		}
		if p.inside && !ok {
			out = append(out, fmt.Sprintf("%d (%s)", p.pid, strings.ReplaceAll(strings.TrimRight(p.args, "\x00"), "\x00", " ")))
		}
	}
	return out
}

// What a shim that is killed leaves behind is found, ended, and complained of, wherever it thinks that it is.
func TestLeftoversAreFound(t *testing.T) {
	c := newCluster(t, server("s1", "bootstrap_expect = 1"), worker("w1"))
	s := c.waitLeader(t)
	namespace := c.namespace(t, "leftovers")
	create(t, s.Kube, pod(namespace, "p", "setsid sh -c 'cd /; exec env -i sleep 1000' & sleep 1000"))
	uid := string(c.waitRunning(t, namespace, "p")[0].UID)
	processes := func(what func(p found) bool) (n int) {
		for _, p := range processesIn(c.Dir) {
			if what(p) {
				n++
			}
		}
		return n
	}
	sleeps := func(p found) bool { return strings.HasPrefix(p.args, "sleep\x001000") }
	awaitCount := func(n int) {
		t.Helper()
		c.eventually(t, fmt.Sprintf("%d that sleep", n), func(context.Context) error {
			if is := processes(sleeps); is != n {
				return fmt.Errorf("there are %d", is)
			}
			return nil
		})
	}
	awaitCount(2)
	if all := strays(c.Dir); len(all) > 0 {
		t.Errorf("they are taken for strays: %v", all)
	}
	if groups := podCgroups(root); len(groups) == 0 || !slices.ContainsFunc(groups, func(g string) bool { return filepath.Base(g) == uid }) {
		t.Errorf("of pod %s there are the cgroups %v", uid, groups)
	}
	c.Workers()[0].Kill()
	killed := processes(func(p found) bool {
		return strings.Contains(p.args, shim.Arg) && syscall.Kill(p.pid, syscall.SIGKILL) == nil
	})
	if killed != 1 {
		t.Errorf("%d shims were killed", killed)
	}
	c.eventually(t, "those of no shim to be found", func(context.Context) error {
		if all := strays(c.Dir); len(all) != 2 {
			return fmt.Errorf("there are %v", all)
		}
		return nil
	})
	if err := leftBehind(c.Workers()[0].DataDir); err == nil || !strings.Contains(err.Error(), "were left behind") {
		t.Errorf("nothing is said of them: %v", err)
	}
	awaitCount(0)
}
