package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/devices"
	"github.com/berth-dev/berth/worker/pullrecords"
	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/cri"
)

// processDir and criDir are where the runtimes keep what they know of pods.
func processDir(dataDir string) string { return filepath.Join(dataDir, "containers") }

func criDir(dataDir string) string { return filepath.Join(dataDir, "cri") }

// shimDir is where the process runtime puts the program that it starts beside each container.
func shimDir(dataDir string) string { return filepath.Join(dataDir, "shim") }

// chooseRuntime decides what "auto" is, and refuses to leave the pods of another runtime behind: nobody would end them, nor
// know of them, and they would be started a second time.
func chooseRuntime(c *WorkerConfig) error {
	if c.Containers != nil || c.DataDir == "" || c.Runtime != "auto" && c.Runtime != "cri" && c.Runtime != "process" {
		return nil
	}
	for _, one := range []struct{ name, dir string }{{"cri", criDir(c.DataDir)}, {"process", processDir(c.DataDir)}} {
		n, err := podsIn(one.dir)
		switch {
		case err != nil:
			return err
		case n == 0 || c.Runtime == one.name:
		case c.Runtime == "auto":
			c.Runtime = one.name
			c.Logger.Info("the container runtime stays what it was: it has pods", "runtime", one.name, "pods", n)
		default:
			return fmt.Errorf("the data directory has %d pods of the runtime %s: drain the node and start it once with that runtime, "+
				"or give the worker another data directory, before it becomes one of the runtime %s", n, one.name, c.Runtime)
		}
	}
	if c.Runtime != "auto" {
		return nil
	}
	name, version, err := cri.Probe(context.Background(), c.CRI.Endpoint)
	if err != nil {
		c.Runtime = "process"
		c.Logger.Info("containers are processes of this machine: no container runtime answers", "runtime", c.Runtime,
			"endpoint", c.CRI.Endpoint, "reason", err)
		return nil
	}
	c.Runtime = "cri"
	c.Logger.Info("containers are those of the container runtime that answers", "runtime", c.Runtime,
		"endpoint", c.CRI.Endpoint, "name", name, "version", version)
	return nil
}

// podsIn counts the pods that a runtime keeps something of.
func podsIn(dir string) (int, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, fmt.Errorf("looking for pods of a runtime: %w", err)
	}
	n := 0
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") { // such are on their way out
			n++
		}
	}
	return n, nil
}

// openDevices lets device plugins register, where that is wanted; nil: it is not.
func openDevices(c *WorkerConfig, link *uplink) (*devices.Registry, error) {
	if c.DevicePlugins == "" || c.DataDir == "" {
		return nil, nil
	}
	return devices.Open(devices.Options{
		Dir: c.DevicePlugins, State: filepath.Join(c.DataDir, "devices.json"), Logger: c.Logger,
		Changed: func() { link.agent.DevicesChanged() },
	})
}

// openPullRecords reads which images the worker has fetched by whose credentials; nil: the runtime fetches none.
func openPullRecords(c *WorkerConfig, rt runtime.Runtime) (worker.PullRecords, error) {
	store, ok := rt.(runtime.ImageStore)
	if !ok || c.DataDir == "" {
		return nil, nil
	}
	allowed, err := pullrecords.ParseAllowlist(c.CRI.PullVerificationAllowlist)
	if err != nil {
		return nil, err
	}
	r, err := pullrecords.Open(pullrecords.Options{Dir: filepath.Join(c.DataDir, "pulls"), Policy: c.CRI.PullVerification, Allowlist: allowed,
		Images: store.Images, Logger: c.Logger})
	if err != nil {
		return nil, err // a nil of another type would be one that keeps records
	}
	return r, nil
}

func openCRI(c *WorkerConfig, link *uplink, forward *forwarder) (runtime.Runtime, func(), error) {
	if c.DataDir == "" {
		return nil, nil, errors.New("the cri runtime needs a data directory")
	}
	id, err := workerID(c.DataDir)
	if err != nil {
		return nil, nil, err
	}
	machine, err := readMachine(c.DataDir)
	if err != nil {
		return nil, nil, err
	}
	rt, err := cri.New(cri.Options{
		Endpoint: c.CRI.Endpoint, Root: criDir(c.DataDir), Node: id, MemoryBytes: machine.Capacity.Memory().Value(),
		PullsAtOnce: c.CRI.ParallelPulls, ImagesHigh: c.CRI.ImagesHigh, ImagesLow: c.CRI.ImagesLow, LogBytes: c.LogBytes, LogFiles: c.LogFiles, PIDs: c.PodPIDs,
		Handler: link.handler, Domain: c.Services.Domain, ClusterDNS: link.services.clusterDNS(), HostAliases: forward.hostAliases(), Logger: c.Logger,
	})
	if err != nil {
		return nil, nil, err
	}
	link.services.pods(rt)
	return rt, rt.Close, nil
}
