package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	appliedmetav1 "k8s.io/client-go/applyconfigurations/meta/v1"
	appliedresourcev1 "k8s.io/client-go/applyconfigurations/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"github.com/berth-dev/berth/worker/runtime/cri/daemontest"
)

// deviceDriver is a driver of devices beside a kubelet, made as others are: with Kubernetes' library. That a claim is prepared can be
// seen from a pod: there is a file of the claim's name, with its devices.
type deviceDriver struct {
	name, dir string
	kube      kubernetes.Interface

	mu       sync.Mutex
	has      map[string]types.UID // by device: whose it is that is prepared
	prepared map[types.UID]int    // how often
	errs     []error
}

// PrepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) PrepareResourceClaims(ctx context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		devices, err := d.prepare(ctx, c)
		out[c.UID] = kubeletplugin.PrepareResult{Err: err, Devices: devices}
	}
	return out, nil
}

func (d *deviceDriver) prepare(ctx context.Context, claim *resourcev1.ResourceClaim) (out []kubeletplugin.Device, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	var names []string
	status := appliedresourcev1.ResourceClaimStatus()
	for _, r := range claim.Status.Allocation.Devices.Results {
		if by, ok := d.has[r.Device]; ok && by != claim.UID {
			err := fmt.Errorf("device %s of claim %s is another's, %s", r.Device, claim.Name, by)
			d.errs = append(d.errs, err)
			return nil, err
		}
		d.has[r.Device] = claim.UID
		names = append(names, r.Device)
		out = append(out, kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device})
		status.WithDevices(appliedresourcev1.AllocatedDeviceStatus().WithDriver(r.Driver).WithPool(r.Pool).WithDevice(r.Device).WithConditions(
			appliedmetav1.Condition().WithType("Ready").WithStatus(metav1.ConditionTrue).WithReason("Prepared").WithMessage("").WithLastTransitionTime(metav1.Now())))
	}
	_, err = d.kube.ResourceV1().ResourceClaims(claim.Namespace).ApplyStatus(ctx, appliedresourcev1.ResourceClaim(claim.Name, claim.Namespace).WithStatus(status),
		metav1.ApplyOptions{FieldManager: d.name, Force: true})
	if err == nil {
		err = os.WriteFile(filepath.Join(d.dir, claim.Name), []byte(strings.Join(names, " ")+"\n"), 0o644)
	}
	if err != nil {
		d.errs = append(d.errs, err)
		return nil, err
	}
	d.prepared[claim.UID]++
	return out, nil
}

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	for _, c := range claims {
		maps.DeleteFunc(d.has, func(_ string, by types.UID) bool { return by == c.UID })
		out[c.UID] = os.RemoveAll(filepath.Join(d.dir, c.Name))
	}
	return out, nil
}

// HandleError implements kubeletplugin.DRAPlugin.
func (d *deviceDriver) HandleError(_ context.Context, err error, msg string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.errs = append(d.errs, fmt.Errorf("%s: %w", msg, err))
}

// holds are the devices that are prepared, for which claims.
func (d *deviceDriver) holds() map[string]types.UID {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.has)
}

func (d *deviceDriver) timesPrepared(claim types.UID) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepared[claim]
}

func (d *deviceDriver) problems() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return errors.Join(d.errs...)
}

// start serves the driver beside a kubelet, and offers its devices: three, of two kinds.
func (d *deviceDriver) start(t *testing.T, m *machine) (stop func()) {
	t.Helper()
	sockets := filepath.Join(m.dir, "devices")
	for _, dir := range []string{d.dir, sockets} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	h, err := kubeletplugin.Start(context.Background(), d, kubeletplugin.DriverName(d.name), kubeletplugin.NodeName(m.name), kubeletplugin.KubeClient(d.kube),
		kubeletplugin.PluginDataDirectoryPath(sockets), kubeletplugin.RegistrarDirectoryPath(filepath.Join(m.dir, "kubelet", "plugins_registry")),
		kubeletplugin.RegistrarSocketFilename("devices.sock")) // by the driver's name the path would be longer than one of a socket may be
	if err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(h.Stop)
	t.Cleanup(stop)
	device := func(name, kind string) resourcev1.Device {
		return resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"kind": {StringValue: &kind}}}
	}
	offered := resourceslice.Slice{Devices: []resourcev1.Device{device("fan-0", "fan"), device("lamp-0", "lamp"), device("lamp-1", "lamp")}}
	if err := h.PublishResources(t.Context(), resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{m.name: {Slices: []resourceslice.Slice{offered}}}}); err != nil {
		t.Fatal(err)
	}
	return stop
}

// asPod is the way of a pod's service account to the API.
func (c *cluster) asPod(t *testing.T, p *corev1.Pod) kubernetes.Interface {
	t.Helper()
	token, err := c.Reader().Kube.CoreV1().ServiceAccounts(p.Namespace).CreateToken(t.Context(), p.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Reader().RESTConfig())
	config.BearerToken = token.Status.Token
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

// driversChart is what a driver is installed with, its class and what is claimed of it. The pod stands for the driver's own, by whose
// account it comes.
const driversChart = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: lights}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lights}
rules:
- {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims/status], verbs: [patch]}
- {apiGroups: [resource.k8s.io], resources: [resourceclaims/driver], resourceNames: [lights.example.com], verbs: ["associated-node:patch"]}
- {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [get, list, watch, create, update, patch, delete]}
- {apiGroups: [""], resources: [nodes], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: lights}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: lights}
subjects: [{kind: ServiceAccount, name: lights, namespace: default}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: lights}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [resource.k8s.io], apiVersions: [v1], operations: [CREATE, UPDATE, DELETE], resources: [resourceslices]}
  matchConditions:
  - {name: is-driver, expression: 'request.userInfo.username == "system:serviceaccount:default:lights"'}
  variables:
  - {name: from, expression: "request.userInfo.extra[?'authentication.kubernetes.io/node-name'][0].orValue('')"}
  - {name: of, expression: "(request.operation == 'DELETE' ? oldObject : object).spec.?nodeName.orValue('')"}
  validations:
  - {expression: "variables.from != '' && variables.from == variables.of", message: a driver writes for its own node}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: lights}
spec: {policyName: lights, validationActions: [Deny]}
---
apiVersion: v1
kind: Pod
metadata: {name: lights}
spec:
  serviceAccountName: lights
  nodeSelector: {kubernetes.io/hostname: kubelet-1}
  terminationGracePeriodSeconds: 1
  containers: [{name: c, image: IMAGE, command: [sleep, "1000"]}]
---
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: lights}
spec: {selectors: [{cel: {expression: 'device.driver == "lights.example.com"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: lamp}
spec:
  spec:
    devices:
      requests:
      - name: it
        exactly: {deviceClassName: lights, selectors: [{cel: {expression: 'device.attributes["lights.example.com"].kind == "lamp"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: fan}
spec:
  devices:
    requests:
    - name: it
      exactly: {deviceClassName: lights, selectors: [{cel: {expression: 'device.attributes["lights.example.com"].kind == "fan"'}}]}
`

// litJob is more pods than there are devices for, one after the other.
const litJob = `
apiVersion: batch/v1
kind: Job
metadata: {name: lit}
spec:
  completions: 6
  parallelism: 3
  template:
    spec:
      restartPolicy: Never
      resourceClaims: [{name: it, resourceClaimTemplateName: lamp}]
      containers: [{name: c, image: IMAGE, command: ["true"], resources: {claims: [{name: it}]}}]
`

// kubeletGivesDevices: pods get what their claims ask for, wherever it is, before they start; as many as there are devices, or by one
// claim together. What a pod had is another's when it is gone.
func kubeletGivesDevices(t *testing.T, c *cluster, m *machine) {
	kube := c.Reader().Kube
	c.berthIn(t, strings.ReplaceAll(driversChart, "IMAGE", daemontest.Busybox), "apply", "-f", "-")
	d := &deviceDriver{name: "lights.example.com", dir: filepath.Join(m.dir, "prepared"), has: map[string]types.UID{}, prepared: map[types.UID]int{}}
	d.kube = c.asPod(t, c.waitRunning(t, "default", "lights")[0])
	c.eventually(t, "the driver to be kept to its node", func(ctx context.Context) error {
		_, err := d.kube.ResourceV1().ResourceSlices().Create(ctx, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: d.name, NodeName: new("worker-1"), Pool: resourcev1.ResourcePool{Name: "far", ResourceSliceCount: 1},
		}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "a driver writes for its own node") {
			return fmt.Errorf("a slice of another: %v", err)
		}
		return nil
	})
	stop := d.start(t, m)
	defer func() { // before its pod is gone
		stop()
		c.berth(t, "delete", "pod", "lights", "--timeout=100s")
		if err := d.problems(); err != nil {
			t.Errorf("the driver: %v", err)
		}
	}()
	claims := func(ctx context.Context) ([]resourcev1.ResourceClaim, error) {
		list, err := kube.ResourceV1().ResourceClaims("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		return list.Items, nil
	}

	lit := []string{"lit-1", "lit-2", "lit-3"}
	for _, name := range lit {
		create(t, kube, claiming(m, name, name+"-it-*", corev1.PodResourceClaim{ResourceClaimTemplateName: new("lamp")}))
	}
	var waits string
	runs := map[string]string{} // by pod: its device
	c.eventually(t, "two to run, and the third to wait for devices", func(ctx context.Context) error {
		clear(runs)
		var others []string
		for _, name := range lit {
			p, err := c.get(ctx, name)
			if err != nil {
				return err
			}
			scheduled := condition(p, corev1.PodScheduled)
			switch {
			case podReady(p):
				runs[name] = ""
			case p.Spec.NodeName == "" && scheduled != nil && strings.Contains(scheduled.Message, "waiting for devices"):
				waits = name
			default:
				others = append(others, fmt.Sprintf("%s: %s, %v", name, p.Status.Phase, scheduled))
			}
		}
		if len(runs) != 2 || len(others) > 0 {
			return fmt.Errorf("%v run, %v neither run nor wait", slices.Collect(maps.Keys(runs)), others)
		}
		return nil
	})
	c.hasEvent(t, waits, "FailedScheduling", "1 cannot allocate all claims")
	for name := range runs {
		runs[name] = c.sawPrepared(t, name)
	}
	if seen := slices.Sorted(maps.Values(runs)); !slices.Equal(seen, []string{"lamp-0", "lamp-1"}) {
		t.Errorf("their devices are %v", runs)
	}
	all, err := claims(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i := range all {
		if given := all[i].Status; given.Allocation != nil && (len(given.Devices) != 1 || given.Devices[0].Conditions[0].Type != "Ready") {
			t.Errorf("the driver's word of %s is %+v", all[i].Name, given.Devices)
		}
	}

	var first string
	for name := range runs {
		first = name
	}
	c.berth(t, "delete", "pod", first, "--timeout=100s")
	c.waitRunning(t, "default", waits)
	if got := c.sawPrepared(t, waits); got != runs[first] {
		t.Errorf("%s has %s, and %s had %s", waits, got, first, runs[first])
	}

	for _, name := range []string{"cooled-1", "cooled-2"} { // one after the other: for two at a time a kubelet may prepare a claim twice
		create(t, kube, claiming(m, name, "fan", corev1.PodResourceClaim{ResourceClaimName: new("fan")}))
		c.waitRunning(t, "default", name)
	}
	fan, err := kube.ResourceV1().ResourceClaims("default").Get(t.Context(), "fan", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var users []string
	for _, r := range fan.Status.ReservedFor {
		users = append(users, r.Name)
	}
	if slices.Sort(users); !slices.Equal(users, []string{"cooled-1", "cooled-2"}) {
		t.Errorf("the claim is for %v", users)
	}
	if n, a, b := d.timesPrepared(fan.UID), c.sawPrepared(t, "cooled-1"), c.sawPrepared(t, "cooled-2"); n != 1 || a != "fan-0" || b != "fan-0" {
		t.Errorf("it was prepared %d times, they saw %s and %s", n, a, b)
	}
	c.berth(t, "delete", "pod", "cooled-1", "--timeout=100s")
	if d.holds()["fan-0"] != fan.UID {
		t.Error("it is taken from the pod that is left")
	}

	c.berth(t, "delete", "pods", "cooled-2", "lit-1", "lit-2", "lit-3", "--ignore-not-found", "--timeout=100s")
	c.berthIn(t, strings.ReplaceAll(litJob, "IMAGE", daemontest.Busybox), "apply", "-f", "-")
	c.eventually(t, "the Job to be done", func(ctx context.Context) error {
		j, err := kube.BatchV1().Jobs("default").Get(ctx, "lit", metav1.GetOptions{})
		if err == nil && (j.Status.Succeeded != 6 || j.Status.Failed > 0) {
			err = fmt.Errorf("%d have succeeded, %d failed", j.Status.Succeeded, j.Status.Failed)
		}
		return err
	})
	c.eventually(t, "everything to be given back, by pods too that have ended and are still there", func(ctx context.Context) error {
		left, err := claims(ctx)
		if err != nil {
			return err
		}
		if held := d.holds(); len(held) > 0 || len(left) != 1 || left[0].Status.Allocation != nil || len(left[0].Status.ReservedFor) > 0 {
			return fmt.Errorf("prepared are %v, claims %+v", held, left)
		}
		return nil
	})
	c.berth(t, "delete", "job/lit", "resourceclaim/fan", "--timeout=100s")
}

// claiming is a pod with a claim of devices that writes what of it is prepared when it starts. file is the claim's.
func claiming(m *machine, name, file string, of corev1.PodResourceClaim) *corev1.Pod {
	of.Name = "it"
	return imaged(name, "cat /prepared/"+file+"; exec sleep 1000", func(p *corev1.Pod) {
		p.Spec.TerminationGracePeriodSeconds = new(int64(1))
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{of}
		p.Spec.Volumes = []corev1.Volume{{Name: "prepared", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(m.dir, "prepared")}}}}
		c := &p.Spec.Containers[0]
		c.Resources.Claims = []corev1.ResourceClaim{{Name: of.Name}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "prepared", MountPath: "/prepared"}}
	})
}

// sawPrepared is the device that a pod found prepared when it started.
func (c *cluster) sawPrepared(t *testing.T, pod string) (device string) {
	t.Helper()
	c.eventually(t, "the log of "+pod, func(context.Context) error {
		r := run(t, c.env, "", "logs", pod)
		if device = strings.TrimSpace(r.out); r.code != 0 || device == "" {
			return fmt.Errorf("%q, %q", r.out, r.err)
		}
		return nil
	})
	return device
}

// kubeletWipes: what a driver that is gone has offered is taken back by the kubelet, with its own rights.
func kubeletWipes(t *testing.T, c *cluster) {
	c.eventually(t, "the devices to be gone", func(ctx context.Context) error {
		list, err := c.Reader().Kube.ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("there are %d slices", len(list.Items))
		}
		return err
	})
}
