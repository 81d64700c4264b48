// Package noderights says what a node may: by Kubernetes' own rules for nodes, fed with what the
// state says of the node's pods. Whom a pod needs is asked here for both doors, the API and the
// workers' protocol.
//
// It keeps no copy of anything: upstream's graph is made anew for a question, of the pods that the
// question is about.
package noderights

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	pvutil "k8s.io/kubernetes/pkg/api/v1/persistentvolume"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/kubernetes/pkg/auth/nodeidentifier"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
)

// What pods need beside claims and volumes, as the API names it.
const (
	Secrets         = "secrets"
	ConfigMaps      = "configmaps"
	ServiceAccounts = "serviceaccounts"
	pods            = "pods"
)

var identifier = nodeidentifier.NewDefaultNodeIdentifier()

// NodeOf is the node that a user is: by its name and its group.
func NodeOf(who user.Info) (node string, ok bool) {
	if who == nil {
		return "", false
	}
	node, ok = identifier.NodeIdentity(who)
	return node, ok && node != ""
}

// Authorizer says what nodes may ask of the API.
type Authorizer struct {
	view  func() *fsm.View
	rules []rbacv1.PolicyRule
}

var _ authorizer.Authorizer = (*Authorizer)(nil)

// New gives the authorizer of a server.
func New(view func() *fsm.View) *Authorizer {
	return &Authorizer{view: view, rules: bootstrappolicy.NodeRules()}
}

// Authorize implements authorizer.Authorizer. It has no opinion about who is not a node.
func (a *Authorizer) Authorize(ctx context.Context, q authorizer.Attributes) (authorizer.Decision, string, error) {
	name, ok := NodeOf(q.GetUser())
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	graph := node.NewGraph()
	if q.IsResourceRequest() && q.GetName() != "" {
		fillFor(graph, a.view(), name, q)
	}
	return node.NewAuthorizer(graph, identifier, a.rules).Authorize(ctx, q)
}

// fillFor puts into the graph what leads from the object that is asked for to the node.
func fillFor(graph *node.Graph, view *fsm.View, name string, q authorizer.Attributes) {
	asked := schema.GroupResource{Group: q.GetAPIGroup(), Resource: q.GetResource()}
	switch {
	case asked == storagev1.Resource(fsm.VolumeAttachments):
		if a, ok := view.VolumeAttachment(q.GetName()); ok {
			graph.AddVolumeAttachment(a.Name, a.Spec.NodeName)
		}
	case asked == resourcev1.Resource(fsm.ResourceSlices):
		if s, ok := view.ResourceSlice(q.GetName()); ok && s.Spec.NodeName != nil {
			graph.AddResourceSlice(s.Name, *s.Spec.NodeName)
		}
	case asked.Group == "", asked == resourcev1.Resource(fsm.ResourceClaims):
		fill(graph, view, name, q.GetResource(), q.GetNamespace(), q.GetName())
	}
}

// fill puts into the graph what leads from an object to the node: the first pod that needs it, and the
// volume by which it does.
func fill(graph *node.Graph, view *fsm.View, name, resource, namespace, object string) {
	if resource == pods {
		if pod, ok := view.Pods.Get(fsm.PodKey(namespace, object)); ok && pod.Spec.NodeName == name {
			graph.AddPod(pod)
		}
		return
	}
	if pod, volume := holder(view, name, resource, namespace, object); pod != nil {
		graph.AddPod(pod)
		if volume != nil {
			graph.AddPV(volume)
		}
	}
}

// Needs says whether a pod on the node needs an object: a secret, a config map, its service account, a
// claim, a volume.
func Needs(view *fsm.View, node, resource, namespace, name string) bool {
	pod, _ := holder(view, node, resource, namespace, name)
	return pod != nil
}

// holder is a pod on the node that needs an object, and the volume by which it does, if any.
func holder(view *fsm.View, node, resource, namespace, name string) (needs *corev1.Pod, by *corev1.PersistentVolume) {
	if resource == fsm.PersistentVolumes {
		volume, ok := view.PersistentVolume(name)
		if !ok || namespace != "" {
			return nil, nil
		}
		claim, ok := claimOf(view, volume)
		if !ok {
			return nil, nil
		}
		pod, _ := holder(view, node, fsm.VolumeClaims, claim.Namespace, claim.Name)
		return pod, volume
	}
	view.PodsOnNode(node, func(pod *corev1.Pod) bool {
		if pod.Namespace != namespace {
			return true
		}
		ok := false
		if ok, by = refers(view, pod, resource, name); ok {
			needs = pod
		}
		return needs == nil
	})
	return needs, by
}

// claimOf is the claim that has a volume: each names the other.
func claimOf(view *fsm.View, volume *corev1.PersistentVolume) (*corev1.PersistentVolumeClaim, bool) {
	ref := volume.Spec.ClaimRef
	if ref == nil {
		return nil, false
	}
	claim, ok := view.VolumeClaim(ref.Namespace, ref.Name)
	return claim, ok && claim.UID == ref.UID && claim.Spec.VolumeName == volume.Name
}

// refers says whether a pod needs an object of its namespace. A mirror of a pod that a node keeps by
// itself gives no right to anything.
func refers(view *fsm.View, pod *corev1.Pod, resource, name string) (ok bool, by *corev1.PersistentVolume) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return false, nil
	}
	isIt := func(named string) (goOn bool) {
		ok = ok || named == name
		return !ok
	}
	switch resource {
	case Secrets:
		if podutil.VisitPodSecretNames(pod, isIt); !ok {
			by = volumeWith(view, pod, name)
			ok = by != nil
		}
	case ConfigMaps:
		podutil.VisitPodConfigmapNames(pod, isIt)
	case ServiceAccounts:
		ok = pod.Spec.ServiceAccountName == name
	case fsm.VolumeClaims:
		ok = slices.Contains(model.Claims(pod), name)
	case fsm.ResourceClaims:
		for i := range pod.Spec.ResourceClaims {
			claim, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
			ok = ok || err == nil && claim != nil && *claim == name
		}
		if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
			ok = ok || s.ResourceClaimName == name
		}
	}
	return ok, by
}

// volumeWith is a volume of the pod's whose driver needs a secret of the pod's namespace on the node.
func volumeWith(view *fsm.View, pod *corev1.Pod, secret string) *corev1.PersistentVolume {
	for _, name := range model.Claims(pod) {
		claim, ok := view.VolumeClaim(pod.Namespace, name)
		if !ok || claim.Spec.VolumeName == "" {
			continue
		}
		volume, ok := view.PersistentVolume(claim.Spec.VolumeName)
		if !ok {
			continue
		}
		if c, ok := claimOf(view, volume); !ok || c.UID != claim.UID {
			continue
		}
		found := false
		pvutil.VisitPVSecretNames(volume, func(namespace, named string, kubeletVisible bool) bool {
			found = kubeletVisible && namespace == pod.Namespace && named == secret
			return !found
		})
		if found {
			return volume
		}
	}
	return nil
}
