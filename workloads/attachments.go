package workloads

import (
	"context"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/controller/volume/attachdetach"
	"k8s.io/kubernetes/pkg/volume/csi"

	"github.com/berth-dev/berth/model"
)

// attachmentSync is how often what is attached is compared with what nodes say, as kube-controller-manager has it.
const attachmentSync = time.Minute

// attachments keeps a VolumeAttachment for each volume of a driver that has to be attached to the node of a pod, on nodes that leave
// that to a controller, as kubelets do. It looks at all that is attached ten times a second and at pods again and again, so it begins
// when there is a node with a driver, or something that is attached.
type attachments struct {
	attachdetach.AttachDetachController
	begin  sync.Once
	needed chan struct{}
}

func newAttachments(ctx context.Context, c kubernetes.Interface, f factory) (controller, error) {
	core, storage := f.Core().V1(), f.Storage().V1()
	upstream, err := attachdetach.NewAttachDetachController(ctx, c, podsWithClaims{core.Pods()}, core.Nodes(), core.PersistentVolumeClaims(),
		core.PersistentVolumes(), storage.CSINodes(), storage.CSIDrivers(), storage.VolumeAttachments(), csi.ProbeVolumePlugins(), nil,
		false, attachmentSync, false, attachdetach.DefaultTimerConfig)
	if err != nil {
		return nil, err
	}
	a := &attachments{AttachDetachController: upstream, needed: make(chan struct{})}
	told := cache.ResourceEventHandlerFuncs{AddFunc: a.look, UpdateFunc: func(_, now any) { a.look(now) }}
	for _, i := range []cache.SharedIndexInformer{storage.CSINodes().Informer(), storage.VolumeAttachments().Informer()} {
		if _, err := i.AddEventHandler(told); err != nil {
			return nil, err
		}
	}
	return alone{a}, nil
}

// look begins if there is something to attach to, or attached.
func (a *attachments) look(o any) {
	if node, ok := o.(*storagev1.CSINode); !ok || len(node.Spec.Drivers) > 0 {
		a.begin.Do(func() { close(a.needed) })
	}
}

// Run keeps attachments until ctx ends.
func (a *attachments) Run(ctx context.Context) {
	select {
	case <-a.needed:
		a.AttachDetachController.Run(ctx)
	case <-ctx.Done():
	}
}

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
