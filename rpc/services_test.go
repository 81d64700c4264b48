package rpc

import (
	"fmt"
	"maps"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"
)

// servicesModel is what a worker makes of what it is sent.
type servicesModel struct {
	has      map[ObjectRef]string
	revision int64
	fulls    int
	topology map[string]string
}

func (m *servicesModel) take(s *Services) {
	if s.Full || m.has == nil {
		m.has = map[ObjectRef]string{}
		m.fulls++
	}
	for _, o := range s.Objects {
		if o.Object == nil {
			delete(m.has, o.ObjectRef)
		} else {
			m.has[o.ObjectRef] = string(o.Object)
		}
	}
	if s.Topology != nil {
		m.topology = s.Topology
	}
	m.revision = s.Revision
}

func serviceRef(i int) ObjectRef {
	return ObjectRef{Resource: "services", Namespace: "ns", Name: fmt.Sprintf("s%d", i)}
}

// loadServices implements ServicesSource.
func (h *handler) loadServices() LoadedServices {
	h.mu.Lock()
	defer h.mu.Unlock()
	return LoadedServices{Revision: h.rev, Horizon: h.rev, Objects: []ServiceRevision{{ServiceObject{serviceRef(0), []byte("at the start")}, 1}}}
}

// Workers of any pace, that come and go between servers which forget, have in the end
// what there is, and go back in time only within a server that is behind.
func TestServicesFeed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now, state := int64(1), map[ObjectRef]ServiceRevision{}
		remembers := rapid.Int64Range(0, 10).Draw(t, "remembers")
		var went []ServiceRevision
		load := func() LoadedServices {
			l := LoadedServices{Revision: now, Horizon: max(0, now-remembers)}
			for _, o := range went {
				if o.Revision > l.Horizon {
					l.Gone = append(l.Gone, o)
				}
			}
			for _, o := range state {
				l.Objects = append(l.Objects, o)
			}
			return l
		}
		feed := newServicesFeed(ServicesSource{Load: load})
		feed.maxGone = rapid.IntRange(1, 6).Draw(t, "gone")
		chunk := rapid.IntRange(1, 400).Draw(t, "chunk")
		type workerOf struct {
			place servicesPlace
			end   servicesEnd
			model servicesModel
		}
		workers := make([]workerOf, 3)
		step := func(w *workerOf) bool {
			m := feed.next(&w.place, chunk, true)
			if m == nil {
				return false
			}
			if whole := w.end.take(m); whole != nil {
				w.model.take(whole)
			}
			return true
		}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				now++
				o := ServiceRevision{ServiceObject{serviceRef(rapid.IntRange(0, 12).Draw(t, "object")), nil}, now}
				if rapid.Bool().Draw(t, "there") {
					o.Object = fmt.Appendf(nil, "at %d", now)
					state[o.ObjectRef] = o
				} else {
					delete(state, o.ObjectRef)
					went = append(went, o)
				}
				feed.put(o)
			},
			"other":  func(*rapid.T) { now++; feed.advance(now) },
			"step":   func(t *rapid.T) { step(&workers[rapid.IntRange(0, 2).Draw(t, "worker")]) },
			"unload": func(*rapid.T) { feed.unload() },
			"reconnect": func(t *rapid.T) {
				w := &workers[rapid.IntRange(0, 2).Draw(t, "worker")]
				w.place, w.end = servicesPlace{at: w.model.revision, said: w.model.revision}, servicesEnd{}
			},
		})
		for i := range workers {
			w := &workers[i]
			for step(w) {
			}
			want := map[ObjectRef]string{}
			for ref, o := range state {
				want[ref] = string(o.Object)
			}
			if !maps.Equal(w.model.has, want) {
				t.Fatalf("worker %d has %v, there is %v", i, w.model.has, want)
			}
		}
	})
}

func TestServicesReachWorkersThatWantThem(t *testing.T) {
	c := newCluster()
	s := startServer(t, c, "s1", nil)
	wants, wantsNot := &agent{wantsServices: true}, &agent{}
	startWorker(t, "n1", nil, wants, s)
	startWorker(t, "n2", nil, wantsNot, s)
	has := func(a *agent) string {
		a.mu.Lock()
		defer a.mu.Unlock()
		return fmt.Sprintf("%d %s,%s,%s", len(a.services.has), a.services.has[serviceRef(0)], a.services.has[serviceRef(1)], a.services.topology["zone"])
	}
	eventually(t, "the first services", func() bool { return has(wants) == "1 at the start,,of-n1" })
	s.Hub.PutService(ServiceRevision{ServiceObject{serviceRef(1), []byte("new")}, 1 << 20})
	s.Hub.Advance(1 << 20)
	eventually(t, "a change", func() bool { return has(wants) == "2 at the start,new,of-n1" })
	s.Hub.PutService(ServiceRevision{ServiceObject{serviceRef(0), nil}, 1<<20 + 1})
	s.Hub.Advance(1<<20 + 1)
	eventually(t, "what is gone", func() bool { return has(wants) == "1 ,new,of-n1" })
	if wantsNot.services.has != nil || wants.services.fulls != 1 {
		t.Errorf("the other has %v; everything was sent %d times", wantsNot.services.has, wants.services.fulls)
	}
}

// BenchmarkServicesFeed: one change reaches 10,000 workers of a cluster of 10,000 services.
func BenchmarkServicesFeed(b *testing.B) {
	slice := make([]byte, 1000)
	feed := newServicesFeed(ServicesSource{Load: func() LoadedServices {
		l := LoadedServices{Revision: 1 << 20, Horizon: 1 << 20}
		for i := range 20_000 {
			l.Objects = append(l.Objects, ServiceRevision{ServiceObject{serviceRef(i), slice}, int64(i + 1)})
		}
		return l
	}})
	places := make([]servicesPlace, 10_000)
	for i := range places {
		for p := &places[i]; ; {
			if feed.next(p, chunkBytes, false) == nil {
				break
			}
		}
	}
	b.ReportAllocs()
	for revision := int64(1<<20 + 1); b.Loop(); revision++ {
		feed.put(ServiceRevision{ServiceObject{serviceRef(int(revision) % 20_000), slice}, revision})
		for i := range places {
			if m := feed.next(&places[i], chunkBytes, false); m == nil || len(m.Objects) != 1 {
				b.Fatal("the change was not sent")
			}
		}
	}
}

// TestWhoTellsOfServicesWaitsForNoLoad: while the state is read for the first worker that carries services, changes are told all the same, and
// it is sent them; others that come then wait for the same reading, and the last one that goes takes everything with it.
func TestWhoTellsOfServicesWaitsForNoLoad(t *testing.T) {
	began, release := make(chan struct{}, 10), make(chan struct{})
	feed := newServicesFeed(ServicesSource{Load: func() LoadedServices {
		began <- struct{}{}
		<-release
		return LoadedServices{Revision: 5, Horizon: 5, Objects: []ServiceRevision{{ServiceObject{serviceRef(0), []byte("old")}, 3}, {ServiceObject{serviceRef(1), []byte("kept")}, 4}}}
	}})
	got := make(chan *Services, 2)
	for range 2 {
		go func() { got <- feed.next(&servicesPlace{}, 1<<20, true) }()
	}
	<-began
	told := make(chan struct{})
	go func() {
		defer close(told)
		if !feed.wanted() {
			t.Error("nobody wants what has changed meanwhile")
		}
		feed.put(ServiceRevision{ServiceObject{serviceRef(1), []byte("too old")}, 5})
		feed.put(ServiceRevision{ServiceObject{serviceRef(0), []byte("new")}, 6})
		feed.advance(7)
	}()
	select {
	case <-told:
	case <-time.After(time.Minute):
		t.Fatal("who tells of changes waits")
	}
	close(release)
	for range 2 {
		m := <-got
		has := map[string]string{}
		for _, o := range m.Objects {
			has[o.Name] = string(o.Object)
		}
		if want := map[string]string{"s0": "new", "s1": "kept"}; !maps.Equal(has, want) || m.Revision != 7 || !m.Full {
			t.Errorf("it is sent %v up to %d", has, m.Revision)
		}
	}
	if n := len(began); n != 0 {
		t.Errorf("the state was read %d times more", n)
	}

	hub := newHub(hclog.NewNullLogger(), time.Minute, &ServicesSource{})
	hub.services = feed
	var sessions []*session
	for i, carries := range []bool{true, true, false} {
		s, err := hub.add(&Hello{Name: fmt.Sprint("n", i), Services: carries}, newHeard(), func(error) {})
		if err != nil {
			t.Fatal(err)
		}
		sessions = append(sessions, s)
	}
	for i, want := range []bool{true, false} {
		if hub.remove(sessions[i]); hub.ServicesWanted() != want {
			t.Errorf("after %d of them are gone the services are held: %t", i+1, !want)
		}
	}
}
