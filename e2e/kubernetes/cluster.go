package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	storageutil "k8s.io/kubernetes/pkg/apis/storage/util"

	"github.com/berth-dev/berth/e2e/machine"
	"github.com/berth-dev/berth/model"
)

// neededPrograms are those of the machine that the suite and its images need, besides what nodes do.
var neededPrograms = [...]string{"bash", "curl", "dig", "getent", "ldd", "nc", "wget"}

// cluster is the one that the suite judges, and the registry beside its nodes.
type cluster struct {
	*machine.Cluster
	registry *registry
}

// startCluster starts everything on the machine's network, and returns when all nodes are ready.
func startCluster(ctx context.Context, o options, dir string) (*cluster, error) {
	c := &cluster{}
	list, err := suiteImages(o.tools)
	if err == nil {
		c.registry, err = startRegistry(list)
	}
	if err != nil {
		return nil, fmt.Errorf("the images: %w", err)
	}
	c.Cluster, err = machine.Start(ctx, machine.Config{Berth: o.berth, Kubelet: o.kubelet, Dir: dir, Workers: o.workers, Images: list,
		Pause: "registry.k8s.io/pause:3.10.2", Registries: map[string]string{suiteRegistry: c.registry.address}})
	if err == nil && o.kubelet == "" {
		err = c.makeDefaultClass(ctx)
	}
	if err != nil {
		c.stop()
		c.KeepLogs(o.logs)
		return nil, err
	}
	return c, nil
}

// makeDefaultClass makes the StorageClass of claims that name none: directories of the nodes. Specs of StatefulSets with volumes are
// skipped where there is no such class, as on nodes of kubelets, which have none of these volumes.
func (c *cluster) makeDefaultClass(ctx context.Context) error {
	_, err := c.Fleet.Reader().Kube.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:        metav1.ObjectMeta{Name: "local", Annotations: map[string]string{storageutil.IsDefaultStorageClassAnnotation: "true"}},
		Provisioner:       model.LocalProvisioner,
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("the default StorageClass: %w", err)
	}
	return nil
}

func (c *cluster) stop() {
	c.Stop()
	c.registry.stop()
}

// versionOf asks the binary what it is. It says so after the last space of its first line.
func versionOf(ctx context.Context, binary string) (string, error) {
	out, err := exec.CommandContext(ctx, binary, "version", "--client").Output()
	if err != nil {
		return "", errors.Join(fmt.Errorf("%s version", binary), err)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	return first[strings.LastIndexByte(first, ' ')+1:], nil
}
