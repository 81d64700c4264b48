package daemontest

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// Images that every daemon has.
const (
	Busybox = "registry.test/busybox:1" // /bin/sh and everything that busybox is, started without a command it runs sh
	Nonroot = "registry.test/nonroot:1" // the same, as user 1234
	Named   = "registry.test/named:1"   // the same, as the user somebody
	Pause   = "registry.test/pause:1"   // that of sandboxes
)

// Images are those that every daemon has.
func Images() ([]*imagepack.Image, error) {
	base, err := BusyboxImage(Busybox)
	if err != nil {
		return nil, err
	}
	nonroot, named, still := *base, *base, *base
	nonroot.Names, nonroot.User = []string{Nonroot}, "1234"
	named.Names, named.User = []string{Named}, "somebody"
	still.Names, still.Cmd = []string{Pause}, nil
	// It waits, and for the dead of a shared process namespace, too.
	still.Entrypoint = []string{"/bin/sh", "-c", `trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done`}
	return []*imagepack.Image{base, &nonroot, &named, &still}, nil
}

// BusyboxImage is an image of busybox and the directories that programs expect.
func BusyboxImage(names ...string) (*imagepack.Image, error) {
	path, err := exec.LookPath("busybox")
	if err != nil {
		return nil, err
	}
	program, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	i := &imagepack.Image{Names: names, Cmd: []string{"sh"}, WorkingDir: "/",
		Env: []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}}
	for _, dir := range [...]string{"bin", "etc", "proc", "sys", "dev", "root", "var", "usr", "usr/bin"} {
		i.Files = append(i.Files, imagepack.File{Path: dir, Mode: 0o755, Dir: true})
	}
	i.Files = append(i.Files,
		imagepack.File{Path: "tmp", Mode: 0o1777, Dir: true},
		imagepack.File{Path: "etc/passwd", Mode: 0o644, Data: []byte("root:x:0:0:root:/root:/bin/sh\nsomebody:x:1000:1000::/:/bin/sh\n")},
		imagepack.File{Path: "etc/group", Mode: 0o644, Data: []byte("root:x:0:\nsomebody:x:1000:\ninimage:x:5000:somebody\n")},
		imagepack.File{Path: "bin/busybox", Mode: 0o755, Data: program})
	out, err := exec.Command(path, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing what busybox is: %w", err)
	}
	for _, applet := range strings.Fields(string(out)) {
		if applet != "busybox" {
			i.Files = append(i.Files, imagepack.File{Path: "bin/" + applet, Mode: 0o777, Link: "busybox"})
		}
	}
	return i, nil
}
