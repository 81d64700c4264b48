package apiserver

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage"
	flowrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/metrics/pkg/apis/metrics"

	"github.com/berth-dev/berth/fsm"
)

const (
	// countedObjects are counted at the most: a list of so many has all seats that a list may have.
	countedObjects = 4096
	// weighedObjects of a kind say how large the others are.
	weighedObjects = 16
	// countedFor is how long a count is good.
	countedFor = time.Second
)

// objectCounts says how many objects of a kind there are, and how large they are, by which upstream estimates how many seats a list
// or the beginning of a watch takes. It reads the view, a bounded part of it, once a second a kind.
type objectCounts struct {
	view func() *fsm.View
	now  func() time.Time

	mu    sync.Mutex
	kinds map[string]rows // by resource and group
	known map[string]counted
}

type counted struct {
	storage.Stats
	until time.Time
}

var _ flowrequest.StorageObjectCountTracker = (*objectCounts)(nil)

func newObjectCounts(view func() *fsm.View, now func() time.Time) *objectCounts {
	return &objectCounts{view: view, now: now, kinds: map[string]rows{}, known: map[string]counted{}}
}

// serve makes a kind known. What pods and nodes use is as much as there are of them.
func (c *objectCounts) serve(resource schema.GroupResource, r rows) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds[resource.String()] = r
	if resource.Group == "" && (resource.Resource == "pods" || resource.Resource == "nodes") {
		c.kinds[metrics.Resource(resource.Resource).String()] = r
	}
}

// Get implements flowrequest.StorageObjectCountTracker.
func (c *objectCounts) Get(resource string) (storage.Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	if known, ok := c.known[resource]; ok && now.Before(known.until) {
		return known.Stats, nil
	}
	v := c.view()
	r, ok := c.kinds[resource]
	if !ok {
		if _, ok = v.Definition(resource); !ok {
			delete(c.known, resource)
			return storage.Stats{}, flowrequest.ObjectCountNotFoundErr
		}
		r = plainRows(resource)
	}
	known := counted{count(v, r), now.Add(countedFor)}
	c.known[resource] = known
	return known.Stats, nil
}

// count looks at countedObjects rows at the most.
func count(v *fsm.View, r rows) storage.Stats {
	var s storage.Stats
	var bytes, weighed int64
	r.scan(v, "", "", func(_ string, row any) bool {
		if weighed < weighedObjects {
			weighed++
			bytes += rowBytes(row)
		}
		s.ObjectCount++
		return s.ObjectCount < countedObjects
	})
	if weighed > 0 {
		s.EstimatedAverageObjectSizeBytes = max(1, bytes/weighed)
	}
	return s
}

// Set implements flowrequest.StorageObjectCountTracker. Upstream's registries count what is in etcd, and are not asked to.
func (*objectCounts) Set(string, storage.Stats) {}

// RunUntil implements flowrequest.StorageObjectCountTracker.
func (*objectCounts) RunUntil(<-chan struct{}) {}
