package rpc

import (
	"cmp"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"
)

const (
	// maxGoneServices is how many objects that are gone the feed remembers. Who has not
	// heard of one that was forgotten is sent everything.
	maxGoneServices = 16 << 10
	// servicesPause is how long a worker is left alone after it was sent services:
	// what changes meanwhile is sent at once, each object in its newest state.
	servicesPause = 100 * time.Millisecond
)

// ServiceObject is the newest state of a service or an endpoint slice.
type ServiceObject struct {
	ObjectRef `msgpack:"ref"`
	// Object is protobuf; empty: it is gone. It is not copied and must not change.
	Object []byte `msgpack:"object,omitempty"`
}

// Services says which services there are, and who is behind them.
type Services struct {
	// Full: what is not in it is not there.
	Full bool `msgpack:"full,omitempty"`
	// More: the next message goes on with this one. A WorkerAgent never sees it.
	More bool `msgpack:"more,omitempty"`
	// Revision is up to where the worker has everything.
	Revision int64           `msgpack:"revision"`
	Objects  []ServiceObject `msgpack:"objects,omitempty"`
	// Topology are the labels of the worker's node by which endpoints are chosen.
	Topology map[string]string `msgpack:"topology,omitempty"`
}

// servicesFeed is what workers that carry services are sent: the newest state of
// every object, once, in the order of the revisions. A worker's stream has a place in it
// and nothing else, so a slow worker holds nothing. It is read from the state when
// the first such worker comes, and dropped when the last one has gone.
//
// Invariants: while loaded, it has every object as of revision; every object that
// went after horizon is remembered as gone.
type servicesFeed struct {
	source ServicesSource

	reading sync.Mutex // held while the state is read, by one stream for all; never with mu held

	mu       sync.Mutex
	loaded   bool
	missed   int                // how often it was unloaded
	loading  *servicesMeanwhile // while the state is read
	revision int64
	horizon  int64
	gone     int
	objects  map[ObjectRef]*ServiceRevision
	order    *btree.BTreeG[*ServiceRevision]
	maxGone  int
}

// ServiceRevision is an object and the revision at which it became so.
type ServiceRevision struct {
	ServiceObject
	Revision int64
}

// ServicesSource is where a server has its services from.
type ServicesSource struct {
	// Load reads all services and endpoint slices of one state.
	Load func() LoadedServices
	// Topology are the labels of a node by which endpoints are chosen.
	Topology func(node string) map[string]string
}

// LoadedServices are those of one state.
type LoadedServices struct {
	// Revision is the state's.
	Revision int64
	// Gone are those that went after Horizon; some of them may be there again.
	Horizon       int64
	Gone, Objects []ServiceRevision
}

// servicesMeanwhile is what is told of while the state is read, and may be newer than what is read.
type servicesMeanwhile struct {
	put      []ServiceRevision
	revision int64
}

func newServicesFeed(source ServicesSource) *servicesFeed {
	return &servicesFeed{source: source, maxGone: maxGoneServices}
}

func byRevision(a, b *ServiceRevision) bool {
	return cmp.Or(cmp.Compare(a.Revision, b.Revision), strings.Compare(a.Resource, b.Resource),
		strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name)) < 0
}

// wanted says whether anybody follows the feed.
func (f *servicesFeed) wanted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loaded || f.loading != nil
}

// put takes an object's newer state over. What the state was read with is not older.
func (f *servicesFeed) put(o ServiceRevision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading != nil {
		f.loading.put = append(f.loading.put, o)
		return
	}
	f.renew(&o)
}

// renew takes an object's state over where it is newer than what there is.
func (f *servicesFeed) renew(o *ServiceRevision) {
	if f.loaded && o.Revision > f.revision {
		f.take(o)
		f.revision = o.Revision
	}
}

func (f *servicesFeed) take(o *ServiceRevision) {
	if old := f.objects[o.ObjectRef]; old != nil {
		f.order.Delete(old)
		if old.Object == nil {
			f.gone--
		}
	}
	f.objects[o.ObjectRef] = o
	f.order.Set(o)
	if o.Object != nil {
		return
	}
	if f.gone++; f.gone > f.maxGone {
		f.forget()
	}
}

// forget drops the older half of those that are gone.
func (f *servicesFeed) forget() {
	var old []*ServiceRevision
	f.order.Scan(func(o *ServiceRevision) bool {
		if o.Object == nil {
			old = append(old, o)
		}
		return len(old) <= f.maxGone/2
	})
	for _, o := range old {
		f.order.Delete(o)
		delete(f.objects, o.ObjectRef)
		f.horizon = max(f.horizon, o.Revision)
	}
	f.gone -= len(old)
}

// advance tells that everything up to revision was put in.
func (f *servicesFeed) advance(revision int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.loading != nil {
		f.loading.revision = revision
		return
	}
	f.revision = max(f.revision, revision)
}

// unload drops everything: changes were missed, or nobody follows. Whoever follows is sent everything, read anew.
func (f *servicesFeed) unload() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.loaded, f.objects, f.order = false, nil, nil
	f.missed++
}

// load has everything be there, and leaves mu held. Reading the state takes its time, in which whoever tells of changes does not wait.
func (f *servicesFeed) load() {
	f.mu.Lock()
	if f.loaded {
		return
	}
	f.mu.Unlock()
	f.reading.Lock()
	defer f.reading.Unlock()
	for f.mu.Lock(); !f.loaded; f.mu.Lock() {
		f.mu.Unlock()
		f.readState()
	}
}

// readState is called with reading held.
func (f *servicesFeed) readState() {
	meanwhile := &servicesMeanwhile{}
	f.mu.Lock()
	f.loading = meanwhile // from here on changes are told
	missed := f.missed
	f.mu.Unlock()
	l, read := LoadedServices{}, false
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.loading = nil
		if !read || f.missed != missed {
			return // it broke, or changes were missed
		}
		f.loaded, f.revision, f.horizon, f.gone = true, l.Revision, l.Horizon, 0
		f.objects = make(map[ObjectRef]*ServiceRevision, len(l.Objects))
		f.order = btree.NewBTreeGOptions(byRevision, btree.Options{NoLocks: true})
		for _, of := range [][]ServiceRevision{l.Gone, l.Objects} {
			for i := range of {
				f.take(&of[i])
			}
		}
		for i := range meanwhile.put {
			f.renew(&meanwhile.put[i])
		}
		f.revision = max(f.revision, meanwhile.revision)
	}()
	l = f.source.Load()
	read = true
}

// servicesPlace is how far one worker is. Its stream alone uses it.
type servicesPlace struct {
	at   int64 // everything up to here was sent
	full bool  // in the middle of sending everything
	// since: what went after it is told while everything is sent.
	since int64
	said  int64 // up to where the worker knows to have everything
}

// next is what is to be sent to a worker, nil if it has everything; with tell it is told
// so where it does not know. Of everything only the last part says up to where that is.
func (f *servicesFeed) next(p *servicesPlace, chunk int, tell bool) *Services {
	f.load()
	defer f.mu.Unlock()
	m := &Services{}
	if p.at == 0 || max(p.at, p.since) < f.horizon {
		p.at, p.full, p.since = 0, true, f.revision
		m.Full = true
	}
	size, last := 0, p.at
	f.order.Ascend(&ServiceRevision{Revision: p.at + 1}, func(o *ServiceRevision) bool {
		if size > chunk && o.Revision != last {
			m.More = true
			return false
		}
		m.Objects = append(m.Objects, o.ServiceObject)
		size += len(o.Object) + len(o.Namespace) + len(o.Name) + 64
		last = o.Revision
		return true
	})
	p.at = last
	switch {
	case !m.More:
		p.at = max(p.at, f.revision)
		if p.full {
			p.full, p.since = false, 0
		} else if len(m.Objects) == 0 && (!tell || p.at == p.said) {
			return nil
		}
		m.Revision = p.at
	case !p.full:
		m.More, m.Revision = false, p.at // each part is whole
	}
	p.said = max(p.said, m.Revision)
	return m
}

// servicesEnd puts the parts of everything together at a worker.
type servicesEnd struct{ partial *Services }

func (e *servicesEnd) take(s *Services) *Services {
	if s.Full {
		e.partial = nil // it was begun anew
	}
	if p := e.partial; p != nil {
		p.Objects = append(p.Objects, s.Objects...)
		p.Revision, p.More = s.Revision, s.More
		if s.Topology != nil {
			p.Topology = s.Topology
		}
		s = p
	}
	if e.partial = s; s.More {
		return nil
	}
	e.partial = nil
	return s
}
