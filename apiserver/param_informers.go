package apiserver

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
)

// stateFactory gives informers over the state for every kind: what policies take as their
// parameters is looked up where it is, and kept nowhere else.
type stateFactory struct {
	clientinformers.SharedInformerFactory
	feed   *informers.LiveFeed
	view   func() *fsm.View
	client dynamic.Interface
}

// Start implements informers.SharedInformerFactory: nothing lists or watches.
func (stateFactory) Start(<-chan struct{}) {}

// ForResource implements informers.SharedInformerFactory.
func (f stateFactory) ForResource(resource schema.GroupVersionResource) (clientinformers.GenericInformer, error) {
	for _, kind := range fsm.ObjectKinds() {
		if kind.GroupResource() != resource.GroupResource() || resource.Version != "v1" || asksAPI(kind.Resource) {
			continue
		}
		rows := informers.Plain(kind.Resource)
		if kind.ClusterScoped {
			rows = informers.InNoNamespace(kind.Resource)
		}
		i := informers.New(rows, f.view)
		return stateInformer{cache.NewGenericLister(i.GetIndexer(), resource.GroupResource()), readyInformer{i, f.feed}}, nil
	}
	objects := f.client.Resource(resource)
	return stateInformer{askedLister{objects, objects}, readyInformer{nil, f.feed}}, nil
}

// asksAPI: of such objects the state may hold envelopes, or another version, than the API shows. So it is
// with custom objects.
func asksAPI(resource string) bool {
	return resource == "secrets" || resource == "configmaps" || resource == fsm.Autoscalers
}

// stateInformer is an informer that is a lister.
type stateInformer struct {
	lister   cache.GenericLister
	informer cache.SharedIndexInformer
}

// Lister implements informers.GenericInformer.
func (i stateInformer) Lister() cache.GenericLister { return i.lister }

// Informer implements informers.GenericInformer.
func (i stateInformer) Informer() cache.SharedIndexInformer { return i.informer }

// readyInformer is as much of an informer as is asked about parameters.
type readyInformer struct {
	cache.SharedIndexInformer
	feed *informers.LiveFeed
}

// HasSynced implements cache.SharedInformer.
func (i readyInformer) HasSynced() bool { return i.feed.IsReady() }

// askedLister asks the API of this process: it converts custom objects, and fills them in.
type askedLister struct {
	all dynamic.NamespaceableResourceInterface
	in  dynamic.ResourceInterface // a namespace, or all
}

// List implements cache.GenericLister.
func (l askedLister) List(selector labels.Selector) ([]runtime.Object, error) {
	list, err := l.in.List(context.Background(), metav1.ListOptions{LabelSelector: selector.String()})
	if err != nil {
		return nil, err
	}
	out := make([]runtime.Object, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// Get implements cache.GenericLister.
func (l askedLister) Get(name string) (runtime.Object, error) {
	o, err := l.in.Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil, err // and no typed nil
	}
	return o, nil
}

// ByNamespace implements cache.GenericLister.
func (l askedLister) ByNamespace(namespace string) cache.GenericNamespaceLister {
	return askedLister{l.all, l.all.Namespace(namespace)}
}
