package containerdtest

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// KillSandbox kills what holds the sandbox of a pod, as a machine that is short of memory may.
func (d *Daemon) KillSandbox(ctx context.Context, podUID string) error {
	ids, err := d.sandboxes(ctx, podUID)
	if err == nil && len(ids) != 1 {
		err = fmt.Errorf("%d sandboxes", len(ids))
	}
	if err == nil {
		var out []byte
		if out, err = d.ctr(ctx, "tasks", "kill", "-s", "KILL", ids[0]).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	if err != nil {
		return fmt.Errorf("killing the sandbox of pod %s: %w", podUID, err)
	}
	return nil
}

func (d *Daemon) sandboxes(ctx context.Context, podUID string) ([]string, error) {
	out, err := d.ctr(ctx, "containers", "list", "-q", `labels."io.kubernetes.pod.uid"==`+podUID+`,labels."io.cri-containerd.kind"==sandbox`).Output()
	if err != nil {
		return nil, fmt.Errorf("listing sandboxes: %w", err)
	}
	return strings.Fields(string(out)), nil
}

// KillShim kills what stands between the daemon and the containers of a pod. Where there is none nothing is killed.
func (d *Daemon) KillShim(ctx context.Context, podUID string) error {
	ids, err := d.sandboxes(ctx, podUID)
	if err != nil {
		return err
	}
	d.KillWith("-id", ids)
	return nil
}

// Running are the sandboxes and containers that run, as "UID sandbox" and "UID container", with the UIDs of their pods.
func (d *Daemon) Running(ctx context.Context) ([]string, error) {
	tasks, err := d.ctr(ctx, "tasks", "list").Output()
	if err != nil {
		return nil, fmt.Errorf("listing tasks: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(tasks)) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "RUNNING" {
			continue
		}
		text, err := d.ctr(ctx, "containers", "info", f[0]).Output()
		if err != nil {
			return nil, fmt.Errorf("asking for container %s: %w", f[0], err)
		}
		var info struct{ Labels map[string]string }
		if err := json.Unmarshal(text, &info); err != nil {
			return nil, fmt.Errorf("reading what container %s is: %w", f[0], err)
		}
		out = append(out, info.Labels["io.kubernetes.pod.uid"]+" "+info.Labels["io.cri-containerd.kind"])
	}
	return out, nil
}

// Left names what the daemon has: sandboxes, containers, views of images and mounts. It is for tests of what
// agents leave behind.
func (d *Daemon) Left(ctx context.Context) (string, error) {
	out, err := d.ctr(ctx, "containers", "list", "-q").Output()
	if err != nil {
		return "", fmt.Errorf("listing containers: %w", err)
	}
	var left []string
	for _, id := range strings.Fields(string(out)) {
		left = append(left, "container "+id)
	}
	out, err = d.ctr(ctx, "snapshots", "list").Output()
	if err != nil {
		return "", fmt.Errorf("listing snapshots: %w", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "berth/") {
			left = append(left, "view "+strings.Fields(line)[0])
		}
	}
	mounts, err := daemontest.MountsBelow(filepath.Join(d.Dir, "state"))
	for _, m := range mounts {
		left = append(left, "mount "+m)
	}
	return strings.Join(left, "\n"), err
}
