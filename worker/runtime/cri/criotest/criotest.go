// Package criotest starts a CRI-O of its own for tests: its own storage, socket, network folder, registry and images. It leaves nothing
// behind. It must never be part of the product, nor touch a CRI-O that it did not start.
package criotest

import (
	"context"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
	"github.com/berth-dev/berth/worker/runtime/cri/imagepack"
)

// Missing says what a machine lacks for a daemon whose programs, crio and pinns, are in a directory; empty: nothing.
func Missing(programs string) string {
	if os.Geteuid() != 0 {
		return "root"
	}
	return strings.Join(daemontest.Missing(filepath.Join(programs, program), filepath.Join(programs, pinns), "conmon", "runc"), ", ")
}

// What CRI-O's executables and files are called.
const (
	program = "crio"
	pinns   = "pinns"
)

// Daemon is a CRI-O of a test's own.
type Daemon struct {
	*daemontest.Program
	programs string
	events   bool
	registry *imagepack.Registry
	server   *httptest.Server
}

// Start starts a daemon whose programs are in a directory, over a new directory below parent, and waits until it answers. number tells it
// from others of the machine (daemontest.NewProgram). A socket for each container is below parent: its path must not be long.
func Start(ctx context.Context, programs, parent string, number uint16, options ...func(*Daemon)) (*Daemon, error) {
	programs, err := filepath.Abs(programs)
	if err != nil {
		return nil, err
	}
	p, err := daemontest.NewProgram(parent, program, number)
	if err != nil {
		return nil, err
	}
	d := &Daemon{Program: p, programs: programs, registry: imagepack.NewRegistry("", "")}
	d.server = httptest.NewServer(d.registry)
	for _, option := range options {
		option(d)
	}
	if err := daemontest.Begin(ctx, d, d.configure); err != nil {
		return nil, err
	}
	return d, nil
}

// TellingEvents has the daemon tell of what happens, which it does not by itself.
func TellingEvents(d *Daemon) { d.events = true }

// Files of the configuration, and directories that have to be there.
const (
	configFile     = "crio.conf"
	registriesFile = "registries.conf"
	policyFile     = "policy.json"
	registriesDir  = "registries.d"
	temporaryDir   = "tmp"
	cdiDir         = "cdi"
)

const config = `[crio]
root = "%[1]s/root"
runroot = "%[1]s/run"
storage_driver = "overlay"
log_dir = "%[1]s/logs"
version_file = "%[1]s/version"
clean_shutdown_file = "%[1]s/clean"
[crio.api]
listen = "%[1]s/crio.sock"
stream_address = "127.0.0.1"
stream_port = "0"
[crio.runtime]
default_runtime = "runc"
cgroup_manager = "cgroupfs"
conmon_cgroup = "pod"
pinns_path = "%[2]s/` + pinns + `"
namespaces_dir = "%[1]s/ns"
container_exits_dir = "%[1]s/exits"
container_attach_socket_dir = "%[1]s/a"
hooks_dir = []
cdi_spec_dirs = ["%[1]s/` + cdiDir + `"]
enable_pod_events = %[3]t
[crio.runtime.runtimes.runc]
runtime_path = %[4]q
runtime_root = "%[1]s/runc"
monitor_cgroup = "pod"
[crio.runtime.runtimes.other]
runtime_path = %[4]q
runtime_root = "%[1]s/other"
monitor_cgroup = "pod"
[crio.image]
pause_image = "` + daemontest.Pause + `"
pause_command = ""
signature_policy = "%[1]s/` + policyFile + `"
signature_policy_dir = "%[1]s/policies"
[crio.network]
network_dir = "%[1]s/cni"
plugin_dirs = ["` + daemontest.CNIPlugins + `"]
[crio.nri]
enable_nri = false
`

// modestRunc is runc on a machine without CAP_SYS_RESOURCE: nothing is given that right, nor goes later than others when memory is short.
const modestRunc = `#!/bin/sh
before=
for argument; do
  case $before in
  --bundle) told=$argument/config.json ;;
  --process) told=$argument ;;
  *) told= ;;
  esac
  test -z "$told" || sed -i -e 's/"CAP_SYS_RESOURCE",//g; s/,"CAP_SYS_RESOURCE"//g' \
    -e "s/\"oomScoreAdj\": *-[0-9]*/\"oomScoreAdj\":$(cat /proc/self/oom_score_adj)/" "$told"
  before=$argument
done
exec %s "$@"
`

// CDI is the folder in which the daemon looks for specifications of the container device interface.
func (d *Daemon) CDI() string { return filepath.Join(d.Dir, cdiDir) }

// runc is the program that runs containers. CRI-O has no setting for machines on which it may not do what it is told of that.
func (d *Daemon) runc() (string, error) {
	path, err := exec.LookPath("runc")
	if err != nil || daemontest.MayLowerBadness() {
		return path, err
	}
	modest := filepath.Join(d.Dir, "runc.sh")
	return modest, os.WriteFile(modest, fmt.Appendf(nil, modestRunc, path), 0o755)
}

// registries lead to the daemon's own, for all images that are imported.
const registries = `[[registry]]
prefix = "` + registryName + `"
location = %q
insecure = true
`

const registryName = "registry.test"

func (d *Daemon) configure() error {
	runc, err := d.runc()
	if err != nil {
		return err
	}
	for name, text := range map[string]string{
		configFile:     fmt.Sprintf(config, d.Dir, d.programs, d.events, runc),
		registriesFile: fmt.Sprintf(registries, d.server.Listener.Addr().String()),
		policyFile:     `{"default": [{"type": "insecureAcceptAnything"}]}`,
	} {
		if err := d.Write(name, text); err != nil {
			return err
		}
	}
	for _, name := range [...]string{registriesDir, temporaryDir, cdiDir} {
		if err := os.Mkdir(filepath.Join(d.Dir, name), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Run starts the daemon, again after Kill, and waits until it answers.
func (d *Daemon) Run(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(d.programs, program), "--config", filepath.Join(d.Dir, configFile), "--config-dir", "",
		"--registries-conf", filepath.Join(d.Dir, registriesFile), "--registries-conf-dir", filepath.Join(d.Dir, registriesDir))
	cmd.Env = append(os.Environ(), "TMPDIR="+filepath.Join(d.Dir, temporaryDir))
	return d.Execute(ctx, cmd)
}

// Close ends everything of the daemon's: what still runs in it, its mounts, networks and files.
func (d *Daemon) Close() error {
	err := d.Program.Close()
	d.server.Close()
	return err
}

// Import adds images, whose names are of registry.test.
func (d *Daemon) Import(ctx context.Context, images ...*imagepack.Image) error {
	return d.ask(func(c *client) error {
		for _, i := range images {
			own := *i
			own.Names = nil
			for _, name := range i.Names {
				own.Names = append(own.Names, strings.TrimPrefix(name, registryName+"/"))
			}
			if err := d.registry.Push(&own); err != nil {
				return err
			}
			for _, name := range i.Names {
				if _, err := c.images.PullImage(ctx, &criv1.PullImageRequest{Image: &criv1.ImageSpec{Image: name}}); err != nil {
					return fmt.Errorf("importing image %s: %w", name, err)
				}
			}
		}
		return nil
	})
}

// RemoveImage removes an image by all its names.
func (d *Daemon) RemoveImage(ctx context.Context, names ...string) error {
	return d.ask(func(c *client) error {
		for _, name := range names {
			if _, err := c.images.RemoveImage(ctx, &criv1.RemoveImageRequest{Image: &criv1.ImageSpec{Image: name}}); err != nil {
				return fmt.Errorf("removing image %s: %w", name, err)
			}
		}
		return nil
	})
}
