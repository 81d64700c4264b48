package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

const (
	// rack is a node as a kubelet keeps it, with a driver that has devices. It has room for three pods that use some, fewer than devices.
	rack          = "rack"
	rackDevices   = 4
	rackMilliCPU  = 3000
	equipMilliCPU = 1000
	driver        = "sim.berth.dev"
	deviceClass   = "device"
	// racked is what pods have to tolerate there.
	racked = "berth.dev/rack"
	// groups are as many as there are at a time of pods that claim devices.
	groups = 5
)

// devicesTemplate names the template of claims of so many devices.
func devicesTemplate(devices int) string { return fmt.Sprintf("devices-%d", devices) }

// equip makes pods that claim devices: one or two by a claim of their own, or one of which two pods have the same claim. Of too many
// those that were made first are deleted.
func (u *user) equip(ctx context.Context) {
	go u.playKubelet(context.WithoutCancel(ctx)) // the pods go on when everybody has gone home
	for devices := 1; devices <= 2; devices++ {
		u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			_, err := c.ResourceV1().ResourceClaimTemplates(space).Create(ctx, &resourcev1.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Name: devicesTemplate(devices)},
				Spec: resourcev1.ResourceClaimTemplateSpec{Spec: claimOf(devices)}}, metav1.CreateOptions{})
			return err
		})
	}
	type group struct {
		claim string // that is not one pod's own
		pods  []string
	}
	var there []group
	n := 0
	u.every(ctx, 3*time.Second, func() {
		n++
		name, draw := fmt.Sprintf("equipped-%d", n), u.rand.IntN(4)
		claim, of := corev1.PodResourceClaim{Name: "device"}, group{pods: []string{name}}
		switch draw {
		case 0:
			claim.ResourceClaimName = &name
			of = group{claim: name, pods: []string{name + "-a", name + "-b"}}
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.ResourceV1().ResourceClaims(space).Create(ctx, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: claimOf(1)}, metav1.CreateOptions{})
				return err
			})
		default:
			template := devicesTemplate(1 + draw/3)
			claim.ResourceClaimTemplateName = &template
		}
		for _, name := range of.pods {
			pod := podOf(name, classes[u.rand.IntN(len(classes))].name, equipMilliCPU, 1+u.rand.IntN(30))
			pod.Spec.ResourceClaims = []corev1.PodResourceClaim{claim}
			pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: claim.Name}}
			pod.Spec.Tolerations = []corev1.Toleration{{Key: racked, Operator: corev1.TolerationOpExists}}
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				_, err := c.CoreV1().Pods(space).Create(ctx, pod, metav1.CreateOptions{})
				return err
			})
		}
		if there = append(there, of); len(there) <= groups {
			return
		}
		for _, name := range there[0].pods {
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				return unlessGone(c.CoreV1().Pods(space).Delete(ctx, name, metav1.DeleteOptions{}))
			})
		}
		if name := there[0].claim; name != "" {
			u.insist(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
				return unlessGone(c.ResourceV1().ResourceClaims(space).Delete(ctx, name, metav1.DeleteOptions{}))
			})
		}
		there = there[1:]
	})
}

func claimOf(devices int) resourcev1.ResourceClaimSpec {
	return resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "device",
		Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: deviceClass, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: int64(devices)}}}}}
}

// playKubelet keeps the rack as a kubelet and a driver do: its lease, its word that it is well, its devices, and the pods that are bound to it.
func (u *user) playKubelet(ctx context.Context) {
	ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}
	has := corev1.ResourceList{"cpu": *resource.NewMilliQuantity(rackMilliCPU, resource.DecimalSI), "memory": resource.MustParse("1Gi"), "pods": resource.MustParse("10")}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: rack},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: racked, Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{Capacity: has, Allocatable: has, Conditions: []corev1.NodeCondition{ready},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: 10250}}}}
	name := rack
	slice := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: rack},
		Spec: resourcev1.ResourceSliceSpec{Driver: driver, NodeName: &name, Pool: resourcev1.ResourcePool{Name: rack, Generation: 1, ResourceSliceCount: 1}}}
	for i := range rackDevices {
		slice.Spec.Devices = append(slice.Spec.Devices, resourcev1.Device{Name: fmt.Sprintf("device-%d", i)})
	}
	since := map[types.UID]time.Time{} // when its pods began to run
	round := 0
	every(ctx, time.Duration(min(u.world.config.Pace.slow, 10))*2*time.Second, func() {
		if round++; round%5 == 1 {
			u.renewRack(ctx, node, slice)
		}
		var pods []corev1.Pod
		_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			list, err := c.CoreV1().Pods(space).List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + rack})
			if err == nil {
				pods = list.Items
			}
			return err
		})
		for i := range pods {
			u.playPod(ctx, &pods[i], since)
		}
	})
}

// renewRack says that the rack is well, and what it has, which a restored snapshot may have taken away.
func (u *user) renewRack(ctx context.Context, node *corev1.Node, slice *resourcev1.ResourceSlice) {
	holder, seconds, now := rack, int32(40), metav1.NewMicroTime(time.Now())
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: rack},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now}}
	_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		leases, nodes := c.CoordinationV1().Leases(corev1.NamespaceNodeLease), c.CoreV1().Nodes()
		have, err := leases.Get(ctx, rack, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
		} else if err == nil {
			have.Spec.RenewTime = &now
			_, err = leases.Update(ctx, have, metav1.UpdateOptions{})
		}
		is, why := nodes.Get(ctx, rack, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(why):
			_, why = nodes.Create(ctx, node, metav1.CreateOptions{})
		case why == nil && !isReady(is):
			_, why = nodes.Patch(ctx, rack, types.StrategicMergePatchType, sayReady(), metav1.PatchOptions{}, "status")
		}
		_, unclassed := c.ResourceV1().DeviceClasses().Create(ctx, &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: deviceClass}}, metav1.CreateOptions{})
		_, unsliced := c.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
		return errors.Join(err, why, unclassed, unsliced)
	})
}

// playPod does for a pod of the rack what a kubelet does.
func (u *user) playPod(ctx context.Context, pod *corev1.Pod, since map[types.UID]time.Time) {
	status := pod.Status.DeepCopy()
	switch began, runs := since[pod.UID]; {
	case pod.DeletionTimestamp != nil:
		at, now := metav1.Preconditions{UID: &pod.UID}, int64(0)
		_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
			return c.CoreV1().Pods(space).Delete(ctx, pod.Name, metav1.DeleteOptions{Preconditions: &at, GracePeriodSeconds: &now})
		})
		return
	case ended(pod):
		return
	case !runs:
		since[pod.UID] = time.Now()
		status.Phase = corev1.PodRunning
	case time.Since(began) > runSeconds(pod):
		status.Phase = corev1.PodSucceeded
	case pod.Status.Phase == corev1.PodRunning:
		return
	default:
		status.Phase = corev1.PodRunning
	}
	_ = u.ask(ctx, func(ctx context.Context, c *kubernetes.Clientset) error {
		now := pod.DeepCopy()
		now.Status = *status
		_, err := c.CoreV1().Pods(space).UpdateStatus(ctx, now, metav1.UpdateOptions{})
		return err
	})
}

func runSeconds(pod *corev1.Pod) time.Duration {
	d, err := time.ParseDuration(pod.Annotations[fake.Prefix+"run-seconds"] + "s")
	if err != nil {
		return 0
	}
	return d
}

// claimed is what is known of claims of devices.
type claimed struct {
	claims map[string]*resourcev1.ResourceClaim // by the key of the change
	has    map[string]string                    // which of them has a device
	uses   []*corev1.Pod                        // those that the present entry binds
}

func newClaimed() claimed {
	return claimed{claims: map[string]*resourcev1.ResourceClaim{}, has: map[string]string{}}
}

// devicesOf are those that a claim has; nil where it has none, or is not there.
func devicesOf(claim *resourcev1.ResourceClaim) (names []string) {
	if claim == nil || claim.Status.Allocation == nil {
		return nil
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		names = append(names, r.Pool+"/"+r.Device)
	}
	return names
}

// deviceClaim looks at a claim of devices that has changed; nil: it is gone. A device is one claim's, and none is taken from a pod that uses it.
func (m *mirror) deviceClaim(revision int64, key string, is *resourcev1.ResourceClaim) {
	old := m.devices.claims[key]
	before, now := devicesOf(old), devicesOf(is)
	for _, device := range before {
		delete(m.devices.has, device)
	}
	for _, device := range now {
		if by := m.devices.has[device]; by != "" {
			m.fault(revision, "device %s is given to %s, and %s has it", device, key, by)
		}
		m.devices.has[device] = key
	}
	if delete(m.devices.claims, key); is != nil {
		m.devices.claims[key] = is
	}
	for _, p := range m.pods {
		if old == nil || !resourceclaim.IsReservedForPod(p, old, false) || p.Spec.NodeName == "" || ended(p) {
			continue
		}
		if is == nil || !resourceclaim.IsReservedForPod(p, is, false) || !slices.Equal(before, now) {
			m.fault(revision, "claim %s has devices %v, which pod %s on %s uses, and is changed to %v", key, before, p.Name, p.Spec.NodeName, now)
		}
	}
}

// usesDevices looks at a pod that gets its node: all of its claims have devices there.
func (m *mirror) usesDevices(revision int64, pod *corev1.Pod) {
	for _, c := range model.DeviceClaimsOf(pod) {
		if devicesOf(m.devices.claims[fsm.ObjectKey(fsm.ResourceClaims, pod.Namespace, c.Name)]) == nil || pod.Spec.NodeName != rack {
			m.fault(revision, "pod %s is bound to %s, and its claim %q has no devices there", pod.Name, pod.Spec.NodeName, c.Name)
		}
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		m.devices.uses = append(m.devices.uses, pod)
	}
}

// closeDevices looks at an entry that is over: whom it has bound uses its claims.
func (m *mirror) closeDevices(revision int64) {
	for _, pod := range m.devices.uses {
		for _, c := range model.DeviceClaimsOf(pod) {
			if claim := m.devices.claims[fsm.ObjectKey(fsm.ResourceClaims, pod.Namespace, c.Name)]; claim == nil || !resourceclaim.IsReservedForPod(pod, claim, false) {
				m.fault(revision, "pod %s is bound, and its claim %q does not say that it is used", pod.Name, c.Name)
			}
		}
	}
	m.devices.uses = nil
}

// equipped: who could have devices has them, no claim of which nobody knows keeps any, and what was made for pods that are gone is gone.
func equipped(v *fsm.View) (unsettled []string) {
	node, ok := v.Nodes.Get(rack)
	_, offered := v.ResourceSlice(rack)
	_, classed := v.DeviceClass(deviceClass)
	room := rackMilliCPU
	wanted := map[string]bool{} // claims of pods that have not ended
	pods := map[string]bool{}
	v.Pods.Scan("", func(key string, p *corev1.Pod) bool {
		pods[p.Name] = true
		if ended(p) {
			return true
		}
		for _, c := range model.DeviceClaimsOf(p) {
			wanted[c.Name] = true
		}
		if p.Spec.NodeName == rack {
			room -= equipMilliCPU
		}
		return true
	})
	free, claims := rackDevices, map[string]*resourcev1.ResourceClaim{}
	v.Objects.Scan(fsm.ResourceClaims+"/", func(_ string, o *fsm.Object) bool {
		claim, ok := o.Value.(*resourcev1.ResourceClaim)
		if !ok {
			return true
		}
		claims[claim.Name] = claim
		free -= len(devicesOf(claim))
		owner := metav1.GetControllerOf(claim)
		switch {
		case devicesOf(claim) != nil && !wanted[claim.Name]:
			unsettled = append(unsettled, fmt.Sprintf("claim %s has devices, and no pod needs them", claim.Name))
		case owner != nil && !pods[owner.Name]:
			unsettled = append(unsettled, fmt.Sprintf("claim %s is of pod %s, which is gone", claim.Name, owner.Name))
		}
		return true
	})
	if v.Version() < fsm.SinceDevices || !ok || !isReady(node) || !offered || !classed {
		return unsettled
	}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if len(p.Spec.ResourceClaims) == 0 || p.Spec.NodeName != "" || p.DeletionTimestamp != nil || ended(p) || room < equipMilliCPU {
			return true
		}
		for _, c := range model.DeviceClaimsOf(p) {
			claim := claims[c.Name]
			if claim == nil || claim.DeletionTimestamp != nil {
				return true // whoever would make it has gone home, or it is of another pod
			}
			if devicesOf(claim) != nil || free >= int(claim.Spec.Devices.Requests[0].Exactly.Count) {
				unsettled = append(unsettled, fmt.Sprintf("pod %s waits for devices, %d are free, and there is room", p.Name, free))
			}
		}
		return true
	})
	return unsettled
}
