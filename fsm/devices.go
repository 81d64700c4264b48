package fsm

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/berth-dev/berth/codec"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// A pod's claims of devices keep it from having a node until all of them have been given
// some, and then to the nodes from which these can be used. Who gives them is for the
// leader's controllers (package workloads/devices), which look for a node on which the pod
// has room otherwise; what they decide is in the claims' statuses. Apply goes by these
// alone: it lets no two claims have a device that is one claim's, and notes in the entry
// that binds a pod that it uses its claims, so that none is taken from it.

// SinceDevices is the version of the rules that brought them. By those before, a pod that
// claims devices waits for ever.
const SinceDevices = 30

// MaxDeviceClaims is how many claims of devices a pod may have: each is looked at for every
// decision about it, and changes when it is bound.
const MaxDeviceClaims = 64

// deviceOrders are other orders of what claims of devices, and pods, say.
type deviceOrders struct {
	// waiting are the pods without a node that claim devices, by key.
	waiting store.Tree[*corev1.Pod]
	// named are the pods that claim devices, by useKey of each claim, or template of one, and their own;
	// owned are the claims that are pods' own, by the pod's UID and their key.
	named store.Tree[*corev1.Pod]
	owned store.Tree[*resourcev1.ResourceClaim]
	// taken says which claim has a device, or a share of it, by takenKey and the claim's own.
	taken store.Tree[string]
}

func (x *deviceOrders) fork() deviceOrders {
	return deviceOrders{waiting: x.waiting.Fork(), named: x.named.Fork(), owned: x.owned.Fork(), taken: x.taken.Fork()}
}

// indexDevicePod keeps which pods claim devices, and which of them have no node.
func indexDevicePod(v *live, key string, old, now *corev1.Pod) {
	waits := func(pod *corev1.Pod) bool {
		return pod != nil && len(pod.Spec.ResourceClaims) > 0 && pod.Spec.NodeName == "" && !model.Terminal(pod)
	}
	switch {
	case waits(now):
		v.devices.waiting.Set(key, now)
	case waits(old):
		v.devices.waiting.Delete(key)
	}
	eachUse(old, func(use string) { v.devices.named.Delete(use + key) })
	eachUse(now, func(use string) { v.devices.named.Set(use+key, now) })
}

// eachUse calls f for the claims, and templates of claims, that a pod names.
func eachUse(pod *corev1.Pod, f func(use string)) {
	if pod == nil || len(pod.Spec.ResourceClaims) == 0 || len(pod.Spec.ResourceClaims) > MaxDeviceClaims {
		return
	}
	for _, c := range model.DeviceClaimsOf(pod) {
		if c.Name != "" {
			f(useKey(ResourceClaims, PodKey(pod.Namespace, c.Name)))
		}
	}
	for i := range pod.Spec.ResourceClaims {
		if template := pod.Spec.ResourceClaims[i].ResourceClaimTemplateName; template != nil {
			f(useKey(ResourceClaimTemplates, PodKey(pod.Namespace, *template)))
		}
	}
}

func useKey(resource, key string) string { return resource + "/" + key + "\x00" }

// PodsWithDevices calls f for every pod that names a claim of devices, or a template of one (resource says which), by its key.
func (v *View) PodsWithDevices(resource, key string, f func(pod *corev1.Pod) bool) {
	v.devices.named.Scan(useKey(resource, key), func(_ string, pod *corev1.Pod) bool { return f(pod) })
}

// ClaimsOfPod calls f for the claims of devices whose controller a pod is, by its UID.
func (v *View) ClaimsOfPod(uid string, f func(claim *resourcev1.ResourceClaim) bool) {
	v.devices.owned.Scan(deviceKey(uid), func(_ string, claim *resourcev1.ResourceClaim) bool { return f(claim) })
}

// PodsAwaitingDevices calls f for every pod without a node that claims devices, by key,
// whether its claims have been given some or not.
func (v *View) PodsAwaitingDevices(f func(key string, pod *corev1.Pod) bool) {
	v.devices.waiting.Scan("", f)
}

// indexDevices keeps which claim has which device, and which are pods' own.
func indexDevices(v *live, old, now *Object) {
	each := func(o *Object, f func(key, claim string)) {
		if claim := deviceClaimOf(o); claim != nil {
			own := PodKey(claim.Namespace, claim.Name)
			eachDevice(claim, func(device, share string) { f(takenKey(device, share)+own, own) })
		}
	}
	each(old, func(key, _ string) { v.devices.taken.Delete(key) })
	each(now, func(key, claim string) { v.devices.taken.Set(key, claim) })
	if claim, of := ownedClaim(old); of != "" {
		v.devices.owned.Delete(of + PodKey(claim.Namespace, claim.Name))
	}
	if claim, of := ownedClaim(now); of != "" {
		v.devices.owned.Set(of+PodKey(claim.Namespace, claim.Name), claim)
	}
}

// ownedClaim is a claim of devices that is a pod's own, and where it stands among owned.
func ownedClaim(o *Object) (claim *resourcev1.ResourceClaim, of string) {
	if claim = deviceClaimOf(o); claim == nil {
		return nil, ""
	}
	if by := metav1.GetControllerOfNoCopy(claim); by != nil && by.Kind == "Pod" && by.APIVersion == "v1" {
		return claim, deviceKey(string(by.UID))
	}
	return nil, ""
}

// takenKey is where those stand who have a device, or the same share of it.
func takenKey(device, share string) string {
	if share == "" {
		return device + "whole "
	}
	return device + "share " + deviceKey(share)
}

// eachDevice calls f for the devices that a claim has, and for its share of those that it has not for itself. Those that it looks at as an
// administrator it has not.
func eachDevice(claim *resourcev1.ResourceClaim, f func(device, share string)) {
	if claim.Status.Allocation == nil {
		return
	}
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if r.AdminAccess != nil && *r.AdminAccess {
			continue
		}
		share := ""
		if r.ShareID != nil {
			share = string(*r.ShareID)
		}
		f(deviceKey(r.Driver, r.Pool, r.Device), share)
	}
}

// deviceKey begins keys. It tells apart whatever somebody has written.
func deviceKey(names ...string) string {
	var b strings.Builder
	for _, n := range names {
		b.WriteString(strconv.Itoa(len(n)) + " " + n)
	}
	b.WriteByte(0)
	return b.String()
}

// checkDevices refuses a claim that is given devices that another one has, or a share of one that another has for itself: whoever gives
// them went by an older state. That shares do not come to more than there is, and counters that devices have in common, is for whoever
// gives them to see.
func (v *View) checkDevices(value, before codec.Object) (Result, bool) {
	claim, ok := value.(*resourcev1.ResourceClaim)
	if !ok || v.Version() < SinceDevices || claim.Status.Allocation == nil {
		return Result{}, true
	}
	has := map[string]bool{}
	if old, ok := before.(*resourcev1.ResourceClaim); ok {
		eachDevice(old, func(device, share string) { has[device+share] = true })
	}
	own, other := PodKey(claim.Namespace, claim.Name), ""
	eachDevice(claim, func(device, share string) {
		if has[device+share] || other != "" {
			return
		}
		beside := []string{device}
		if share != "" {
			beside = []string{takenKey(device, ""), takenKey(device, share)}
		}
		for _, at := range beside {
			v.devices.taken.Scan(at, func(_, claim string) bool {
				if claim != own {
					other = claim
				}
				return other == ""
			})
		}
	})
	if other == "" {
		return Result{}, true
	}
	if namespace, _, _ := strings.Cut(other, "/"); namespace == claim.Namespace {
		other = "the claim " + other
	} else {
		other = "the claim of another namespace"
	}
	return refuseConflict(schema.GroupResource{Group: resourcev1.GroupName, Resource: ResourceClaims}, claim.Name, "a device that it is to have has been given to "+other+" already"), false
}

// ResourceClaim finds one by its name. It must not be changed.
func (v *View) ResourceClaim(namespace, name string) (*resourcev1.ResourceClaim, bool) {
	return objectIn[resourcev1.ResourceClaim](v, ResourceClaims, namespace, name)
}

// deviceClaims are those of a pod, by the rules from SinceDevices on; none where there are too many to look at.
func (v *View) deviceClaims(pod *corev1.Pod) []model.DeviceClaim {
	if n := len(pod.Spec.ResourceClaims); n == 0 || n > MaxDeviceClaims || v.Version() < SinceDevices {
		return nil
	}
	return model.DeviceClaimsOf(pod)
}

// devicesText is another whenever what the pod's claims of devices ask may be; "" for most pods.
func (v *View) devicesText(pod *corev1.Pod) string {
	if len(pod.Spec.ResourceClaims) == 0 || v.Version() < SinceDevices {
		return v.devicesClaimed(pod)
	}
	var b strings.Builder
	b.WriteString("since " + strconv.Itoa(SinceDevices))
	if len(pod.Spec.ResourceClaims) > MaxDeviceClaims {
		return b.String() + " " + strconv.Itoa(len(pod.Spec.ResourceClaims))
	}
	for _, c := range model.DeviceClaimsOf(pod) {
		b.WriteString("\x00" + strconv.Quote(c.Of) + strconv.Quote(c.Name))
		if claim, ok := v.ResourceClaim(pod.Namespace, c.Name); ok && c.Name != "" {
			b.WriteString(string(claim.UID) + "@" + claim.ResourceVersion)
		}
	}
	return b.String()
}

// askForDevices tells what the pod's claims of devices ask of nodes.
func (v *View) askForDevices(b *model.VolumesBuilder, pod *corev1.Pod) {
	if n := len(pod.Spec.ResourceClaims); n > MaxDeviceClaims {
		b.Refuse(fmt.Sprintf("the pod has %d claims of devices, and may have %d", n, MaxDeviceClaims))
		return
	}
	for _, c := range v.deviceClaims(pod) {
		if why := v.awaits(pod, c); why != "" {
			b.AwaitDevices(why)
			continue
		}
		claim, _ := v.ResourceClaim(pod.Namespace, c.Name)
		if b.Allocated(claim.Status.Allocation); b.Asks() > maxClaimsAsks { // too many (tooMany)
			return
		}
	}
}

// awaits says what has to become of a claim before the pod can have a node; "" for nothing.
func (v *View) awaits(pod *corev1.Pod, c model.DeviceClaim) string {
	claim, why := v.ClaimOfDevices(pod, c)
	switch {
	case why != "":
		return why
	case claim.Status.Allocation == nil:
		return fmt.Sprintf("waiting for devices for resourceclaim %q", c.Name)
	case !resourceclaim.IsReservedForPod(pod, claim, false) && len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize:
		return fmt.Sprintf("resourceclaim %q is in use by as many pods as may use one", c.Name)
	}
	if device := UnreadyDevice(claim); device != "" {
		return fmt.Sprintf("waiting for device %s of resourceclaim %q to be ready", device, c.Name)
	}
	return ""
}

// ClaimOfDevices is the ResourceClaim of a pod's claim, or says why the pod cannot use it.
func (v *View) ClaimOfDevices(pod *corev1.Pod, c model.DeviceClaim) (claim *resourcev1.ResourceClaim, why string) {
	if c.Name == "" {
		return nil, fmt.Sprintf("waiting for the resourceclaim of %q to be created", c.Of)
	}
	claim, ok := v.ResourceClaim(pod.Namespace, c.Name)
	switch {
	case !ok:
		return nil, fmt.Sprintf("resourceclaim %q not found", c.Name)
	case claim.DeletionTimestamp != nil:
		return nil, fmt.Sprintf("resourceclaim %q is being deleted", c.Name)
	case c.Own && !metav1.IsControlledBy(claim, pod):
		return nil, fmt.Sprintf("resourceclaim %q was not created for the pod", c.Name)
	}
	return claim, ""
}

// UnreadyDevice names a device of an allocated claim that a pod cannot be bound for yet, by its conditions; "" for none.
func UnreadyDevice(claim *resourcev1.ResourceClaim) string {
	for i := range claim.Status.Allocation.Devices.Results {
		r := &claim.Status.Allocation.Devices.Results[i]
		if len(r.BindingConditions) == 0 {
			continue
		}
		told := toldOf(claim, r)
		if anyHolds(told, r.BindingFailureConditions) ||
			slices.ContainsFunc(r.BindingConditions, func(condition string) bool { return !meta.IsStatusConditionTrue(told, condition) }) {
			return r.Driver + "/" + r.Pool + "/" + r.Device
		}
	}
	return ""
}

// FailedDevice says whether a device of an allocated claim will not get ready, by its conditions.
func FailedDevice(claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(r.BindingConditions) > 0 && anyHolds(toldOf(claim, &r), r.BindingFailureConditions)
	})
}

// toldOf are the conditions that its driver tells of a device.
func toldOf(claim *resourcev1.ResourceClaim, r *resourcev1.DeviceRequestAllocationResult) []metav1.Condition {
	for i := range claim.Status.Devices {
		if d := &claim.Status.Devices[i]; d.Driver == r.Driver && d.Pool == r.Pool && d.Device == r.Device {
			return d.Conditions
		}
	}
	return nil
}

func anyHolds(told []metav1.Condition, conditions []string) bool {
	return slices.ContainsFunc(conditions, func(condition string) bool { return meta.IsStatusConditionTrue(told, condition) })
}

// useDevices notes that a pod, which is about to be bound, uses its claims of devices.
func (tx *Tx) useDevices(pod *corev1.Pod, claims []model.DeviceClaim) {
	v := tx.view
	v.billUnits(len(claims) * 2 * costChange)
	for _, c := range claims {
		old, ok := v.ResourceClaim(pod.Namespace, c.Name)
		if !ok || resourceclaim.IsReservedForPod(pod, old, false) {
			continue
		}
		claim := *old
		claim.Status.ReservedFor = append(slices.Clone(old.Status.ReservedFor), resourcev1.ResourceClaimConsumerReference{
			Resource: "pods", Name: pod.Name, UID: pod.UID,
		})
		tx.storeObject(ObjectKey(ResourceClaims, claim.Namespace, claim.Name), &Object{Resource: ResourceClaims, Value: &claim})
	}
}

// devices notes a change of a claim of devices, and says whether it was one: those who wait for it look at it again when they may find
// something else.
func (w *wakes) devices(old, now *Object) bool {
	was, is := deviceClaimOf(old), deviceClaimOf(now)
	claim := cmp.Or(is, was)
	if claim == nil || w.tx.view.Version() < SinceDevices {
		return false
	}
	if was == nil || is == nil || !sameOffer(was, is) {
		w.Claims = append(w.Claims, PodKey(claim.Namespace, awaitedDevices(claim.Name)))
	}
	return true
}

// deviceClaimOf is the claim of devices that an object is, nil for others and for none.
func deviceClaimOf(o *Object) *resourcev1.ResourceClaim {
	if o == nil {
		return nil
	}
	claim, _ := o.Value.(*resourcev1.ResourceClaim)
	return claim
}

// sameOffer says whether two states of a claim let the same pods have nodes, and the same ones.
func sameOffer(a, b *resourcev1.ResourceClaim) bool {
	full := func(c *resourcev1.ResourceClaim) bool {
		return len(c.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize
	}
	x, y := a.Status.Allocation, b.Status.Allocation
	if a.UID != b.UID || (a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) || (x == nil) != (y == nil) || full(a) != full(b) ||
		full(a) && !equality.Semantic.DeepEqual(a.Status.ReservedFor, b.Status.ReservedFor) || controllerOf(a) != controllerOf(b) {
		return false
	}
	return x == nil || UnreadyDevice(a) == UnreadyDevice(b) && equality.Semantic.DeepEqual(x.NodeSelector, y.NodeSelector)
}

func controllerOf(c *resourcev1.ResourceClaim) types.UID {
	if of := metav1.GetControllerOfNoCopy(c); of != nil {
		return of.UID
	}
	return ""
}

// deviceWaits are what a pod with claims of devices waits for, as names that no claim of a volume has: one that has still
// to be made is told apart by the pod's word for it.
func (v *View) deviceWaits(pod *corev1.Pod) []string {
	if v.Version() < SinceDevices {
		if devices := v.devicesClaimed(pod); devices != "" {
			return []string{devicesPrefix + devices}
		}
		return nil
	}
	if len(pod.Spec.ResourceClaims) > MaxDeviceClaims {
		return []string{devicesPrefix} // of nobody else
	}
	claims := v.deviceClaims(pod)
	out := make([]string, len(claims))
	for i, c := range claims {
		if out[i] = awaitedDevices(c.Name); c.Name == "" {
			out[i] = devicesPrefix + "?" + strconv.Quote(c.Of)
		}
	}
	return out
}

// devicesPrefix begins no name of a claim of a volume.
const devicesPrefix = "devices:"

// awaitedDevices is what those wait for whom a claim of devices keeps.
func awaitedDevices(claim string) string { return devicesPrefix + quotedName(claim) }

// SinceNamedMeanwhile is the LogVersion from which on a decision is older than what it is about when claims have been made for its pod since.
const SinceNamedMeanwhile = 31

// claimsNamed wakes a pod whose claims of devices have been made by now: so far it waited under no names. Of one that is being decided
// nothing is believed that did not know of them.
func (tx *Tx) claimsNamed(old, now *corev1.Pod) {
	if len(now.Spec.ResourceClaims) == 0 || tx.view.Version() < SinceDevices ||
		slices.EqualFunc(old.Status.ResourceClaimStatuses, now.Status.ResourceClaimStatuses, sameClaimStatus) {
		return
	}
	if e, ok := tx.view.Queue.Get(PodKey(now.Namespace, now.Name)); ok && (e.Waits() || tx.view.Version() >= SinceNamedMeanwhile) {
		tx.lookAgain(e, e.Waits())
	}
}

func sameClaimStatus(a, b corev1.PodResourceClaimStatus) bool {
	return a.Name == b.Name && textOf(a.ResourceClaimName) == textOf(b.ResourceClaimName) && (a.ResourceClaimName == nil) == (b.ResourceClaimName == nil)
}
