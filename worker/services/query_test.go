package services

import (
	"net"
	"net/netip"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/miekg/dns"
)

// written keeps the answer to a query.
type written struct {
	dns.ResponseWriter
	from   net.Addr
	answer *dns.Msg
	closed bool
}

func (w *written) LocalAddr() net.Addr         { return w.from }
func (w *written) RemoteAddr() net.Addr        { return w.from }
func (w *written) WriteMsg(m *dns.Msg) error   { w.answer = m; return nil }
func (w *written) Write(b []byte) (int, error) { return len(b), nil }
func (w *written) Close() error                { w.closed = true; return nil }

// FuzzQuery: whatever comes to the resolver's port is answered to, with the number that was asked with and no longer than the client
// takes, or the connection is closed.
func FuzzQuery(f *testing.F) {
	for _, name := range []string{"web.shop.svc.cluster.local.", "db-0.db.shop.svc.cluster.local.", "out.shop.svc.cluster.local.", "1.1.96.10.in-addr.arpa.", "example.com.", "."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeANY, dns.TypeAXFR} {
			raw, err := new(dns.Msg).SetQuestion(name, kind).SetEdns0(512, false).Pack()
			if err != nil {
				f.Fatal(err)
			}
			f.Add(raw, false)
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, stream bool) {
		q := new(dns.Msg)
		if q.Unpack(raw) != nil {
			return // the library answers
		}
		r, err := NewResolver(ResolverConfig{
			Table: shop(t), Domain: "cluster.local", Admit: func(netip.Addr) bool { return true }, Upstream: others{}, Logger: hclog.NewNullLogger(),
		})
		if err != nil {
			t.Fatal(err)
		}
		w := &written{from: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5353}}
		if stream {
			w.from = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5353}
		}
		id := q.Id
		r.answer(t.Context(), w, q)
		if w.answer == nil {
			if !w.closed {
				t.Fatal("no answer")
			}
			return
		}
		out, err := w.answer.Pack()
		if err != nil {
			t.Fatalf("an answer that cannot be sent: %v: %v", err, w.answer)
		}
		if w.answer.Id != id || !w.answer.Response {
			t.Errorf("it answers to another query: %v", w.answer)
		}
		if !stream && len(out) > payloadBytes {
			t.Errorf("%d bytes in a packet", len(out))
		}
		if len(r.of) != 0 || r.all != 0 {
			t.Errorf("%d queries are counted still", r.all)
		}
	})
}
