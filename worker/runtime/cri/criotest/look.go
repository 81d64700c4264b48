package criotest

import (
	"context"
	"errors"
	"fmt"
	"strings"

	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// client is whoever asks the daemon by the container runtime interface.
type client struct {
	runtime criv1.RuntimeServiceClient
	images  criv1.ImageServiceClient
}

func (d *Daemon) ask(what func(*client) error) error {
	conn, err := d.Dial()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	return what(&client{criv1.NewRuntimeServiceClient(conn), criv1.NewImageServiceClient(conn)})
}

const labelPodUID = "io.kubernetes.pod.uid"

// KillSandbox stops the sandbox of a pod: no process holds it.
func (d *Daemon) KillSandbox(ctx context.Context, podUID string) error {
	return d.ask(func(c *client) error {
		list, err := c.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{Filter: &criv1.PodSandboxFilter{
			LabelSelector: map[string]string{labelPodUID: podUID}, State: &criv1.PodSandboxStateValue{State: criv1.PodSandboxState_SANDBOX_READY}}})
		if err == nil && len(list.Items) != 1 {
			err = fmt.Errorf("%d sandboxes", len(list.Items))
		}
		if err == nil {
			_, err = c.runtime.StopPodSandbox(ctx, &criv1.StopPodSandboxRequest{PodSandboxId: list.Items[0].Id})
		}
		if err != nil {
			return fmt.Errorf("stopping the sandbox of pod %s: %w", podUID, err)
		}
		return nil
	})
}

// KillShim kills what stands between the daemon and the containers of a pod. Where there is none nothing is killed.
func (d *Daemon) KillShim(ctx context.Context, podUID string) error {
	return d.ask(func(c *client) error {
		list, err := c.runtime.ListContainers(ctx, &criv1.ListContainersRequest{Filter: &criv1.ContainerFilter{
			LabelSelector: map[string]string{labelPodUID: podUID}}})
		if err != nil {
			return fmt.Errorf("listing containers: %w", err)
		}
		var ids []string
		for _, one := range list.Containers {
			ids = append(ids, one.Id)
		}
		d.KillWith("-c", ids)
		return nil
	})
}

// all are the daemon's sandboxes and containers.
func (d *Daemon) all(ctx context.Context) (boxes []*criv1.PodSandbox, containers []*criv1.Container, err error) {
	err = d.ask(func(c *client) error {
		b, err := c.runtime.ListPodSandbox(ctx, &criv1.ListPodSandboxRequest{})
		boxes = b.GetItems()
		if err != nil {
			return fmt.Errorf("listing sandboxes: %w", err)
		}
		l, err := c.runtime.ListContainers(ctx, &criv1.ListContainersRequest{})
		containers = l.GetContainers()
		if err != nil {
			return fmt.Errorf("listing containers: %w", err)
		}
		return nil
	})
	return boxes, containers, err
}

// Running are the sandboxes and containers that run, as "UID sandbox" and "UID container", with the UIDs of their pods.
func (d *Daemon) Running(ctx context.Context) ([]string, error) {
	boxes, containers, err := d.all(ctx)
	var out []string
	for _, b := range boxes {
		if b.State == criv1.PodSandboxState_SANDBOX_READY {
			out = append(out, b.Labels[labelPodUID]+" sandbox")
		}
	}
	for _, c := range containers {
		if c.State == criv1.ContainerState_CONTAINER_RUNNING {
			out = append(out, c.Labels[labelPodUID]+" container")
		}
	}
	return out, err
}

// Left names what the daemon has: sandboxes, containers, what stands behind them, and mounts. It is for tests of what agents leave behind.
func (d *Daemon) Left(ctx context.Context) (string, error) {
	boxes, containers, err := d.all(ctx)
	var left []string
	for _, b := range boxes {
		left = append(left, "sandbox "+b.Id)
	}
	for _, c := range containers {
		left = append(left, "container "+c.Id)
	}
	mounts, merr := daemontest.MountsBelow(d.Dir)
	// The storage itself and images that volumes have shown stay, and so do namespaces of a sandbox that was being made when CRI-O was killed.
	kept := func(m string) bool {
		return strings.HasPrefix(m+"/", d.Dir+"/root/overlay/") || strings.HasPrefix(m, d.Dir+"/ns/")
	}
	for _, m := range mounts {
		if !kept(m) {
			left = append(left, "mount "+m)
		}
	}
	return strings.Join(left, "\n"), errors.Join(err, merr)
}
