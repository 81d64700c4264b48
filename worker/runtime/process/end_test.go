package process

import (
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/worker/runtime"
)

// A container whose command has ended and whose child has not: it goes on, may be killed as often as somebody wants, and ends by its command's code.
func TestChildEndsLate(t *testing.T) {
	h := open(t, Options{})
	dir := t.TempDir()
	id := h.start(pod("p", shell(fmt.Sprintf(`sleep 1000 & echo $! > %[1]s/child.tmp; mv %[1]s/child.tmp %[1]s/child
		while ! test -e %[1]s/go; do sleep 0.01; done; exit 5`, dir))), 0)
	child := 0
	eventually(t, "the child runs", func() bool {
		b, err := os.ReadFile(filepath.Join(dir, "child"))
		child, _ = strconv.Atoi(strings.TrimSpace(string(b)))
		return err == nil
	})
	// Who is traced has not ended, to the one whose child it is, until the tracer has seen it.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err := unix.PtraceSeize(child); err != nil {
		t.Skip("nobody can be traced here: ", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	// That its shim has killed it means that its command has ended.
	if err := unix.Waitid(unix.P_PID, child, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, s := range []runtime.Signal{runtime.Terminate, runtime.Kill} {
			if err := h.rt.Signal(t.Context(), id, s); err != nil {
				t.Errorf("%s: %v", s, err)
			}
		}
	}
	select {
	case ev := <-h.events:
		t.Errorf("it is told: %+v", ev)
	default:
	}
	if _, err := unix.Wait4(child, nil, 0, nil); err != nil {
		t.Fatal(err)
	}
	if x := h.exit(); x.Code != 5 {
		t.Errorf("exit is %+v", x)
	}
}

// On a disk that has become full it is written down how a container ended, and its log goes on in the file that it has.
func TestFullDisk(t *testing.T) {
	disk := t.TempDir()
	if err := unix.Mount("berth-test", disk, "tmpfs", 0, "size=1m,nr_inodes=100"); err != nil {
		t.Skip("no file system of its own: ", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for name, c := range map[string]struct {
		script string
		lines  int
	}{
		"no room": {`cat /dev/zero > fill; exit 3`, 0},
		"no inodes": {`i=0; while true > f$i; do i=$((i+1)); done 2>/dev/null
			i=0; while [ $i -lt 200 ]; do echo "line $i"; i=$((i+1)); done; exit 3`, 200},
	} {
		t.Run(name, func(t *testing.T) {
			h := open(t, Options{Root: filepath.Join(disk, "containers"), LogBytes: 500, LogFiles: 2})
			id := h.start(pod("p", shell(c.script)), 0)
			if x := h.exit(); x.Code != 3 || x.Reason != runtime.ReasonError {
				t.Errorf("exit is %+v", x)
			}
			if c.lines == 0 {
				return
			}
			var want strings.Builder
			for i := range c.lines {
				fmt.Fprintln(&want, "line", i)
			}
			if got := h.logs(id, runtime.LogOptions{}); got != want.String() {
				t.Errorf("its log is %q", got)
			}
		})
	}
}
