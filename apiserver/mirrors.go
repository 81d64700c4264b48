package apiserver

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	core "k8s.io/kubernetes/pkg/apis/core"
	corev1conversion "k8s.io/kubernetes/pkg/apis/core/v1"
)

// configHash is the annotation of a static pod that its mirror names it by.
const configHash = "kubernetes.io/config.hash"

// MirrorOf is the object that shows a node's static pod, made of what its worker says of that: bound to the node, owned by
// it, and without a word about other objects, which are NodeRestriction's rules.
func MirrorOf(said *corev1.Pod, node *corev1.Node) (*corev1.Pod, error) {
	hash := said.Annotations[configHash]
	switch {
	case hash == "" || said.Annotations[corev1.MirrorPodAnnotationKey] != hash:
		return nil, fmt.Errorf("it has not the annotations %s and %s, with one value", configHash, corev1.MirrorPodAnnotationKey)
	case said.Spec.NodeName != node.Name:
		return nil, fmt.Errorf("its node is %q", said.Spec.NodeName)
	case len(said.Finalizers) > 0:
		return nil, errors.New("it has finalizers")
	}
	pod := new(core.Pod)
	if err := corev1conversion.Convert_v1_Pod_To_core_Pod(said.DeepCopy(), pod, nil); err != nil {
		return nil, err
	}
	if _, kind, err := podutil.HasAPIObjectReference(pod); err != nil || kind != "" {
		return nil, errors.Join(fmt.Errorf("it refers to %s", kind), err)
	}
	yes := true
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: said.Namespace, Name: said.Name, Labels: said.Labels, Annotations: said.Annotations,
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID, Controller: &yes},
			},
		},
		Spec: said.Spec,
	}, nil
}
