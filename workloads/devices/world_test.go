package devices

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/clustertest"
)

const second = int64(time.Second)

// world is a cluster with a scheduler and an allocator.
type world struct {
	*clustertest.Cluster
	tb    testing.TB
	sched *sched.Scheduler
	a     *Allocator
	tells *record.FakeRecorder
	fails func() bool // whether the next write does
}

func newWorld(tb testing.TB) *world {
	w := &world{Cluster: clustertest.New(), tb: tb, tells: record.NewFakeRecorder(10_000), fails: func() bool { return false }}
	w.begin()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}}
	class.Spec.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: `device.driver == "gpu.example.com"`}}}
	w.PutObject(fsm.DeviceClasses, class)
	return w
}

// begin is a new leader.
func (w *world) begin() {
	w.sched = sched.New(w.State)
	w.a = New(w.State.View, w, w.tells, func() time.Time { return time.Unix(0, w.NowUnixNano) })
}

// ResourceClaims implements resourceclient.ResourceClaimsGetter.
func (w *world) ResourceClaims(string) resourceclient.ResourceClaimInterface {
	return claimWriter{w: w}
}

type claimWriter struct {
	resourceclient.ResourceClaimInterface
	w *world
}

var errWrite = errors.New("the write failed")

func (c claimWriter) put(claim *resourcev1.ResourceClaim, change func(stored *resourcev1.ResourceClaim)) (*resourcev1.ResourceClaim, error) {
	if c.w.fails() {
		return nil, errWrite
	}
	old, ok := c.w.State.View().ResourceClaim(claim.Namespace, claim.Name)
	if !ok || old.ResourceVersion != claim.ResourceVersion {
		return nil, errWrite
	}
	next := old.DeepCopy()
	change(next)
	raw, err := next.Marshal()
	if err != nil {
		return nil, err
	}
	if r := c.w.Apply(&fsm.PutObject{Resource: fsm.ResourceClaims, Raw: raw}); r.Refused() {
		return nil, errors.New(r.Message)
	}
	stored, ok := c.w.State.View().ResourceClaim(claim.Namespace, claim.Name)
	if !ok {
		return nil, errWrite
	}
	return stored.DeepCopy(), nil
}

// Update implements resourceclient.ResourceClaimInterface.
func (c claimWriter) Update(_ context.Context, claim *resourcev1.ResourceClaim, _ metav1.UpdateOptions) (*resourcev1.ResourceClaim, error) {
	return c.put(claim, func(stored *resourcev1.ResourceClaim) { stored.Finalizers = claim.Finalizers })
}

// UpdateStatus implements resourceclient.ResourceClaimInterface.
func (c claimWriter) UpdateStatus(_ context.Context, claim *resourcev1.ResourceClaim, _ metav1.UpdateOptions) (*resourcev1.ResourceClaim, error) {
	return c.put(claim, func(stored *resourcev1.ResourceClaim) { stored.Status = claim.Status })
}

// kubelet is a node on which drivers run.
func (w *world) kubelet(words string) {
	n := clustertest.Node(words)
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = 10250
	w.PutNode(n)
}

// gpus are the devices of a node, by their models.
func (w *world) gpus(node string, models ...string) {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node + "-gpus"}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "gpu.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i, model := range models {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: fmt.Sprint("gpu-", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}}})
	}
	w.PutObject(fsm.ResourceSlices, s)
}

// request asks for so many devices of a model, "" for any.
func request(count int64, model string) resourcev1.DeviceRequest {
	r := resourcev1.DeviceRequest{Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: "gpu", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: count,
	}}
	if model != "" {
		r.Exactly.Selectors = []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
			Expression: fmt.Sprintf(`device.attributes["gpu.example.com"].model == %q`, model)}}}
	}
	return r
}

func (w *world) claim(name string, requests ...resourcev1.DeviceRequest) {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	c.Spec.Devices.Requests = requests
	w.PutObject(fsm.ResourceClaims, c)
}

// pod claims devices.
func (w *world) pod(words string, claims ...string) {
	p := clustertest.Pod(words)
	for i, name := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: fmt.Sprint("it-", i), ResourceClaimName: &name})
	}
	w.AdmitPod(p)
}

// decide has the scheduler decide all that it can.
func (w *world) decide() {
	for range 1000 {
		p := clustertest.Next(w.sched, w.NowUnixNano, 1024)
		if p == nil {
			return
		}
		w.Must(p.Command)
		w.sched.Settle(p)
	}
	w.tb.Fatal("the scheduler goes round in circles")
}

// settle lets everything be decided that can be, for so many seconds.
func (w *world) settle(ctx context.Context, seconds int64) {
	for range seconds {
		w.decide()
		w.a.Renewed() // as informers have it
		w.a.pass(ctx)
		w.decide()
		w.takeBack()
		w.NowUnixNano += second
	}
}

// takeBack does what Kubernetes' controller does when pods are gone.
func (w *world) takeBack() {
	each(w.State.View(), fsm.ResourceClaims+"/", func(old *resourcev1.ResourceClaim) {
		c := old.DeepCopy()
		c.Status.ReservedFor = slices.DeleteFunc(c.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
			pod, ok := w.State.View().Pods.Get(fsm.PodKey(c.Namespace, r.Name))
			return !ok || pod.UID != r.UID
		})
		if len(c.Status.ReservedFor) == len(old.Status.ReservedFor) {
			return
		}
		if len(c.Status.ReservedFor) == 0 {
			c.Status.Allocation = nil
		}
		w.PutObject(fsm.ResourceClaims, c)
	})
}

// nodeOf is where a pod is, "" for nowhere.
func (w *world) nodeOf(pod string) string {
	p, ok := w.State.View().Pods.Get("default/" + pod)
	if !ok {
		w.tb.Fatalf("there is no pod %s", pod)
	}
	return p.Spec.NodeName
}

// has are the devices of a claim, "" for none.
func (w *world) has(claim string) (devices string) {
	c, _ := w.State.View().ResourceClaim("default", claim)
	if c.Status.Allocation == nil {
		return ""
	}
	for _, r := range c.Status.Allocation.Devices.Results {
		devices += r.Pool + "/" + r.Device + " "
	}
	return devices
}

// told is what was told last, "" for nothing.
func (w *world) told() (last string) {
	for {
		select {
		case last = <-w.tells.Events:
		default:
			return last
		}
	}
}
