package process

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// plainUser is a user who may do nothing beyond what is his.
const plainUser = 54321

// asPlainUser says whether the test runs as a user that is not root. Where it is root it runs the test again, as such a one, and takes what comes of it.
func asPlainUser(t *testing.T) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: plainUser, Gid: plainUser}}
	cmd.Dir = "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("as user %d: %v\n%s", plainUser, err, out)
	}
	return false
}

// An agent that is not root runs the containers of a pod that names its own user, and refuses another's.
func TestOwnUser(t *testing.T) {
	if !asPlainUser(t) {
		return
	}
	h := open(t, Options{CgroupParent: "none"})
	own, group := int64(os.Getuid()), int64(os.Getgid())
	for name, s := range map[string]*corev1.SecurityContext{
		"user":  {RunAsUser: &own, RunAsNonRoot: yes()},
		"group": {RunAsGroup: &group},
		"both":  {RunAsUser: &own, RunAsGroup: &group},
	} {
		c := shell("id -u; id -g; echo mine > file && cat file; echo last > $BERTH_TERMINATION_LOG")
		c.SecurityContext = s
		p := pod(name, c)
		if x := h.rt.Refuse(p); x != nil {
			t.Errorf("%s: refused: %+v", name, x)
		}
		id := h.start(p, 0)
		if x := h.exit(); x.Code != 0 || x.Message != "last\n" {
			t.Errorf("%s: exit is %+v", name, x)
		}
		if got := h.logs(id, runtime.LogOptions{}); got != fmt.Sprintf("%d\n%d\nmine\n", own, group) {
			t.Errorf("%s: output %q", name, got)
		}
	}
	for name, s := range map[string]*corev1.SecurityContext{"root": {RunAsUser: number(0)}, "other": {RunAsGroup: number(group + 1)}} {
		c := shell("true")
		c.SecurityContext = s
		p := pod(name, c)
		if x := h.rt.Refuse(p); x == nil {
			t.Errorf("%s: not refused", name)
		}
		if err := h.rt.Start(t.Context(), h.spec(p, 0)); err == nil || !strings.Contains(err.Error(), needsRoot) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
