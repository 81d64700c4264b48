package workloads

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	csitranslation "k8s.io/csi-translation-lib"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	attachdetachcache "k8s.io/kubernetes/pkg/controller/volume/attachdetach/cache"
	attachdetachmetrics "k8s.io/kubernetes/pkg/controller/volume/attachdetach/metrics"
	"k8s.io/kubernetes/pkg/volume"
	"k8s.io/kubernetes/pkg/volume/csi"
	"k8s.io/kubernetes/pkg/volume/csimigration"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/model"
)

const (
	attachmentsController = "attachdetach"
	// attachmentSync is how often what is attached is compared with what nodes say, as kube-controller-manager has it.
	attachmentSync = time.Minute
)

// attachments keeps a VolumeAttachment for each volume of a driver that has to be attached to the node of a pod, on nodes that leave
// that to a controller, as kubelets do. Upstream's controller looks at all that is attached ten times a second and at pods again and
// again, and what it is told of waits for it even if it does not run. So it is made, with a feed of its own, when there is a node with a
// driver, or something that is attached.
type attachments struct {
	client kubernetes.Interface
	state  State
	needed need
}

func newAttachments(config *rest.Config, state State, made factory) (begun, error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the controller %s: %w", attachmentsController, err)
	}
	a := &attachments{client: c, state: state, needed: newNeed()}
	told := cache.ResourceEventHandlerFuncs{AddFunc: a.look, UpdateFunc: func(_, now any) { a.look(now) }}
	storage := made.Storage().V1()
	for _, i := range []cache.SharedIndexInformer{storage.CSINodes().Informer(), storage.VolumeAttachments().Informer()} {
		if _, err := i.AddEventHandler(told); err != nil {
			return nil, err
		}
	}
	return a.run, nil
}

// look begins if there is something to attach to, or attached.
func (a *attachments) look(o any) {
	if node, ok := o.(*storagev1.CSINode); !ok || len(node.Spec.Drivers) > 0 {
		a.needed.arise()
	}
}

// run keeps attachments until ctx ends.
func (a *attachments) run(ctx context.Context) {
	a.needed.meet(ctx, attachmentsController, func(ctx context.Context) error {
		withoutFigures()
		return a.keep(ctx)
	})
}

// keep runs upstream's controller until ctx ends, or it cannot go on with what it knows.
func (a *attachments) keep(ctx context.Context) error {
	made, f := newFactoryOf(a.state, []kindRows{
		{&corev1.Pod{}, pods()},
		{&corev1.Node{}, nodes()},
		{&corev1.PersistentVolume{}, informers.InNoNamespace(fsm.PersistentVolumes)},
		{&corev1.PersistentVolumeClaim{}, informers.Plain(fsm.VolumeClaims)},
		{&storagev1.CSINode{}, informers.InNoNamespace(fsm.CSINodes)},
		{&storagev1.CSIDriver{}, informers.InNoNamespace(fsm.CSIDrivers)},
		{&storagev1.VolumeAttachment{}, informers.InNoNamespace(fsm.VolumeAttachments)},
	})
	core, storage := made.Core().V1(), made.Storage().V1()
	f.Begins(informers.WithClaims())
	return follow(ctx, f, func(ctx context.Context) ([]begun, error) {
		upstream, err := attachdetach.NewAttachDetachController(ctx, a.client, podsWithClaims{core.Pods()}, core.Nodes(), core.PersistentVolumeClaims(),
			core.PersistentVolumes(), storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(), csi.ProbeVolumePlugins(), nil,
			false, attachmentSync, false, attachdetach.DefaultTimerConfig)
		if err != nil {
			return nil, err
		}
		return []begun{upstream.Run}, nil
	})
}

// withoutFigures takes the place of upstream's collector of figures, which a process registers once: it would keep what the first of its
// leaderships knew, and look at all pods whenever somebody reads figures.
var withoutFigures = sync.OnceFunc(func() {
	var plugins volume.VolumePluginMgr
	none := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	translator := csitranslation.New()
	attachdetachmetrics.Register(corelisters.NewPersistentVolumeClaimLister(none), corelisters.NewPersistentVolumeLister(none), corelisters.NewPodLister(none),
		attachdetachcache.NewActualStateOfWorld(&plugins), attachdetachcache.NewDesiredStateOfWorld(&plugins), &plugins,
		csimigration.NewPluginManager(translator), translator)
})

// podsWithClaims lists the pods that claim volumes, or have them made: nothing is attached for others.
type podsWithClaims struct{ coreinformers.PodInformer }

// Lister implements coreinformers.PodInformer.
func (p podsWithClaims) Lister() corelisters.PodLister { return claiming{p.PodInformer.Lister()} }

type claiming struct{ corelisters.PodLister }

// List implements corelisters.PodLister.
func (c claiming) List(s labels.Selector) ([]*corev1.Pod, error) {
	pods, err := c.PodLister.List(s)
	return slices.DeleteFunc(pods, func(pod *corev1.Pod) bool { return len(model.Claims(pod)) == 0 }), err
}
