package devices

import (
	"strings"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// TestDevicesAreGivenInOrder: who is first in the queue is first, whoever finds none is told why, and gets them when they come free.
func TestDevicesAreGivenInOrder(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=8 mem=8Gi pods=110")
	w.PutNode(clustertest.Node("worker cpu=8 mem=8Gi pods=110"))
	w.gpus("n1", "big", "small")
	for _, name := range []string{"a", "b", "c"} {
		w.claim(name, request(1, ""))
	}
	w.pod("low cpu=1 priority=1", "a")
	w.pod("high cpu=1 priority=10", "b")
	w.pod("middle cpu=1 priority=5", "c")
	w.settle(t.Context(), 4)
	if w.nodeOf("high") != "n1" || w.nodeOf("middle") != "n1" || w.nodeOf("low") != "" || w.has("a") != "" {
		t.Fatalf("high on %q, middle on %q, low on %q with %q", w.nodeOf("high"), w.nodeOf("middle"), w.nodeOf("low"), w.has("a"))
	}
	if told := w.told(); !strings.Contains(told, "0/2 nodes are available: 1 cannot allocate all claims, 1 node(s) run no drivers of devices.") {
		t.Errorf("the pod is told %q", told)
	}
	w.Remove("default/high")
	w.settle(t.Context(), 3)
	if w.nodeOf("low") != "n1" || w.has("a") == "" {
		t.Errorf("what came free is given to nobody: %q", w.has("a"))
	}
}

// TestDevicesWhereThereIsRoom: devices are given on a node that has room for the rest of the pod, by preemption if need be.
func TestDevicesWhereThereIsRoom(t *testing.T) {
	w := newWorld(t)
	w.kubelet("full cpu=2 mem=8Gi pods=110")
	w.kubelet("free cpu=2 mem=8Gi pods=110")
	w.gpus("full", "big")
	w.gpus("free", "big")
	p := clustertest.Pod("there cpu=2 priority=1")
	p.Spec.NodeName = "full"
	w.AdmitPod(p)
	w.claim("a", request(1, "big"))
	w.claim("b", request(1, "big"))
	w.pod("first cpu=1 priority=10", "a")
	w.settle(t.Context(), 2)
	if got := w.nodeOf("first"); got != "free" {
		t.Fatalf("the first is on %q with %q", got, w.has("a"))
	}
	w.pod("second cpu=2 priority=10", "b")
	w.settle(t.Context(), 1)
	if n, ok := w.State.View().Nominations.Get("default/second"); !ok || n.Node != "full" || w.has("b") == "" {
		t.Fatalf("the second waits for nobody's end: %+v, it has %q", n, w.has("b"))
	}
	w.settle(t.Context(), 40) // a victim may take its time
	if w.has("b") == "" {
		t.Error("devices were taken from one who waits for his victims")
	}
	w.Confirm()
	w.settle(t.Context(), 2)
	if got := w.nodeOf("second"); got != "full" {
		t.Errorf("the second is on %q", got)
	}
}

// TestDevicesAreTakenBack: whoever cannot use what it was given has it taken away, and others get it.
func TestDevicesAreTakenBack(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=2 mem=8Gi pods=110")
	w.gpus("n1", "big")
	w.claim("a", request(1, ""))
	w.claim("b", request(1, ""))
	w.pod("unlucky cpu=2", "a")
	w.a.pass(t.Context()) // given, but not bound yet
	if w.has("a") == "" {
		t.Fatal("nothing was given")
	}
	p := clustertest.Pod("intruder cpu=1")
	p.Spec.NodeName = "n1"
	w.AdmitPod(p)
	w.pod("lucky cpu=1", "b")
	w.settle(t.Context(), 5)
	if w.nodeOf("lucky") != "n1" || w.has("a") != "" {
		t.Errorf("lucky is on %q, and unlucky has %q", w.nodeOf("lucky"), w.has("a"))
	}
}

// TestDevicesThatDoNotGetReady are taken back, and others are given.
func TestDevicesThatDoNotGetReady(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=2 mem=8Gi pods=110")
	node := "n1"
	w.PutObject(fsm.ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "far"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0", BindingConditions: []string{"Attached"}, BindingFailureConditions: []string{"Broken"}}},
	}})
	w.claim("a", request(1, ""))
	w.pod("first cpu=1", "a")
	w.settle(t.Context(), 100)
	if w.nodeOf("first") != "" || w.has("a") == "" {
		t.Fatalf("on %q with %q, though its device is not ready", w.nodeOf("first"), w.has("a"))
	}
	tell := func(condition string) {
		c, _ := w.State.View().ResourceClaim("default", "a")
		c = c.DeepCopy()
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: "gpu.example.com", Pool: "n1", Device: "gpu-0",
			Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue}}}}
		w.PutObject(fsm.ResourceClaims, c)
	}
	tell("Broken")
	w.a.pass(t.Context())
	if w.has("a") != "" {
		t.Fatal("a broken device is kept")
	}
	w.settle(t.Context(), 3)
	if w.has("a") == "" {
		t.Fatal("it is not given again")
	}
	tell("Attached")
	w.settle(t.Context(), 1)
	if w.nodeOf("first") != "n1" {
		t.Error("it is ready, and the pod is nowhere")
	}
}

// TestPartsOfWhatAPodClaims: of two claims one may have been given already, when a leader died. The rest is given on the same node, or
// what it has is taken back.
func TestPartsOfWhatAPodClaims(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=8 mem=8Gi pods=110")
	w.kubelet("n2 cpu=8 mem=8Gi pods=110")
	w.gpus("n1", "big")
	w.gpus("n2", "big", "small")
	w.claim("a", request(1, "big"))
	w.claim("b", request(1, "small"))
	w.pod("both cpu=1", "a", "b")
	writes := 0
	w.fails = func() bool { writes++; return writes > 2 } // the second claim's
	w.a.pass(t.Context())
	if w.has("a")+w.has("b") != "n2/gpu-0 " {
		t.Fatalf("a has %q, b %q", w.has("a"), w.has("b"))
	}
	w.fails = func() bool { return false }
	w.begin()
	w.settle(t.Context(), 2)
	if w.nodeOf("both") != "n2" {
		t.Fatalf("both is on %q: a %q, b %q", w.nodeOf("both"), w.has("a"), w.has("b"))
	}
}

// TestAlternatives: of what a request would take the first is best, on whatever node it is.
func TestAlternatives(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=16 mem=8Gi pods=110")
	w.kubelet("n2 cpu=8 mem=8Gi pods=110")
	w.gpus("n1", "small", "small")
	w.gpus("n2", "big")
	or := func(name, model string, count int64) resourcev1.DeviceSubRequest {
		r := request(count, model).Exactly
		return resourcev1.DeviceSubRequest{Name: name, DeviceClassName: r.DeviceClassName, Selectors: r.Selectors, AllocationMode: r.AllocationMode, Count: count}
	}
	either := resourcev1.DeviceRequest{Name: "gpu", FirstAvailable: []resourcev1.DeviceSubRequest{or("one", "big", 1), or("two", "small", 2)}}
	w.claim("a", either)
	w.claim("b", either)
	w.pod("first cpu=1", "a")
	w.settle(t.Context(), 2)
	w.pod("second cpu=1", "b")
	w.settle(t.Context(), 2)
	if w.has("a") != "n2/gpu-0 " || w.has("b") != "n1/gpu-0 n1/gpu-1 " {
		t.Errorf("the first has %q, the second %q", w.has("a"), w.has("b"))
	}
}

// TestAClassThatIsNotThere: the pod is told, and what others offer is nobody's fault but theirs.
func TestAClassThatIsNotThere(t *testing.T) {
	w := newWorld(t)
	w.kubelet("n1 cpu=8 mem=8Gi pods=110")
	w.kubelet("odd cpu=16 mem=16Gi pods=110")
	w.gpus("n1", "big")
	node := "odd"
	w.PutObject(fsm.ResourceSlices, &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "odd"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		Devices: []resourcev1.Device{{Name: "gpu-0"}}, // of no model: what asks for one fails at it
	}})
	missing := request(1, "")
	missing.Exactly.DeviceClassName = "missing"
	w.claim("a", missing)
	w.claim("b", request(1, "big"))
	w.pod("classless cpu=1", "a")
	w.pod("classy cpu=1", "b")
	w.settle(t.Context(), 3)
	if told := w.told(); w.nodeOf("classless") != "" || !strings.Contains(told, "could not retrieve device class missing") {
		t.Errorf("it is told %q", told)
	}
	if got := w.nodeOf("classy"); got != "n1" {
		t.Errorf("the other is on %q", got)
	}
}
