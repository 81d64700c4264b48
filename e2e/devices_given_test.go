package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/worker/runtime/cri/criotest"
	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// What a device plugin answers is what a container has, and a device that is not well is given to nobody.
func TestDevicesGiven(t *testing.T) { byRuntime(t, devicesGiven) }

// ownPlugin is a device plugin of the test's own.
type ownPlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	lists   chan []*pluginapi.Device
	answers func(ids []string) *pluginapi.ContainerAllocateResponse
}

// GetDevicePluginOptions implements pluginapi.DevicePluginServer.
func (p *ownPlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return new(pluginapi.DevicePluginOptions), nil
}

// ListAndWatch implements pluginapi.DevicePluginServer.
func (p *ownPlugin) ListAndWatch(_ *pluginapi.Empty, to grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case list := <-p.lists:
			if err := to.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		case <-to.Context().Done():
			return nil
		}
	}
}

// Allocate implements pluginapi.DevicePluginServer.
func (p *ownPlugin) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	out := new(pluginapi.AllocateResponse)
	for _, one := range q.ContainerRequests {
		out.ContainerResponses = append(out.ContainerResponses, p.answers(one.DevicesIds))
	}
	return out, nil
}

// tell says which devices there are, and which of them are well: those without a "!".
func (p *ownPlugin) tell(ids ...string) {
	var list []*pluginapi.Device
	for _, id := range ids {
		name, ill := strings.CutSuffix(id, "!")
		d := &pluginapi.Device{ID: name, Health: pluginapi.Healthy}
		if ill {
			d.Health = pluginapi.Unhealthy
		}
		list = append(list, d)
	}
	p.lists <- list
}

// register serves the plugin in the folder of a node, and registers it.
func (p *ownPlugin) register(t *testing.T, folder string) {
	t.Helper()
	const endpoint = "own.sock"
	l, err := net.Listen("unix", filepath.Join(folder, endpoint))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(s, p)
	go func() { _ = s.Serve(l) }() // until it is stopped
	t.Cleanup(s.Stop)
	conn, err := grpc.NewClient("unix:"+filepath.Join(folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }() // nothing is under way
	if _, err := pluginapi.NewRegistrationClient(conn).Register(t.Context(), &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: string(sampleDevices)}, grpc.WaitForReady(true)); err != nil {
		t.Fatal(err)
	}
}

// With this variable's name a container's own value wins over the plugin's.
const saidTwice = "SAID_TWICE"

func devicesGiven(t *testing.T, d realDaemon) {
	folder, err := os.MkdirTemp("", "dp") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	c := oneWorker(t, d, fmt.Sprintf("device_plugins = %q", folder))
	library := filepath.Join(c.Dir, "library")
	if err := errors.Join(os.Mkdir(library, 0o755), os.WriteFile(filepath.Join(library, "lib"), []byte("of the plugin\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	specified := specifiedDevice(t, d, library)
	p := &ownPlugin{lists: make(chan []*pluginapi.Device, 1)}
	p.answers = func(ids []string) *pluginapi.ContainerAllocateResponse {
		a := &pluginapi.ContainerAllocateResponse{
			Envs:        map[string]string{"DEVICES": strings.Join(ids, ","), saidTwice: "by the plugin"},
			Mounts:      []*pluginapi.Mount{{HostPath: library, ContainerPath: "/given/library", ReadOnly: true}},
			Devices:     []*pluginapi.DeviceSpec{{HostPath: "/dev/zero", ContainerPath: "/dev/given", Permissions: "rw"}},
			Annotations: map[string]string{"example.com/given": strings.Join(ids, ",")},
		}
		if d != nil {
			a.Devices = append(a.Devices, &pluginapi.DeviceSpec{HostPath: readableDevice(t, c.Dir), ContainerPath: "/dev/readable", Permissions: "r"})
		}
		if specified != "" {
			a.CdiDevices = []*pluginapi.CDIDevice{{Name: specified}}
		}
		return a
	}
	p.register(t, folder)
	p.tell("a", "b!", "c!")
	c.waitDevices(t, "worker-1", 3, 1)

	create(t, c.Reader().Kube, given("sees", `echo "$DEVICES, $SAID_TWICE"; cat /given/library/lib; touch /given/library/more 2>/dev/null || echo kept; `+
		`test -c /dev/given && head -c 5 /dev/given | od -An -tx1; echo x > /dev/given && echo written`))
	c.waitFor(t, "sees", "to have seen it", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if got, want := c.berth(t, "logs", "sees"), "a, by the container\nof the plugin\nkept\n 00 00 00 00 00\nwritten\n"; got != want {
		t.Errorf("it saw %q, and should %q", got, want)
	}
	if specified != "" {
		create(t, c.Reader().Kube, given("specified", `echo "$SPECIFIED"; cat /specified/library/lib; touch /specified/library/more 2>/dev/null || echo kept; `+
			`test -c /dev/specified && head -c 3 /dev/specified | od -An -tx1`))
		c.waitFor(t, "specified", "to have seen it", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
		if got, want := c.berth(t, "logs", "specified"), "by its specification\nof the plugin\nkept\n 00 00 00\n"; got != want {
			t.Errorf("it saw %q, and should %q", got, want)
		}
	}
	if d != nil {
		deviceByPermission(t, c)
		annotated(t, c, d)
	}
	deviceGoes(t, c, p)
}

// specifiedDevice writes a specification of a device where CRI-O finds it, by the container device interface, and returns the device's name; empty: it is another runtime, which knows
// none. The device comes with a variable, a folder and a device node.
func specifiedDevice(t *testing.T, d realDaemon, folder string) string {
	t.Helper()
	if d == nil || *crioPrograms == "" {
		return ""
	}
	const kind, device = "example.com/specified", "one"
	spec := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": %q, "devices": [{"name": %q, "containerEdits": {
  "env": ["SPECIFIED=by its specification"],
  "mounts": [{"hostPath": %q, "containerPath": "/specified/library", "options": ["ro", "bind"]}],
  "deviceNodes": [{"path": "/dev/specified", "hostPath": "/dev/zero", "type": "c", "major": 1, "minor": 5, "permissions": "rw"}]}}]}`, kind, device, folder)
	path := filepath.Join(d.(*criotest.Daemon).CDI(), "specified.json")
	if err := os.WriteFile(path, []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
	return kind + "=" + device
}

// given is a pod with one of the plugin's devices that runs a script.
func given(name, script string, more ...func(*corev1.Pod)) *corev1.Pod {
	return imaged(name, script, append(more, policy(corev1.RestartPolicyNever), func(p *corev1.Pod) {
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: saidTwice, Value: "by the container"}}
		p.Spec.Containers[0].Resources.Limits = corev1.ResourceList{sampleDevices: resource.MustParse("1")}
	})...)
}

// readableDevice is a device that no container has by itself: the one of file systems of users.
func readableDevice(t *testing.T, dir string) string {
	path := filepath.Join(dir, "readable")
	if err := unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(10, 229))); err != nil && !errors.Is(err, unix.EEXIST) {
		t.Error(err)
	}
	return path
}

// deviceByPermission: a device that may be read may not be written, and one that was not given may not even be made.
func deviceByPermission(t *testing.T, c *cluster) {
	create(t, c.Reader().Kube, given("reads", `for how in "<" ">"; do sh -c ": $how /dev/readable" 2>&1 | grep -q "not permitted" && echo refused || echo done; done`),
		imaged("has-none", `ls /dev/readable 2>/dev/null || echo none; env | grep DEVICES`, policy(corev1.RestartPolicyNever)))
	for name, want := range map[string]string{"reads": "done\nrefused\n", "has-none": "none\n"} {
		c.waitFor(t, name, "to have ended", func(p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		})
		if got := c.berth(t, "logs", name); got != want {
			t.Errorf("%s saw %q, and should %q", name, got, want)
		}
	}
}

// annotated: the runtime is told what the plugin notes of a container.
func annotated(t *testing.T, c *cluster, d realDaemon) {
	p, err := c.get(t.Context(), "sees")
	if err != nil {
		t.Fatal(err)
	}
	if all := runsOf(t, runtimeService(t, d), p); len(all) != 1 || all[0].Annotations["example.com/given"] != "a" {
		t.Errorf("the runtime has %+v", all)
	}
}

// deviceGoes: the one device of a pod that has its node is not well when its container is to start. It waits, says for what, and runs when the device is
// well again.
func deviceGoes(t *testing.T, c *cluster, p *ownPlugin) {
	dir, gated := c.gate(t)
	create(t, c.Reader().Kube, given("waits", "echo $DEVICES", gated, func(p *corev1.Pod) {
		init := *p.Spec.Containers[0].DeepCopy()
		init.Name, init.Image, init.Resources = "init", daemontest.Busybox, corev1.ResourceRequirements{}
		init.Command = []string{"/bin/sh", "-c", "touch /gate/begun; until test -e /gate/open; do sleep 0.1; done"}
		p.Spec.InitContainers = []corev1.Container{init}
	}))
	c.eventually(t, "the pod to have begun", func(context.Context) error {
		_, err := os.Stat(filepath.Join(dir, "begun"))
		return err
	})
	p.tell("a!", "b!", "c!")
	c.waitDevices(t, "worker-1", 3, 0)
	if err := os.WriteFile(filepath.Join(dir, "open"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.hasEvent(t, "waits", "FailedDevices", "devices example.com/resource: 1 are asked for, and 0 are healthy and free")
	c.waitFor(t, "waits", "to wait", func(p *corev1.Pod) bool { return waiting(p) == "CreateContainerConfigError" })
	p.tell("a!", "b")
	c.waitDevices(t, "worker-1", 2, 1)
	c.waitFor(t, "waits", "to have run", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	if got := c.berth(t, "logs", "waits", "-c", "main"); got != "b\n" {
		t.Errorf("it had %q", got)
	}
}
