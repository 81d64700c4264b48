package ecosystem

import (
	"errors"
	"os"
	"path/filepath"
	"slices"

	"github.com/berth-dev/berth/e2e/ecosystem/tools"
	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// Images that every node has.
const (
	busyboxImage  = "registry.test/busybox:1"
	pauseImage    = "registry.test/pause:1"
	operatorImage = "registry.test/operator:1"
)

// images are made of the programs of this machine and of the tools. Where one could not be built, its image is not there.
func images(folder string) ([]*imagepack.Image, error) {
	busybox, err := daemontest.BusyboxImage(busyboxImage)
	if err != nil {
		return nil, err
	}
	pause := *busybox
	pause.Names, pause.Cmd = []string{pauseImage}, nil
	pause.Entrypoint = []string{"/bin/sh", "-c", `trap "exit 0" TERM INT; while :; do sleep 3600 & wait $!; done`}
	list := []*imagepack.Image{busybox, &pause}
	for _, one := range ofTools() {
		program, err := os.ReadFile(filepath.Join(folder, one.tool))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, &imagepack.Image{Names: []string{one.image}, Entrypoint: append([]string{"/" + one.tool}, one.args...), User: "1000", WorkingDir: "/",
			Files: []imagepack.File{
				{Path: "tmp", Mode: 0o1777, Dir: true},
				{Path: one.tool, Mode: 0o755, Data: program},
			}})
	}
	return list, nil
}

// ofTool is an image of a tool alone.
type ofTool struct {
	image, tool string
	args        []string
}

// ofTools are the images of tools that run in the cluster. Those of cert-manager are called as its chart calls them.
func ofTools() []ofTool {
	out := []ofTool{{image: operatorImage, tool: "operator"}}
	i := slices.IndexFunc(tools.All, func(one tools.Tool) bool { return one.Name == "cert-manager" })
	for _, part := range []string{"controller", "cainjector", "webhook", "startupapicheck"} {
		out = append(out, ofTool{image: "quay.io/jetstack/cert-manager-" + part + ":" + tools.All[i].Version, tool: "cert-manager", args: []string{part}})
	}
	return out
}
