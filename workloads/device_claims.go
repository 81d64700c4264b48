package workloads

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/controller/devicetainteviction"
	"k8s.io/kubernetes/pkg/controller/resourceclaim"
	resourceclaimmetrics "k8s.io/kubernetes/pkg/controller/resourceclaim/metrics"
	"k8s.io/utils/clock"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/workloads/devices"
)

// What is about claims of devices: Kubernetes' controller, which makes them of templates and takes back what nobody uses any more; the
// one that evicts pods from devices with taints; and ours, which gives devices to those that wait (package devices).
const (
	claimsController    = "resourceclaim-controller"
	taintsController    = "device-taint-eviction-controller"
	allocatorController = "device-allocator"
)

// deviceClaims runs them, with a feed of their own, from when there is something of that kind on.
type deviceClaims struct {
	config func(controller string) *rest.Config
	state  State
	clock  clock.Clock
	needed need
}

func newDeviceClaims(config func(controller string) *rest.Config, state State, now clock.Clock, made factory) (begun, error) {
	d := &deviceClaims{config: config, state: state, clock: now, needed: newNeed()}
	told := cache.ResourceEventHandlerFuncs{AddFunc: func(any) { d.needed.arise() }}
	kinds := made.Resource().V1()
	for _, i := range []cache.SharedIndexInformer{
		kinds.ResourceClaims().Informer(), kinds.ResourceClaimTemplates().Informer(), kinds.ResourceSlices().Informer(), kinds.DeviceClasses().Informer(),
	} {
		if _, err := i.AddEventHandler(told); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) { d.needed.meet(ctx, claimsController, d.keep) }, nil
}

// deviceKinds are the kinds of what drivers of devices offer, and of what is asked of them.
func deviceKinds() []kindRows {
	return []kindRows{
		{&resourcev1.ResourceClaim{}, claimRows()},
		{&resourcev1.ResourceClaimTemplate{}, informers.Plain(fsm.ResourceClaimTemplates)},
		{&resourcev1.ResourceSlice{}, informers.InNoNamespace(fsm.ResourceSlices)},
		{&resourcev1.DeviceClass{}, informers.InNoNamespace(fsm.DeviceClasses)},
	}
}

// claimRows have the index of upstream's controller that the state has.
func claimRows() *informers.Rows {
	r := informers.Plain(fsm.ResourceClaims)
	r.Indexes = map[string]informers.Index{"claimPodOwner": func(v *fsm.View, uid string) []any {
		return gathered(func(f func(claim *resourcev1.ResourceClaim) bool) { v.ClaimsOfPod(uid, f) })
	}}
	return r
}

// podsWithDevices are pods with the indexes of upstream's controller that the state has: it looks them up for each change of a claim.
func podsWithDevices() *informers.Rows {
	r := pods()
	for name, resource := range map[string]string{ // order does not matter
		"podResourceClaim": fsm.ResourceClaims, "podResourceClaimTemplate": fsm.ResourceClaimTemplates,
	} {
		r.Indexes[name] = func(v *fsm.View, key string) []any {
			return gathered(func(f func(pod *corev1.Pod) bool) { v.PodsWithDevices(resource, key, f) })
		}
	}
	return r
}

// keep runs the controllers until ctx ends, or they cannot go on with what they know.
func (d *deviceClaims) keep(ctx context.Context) error {
	made, f := newFactoryOf(d.state, append(deviceKinds(), kindRows{&corev1.Pod{}, podsWithDevices()}, kindRows{&corev1.Node{}, nodes()}))
	return follow(ctx, f, func(ctx context.Context) ([]begun, error) {
		f.Begins(informers.WithDevices())
		claims, err := d.newClaims(ctx, made)
		if err != nil {
			return nil, err
		}
		taints, err := d.newTaints(ctx, made)
		if err != nil {
			return nil, err
		}
		f.Begins(nil)
		allocator, err := d.newAllocator(made)
		if err != nil {
			return nil, err
		}
		return []begun{claims, taints, allocator}, nil
	})
}

// claimWorkers is how many claims and pods are worked on at a time, as kube-controller-manager has it.
const claimWorkers = 50

func (d *deviceClaims) newClaims(ctx context.Context, made factory) (begun, error) {
	c, err := kubernetes.NewForConfig(d.config(claimsController))
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", claimsController, err)
	}
	resourceclaimmetrics.RegisterMetrics(nil) // in the place of upstream's, which keeps what the first leadership knew
	kinds := made.Resource().V1()
	upstream, err := resourceclaim.NewController(klog.FromContext(ctx), resourceclaim.Features{AdminAccess: true, PrioritizedList: true}, withReservations{c, d.state.View},
		made.Core().V1().Pods(), nil, kinds.ResourceClaims(), kinds.ResourceClaimTemplates())
	if err != nil {
		return nil, fmt.Errorf("controller %s: %w", claimsController, err)
	}
	return func(ctx context.Context) { upstream.Run(ctx, claimWorkers) }, nil
}

// newAllocator gives the allocator, which looks again when something may have come free.
func (d *deviceClaims) newAllocator(made factory) (begun, error) {
	c, err := kubernetes.NewForConfig(d.config(allocatorController))
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", allocatorController, err)
	}
	tells := record.NewBroadcaster()
	a := devices.New(d.state.View, c.ResourceV1(), tells.NewRecorder(scheme.Scheme, corev1.EventSource{Component: allocatorController}), d.clock.Now)
	all := func(do func()) cache.ResourceEventHandler {
		return cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { do() }, UpdateFunc: func(any, any) { do() }, DeleteFunc: func(any) { do() },
		}
	}
	waits := func(pod *corev1.Pod) bool { return len(pod.Spec.ResourceClaims) > 0 }
	ofPods := cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if waits(o.(*corev1.Pod)) {
				a.Poke()
			}
		},
		UpdateFunc: func(old, now any) {
			was, is := old.(*corev1.Pod), now.(*corev1.Pod)
			if waits(is) || was.Spec.NodeName != "" && !model.Terminal(was) && model.Terminal(is) {
				a.Poke()
			}
		},
		DeleteFunc: func(any) { a.Poke() },
	}
	kinds := made.Resource().V1()
	for i, h := range map[cache.SharedIndexInformer]cache.ResourceEventHandler{ // order does not matter
		kinds.ResourceClaims().Informer(): all(a.Poke), kinds.ResourceSlices().Informer(): all(a.Renewed), kinds.DeviceClasses().Informer(): all(a.Renewed),
		made.Core().V1().Nodes().Informer(): all(a.Poke), made.Core().V1().Pods().Informer(): ofPods,
	} {
		if _, err := i.AddEventHandler(h); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context) {
		tells.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: c.CoreV1().Events("")})
		defer tells.Shutdown()
		a.Run(ctx)
	}, nil
}

// registering is an informer that says when a handler has come.
type registering struct {
	cache.SharedIndexInformer
	came chan<- struct{}
}

// AddEventHandler implements cache.SharedInformer.
func (r registering) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	reg, err := r.SharedIndexInformer.AddEventHandler(h)
	r.came <- struct{}{}
	return reg, err
}

// taintsHandlers is how many handlers upstream's controller of taints registers, of claims, pods and slices.
const taintsHandlers = 3

// taintsRegister is how long it may take to.
const taintsRegister = 10 * time.Second

// newTaints begins upstream's controller, which registers its handlers when it runs, and waits until it has.
func (d *deviceClaims) newTaints(ctx context.Context, made factory) (begun, error) {
	c, err := kubernetes.NewForConfig(d.config(taintsController))
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", taintsController, err)
	}
	came := make(chan struct{}, taintsHandlers)
	upstream := devicetainteviction.New(c, registeringPods{made.Core().V1().Pods(), came}, registeringClaims{made.Resource().V1().ResourceClaims(), came},
		registeringSlices{made.Resource().V1().ResourceSlices(), came}, nil, made.Resource().V1().DeviceClasses(), taintsController, false)
	ended := make(chan error, 1)
	var running guard.Group
	running.Go(func() { ended <- guard.Caught(func() error { return upstream.Run(ctx, claimWorkers) }) })
	for range taintsHandlers {
		select {
		case <-came:
		case err := <-ended:
			return nil, fmt.Errorf("controller %s: %w", taintsController, err)
		case <-time.After(taintsRegister):
			return nil, fmt.Errorf("controller %s: it does not register its handlers", taintsController)
		}
	}
	return func(context.Context) {
		defer running.Wait()
		if err := <-ended; err != nil && ctx.Err() == nil {
			panic(fmt.Sprintf("controller %s: %v", taintsController, err)) // all of them are begun again
		}
	}, nil
}
