package services

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ptr[T any](v T) *T { return &v }

type marshaler interface{ Marshal() ([]byte, error) }

func object(t *testing.T, resource, namespace, name string, o marshaler) Object {
	t.Helper()
	raw, err := o.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return Object{Resource: resource, Namespace: namespace, Name: name, Raw: raw}
}

func service(t *testing.T, name string, spec corev1.ServiceSpec) Object {
	t.Helper()
	return object(t, servicesResource, "shop", name, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: spec})
}

func headlessSlice(t *testing.T, name, of string, endpoints ...discoveryv1.Endpoint) Object {
	t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name,
			Labels: map[string]string{discoveryv1.LabelServiceName: of, corev1.IsHeadlessService: ""}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr("peer"), Port: ptr(int32(7000)), Protocol: ptr(corev1.ProtocolTCP)}},
	}
	return object(t, slicesResource, "shop", name, s)
}

func endpoint(ip, host string, ready bool) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}
	if host != "" {
		e.Hostname = &host
	}
	return e
}

func cluster(ips ...string) corev1.ServiceSpec {
	return corev1.ServiceSpec{ClusterIP: ips[0], ClusterIPs: ips,
		Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}}
}

func shop(t *testing.T) *Table {
	t.Helper()
	table := NewTable()
	err := table.Take(Delta{Full: true, Revision: 7, Objects: []Object{
		service(t, "web", cluster("10.96.1.1", "fd00::1:1")),
		service(t, "db", cluster("None")),
		service(t, "idle", cluster("None")),
		service(t, "out", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "Example.com"}),
		service(t, "alias", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "web.shop.svc.cluster.local"}),
		service(t, "round", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "round.shop.svc.cluster.local"}),
		headlessSlice(t, "db-1", "db", endpoint("10.0.0.1", "db-0", true), endpoint("10.0.0.2", "db-1", false)),
		headlessSlice(t, "db-2", "db", endpoint("10.0.0.3", "", true)),
	}})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// others answers for the names of others.
type others struct{ fail bool }

func (o others) Ask(_ context.Context, q *dns.Msg) (*dns.Msg, error) {
	if o.fail {
		return nil, errNoResolvers
	}
	m := new(dns.Msg).SetReply(q)
	if rr, err := dns.NewRR(q.Question[0].Name + " 60 IN A 192.0.2.1"); err == nil && q.Question[0].Qtype == dns.TypeA {
		m.Answer = []dns.RR{rr}
	}
	return m, nil
}

func said(m *dns.Msg) string {
	var out []string
	for _, rr := range m.Answer {
		out = append(out, strings.TrimPrefix(strings.Join(strings.Fields(strings.TrimPrefix(rr.String(), rr.Header().Name)), " "), ""))
	}
	for i, s := range out {
		f := strings.Fields(s)
		out[i] = strings.Join(f[2:], " ")
	}
	slices.Sort(out)
	return strings.Join(append([]string{dns.RcodeToString[m.Rcode]}, out...), ", ")
}

func TestNames(t *testing.T) {
	r, err := NewResolver(ResolverConfig{Table: shop(t), Domain: "cluster.local", Upstream: others{}, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	const svc = ".shop.svc.cluster.local."
	for _, c := range []struct{ name, kind, want string }{
		{"web" + svc, "A", "NOERROR, A 10.96.1.1"},
		{"WEB.Shop.svc.CLUSTER.local.", "A", "NOERROR, A 10.96.1.1"},
		{"web" + svc, "AAAA", "NOERROR, AAAA fd00::1:1"},
		{"web" + svc, "MX", "NOERROR"},
		{"pod.web" + svc, "A", "NXDOMAIN"},
		{"_http._tcp.web" + svc, "SRV", "NOERROR, SRV 0 1 80 web.shop.svc.cluster.local."},
		{"_http._tcp.web" + svc, "A", "NOERROR"},
		{"_http._udp.web" + svc, "SRV", "NXDOMAIN"},
		{"_tcp.web" + svc, "A", "NOERROR"},
		{"db" + svc, "A", "NOERROR, A 10.0.0.1, A 10.0.0.3"},
		{"db" + svc, "AAAA", "NOERROR"},
		{"db-0.db" + svc, "A", "NOERROR, A 10.0.0.1"},
		{"db-1.db" + svc, "A", "NXDOMAIN"},
		{"10-0-0-3.db" + svc, "A", "NOERROR, A 10.0.0.3"},
		{"_peer._tcp.db" + svc, "SRV", "NOERROR, SRV 0 1 7000 10-0-0-3.db.shop.svc.cluster.local., SRV 0 1 7000 db-0.db.shop.svc.cluster.local."},
		{"idle" + svc, "A", "NOERROR"},
		{"nobody" + svc, "A", "NXDOMAIN"},
		{"shop.svc.cluster.local.", "A", "NOERROR"},
		{"else.svc.cluster.local.", "A", "NXDOMAIN"},
		{"svc.cluster.local.", "A", "NOERROR"},
		{"cluster.local.", "SOA", "NOERROR, SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"},
		{"dns-version.cluster.local.", "TXT", `NOERROR, TXT "1.1.0"`},
		{"out" + svc, "A", "NOERROR, A 192.0.2.1, CNAME example.com."},
		{"out" + svc, "CNAME", "NOERROR, CNAME example.com."},
		{"alias" + svc, "A", "NOERROR, A 10.96.1.1, CNAME web.shop.svc.cluster.local."},
		{"10-0-0-9.shop.pod.cluster.local.", "A", "NOERROR, A 10.0.0.9"},
		{"fd00--9.shop.pod.cluster.local.", "AAAA", "NOERROR, AAAA fd00::9"},
		{"nonsense.shop.pod.cluster.local.", "A", "NXDOMAIN"},
		{"1.1.96.10.in-addr.arpa.", "PTR", "NOERROR, PTR web.shop.svc.cluster.local."},
		{"1.0.0.10.in-addr.arpa.", "PTR", "NOERROR, PTR db-0.db.shop.svc.cluster.local."},
		{dns.Fqdn("1.0.0.0.1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.f.ip6.arpa"), "PTR", "NOERROR, PTR web.shop.svc.cluster.local."},
		{"example.org.", "A", "NOERROR, A 192.0.2.1"},
		{"notcluster.local.", "A", "NOERROR, A 192.0.2.1"},
	} {
		m, _ := r.resolve(t.Context(), new(dns.Msg).SetQuestion(c.name, dns.StringToType[c.kind]))
		if got := said(m); got != c.want {
			t.Errorf("%s %s: %s\nwant %s", c.kind, c.name, got, c.want)
		}
	}
	if m, _ := r.resolve(t.Context(), new(dns.Msg).SetQuestion("round"+svc, dns.TypeA)); len(m.Answer) != maxAliases {
		t.Errorf("a name that stands for itself: %d records", len(m.Answer))
	}
}

func TestNamesBeforeAnybodyHasTold(t *testing.T) {
	r, err := NewResolver(ResolverConfig{Table: NewTable(), Domain: "cluster.local", Upstream: others{fail: true}, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web.shop.svc.cluster.local.", "example.org."} {
		if m, _ := r.resolve(t.Context(), new(dns.Msg).SetQuestion(name, dns.TypeA)); m.Rcode != dns.RcodeServerFailure {
			t.Errorf("%s: %s", name, said(m))
		}
	}
}

// Over the wire: long answers by TCP, and nothing for those who may not ask.
func TestResolverServes(t *testing.T) {
	table := shop(t)
	var many []discoveryv1.Endpoint
	for i := range 200 {
		many = append(many, endpoint(fmt.Sprintf("10.1.0.%d", i), "", true))
	}
	if err := table.Take(Delta{Revision: 8, Objects: []Object{service(t, "many", cluster("None")), headlessSlice(t, "many-1", "many", many...)}}); err != nil {
		t.Fatal(err)
	}
	admitted := true
	r, err := NewResolver(ResolverConfig{Table: table, Domain: "cluster.local", Upstream: others{}, Logger: hclog.NewNullLogger(),
		Admit: func(netip.Addr) bool { return admitted }})
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	streams, err := net.Listen("tcp", packets.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.serve(ctx, packets, streams) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	ask := func(network string, q *dns.Msg) (*dns.Msg, error) {
		m, _, err := (&dns.Client{Net: network}).Exchange(q, packets.LocalAddr().String())
		if err == nil {
			m.Compress = true // as it came
		}
		return m, err
	}
	q := new(dns.Msg).SetQuestion("many.shop.svc.cluster.local.", dns.TypeA)
	udp, err := ask("udp", q)
	if err != nil || !udp.Truncated || udp.Len() > dns.MinMsgSize {
		t.Fatalf("by UDP: %v, truncated %v", err, udp != nil && udp.Truncated)
	}
	if tcp, err := ask("tcp", q); err != nil || tcp.Truncated || len(tcp.Answer) != 200 {
		t.Fatalf("by TCP: %v, %v", err, tcp)
	}
	q.SetEdns0(4096, false)
	if udp, err = ask("udp", q); err != nil || !udp.Truncated || udp.Len() > payloadBytes || len(udp.Answer) < 30 {
		t.Fatalf("by UDP with a longer answer: %v, %v", err, udp)
	}
	for name, q := range map[string]*dns.Msg{
		"a transfer": new(dns.Msg).SetAxfr("cluster.local."), "no question": {MsgHdr: dns.MsgHdr{Id: 1}},
		"two": {MsgHdr: dns.MsgHdr{Id: 2}, Question: slices.Repeat(q.Question, 2)},
	} {
		if m, err := ask("tcp", q); err != nil || m.Rcode == dns.RcodeSuccess {
			t.Errorf("%s: %v %v", name, err, m)
		}
	}
}

// Of a cache that is full nothing is lost but time, and what is kept ages.
func TestAnswersAreKept(t *testing.T) {
	h := &Host{}
	rr, err := dns.NewRR("a.example. 60 IN A 192.0.2.1")
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20_000 {
		q := new(dns.Msg).SetQuestion(fmt.Sprintf("n%d.example.", i), dns.TypeA)
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{rr}
		h.keep(question{name: q.Question[0].Name, kind: dns.TypeA}, m, clockAt(0))
		if h.bytes > answersBytes {
			t.Fatalf("%d bytes are kept", h.bytes)
		}
	}
	last := question{name: "n19999.example.", kind: dns.TypeA}
	if m := h.kept(last, clockAt(50)); m == nil || m.Answer[0].Header().Ttl != 10 {
		t.Errorf("after 50 seconds: %v", m)
	}
	if m := h.kept(last, clockAt(60)); m != nil || len(h.answers) == 0 {
		t.Errorf("after its time: %v", m)
	}
}
