package fsm

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// deviceClaim: resourceclaims NAME of=POD devices=DRIVER/POOL/DEVICE[/SHARE],… admin nodes=a,b for=POD,… users=N awaits=CONDITION fails=CONDITION
// holds=CONDITION,… deleted
func (s *transcript) deviceClaim(a words, meta metav1.ObjectMeta) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{ObjectMeta: meta}
	if of, ok := a.get("of"); ok {
		yes := true
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: of, UID: types.UID(s.ref(of).UID), Controller: &yes}}
	}
	if a.has("deleted") {
		now := metav1.NewTime(s.now)
		c.DeletionTimestamp, c.Finalizers = &now, []string{resourcev1.Finalizer}
	}
	if _, ok := a.get("devices"); ok {
		c.Status.Allocation = new(resourcev1.AllocationResult)
	}
	for _, device := range a.list("devices") {
		p := strings.Split(device, "/")
		r := resourcev1.DeviceRequestAllocationResult{Request: "it", Driver: p[0], Pool: p[1], Device: p[2]}
		if len(p) > 3 {
			share := types.UID(p[3])
			r.ShareID = &share
		}
		if a.has("admin") {
			yes := true
			r.AdminAccess = &yes
		}
		if condition, ok := a.get("awaits"); ok {
			r.BindingConditions = []string{condition}
		}
		if condition, ok := a.get("fails"); ok {
			r.BindingFailureConditions = []string{condition}
		}
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, r)
		if holds := a.list("holds"); len(holds) > 0 {
			d := resourcev1.AllocatedDeviceStatus{Driver: p[0], Pool: p[1], Device: p[2]}
			for _, condition := range holds {
				d.Conditions = append(d.Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue})
			}
			c.Status.Devices = append(c.Status.Devices, d)
		}
	}
	if nodes := a.list("nodes"); len(nodes) > 0 {
		c.Status.Allocation.NodeSelector = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: nodes}},
		}}}
	}
	use := func(pod, uid string) {
		c.Status.ReservedFor = append(c.Status.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod, UID: types.UID(uid)})
	}
	for _, pod := range a.list("for") {
		use(pod, s.ref(pod).UID)
	}
	if n := a.number("users"); n != nil {
		for i := range *n {
			use(fmt.Sprint("user-", i), fmt.Sprint("user-", i))
		}
	}
	return c
}

func describeDevices(c *resourcev1.ResourceClaim) string {
	var out []string
	if c.Status.Allocation != nil {
		for _, r := range c.Status.Allocation.Devices.Results {
			out = append(out, r.Driver+"/"+r.Pool+"/"+r.Device)
		}
	}
	var users []string
	for _, r := range c.Status.ReservedFor {
		users = append(users, r.Name)
	}
	if n := len(users); n > 3 {
		users = []string{fmt.Sprint(n, " pods, ", users[n-1], " last")}
	}
	if len(users) > 0 {
		out = append(out, "for "+strings.Join(users, ","))
	}
	return strings.Join(out, " ")
}

// namedClaims: named=GPU:CLAIM,… of a pod; of GPU alone it is said that it needs none.
func (a words) namedClaims(p *corev1.Pod) {
	for _, named := range a.list("named") {
		of, claim, made := strings.Cut(named, ":")
		status := corev1.PodResourceClaimStatus{Name: of}
		if made {
			status.ResourceClaimName = &claim
		}
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, status)
	}
}
