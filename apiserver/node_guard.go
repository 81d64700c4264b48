package apiserver

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/kubernetes/pkg/apis/coordination"
	core "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/apiserver/noderights"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
)

// nodeGuards are the admission plugins for what nodes write: Kubernetes' own, and ours.
func nodeGuards(plugins admission.PluginInitializers, view func() *fsm.View) ([]admission.Interface, error) {
	restriction := noderestriction.NewPlugin(nodeidentifier.NewDefaultNodeIdentifier())
	plugins.Initialize(restriction)
	if err := restriction.ValidateInitialization(); err != nil {
		return nil, fmt.Errorf("admission plugin %s: %w", noderestriction.PluginName, err)
	}
	return []admission.Interface{restriction, nodeGuard{view}}, nil
}

// nodeRows are what Kubernetes' plugin for nodes looks up beside pods and namespaces.
func nodeRows() (nodes, accounts, claims, volumes *informers.Rows) {
	return informers.Typed("nodes", func(v *fsm.View) fsm.Table[*corev1.Node] { return v.Nodes }),
		informers.Plain(serviceAccounts), informers.Plain(fsm.VolumeClaims), informers.InNoNamespace(fsm.PersistentVolumes)
}

// nodeGuard is an admission plugin: what a worker may not say by its own protocol, a node does not write
// here either.
type nodeGuard struct{ view func() *fsm.View }

var _ admission.ValidationInterface = nodeGuard{}

// Handles implements admission.Interface.
func (nodeGuard) Handles(o admission.Operation) bool {
	return o == admission.Create || o == admission.Update
}

// Validate implements admission.ValidationInterface.
func (g nodeGuard) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := noderights.NodeOf(a.GetUserInfo())
	if !ok {
		return nil
	}
	var err error
	switch o := a.GetObject().(type) {
	case *core.Node:
		err = g.checkNode(o, a.GetOldObject())
	case *core.Pod:
		err = checkPodOf(o, a.GetOldObject())
	case *core.Event:
		err = g.checkEvent(node, o)
	case *coordination.Lease:
		err = checkLeaseOf(o, a.GetOldObject())
	}
	if err != nil {
		return admission.NewForbidden(a, err)
	}
	return nil
}

// checkNode: a node's object has no more than a worker's may, and its end is not the node's to decide over.
func (nodeGuard) checkNode(said *core.Node, before any) error {
	was, isOld := before.(*core.Node)
	if !isOld || was == nil {
		was = new(core.Node)
	}
	switch {
	case !equality.Semantic.DeepEqual(said.Finalizers, was.Finalizers):
		return errors.New("metadata.finalizers: a node does not set them")
	case !equality.Semantic.DeepEqual(said.OwnerReferences, was.OwnerReferences):
		return errors.New("metadata.ownerReferences: a node does not set them")
	case !equality.Semantic.DeepEqual(said.Spec.PodCIDRs, was.Spec.PodCIDRs):
		return errors.New("spec.podCIDRs: a node does not choose its network")
	case was.Spec.Unschedulable && !said.Spec.Unschedulable:
		return errors.New("spec.unschedulable: a node does not make itself schedulable again")
	}
	old, now := new(corev1.Node), new(corev1.Node)
	if err := errors.Join(corev1conversion.Convert_core_Node_To_v1_Node(was, old, nil), corev1conversion.Convert_core_Node_To_v1_Node(said, now, nil)); err != nil {
		return err
	}
	return access.CheckNodeSize(now, old)
}

// checkPodOf: when a pod is gone is not its node's to decide, be it one that it mirrors.
func checkPodOf(said *core.Pod, before any) error {
	old, is := before.(*core.Pod)
	if !is || old == nil {
		old = new(core.Pod)
	}
	if !equality.Semantic.DeepEqual(said.Finalizers, old.Finalizers) {
		return errors.New("metadata.finalizers: a node does not set them")
	}
	return nil
}

// maxLeaseNotes bounds the labels and annotations of a node's lease, in bytes.
const maxLeaseNotes = 4 << 10

// checkLeaseOf: a node's lease holds up nothing, and says little.
func checkLeaseOf(said *coordination.Lease, before any) error {
	old, is := before.(*coordination.Lease)
	if !is || old == nil {
		old = new(coordination.Lease)
	}
	if !equality.Semantic.DeepEqual(said.Finalizers, old.Finalizers) {
		return errors.New("metadata.finalizers: a node does not set them")
	}
	if notes := notesOf(said); notes > max(maxLeaseNotes, notesOf(old)) {
		return fmt.Errorf("metadata: labels and annotations of a node's lease may have %d bytes, and have %d", maxLeaseNotes, notes)
	}
	return nil
}

// notesOf is how many bytes of labels and annotations there are.
func notesOf(l *coordination.Lease) (n int) {
	for _, of := range []map[string]string{l.Labels, l.Annotations} {
		for key, value := range of { // order does not matter: they are counted
			n += len(key) + len(value)
		}
	}
	return n
}

// checkEvent: a node tells of itself, and of the pods on it. Of one that is gone it may still tell.
func (g nodeGuard) checkEvent(node string, e *core.Event) error {
	for _, said := range []struct{ field, host string }{{"source.host", e.Source.Host}, {"reportingInstance", e.ReportingInstance}} {
		if said.host != "" && said.host != node {
			return fmt.Errorf("%s: node %q does not tell for %q", said.field, node, said.host)
		}
	}
	about := e.InvolvedObject
	switch about.Kind {
	case "Node":
		if about.Name != node {
			return fmt.Errorf("involvedObject: node %q does not tell of node %q", node, about.Name)
		}
	case "Pod":
		if pod, ok := g.view().Pods.Get(fsm.PodKey(about.Namespace, about.Name)); ok && pod.Spec.NodeName != node {
			return fmt.Errorf("involvedObject: pod %s/%s is not on node %q", about.Namespace, about.Name, node)
		}
	default:
		resource := map[string]string{"PersistentVolumeClaim": fsm.VolumeClaims, "PersistentVolume": fsm.PersistentVolumes}[about.Kind]
		if resource == "" || !noderights.Needs(g.view(), node, resource, about.Namespace, about.Name) {
			return fmt.Errorf("involvedObject: node %q tells of itself, of its pods and of their volumes", node)
		}
	}
	return nil
}
