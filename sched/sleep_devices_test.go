package sched

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// The devices of a world: claims d1 to d3, which come and go, are given devices that can be used from some nodes and have them taken
// again, by whoever does that, in any order; and nodes on which drivers begin and end.

// furnishDevices has all of them there from the beginning, and devices change often.
func (w *world) furnishDevices() {
	w.devising = true
	for _, name := range []string{"d1", "d2", "d3"} {
		w.changesDeviceClaim(name)
		if c, ok := w.State.View().ResourceClaim("default", name); ok && w.pick("from the beginning", "yes", "yes", "no") == "yes" {
			c = c.DeepCopy()
			w.changesClaimed("given", c)
			w.PutObject(fsm.ResourceClaims, c)
		}
	}
	w.State.View().Nodes.Scan("", func(name string, old *corev1.Node) bool {
		n := old.DeepCopy()
		n.ResourceVersion, n.Status.DaemonEndpoints.KubeletEndpoint.Port = "", 10250
		w.Must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
		return true
	})
	devices := []event{{"devices", 1, (*world).changesDevices}, {"plans are overtaken", 1, (*world).overtakesPlans}}
	if rapid.Bool().Draw(w.t, "little else") { // what is named, given and decided at the same time is found the sooner
		w.events = sleepEvents()[:1]
	}
	w.events = append(w.events, slices.Repeat(devices, len(w.events)/5+1)...)
}

// claimsDevices gives a pod some claims, which need not be there, or have still to be made for it.
func (w *world) claimsDevices(p *corev1.Pod) {
	if !w.devising && w.pick("claims devices", "", "", "", "", "", "", "", "yes") == "" {
		return
	}
	for i := range len(w.pick("devices", "", "1", "1", "12")) {
		c, name := corev1.PodResourceClaim{Name: fmt.Sprint("it-", i)}, w.pick("devices of", "d1", "d2", "d3")
		if w.pick("made", "no", "no", "yes") == "yes" {
			c.ResourceClaimTemplateName = &name
		} else {
			c.ResourceClaimName = &name
		}
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, c)
	}
}

func (w *world) changesDevices() {
	name := w.pick("devices of", "d1", "d2", "d3")
	c, there := w.State.View().ResourceClaim("default", name)
	switch what := w.pick("of devices", "claim", "given", "given", "given", "taken", "use", "ready", "ends", "label", "named", "named", "drivers", "drivers", "drivers"); {
	case what == "named":
		w.namesClaims()
	case what == "drivers":
		w.startsDrivers()
	case what == "claim", !there:
		w.changesDeviceClaim(name)
	default:
		c = c.DeepCopy()
		w.changesClaimed(what, c)
		w.PutObject(fsm.ResourceClaims, c)
	}
}

func (w *world) changesDeviceClaim(name string) {
	if !w.comesOrGoes(fsm.ResourceClaims, "default", name) {
		return
	}
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
	c.UID = types.UID(fmt.Sprint("uid-", name, w.State.View().Revision()))
	if key, ok := w.somePodThat("owns it", hasClaimsMade); ok && w.pick("owned", "", "yes") == "yes" {
		pod, _ := w.State.View().Pods.Get(key)
		c.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))}
	}
	w.PutObject(fsm.ResourceClaims, c)
}

// changesClaimed changes one thing of a claim.
func (w *world) changesClaimed(what string, c *resourcev1.ResourceClaim) {
	s := &c.Status
	switch what {
	case "given":
		s.Allocation = &resourcev1.AllocationResult{NodeSelector: w.devicesFrom()}
		r := resourcev1.DeviceRequestAllocationResult{Request: "it", Driver: "driver", Pool: "pool", Device: c.Name}
		if w.pick("awaited", "no", "no", "yes") == "yes" {
			r.BindingConditions, r.BindingFailureConditions = []string{"Ready"}, []string{"Broken"}
		}
		s.Allocation.Devices.Results = append(s.Allocation.Devices.Results, r)
	case "taken":
		s.Allocation, s.ReservedFor, s.Devices = nil, nil, nil
	case "use":
		s.ReservedFor = nil
		for i := range map[string]int{"none": 0, "few": 3, "nearly all": 255, "all": 256}[w.pick("users", "none", "few", "nearly all", "all")] {
			user := fmt.Sprint("user-", i)
			s.ReservedFor = append(s.ReservedFor, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: user, UID: types.UID(user)})
		}
	case "ready":
		s.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "driver", Pool: "pool", Device: c.Name}}
		for _, condition := range []string{"Ready", "Broken"} {
			if w.pick(condition, "no", "yes") == "yes" {
				s.Devices[0].Conditions = append(s.Devices[0].Conditions, metav1.Condition{Type: condition, Status: metav1.ConditionTrue})
			}
		}
	case "ends":
		now := metav1.Unix(w.NowUnixNano/second, 0)
		c.DeletionTimestamp, c.Finalizers = &now, []string{resourcev1.Finalizer}
	case "label":
		c.Labels = map[string]string{"at": fmt.Sprint(w.NowUnixNano)}
	}
}

// devicesFrom are the nodes that devices can be used from.
func (w *world) devicesFrom() *corev1.NodeSelector {
	var term corev1.NodeSelectorTerm
	switch of := w.pick("from", "anywhere", "n0", "n1", "n2", "zone a"); of {
	case "anywhere":
		return nil
	case "zone a":
		term.MatchExpressions = []corev1.NodeSelectorRequirement{{Key: zoneKey, Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}}
	default:
		term.MatchFields = []corev1.NodeSelectorRequirement{{Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{of}}}
	}
	return &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{term}}
}

// startsDrivers lets drivers run on a node from now on, or no more.
func (w *world) startsDrivers() {
	old, ok := w.State.View().Nodes.Get(w.someNode())
	if !ok {
		return
	}
	n := old.DeepCopy()
	n.ResourceVersion = ""
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250 - n.Status.DaemonEndpoints.KubeletEndpoint.Port
	w.Must(&fsm.PutNode{Node: fsm.NodeWire{Object: n}})
}

// namesClaims says which claims have been made for a pod, if any.
func (w *world) namesClaims() {
	key, ok := w.somePodThat("has claims made", hasClaimsMade)
	if !ok {
		return
	}
	old, _ := w.State.View().Pods.Get(key)
	pod := old.DeepCopy()
	pod.Status.ResourceClaimStatuses = nil
	names := []string{"d1", "d2", "d3", "none", "not yet"}
	for _, name := range names[:3] {
		if c, ok := w.State.View().ResourceClaim("default", name); ok && metav1.IsControlledBy(c, pod) {
			names = append(names, name, name, name, name, name) // others can be of no use to it
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName == nil {
			continue
		}
		switch name := w.pick("named", names...); name {
		case "none":
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: c.Name})
		case "not yet":
		default:
			pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: c.Name, ResourceClaimName: &name})
		}
	}
	w.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: pod}})
}

func hasClaimsMade(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return c.ResourceClaimTemplateName != nil })
}

// TestDriversBegin: a node is another for pods with devices when drivers may run on it, also where the scheduler knows it well.
func TestDriversBegin(t *testing.T) {
	h := newHarness()
	h.PutNode(clustertest.Node("n0 cpu=4 mem=8Gi pods=10"))
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "d1", UID: "d1"}}
	c.Status.Allocation = new(resourcev1.AllocationResult)
	h.PutObject(fsm.ResourceClaims, c)
	for _, name := range []string{"first", "second"} {
		p := clustertest.Pod(name + " cpu=1")
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "it", ResourceClaimName: &c.Name}}
		h.AdmitPod(p)
	}
	h.run()
	for _, port := range []int32{10250, 0, 10250} {
		n, _ := h.State.View().Nodes.Get("n0")
		n = n.DeepCopy()
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = port
		h.PutNode(n)
		h.NowUnixNano += 100 * second
		h.run()
	}
	if n := h.State.View().Queue.Len(); n > 0 {
		t.Errorf("%d pods wait beside room: %s", n, h.DescribeQueue())
	}
	late := clustertest.Pod("late cpu=1")
	late.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "it", ResourceClaimName: &c.Name}}
	n, _ := h.State.View().Nodes.Get("n0")
	n = n.DeepCopy()
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 0
	h.PutNode(n)
	h.AdmitPod(late)
	if refused := h.run(); len(refused) > 0 || h.State.View().Queue.Len() != 1 {
		t.Errorf("refused %v, and there wait: %s", refused, h.DescribeQueue())
	}
}
