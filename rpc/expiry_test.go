package rpc

import (
	"errors"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/pki"
)

// renewable is a source whose certificate is another one after renew.
func (c certs) renewable(kind pki.Kind, name string, validity time.Duration) (src *pki.Source, renew func()) {
	c.t.Helper()
	dir := c.t.TempDir()
	files := pki.Files{CA: filepath.Join(dir, "ca"), Cert: filepath.Join(dir, "cert"), Key: filepath.Join(dir, "key")}
	write := func(validity time.Duration) {
		pair, err := c.ca.Issue(time.Now(), pki.Request{Kind: kind, Name: name, Validity: validity})
		if err != nil {
			c.t.Fatal(err)
		}
		for file, text := range map[string][]byte{files.CA: c.ca.CertPEM(), files.Cert: pair.CertPEM, files.Key: pair.KeyPEM} {
			if err := os.WriteFile(file, text, 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	write(validity)
	src, err := pki.Open(files)
	if err != nil {
		c.t.Fatal(err)
	}
	return src, func() {
		write(0)
		if err := src.Reload(); err != nil {
			c.t.Fatal(err)
		}
	}
}

// TestAStreamEndsWithItsCertificate: a worker is heard as long as the certificate is good by which it has come, and
// comes back by itself with another one.
func TestAStreamEndsWithItsCertificate(t *testing.T) {
	ca, state := newCerts(t), newCluster()
	s := startServer(t, state, "s1", ca.source(pki.Server, "s1"))
	short, renew := ca.renewable(pki.Worker, "n1", 5*time.Second)
	a, b := &agent{}, &agent{}
	startWorker(t, "n1", short, a, s)
	startWorker(t, "n2", ca.source(pki.Worker, "n2"), b, s)
	eventually(t, "both are connected", func() bool { return a.on() != "" && b.on() != "" })
	eventually(t, "the stream of a certificate that is over has ended", func() bool { return a.on() == "" })
	if now := time.Now(); now.Before(short.Leaf().NotAfter) {
		t.Errorf("it ended %s before its certificate", short.Leaf().NotAfter.Sub(now))
	}
	renew()
	eventually(t, "the worker is back", func() bool { return a.on() != "" })
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.ended) > 0 {
		t.Errorf("a worker with a good certificate was cut off: %v", b.ended)
	}
}

// TestAWorkerGoesOverToItsNewCertificate: one that has another certificate does not wait for the end of the one before, when all who
// joined together would come back together.
func TestAWorkerGoesOverToItsNewCertificate(t *testing.T) {
	ca, state := newCerts(t), newCluster()
	s := startServer(t, state, "s1", ca.source(pki.Server, "s1"))
	src, renew := ca.renewable(pki.Worker, "n1", 15*time.Second)
	a := &agent{}
	startWorker(t, "n1", src, a, s)
	eventually(t, "it is connected", func() bool { return a.on() != "" })
	renew()
	eventually(t, "it is back", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.ended) == 1 && a.server != ""
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	if !errors.Is(a.ended[0], errRenewed) {
		t.Errorf("its stream has ended with %v", a.ended[0])
	}
}

// TestWhenAWorkerGoesOver: a stream with tunnels goes on for as long as it can, one without goes over soon; both when the certificate says.
func TestWhenAWorkerGoesOver(t *testing.T) {
	ca := newCerts(t)
	idle, latest := map[time.Duration]bool{}, map[time.Duration]bool{}
	for range 20 {
		src, renew := ca.renewable(pki.Worker, "n1", 30*time.Hour)
		w := &workerEnd{leaf: src.Leaf()}
		found, end := time.Now(), w.leaf.NotAfter
		if w.renewed(src.Leaf(), end.Add(time.Hour)) {
			t.Error("a worker goes over to the certificate that it has")
		}
		// One of before was found, since the files could not be read for a while; that is over.
		if w.renewed(ca.source(pki.Worker, "n1").Leaf(), found.Add(-40*time.Hour)) {
			t.Error("a worker goes over to a certificate of before")
		}
		if w.renewed(src.Leaf(), found); !w.idle.IsZero() || !w.latest.IsZero() {
			t.Errorf("it goes over at %s, or %s, to the certificate that it has", w.idle, w.latest)
		}
		renew()
		w.entered.Store(1)
		if w.renewed(src.Leaf(), found) || w.renewed(src.Leaf(), w.latest.Add(-1)) || !w.renewed(src.Leaf(), w.latest) {
			t.Error("one with a tunnel does not go over at the latest moment")
		}
		w.entered.Store(0)
		if w.renewed(src.Leaf(), w.idle.Add(-1)) || !w.renewed(src.Leaf(), w.idle) {
			t.Error("one without a tunnel does not go over as soon as it may")
		}
		if w.idle.Before(found) || w.idle.After(found.Add(maxMoving)) || w.latest.Before(end.Add(-maxMoving)) || w.latest.After(end) {
			t.Errorf("found at %s, it goes over at %s, or %s; its certificate ends at %s", found, w.idle, w.latest, end)
		}
		idle[w.idle.Sub(found)], latest[end.Sub(w.latest)] = true, true
	}
	if len(idle) < 20 || len(latest) < 20 {
		t.Error("workers go over together")
	}
}

// TestCallsGoByTheNewestCertificate: once a server has another certificate no call goes by a connection that ends with
// the one of before, and what is under way there goes on until then.
func TestCallsGoByTheNewestCertificate(t *testing.T) {
	ca := newCerts(t)
	s := startServer(t, newCluster(), "s1", ca.source(pki.Server, "s1"))
	src, renew := ca.renewable(pki.Server, "s2", time.Hour)
	p := startPool(t, src)
	call := func() {
		t.Helper()
		if _, err := p.ReadIndex(t.Context(), s.addr); err != nil {
			t.Fatal(err)
		}
	}
	call()
	before := p.conns[s.addr]
	call()
	if p.conns[s.addr] != before {
		t.Error("a call went by another connection for nothing")
	}
	renew()
	call()
	if p.conns[s.addr] == before || len(p.retired) != 1 || p.retired[0] != before {
		t.Error("a call went by the certificate of before, or what was under way has ended")
	}
	p.Retain(nil)
	if len(p.conns)+len(p.retired) > 0 {
		t.Error("what leads to a server that is gone is kept")
	}

	src, renew = ca.renewable(pki.Server, "s2", 3*time.Second)
	p = startPool(t, src)
	call()
	renew()
	call()
	eventually(t, "the connection of before is let go of", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.retired) == 0
	})
}

// TestAClockThatIsSetEndsConnections: what ends at a time of day ends when the wall clock says so, also when it was set: no earlier and
// not much later.
func TestAClockThatIsSetEndsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var set atomic.Int64 // by how much the wall clock was set
		e := endings{now: func() time.Time { return time.Now().Add(time.Duration(set.Load())) }}
		begun := time.Now()
		after := func(d time.Duration) *atomic.Int64 {
			took := new(atomic.Int64)
			e.add(begun.Add(d), func() { took.Store(int64(time.Since(begun))) })
			return took
		}
		passed := func(d time.Duration) {
			<-time.After(d)
			synctest.Wait()
		}
		hour, two, ten := after(time.Hour), after(2*time.Hour), after(10*time.Hour)
		minute := after(time.Minute)
		forget := e.add(begun.Add(30*time.Second), func() { t.Error("what was forgotten has ended") })
		forget()
		passed(time.Hour - 1)
		if got := time.Duration(minute.Load()); got != time.Minute {
			t.Errorf("one that ends in a minute has ended after %s", got)
		}
		set.Store(-int64(30 * time.Minute))
		passed(time.Minute)
		if got := hour.Load(); got != 0 {
			t.Errorf("with the clock set back by half an hour, one hour ended after %s", time.Duration(got))
		}
		passed(29*time.Minute + 1)
		if got := time.Duration(hour.Load()); got != 90*time.Minute {
			t.Errorf("with the clock set back by half an hour, one hour ended after %s", got)
		}
		set.Store(int64(8 * time.Hour))
		passed(lookAtClockEvery)
		if two.Load() == 0 || ten.Load() != 0 {
			t.Errorf("with the clock set forward by eight hours: two hours ended after %s, ten after %s", time.Duration(two.Load()), time.Duration(ten.Load()))
		}
		passed(time.Hour)
		if ten.Load() == 0 || len(e.open) > 0 || !e.look.IsZero() {
			t.Errorf("left: %d, and it is looked again at %s", len(e.open), e.look)
		}
		again := after(3 * time.Hour) // past already
		passed(time.Nanosecond)
		if again.Load() == 0 {
			t.Error("what is past has not ended")
		}
	})
}

// TestARenewedWorkerIsNotRefused: when the server's clock was set beyond the end of a certificate, a call of a worker that has another one
// already ends the connection of before, and is not answered with a refusal.
func TestARenewedWorkerIsNotRefused(t *testing.T) {
	ca, state := newCerts(t), newCluster()
	var set atomic.Int64
	s := startServerAt(t, state, "s1", ca.source(pki.Server, "s1"), func() time.Time { return time.Now().Add(time.Duration(set.Load())) })
	src, renew := ca.renewable(pki.Worker, "n1", time.Hour)
	a := &agent{}
	c := startWorker(t, "n1", src, a, s)
	eventually(t, "it is connected", func() bool { return a.on() != "" })
	renew()
	set.Store(int64(2 * time.Hour))
	for range 50 {
		_, err := c.Fetch(t.Context(), FetchRequest{Resource: "secrets", Namespace: "a", Name: "b"})
		if errors.Is(err, ErrForbidden) {
			t.Fatalf("refused: %v", err)
		}
	}
	eventually(t, "it is back", func() bool {
		_, err := c.Fetch(t.Context(), FetchRequest{Resource: "secrets", Namespace: "a", Name: "b"})
		state.mu.Lock()
		defer state.mu.Unlock()
		return err == nil && len(state.hellos) == 2
	})
}
