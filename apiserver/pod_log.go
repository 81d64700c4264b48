package apiserver

import (
	"context"
	"fmt"
	"io"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericapirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"

	"github.com/berth-dev/berth/fsm"
)

// podLog serves pods/log.
type podLog struct {
	backend Backend
	logs    Logs // nil: there are none
}

var (
	_ rest.GetterWithOptions = (*podLog)(nil)
	_ rest.StorageMetadata   = (*podLog)(nil)
)

// New implements rest.Storage.
func (l *podLog) New() runtime.Object { return &core.Pod{} }

// Destroy implements rest.Storage.
func (l *podLog) Destroy() {}

// NewGetOptions implements rest.GetterWithOptions.
func (l *podLog) NewGetOptions() (runtime.Object, bool, string) {
	return &core.PodLogOptions{}, false, ""
}

// ProducesMIMETypes implements rest.StorageMetadata.
func (l *podLog) ProducesMIMETypes(string) []string { return []string{"text/plain"} }

// ProducesObject implements rest.StorageMetadata.
func (l *podLog) ProducesObject(string) any { return "" }

// OverrideMetricsVerb keeps streams out of the latencies of reads.
func (l *podLog) OverrideMetricsVerb(verb string) string {
	if verb == "GET" {
		return "CONNECT"
	}
	return verb
}

// Get implements rest.GetterWithOptions.
func (l *podLog) Get(ctx context.Context, name string, opts runtime.Object) (runtime.Object, error) {
	in, ok := opts.(*core.PodLogOptions)
	if !ok {
		return nil, badObject("PodLogOptions", opts)
	}
	split := utilfeature.DefaultFeatureGate.Enabled(features.PodLogsQuerySplitStreams)
	if split && in.Stream == nil {
		all := core.LogStreamAll
		in.Stream = &all
	}
	if errs := validation.ValidatePodLogOptions(in, split); len(errs) > 0 {
		return nil, apierrors.NewInvalid(core.Kind("PodLogOptions"), name, errs)
	}
	options, err := versioned[corev1.PodLogOptions](in)
	if err != nil {
		return nil, err
	}
	if err := l.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	pod, ok := l.backend.View().Pods.Get(fsm.PodKey(genericapirequest.NamespaceValue(ctx), name))
	if !ok {
		return nil, apierrors.NewNotFound(core.Resource("pods"), name)
	}
	container, err := logContainer(pod, options.Container)
	if err != nil {
		return nil, err
	}
	switch {
	case l.logs == nil:
		return nil, notImplemented("container logs")
	case pod.Spec.NodeName == "":
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", name))
	}
	return &logStream{logs: l.logs, pod: pod, container: container, options: options}, nil
}

// logContainer is the container whose log is meant.
func logContainer(pod *corev1.Pod, name string) (string, error) {
	var names []string
	for _, c := range pod.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range pod.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	switch {
	case name == "" && len(pod.Spec.Containers) == 1:
		return pod.Spec.Containers[0].Name, nil
	case name == "":
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", pod.Name, names))
	case !slices.Contains(names, name):
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, pod.Name))
	}
	return name, nil
}

// logStream is the answer to a request for a log: what the generic server
// copies to the client.
type logStream struct {
	logs      Logs
	pod       *corev1.Pod
	container string
	options   *corev1.PodLogOptions
}

var (
	_ rest.ResourceStreamer = (*logStream)(nil)
	_ runtime.Object        = (*logStream)(nil)
)

// InputStream implements rest.ResourceStreamer.
func (s *logStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	stream, err := s.logs.Open(ctx, s.pod, s.container, s.options)
	if err != nil {
		return nil, false, "", readError(err)
	}
	return stream, s.options.Follow, "text/plain", nil
}

// GetObjectKind implements runtime.Object; a stream has none.
func (s *logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }

// DeepCopyObject implements runtime.Object; a stream is used once.
func (s *logStream) DeepCopyObject() runtime.Object { return s }
