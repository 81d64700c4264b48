package cri

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// about is what the program behind the interface says of itself.
type about struct {
	name, version string
	// systemd: cgroups are made by it, and are called as its slices are.
	systemd bool
	// pause is the image of sandboxes, which is never to be removed.
	pause string
	// readOnlyBelow: a mount can be read-only with what is mounted below it. strictGroups: supplementalGroupsPolicy Strict.
	readOnlyBelow, strictGroups bool
	// signals: a container's stop signal can be said when it is made.
	signals bool
	// images is how they become volumes, snapshotter what keeps their layers; empty: it was not told.
	images      imageMounts
	snapshotter string
}

// silence is how long no listing may have succeeded before the runtime counts as hung.
const silence = 3 * time.Minute

// meet asks the program what it is.
func (r *Runtime) meet(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	v, err := r.runtime.Version(ctx, &criv1.VersionRequest{})
	if err != nil {
		return fmt.Errorf("asking the container runtime at %s for its version: %w", r.opts.Endpoint, asked(err))
	}
	s, err := r.runtime.Status(ctx, &criv1.StatusRequest{Verbose: true})
	if err != nil {
		return fmt.Errorf("asking the container runtime at %s how it is: %w", r.opts.Endpoint, asked(err))
	}
	a := about{name: v.RuntimeName, version: v.RuntimeVersion, strictGroups: s.GetFeatures().GetSupplementalGroupsPolicy(),
		images: imageMountsOf(v.RuntimeName, v.RuntimeVersion), signals: stopSignals(v.RuntimeName, v.RuntimeVersion)}
	for _, h := range s.RuntimeHandlers {
		if h.Name == "" {
			a.readOnlyBelow = h.GetFeatures().GetRecursiveReadOnlyMounts()
		}
	}
	a.configured(s.Info["config"])
	if c, err := r.runtime.RuntimeConfig(ctx, &criv1.RuntimeConfigRequest{}); err == nil {
		a.systemd = c.GetLinux().GetCgroupDriver() == criv1.CgroupDriver_SYSTEMD
	}
	r.mu.Lock()
	r.about = a
	r.mu.Unlock()
	return nil
}

// stopSignals goes by name and version: nothing in the interface says whether a runtime looks at ContainerConfig.stop_signal, and one that
// does not would send TERM, or what the image names.
func stopSignals(name, version string) bool {
	return name == containerd && since(version, 2, 3) || name == crio && since(version, 1, 33)
}

// crio is what CRI-O calls itself.
const crio = "cri-o"

// since says whether a version is this one or a later one.
func since(version string, major, minor int) bool {
	m := majorMinor.FindStringSubmatch(version)
	if m == nil {
		return false
	}
	hasMajor, err := strconv.Atoi(m[1])
	hasMinor, err2 := strconv.Atoi(m[2])
	return err == nil && err2 == nil && (hasMajor > major || hasMajor == major && hasMinor >= minor)
}

// configured reads what containerd shows of its configuration: before its version 2 nothing else tells how it makes
// cgroups, nor, before 1.7, which image is that of its sandboxes. What is not understood is not there.
func (a *about) configured(text string) {
	var c struct {
		SandboxImage string `json:"sandboxImage"`
		Containerd   struct {
			Snapshotter        string `json:"snapshotter"`
			DefaultRuntimeName string `json:"defaultRuntimeName"`
			Runtimes           map[string]struct {
				Options struct {
					SystemdCgroup bool
				} `json:"options"`
			} `json:"runtimes"`
		} `json:"containerd"`
	}
	if json.Unmarshal([]byte(text), &c) != nil {
		return
	}
	a.pause, a.snapshotter = c.SandboxImage, c.Containerd.Snapshotter
	a.systemd = c.Containerd.Runtimes[c.Containerd.DefaultRuntimeName].Options.SystemdCgroup
}

func (r *Runtime) known() about {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.about
}

// Check implements runtime.Checkup.
func (r *Runtime) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if r.Version() == "" {
		if err := r.meet(ctx); err != nil {
			return fmt.Errorf("container runtime is down: %w", err)
		}
	}
	s, err := r.runtime.Status(ctx, &criv1.StatusRequest{})
	if err != nil {
		return fmt.Errorf("container runtime is down: %w", asked(err))
	}
	for _, c := range s.GetStatus().GetConditions() {
		if c.Status {
			continue
		}
		switch c.Type {
		case criv1.RuntimeReady:
			return fmt.Errorf("container runtime is not ready: %s: %s", c.Reason, c.Message)
		case criv1.NetworkReady:
			return fmt.Errorf("container runtime network not ready: %s: %s", c.Reason, c.Message)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.listedAt.IsZero() && time.Since(r.listedAt) > silence {
		return errors.New("container runtime has not listed its containers for minutes")
	}
	return nil
}
