package apiserver

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/metrics/pkg/apis/metrics"
	metricsinstall "k8s.io/metrics/pkg/apis/metrics/install"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sample"
)

// usageListsAtOnce bounds the lists of usage that are being made: unlike other
// lists, they are made whole before they are written.
const usageListsAtOnce = 4

// usageScheme knows the types of metrics.k8s.io.
func usageScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	metricsinstall.Install(scheme)
	// Options and answers that belong to no group.
	unversioned := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, unversioned)
	scheme.AddUnversionedTypes(unversioned, &metav1.Status{}, &metav1.APIVersions{}, &metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	return scheme
}

// usageGroup serves metrics.k8s.io: what nodes and pods use, for `kubectl top` and
// whoever scales by it. Nothing of it is kept; it can be read and not watched.
func (g *registry) usageGroup(scheme *runtime.Scheme, usage Usage) genericapiserver.APIGroupInfo {
	info := genericapiserver.NewDefaultAPIGroupInfo(metrics.GroupName, scheme, runtime.NewParameterCodec(scheme), serializer.NewCodecFactory(scheme))
	info.PrioritizedVersions = []schema.GroupVersion{metricsv1beta1.SchemeGroupVersion}
	source := &usageSource{backend: g.backend, usage: usage, lists: make(chan struct{}, usageListsAtOnce)}
	info.VersionedResourcesStorageMap[metricsv1beta1.SchemeGroupVersion.Version] = map[string]rest.Storage{
		"nodes": &nodeUsage{source}, "pods": &podUsage{source},
	}
	return info
}

// usageSource is where both resources are read.
type usageSource struct {
	backend Backend
	usage   Usage // nil: there is none
	lists   chan struct{}
}

// view is the state, and what its nodes use.
func (s *usageSource) view(ctx context.Context) (*fsm.View, error) {
	if s.usage == nil {
		return nil, notImplemented("the usage of nodes and pods")
	}
	if err := s.backend.ReadIndex(ctx); err != nil {
		return nil, readError(err)
	}
	return s.backend.View(), nil
}

func (s *usageSource) of(ctx context.Context, nodes []string) (Samples, error) {
	out, err := s.usage.Of(ctx, nodes)
	if err != nil {
		return nil, readError(err)
	}
	return out, nil
}

// enter waits for the turn of a list.
func (s *usageSource) enter(ctx context.Context) (leave func(), err error) {
	select {
	case s.lists <- struct{}{}:
		return func() { <-s.lists }, nil
	case <-ctx.Done():
		return nil, readError(ctx.Err())
	}
}

// asked says which objects are asked for.
func asked(options *metainternalversion.ListOptions) func(m *metav1.ObjectMeta) bool {
	var byLabels labelMatch
	var byFields fieldMatch
	if options != nil && options.LabelSelector != nil {
		byLabels = selectsLabels(options.LabelSelector)
	}
	if options != nil && options.FieldSelector != nil {
		byFields = selectsFields(options.FieldSelector)
	}
	return func(m *metav1.ObjectMeta) bool {
		if byLabels != nil && !byLabels.Matches(labels.Set(m.Labels)) {
			return false
		}
		return byFields == nil || byFields.Matches(fields.Set{"metadata.name": m.Name, "metadata.namespace": m.Namespace})
	}
}

// checkFields refuses selectors of fields that there are none of.
func checkFields(options *metainternalversion.ListOptions, known ...string) error {
	if options == nil || options.FieldSelector == nil {
		return nil
	}
	for _, r := range options.FieldSelector.Requirements() {
		ok := false
		for _, k := range known {
			ok = ok || r.Field == k
		}
		if !ok {
			return apierrors.NewBadRequest("field label not supported: " + r.Field)
		}
	}
	return nil
}

// amounts are in the units in which Kubernetes shows them.
func amounts(a sample.Amount) corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(a.NanoCPU, resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(a.MemoryBytes, resource.BinarySI),
	}
}

// measuredMeta is an object's name and labels, at the moment of the sample.
func measuredMeta(o *metav1.ObjectMeta, taken *sample.Taken) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace, Labels: o.Labels, CreationTimestamp: metav1.NewTime(taken.At.Truncate(time.Second))}
}

// nodeUsage serves nodes.metrics.k8s.io.
type nodeUsage struct{ *usageSource }

var (
	_ rest.Getter               = (*nodeUsage)(nil)
	_ rest.Lister               = (*nodeUsage)(nil)
	_ rest.Scoper               = (*nodeUsage)(nil)
	_ rest.SingularNameProvider = (*nodeUsage)(nil)
	_ rest.KindProvider         = (*nodeUsage)(nil)
)

// New implements rest.Storage.
func (*nodeUsage) New() runtime.Object { return new(metrics.NodeMetrics) }

// Destroy implements rest.Storage.
func (*nodeUsage) Destroy() {}

// NewList implements rest.Lister.
func (*nodeUsage) NewList() runtime.Object { return new(metrics.NodeMetricsList) }

// Kind implements rest.KindProvider.
func (*nodeUsage) Kind() string { return "NodeMetrics" }

// GetSingularName implements rest.SingularNameProvider.
func (*nodeUsage) GetSingularName() string { return "" }

// NamespaceScoped implements rest.Scoper.
func (*nodeUsage) NamespaceScoped() bool { return false }

// Get implements rest.Getter.
func (u *nodeUsage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	view, err := u.view(ctx)
	if err != nil {
		return nil, err
	}
	node, ok := view.Nodes.Get(name)
	if !ok {
		return nil, apierrors.NewNotFound(metrics.Resource("nodes"), name)
	}
	samples, err := u.of(ctx, []string{name})
	if err != nil {
		return nil, err
	}
	taken, ok := samples.Sample(name)
	if !ok {
		return nil, apierrors.NewNotFound(metrics.Resource("nodes"), name)
	}
	return usageOfNode(node, &taken), nil
}

func usageOfNode(node *corev1.Node, taken *sample.Taken) *metrics.NodeMetrics {
	return &metrics.NodeMetrics{
		ObjectMeta: measuredMeta(&node.ObjectMeta, taken), Timestamp: metav1.NewTime(taken.At),
		Window: metav1.Duration{Duration: time.Duration(taken.WindowNano)}, Usage: amounts(taken.Used),
	}
}

// List implements rest.Lister.
func (u *nodeUsage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := checkFields(options, "metadata.name"); err != nil {
		return nil, err
	}
	leave, err := u.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	view, err := u.view(ctx)
	if err != nil {
		return nil, err
	}
	var nodes []*corev1.Node
	var names []string
	isAsked := asked(options)
	view.Nodes.Scan("", func(_ string, node *corev1.Node) bool {
		if isAsked(&node.ObjectMeta) {
			nodes, names = append(nodes, node), append(names, node.Name)
		}
		return true
	})
	samples, err := u.of(ctx, names)
	if err != nil {
		return nil, err
	}
	out := &metrics.NodeMetricsList{Items: []metrics.NodeMetrics{}}
	for _, node := range nodes {
		if taken, ok := samples.Sample(node.Name); ok {
			out.Items = append(out.Items, *usageOfNode(node, &taken))
		}
	}
	return out, nil
}

// podUsage serves pods.metrics.k8s.io.
type podUsage struct{ *usageSource }

var (
	_ rest.Getter               = (*podUsage)(nil)
	_ rest.Lister               = (*podUsage)(nil)
	_ rest.Scoper               = (*podUsage)(nil)
	_ rest.SingularNameProvider = (*podUsage)(nil)
	_ rest.KindProvider         = (*podUsage)(nil)
)

// New implements rest.Storage.
func (*podUsage) New() runtime.Object { return new(metrics.PodMetrics) }

// Destroy implements rest.Storage.
func (*podUsage) Destroy() {}

// NewList implements rest.Lister.
func (*podUsage) NewList() runtime.Object { return new(metrics.PodMetricsList) }

// Kind implements rest.KindProvider.
func (*podUsage) Kind() string { return "PodMetrics" }

// GetSingularName implements rest.SingularNameProvider.
func (*podUsage) GetSingularName() string { return "" }

// NamespaceScoped implements rest.Scoper.
func (*podUsage) NamespaceScoped() bool { return true }

// Get implements rest.Getter.
func (u *podUsage) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	view, err := u.view(ctx)
	if err != nil {
		return nil, err
	}
	key := fsm.PodKey(request.NamespaceValue(ctx), name)
	pod, ok := view.Pods.Get(key)
	if !ok || pod.Spec.NodeName == "" {
		return nil, apierrors.NewNotFound(metrics.Resource("pods"), key)
	}
	samples, err := u.of(ctx, []string{pod.Spec.NodeName})
	if err != nil {
		return nil, err
	}
	if taken, ok := samples.Sample(pod.Spec.NodeName); ok {
		for i := range taken.Pods {
			if m := usageOfPod(pod, &taken, &taken.Pods[i]); m != nil {
				return m, nil
			}
		}
	}
	return nil, apierrors.NewNotFound(metrics.Resource("pods"), key)
}

// usageOfPod is what a sample of the pod's node says of the pod; nil: nothing. Whatever
// a worker says, a pod has the containers of its spec and no others.
func usageOfPod(pod *corev1.Pod, taken *sample.Taken, said *sample.Pod) *metrics.PodMetrics {
	if said.UID != string(pod.UID) || pod.Status.Phase != corev1.PodRunning {
		return nil
	}
	used := make(map[string]sample.Amount, len(said.Containers))
	for _, c := range said.Containers {
		used[c.Name] = c.Used
	}
	m := &metrics.PodMetrics{
		ObjectMeta: measuredMeta(&pod.ObjectMeta, taken), Timestamp: metav1.NewTime(taken.At),
		Window: metav1.Duration{Duration: time.Duration(taken.WindowNano)}, Containers: []metrics.ContainerMetrics{},
	}
	add := func(name string) {
		if a, ok := used[name]; ok {
			m.Containers = append(m.Containers, metrics.ContainerMetrics{Name: name, Usage: amounts(a)})
		}
	}
	for i := range pod.Spec.InitContainers {
		add(pod.Spec.InitContainers[i].Name)
	}
	for i := range pod.Spec.Containers {
		add(pod.Spec.Containers[i].Name)
	}
	for i := range pod.Spec.EphemeralContainers {
		add(pod.Spec.EphemeralContainers[i].Name)
	}
	if len(m.Containers) == 0 {
		return nil
	}
	return m
}

// List implements rest.Lister.
func (u *podUsage) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	if err := checkFields(options, "metadata.name", "metadata.namespace"); err != nil {
		return nil, err
	}
	leave, err := u.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	view, err := u.view(ctx)
	if err != nil {
		return nil, err
	}
	var pods []*corev1.Pod
	var nodes []string
	seen, isAsked := map[string]bool{}, asked(options)
	in := request.NamespaceValue(ctx)
	if in != "" {
		in += "/"
	}
	view.Pods.Scan(in, func(_ string, pod *corev1.Pod) bool {
		if node := pod.Spec.NodeName; node != "" && pod.Status.Phase == corev1.PodRunning && isAsked(&pod.ObjectMeta) {
			pods = append(pods, pod)
			if !seen[node] {
				seen[node], nodes = true, append(nodes, node)
			}
		}
		return true
	})
	samples, err := u.of(ctx, nodes)
	if err != nil {
		return nil, err
	}
	said := newSaid(samples)
	out := &metrics.PodMetricsList{Items: []metrics.PodMetrics{}}
	for _, pod := range pods {
		if taken, one := said.of(pod); one != nil {
			if m := usageOfPod(pod, taken, one); m != nil {
				out.Items = append(out.Items, *m)
			}
		}
	}
	return out, nil
}

// said finds what samples say of pods, and decodes each once.
type said struct {
	samples Samples
	nodes   map[string]*saidOfNode
}

type saidOfNode struct {
	taken sample.Taken
	pods  map[string]*sample.Pod
}

func newSaid(s Samples) *said { return &said{samples: s, nodes: map[string]*saidOfNode{}} }

func (s *said) of(pod *corev1.Pod) (*sample.Taken, *sample.Pod) {
	n, known := s.nodes[pod.Spec.NodeName]
	if !known {
		n = &saidOfNode{pods: map[string]*sample.Pod{}}
		s.nodes[pod.Spec.NodeName] = n
		if taken, ok := s.samples.Sample(pod.Spec.NodeName); ok {
			n.taken = taken
			for i := range taken.Pods {
				n.pods[taken.Pods[i].UID] = &taken.Pods[i]
			}
		}
	}
	return &n.taken, n.pods[string(pod.UID)]
}

// usageTable shows usage as kubectl get does: for `kubectl top` it is not asked.
func usageTable(obj runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		{Name: "CPU", Type: "string", Description: "Processors in use, on average over the window."},
		{Name: "Memory", Type: "string", Description: "Memory in use that cannot be taken back at once."},
		{Name: "Window", Type: "string", Description: "The time over which the use of processors was measured."},
	}}
	row := func(o runtime.Object, name string, used corev1.ResourceList, window time.Duration) {
		table.Rows = append(table.Rows, metav1.TableRow{
			Cells:  []any{name, used.Cpu().String(), used.Memory().String(), window.String()},
			Object: runtime.RawExtension{Object: o},
		})
	}
	pod := func(m *metrics.PodMetrics) {
		sum := corev1.ResourceList{}
		for _, c := range m.Containers {
			for name, q := range c.Usage {
				all := sum[name]
				all.Add(q)
				sum[name] = all
			}
		}
		row(m, m.Name, sum, m.Window.Duration)
	}
	switch o := obj.(type) {
	case *metrics.NodeMetrics:
		row(o, o.Name, o.Usage, o.Window.Duration)
	case *metrics.PodMetrics:
		pod(o)
	case *metrics.NodeMetricsList:
		for i := range o.Items {
			m := &o.Items[i]
			row(m, m.Name, m.Usage, m.Window.Duration)
		}
	case *metrics.PodMetricsList:
		for i := range o.Items {
			pod(&o.Items[i])
		}
	default:
		return nil, badObject("NodeMetrics or PodMetrics", obj)
	}
	if m, err := meta.ListAccessor(obj); err == nil {
		table.ResourceVersion = m.GetResourceVersion()
	}
	return table, nil
}

// ConvertToTable implements rest.TableConvertor.
func (s *usageSource) ConvertToTable(_ context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	table, err := usageTable(obj)
	if o, ok := options.(*metav1.TableOptions); ok && err == nil && o.NoHeaders {
		table.ColumnDefinitions = nil
	}
	return table, err
}
