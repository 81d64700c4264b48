package apiserver

import (
	"context"
	"slices"
	"strings"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	informers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	listers "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/store"
)

var definitionsResource = apiextensions.Resource(fsm.CustomResourceDefinitions)

// definitions presents the definitions of custom kinds to upstream's handler: a lister
// reads this server's latest view, and what is remembered of a definition is let go when
// it changes.
type definitions struct {
	backend  Backend
	handlers []cache.ResourceEventHandler
	changed  func(v *fsm.View, group string) // after the handlers
	// aggregated is told of an APIService that may be another; services names all that may be.
	aggregated func(v *fsm.View, name string)
	services   func(v *fsm.View) []string

	mu    sync.Mutex
	told  int64         // the revision up to which the handlers know everything
	tells chan struct{} // closed when told is another
}

var (
	_ informers.CustomResourceDefinitionInformer = (*definitions)(nil)
	_ listers.CustomResourceDefinitionLister     = (*definitions)(nil)
	_ cache.SharedIndexInformer                  = definitionEvents{}
)

func newDefinitions(backend Backend) *definitions {
	return &definitions{backend: backend, tells: make(chan struct{})}
}

func (d *definitions) view() *fsm.View { return d.backend.View() }

// Lister implements informers.CustomResourceDefinitionInformer.
func (d *definitions) Lister() listers.CustomResourceDefinitionLister { return d }

// Informer implements informers.CustomResourceDefinitionInformer.
func (d *definitions) Informer() cache.SharedIndexInformer { return definitionEvents{of: d} }

// List implements listers.CustomResourceDefinitionLister.
func (d *definitions) List(selector labels.Selector) ([]*apiextensionsv1.CustomResourceDefinition, error) {
	var out []*apiextensionsv1.CustomResourceDefinition
	d.view().Definitions(func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		if selector.Matches(labels.Set(crd.Labels)) {
			out = append(out, crd)
		}
		return true
	})
	return out, nil
}

// Get implements listers.CustomResourceDefinitionLister. It says that the kind was
// established long ago: upstream lets the first objects wait for two seconds, in case
// another server has not heard of the kind, while a view has it as soon as the server
// has applied it.
func (d *definitions) Get(name string) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd, ok := d.view().Definition(name)
	if !ok {
		return nil, apierrors.NewNotFound(definitionsResource, name)
	}
	shown := *crd
	shown.Status.Conditions = slices.Clone(crd.Status.Conditions)
	if c := apihelpers.FindCRDCondition(&shown, apiextensionsv1.Established); c != nil {
		c.LastTransitionTime = metav1.Time{}
	}
	return &shown, nil
}

// definitionEvents is as much of an informer as upstream's handler uses: it registers
// handlers, before the first event.
type definitionEvents struct {
	cache.SharedIndexInformer
	of *definitions
}

// AddEventHandler implements cache.SharedIndexInformer.
func (e definitionEvents) AddEventHandler(h cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	e.of.handlers = append(e.of.handlers, h)
	return nil, nil
}

// HasSynced implements cache.SharedIndexInformer.
func (definitionEvents) HasSynced() bool { return true }

// definitionsAtOnce is how many changes are read from the feed at once.
const definitionsAtOnce = 4096

// run follows the state until the context ends.
func (d *definitions) run(ctx context.Context) {
	known := map[string]*apiextensionsv1.CustomResourceDefinition{}
	at := d.anew(known)
	feed := d.backend.Feed()
	for {
		changes, err := feed.After(at, definitionsAtOnce)
		switch {
		case err != nil: // too far behind, or the state was restored
			at = d.anew(known)
			continue
		case len(changes) == 0:
			if feed.Wait(ctx, at) != nil {
				return
			}
			continue
		}
		for i := range changes {
			c := &changes[i]
			switch {
			case c.Table != objectsTable:
			case strings.HasPrefix(c.Key, fsm.CustomResourceDefinitions+"/"):
				d.tell(known, definitionOf(c.Old), definitionOf(c.New))
			case strings.HasPrefix(c.Key, fsm.APIServices+"/"):
				d.aggregated(d.view(), nameOf(c))
			}
		}
		at = changes[len(changes)-1].Revision
		d.setTold(at)
	}
}

func nameOf(c *store.Change) string {
	o, ok := c.New.(*fsm.Object)
	if !ok || o == nil {
		o = c.Old.(*fsm.Object)
	}
	return o.Value.GetName()
}

func definitionOf(row any) *apiextensionsv1.CustomResourceDefinition {
	o, ok := row.(*fsm.Object)
	if !ok {
		return nil
	}
	return o.Value.(*apiextensionsv1.CustomResourceDefinition)
}

// anew tells what is otherwise than known.
func (d *definitions) anew(known map[string]*apiextensionsv1.CustomResourceDefinition) int64 {
	v := d.view()
	for name, old := range known {
		if _, ok := v.Definition(name); !ok {
			d.tell(known, old, nil)
		}
	}
	v.Definitions(func(crd *apiextensionsv1.CustomResourceDefinition) bool {
		if old := known[crd.Name]; old != crd {
			d.tell(known, old, crd)
		}
		return true
	})
	for _, name := range d.services(v) {
		d.aggregated(v, name)
	}
	d.setTold(v.Revision())
	return v.Revision()
}

func (d *definitions) tell(known map[string]*apiextensionsv1.CustomResourceDefinition, old, now *apiextensionsv1.CustomResourceDefinition) {
	either := now
	if now == nil {
		either = old
		delete(known, old.Name)
	} else {
		known[now.Name] = now
	}
	for _, h := range d.handlers {
		switch {
		case now == nil:
			h.OnDelete(old)
		case old == nil:
			h.OnAdd(now, false)
		default:
			h.OnUpdate(old, now)
		}
	}
	d.changed(d.view(), either.Spec.Group)
}

func (d *definitions) setTold(revision int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.told = revision
	close(d.tells)
	d.tells = make(chan struct{})
}

// await returns when everybody has been told of a definition: what is remembered of the
// one before it has been let go.
func (d *definitions) await(ctx context.Context, revision int64) error {
	for {
		d.mu.Lock()
		told, tells := d.told, d.tells
		d.mu.Unlock()
		if told >= revision {
			return nil
		}
		select {
		case <-tells:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
