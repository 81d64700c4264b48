package apiserver

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/generic"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/coordination"

	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/fsm"
)

// registry makes upstream's stores over the tables of one server.
type registry struct {
	backend Backend
	hub     *hub
	pins    *pins
	rights  *rights
	vault   *vault.Vault
	names   *kindNames
	leases  Leases
	counts  *objectCounts
	// Once they are made:
	pods, replicaSets *served
	deploymentStatus  rest.Updater
}

// description is what one resource adds to the machinery.
type description struct {
	kind       *kind
	singular   string
	shortNames []string
	categories []string
	version    schema.GroupVersion // that is stored and shown
	list       func() runtime.Object
	create     rest.RESTCreateStrategy
	update     rest.RESTUpdateStrategy
	remove     rest.RESTDeleteStrategy
	reset      rest.ResetFieldsStrategy
	table      rest.TableConvertor
	attrs      storage.AttrFunc
	predicate  func(labels.Selector, fields.Selector) storage.SelectionPredicate
	// whole: a deletion answers with the object and not with a Status.
	whole bool
	erase func(key string, p fsm.Precondition, options *metav1.DeleteOptions) fsm.Command
	// endsInApply: an update that takes the last finalizer away ends the object
	// in Apply.
	endsInApply bool
	// orphans: dependents stay, unless a deletion says otherwise.
	orphans bool
}

// strategy is what most of upstream's strategies are at once.
type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
	rest.RESTDeleteStrategy
}

// by sets one strategy for all verbs.
func (d description) by(s strategy) description {
	d.create, d.update, d.remove = s, s, s
	d.reset, _ = s.(rest.ResetFieldsStrategy)
	return d
}

func (g *registry) resource(d description) (*served, error) {
	store, err := g.store(d)
	if err != nil {
		return nil, err
	}
	return &served{
		Store: store, backend: g.backend, kind: d.kind,
		shortNames: d.shortNames, categories: d.categories, erase: d.erase,
	}, nil
}

func (g *registry) store(d description) (*genericregistry.Store, error) {
	store := &genericregistry.Store{
		NewFunc:                   d.kind.newObject,
		NewListFunc:               d.list,
		PredicateFunc:             d.predicate,
		DefaultQualifiedResource:  d.kind.resource,
		SingularQualifiedResource: schema.GroupResource{Group: d.kind.resource.Group, Resource: d.singular},
		CreateStrategy:            brief(telling(d.create)),
		UpdateStrategy:            briefChanges(tellingChanges(d.update)),
		DeleteStrategy:            d.remove,
		ResetFieldsStrategy:       d.reset,
		ReturnDeletedObject:       d.whole,
		TableConvertor:            d.table,
	}
	if d.endsInApply {
		store.ShouldDeleteDuringUpdate = never
	}
	err := store.CompleteWithOptions(&generic.StoreOptions{RESTOptions: g.options(d), AttrFunc: d.attrs})
	if err != nil {
		return nil, fmt.Errorf("registry of %s: %w", d.kind.resource, err)
	}
	return store, nil
}

// options are the seam: the decorator gives upstream's store our storage.
func (g *registry) options(d description) generic.RESTOptions {
	kind := d.kind
	g.counts.serve(kind.resource, kind.rows)
	if kind.rows.table == objectsTable {
		kind = g.sealing(kind, kind.resource.Resource)
	}
	return generic.RESTOptions{
		StorageConfig: &storagebackend.ConfigForResource{
			GroupResource: d.kind.resource,
			Config:        storagebackend.Config{EncodeVersioner: d.version},
		},
		ResourcePrefix:          d.kind.resource.Resource,
		DeleteCollectionWorkers: deleteWorkers,
		Decorator: func(_ *storagebackend.ConfigForResource, prefix string, _ func(runtime.Object) (string, error),
			_, _ func() runtime.Object, attrs storage.AttrFunc, _ storage.IndexerFuncs, _ *cache.Indexers,
		) (storage.Interface, factory.DestroyFunc, error) {
			t := &tables{
				kind: kind, prefix: prefix + "/", backend: g.backend, pins: g.pins, hub: g.hub, attrs: attrs,
			}
			if d.kind.resource == coordination.Resource("leases") {
				t.leases = g.leases
			}
			return t, func() {}, nil
		},
	}
}
