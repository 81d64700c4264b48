package workloads

import (
	"bytes"
	"context"
	"encoding/json"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
)

// PodWriter writes pods as requests of a controller do, at less cost.
type PodWriter interface {
	// Create makes a pod.
	Create(ctx context.Context, namespace string, pod *corev1.Pod) (*corev1.Pod, error)
	// RemoveFinalizers takes finalizers off a pod, unless that has to be a request: then nothing is done.
	RemoveFinalizers(ctx context.Context, namespace, name string, finalizers []string) (pod *corev1.Pod, done bool, err error)
}

// withPods is a client whose pods are written by a PodWriter where it can say what is asked.
type withPods struct {
	kubernetes.Interface
	writer PodWriter
}

// CoreV1 implements kubernetes.Interface.
func (c withPods) CoreV1() typedcorev1.CoreV1Interface {
	return coreWithPods{c.Interface.CoreV1(), c.writer}
}

type coreWithPods struct {
	typedcorev1.CoreV1Interface
	writer PodWriter
}

// Pods implements typedcorev1.PodsGetter.
func (c coreWithPods) Pods(namespace string) typedcorev1.PodInterface {
	return writtenPods{c.CoreV1Interface.Pods(namespace), c.writer, namespace}
}

type writtenPods struct {
	typedcorev1.PodInterface
	writer    PodWriter
	namespace string
}

// Create implements typedcorev1.PodInterface.
func (p writtenPods) Create(ctx context.Context, pod *corev1.Pod, options metav1.CreateOptions) (*corev1.Pod, error) {
	if !equality.Semantic.DeepEqual(options, metav1.CreateOptions{}) {
		return p.PodInterface.Create(ctx, pod, options)
	}
	return p.writer.Create(ctx, p.namespace, pod)
}

// Patch implements typedcorev1.PodInterface.
func (p writtenPods) Patch(ctx context.Context, name string, kind types.PatchType, data []byte, options metav1.PatchOptions, subresources ...string,
) (*corev1.Pod, error) {
	finalizers, only := removedFinalizers(kind, data)
	if only && len(subresources) == 0 && equality.Semantic.DeepEqual(options, metav1.PatchOptions{}) {
		if pod, done, err := p.writer.RemoveFinalizers(ctx, p.namespace, name, finalizers); done {
			return pod, err
		}
	}
	return p.PodInterface.Patch(ctx, name, kind, data, options, subresources...)
}

// removedFinalizers are those that a patch takes off, if it does nothing else.
func removedFinalizers(kind types.PatchType, data []byte) (finalizers []string, only bool) {
	var patch struct {
		Metadata struct {
			Finalizers []string `json:"$deleteFromPrimitiveList/finalizers"`
		} `json:"metadata"`
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if kind != types.StrategicMergePatchType || d.Decode(&patch) != nil {
		return nil, false
	}
	return patch.Metadata.Finalizers, len(patch.Metadata.Finalizers) > 0
}
