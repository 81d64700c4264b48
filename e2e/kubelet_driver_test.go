package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	pluginregistration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// driver is the part of a CSI driver that is on a node. A volume of it is a directory with a file that names it.
type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedNodeServer
	pluginregistration.UnimplementedRegistrationServer
	name, node, socket string
}

func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}

func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}

func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}

func (d *driver) NodePublishVolume(_ context.Context, r *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	err := os.MkdirAll(r.TargetPath, 0o755)
	if err == nil {
		text := fmt.Sprintf("%s by %s\n", r.VolumeId, r.PublishContext["device"])
		err = os.WriteFile(filepath.Join(r.TargetPath, "volume"), []byte(text), 0o644)
	}
	return &csi.NodePublishVolumeResponse{}, err
}

func (d *driver) NodeUnpublishVolume(_ context.Context, r *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	return &csi.NodeUnpublishVolumeResponse{}, os.RemoveAll(r.TargetPath)
}

// GetInfo tells the kubelet where the driver listens.
func (d *driver) GetInfo(context.Context, *pluginregistration.InfoRequest) (*pluginregistration.PluginInfo, error) {
	return &pluginregistration.PluginInfo{Type: pluginregistration.CSIPlugin, Name: d.name, Endpoint: d.socket, SupportedVersions: []string{"1.0.0"}}, nil
}

func (d *driver) NotifyRegistrationStatus(context.Context, *pluginregistration.RegistrationStatus) (*pluginregistration.RegistrationStatusResponse, error) {
	return &pluginregistration.RegistrationStatusResponse{}, nil
}

// serve serves the driver beside a kubelet until the test ends.
func (d *driver) serve(t *testing.T, m *machine) {
	t.Helper()
	d.node, d.socket = m.name, filepath.Join(m.dir, "csi.sock")
	listening := map[string]func(s *grpc.Server){
		d.socket: func(s *grpc.Server) {
			csi.RegisterIdentityServer(s, d)
			csi.RegisterNodeServer(s, d)
		},
		filepath.Join(m.dir, "kubelet", "plugins_registry", "driver.sock"): func(s *grpc.Server) {
			pluginregistration.RegisterRegistrationServer(s, d)
		},
	}
	for at, register := range listening {
		l, err := net.Listen("unix", at)
		if err != nil {
			t.Fatal(err)
		}
		s := grpc.NewServer()
		register(s)
		go func() { _ = s.Serve(l) }() // until it is stopped
		t.Cleanup(s.Stop)
	}
}

const attachedPod = `
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: driver.example.com}
spec: {attachRequired: true}
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: far}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  persistentVolumeReclaimPolicy: Retain
  claimRef: {namespace: default, name: far}
  csi: {driver: driver.example.com, volumeHandle: disk-7}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: far}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: far, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: attached}
spec:
  nodeSelector: {kubernetes.io/hostname: kubelet-1}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: IMAGE, command: [sh, -c, "cat /far/volume; exec sleep 1000"], volumeMounts: [{name: far, mountPath: /far}]}]
  volumes: [{name: far, persistentVolumeClaim: {claimName: far}}]
`

// kubeletAttaches: a volume of a driver that has to be attached is, before its pod starts, and no more when the pod is gone. What the
// driver's own attacher does is done here.
func kubeletAttaches(t *testing.T, c *cluster, m *machine) {
	d := &driver{name: "driver.example.com"}
	d.serve(t, m)
	attachments := c.Reader().Kube.StorageV1().VolumeAttachments()
	ours := func(ctx context.Context) (out []storagev1.VolumeAttachment, err error) {
		list, err := attachments.List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}
	c.eventually(t, "the kubelet to tell of its driver", func(ctx context.Context) error {
		n, err := c.Reader().Kube.StorageV1().CSINodes().Get(ctx, m.name, metav1.GetOptions{})
		if err == nil && (len(n.Spec.Drivers) != 1 || n.Spec.Drivers[0].Name != d.name) {
			err = fmt.Errorf("it has %+v", n.Spec.Drivers)
		}
		return err
	})
	c.berthIn(t, strings.ReplaceAll(attachedPod, "IMAGE", daemontest.Busybox), "apply", "-f", "-")
	c.eventually(t, "the volume to be wanted on the node", func(ctx context.Context) error {
		all, err := ours(ctx)
		if err != nil {
			return err
		}
		if len(all) != 1 || all[0].Spec.NodeName != m.name || all[0].Spec.Attacher != d.name || *all[0].Spec.Source.PersistentVolumeName != "far" {
			return fmt.Errorf("attachments are %+v", all)
		}
		all[0].Status.Attached, all[0].Status.AttachmentMetadata = true, map[string]string{"device": "lun-3"}
		_, err = attachments.UpdateStatus(ctx, &all[0], metav1.UpdateOptions{})
		return err
	})
	c.waitRunning(t, "default", "attached")
	c.eventually(t, "its log", func(context.Context) error {
		if r := run(t, c.env, "", "logs", "attached"); r.out != "disk-7 by lun-3\n" {
			return fmt.Errorf("%q, %q", r.out, r.err)
		}
		return nil
	})
	c.eventually(t, "the node to say what is attached", func(ctx context.Context) error {
		n, err := c.Reader().Kube.CoreV1().Nodes().Get(ctx, m.name, metav1.GetOptions{})
		if err == nil && (len(n.Status.VolumesAttached) != 1 || len(n.Status.VolumesInUse) != 1) {
			err = fmt.Errorf("attached is %v, in use %v", n.Status.VolumesAttached, n.Status.VolumesInUse)
		}
		return err
	})
	c.berth(t, "delete", "pod", "attached", "--timeout=100s")
	c.eventually(t, "the volume to be detached", func(ctx context.Context) error {
		all, err := ours(ctx)
		if err == nil && len(all) > 0 {
			err = fmt.Errorf("attachments are %+v", all)
		}
		return err
	})
}
