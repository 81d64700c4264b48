package services

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/proxy/apis"
	proxyconfig "k8s.io/kubernetes/pkg/proxy/apis/config"
	"k8s.io/kubernetes/pkg/proxy/healthcheck"
	"k8s.io/kubernetes/pkg/proxy/metaproxier"
	proxymetrics "k8s.io/kubernetes/pkg/proxy/metrics"
	"k8s.io/kubernetes/pkg/proxy/nftables"
	proxyutil "k8s.io/kubernetes/pkg/proxy/util"
)

const (
	// Kubernetes' own proxy writes its rules at once, and again when they changed within this; and all of them
	// anew every syncPeriod where the last time has failed.
	minSyncPeriod, syncPeriod = time.Second, 30 * time.Second
	// masqueradeBit of a packet's mark says that it is to have the node's address, as kube-proxy uses it.
	masqueradeBit = 14
)

// carrier is who carries services: Kubernetes' own proxy, or a test's.
type carrier interface {
	OnServiceUpdate(old, service *corev1.Service)
	OnServiceSynced()
	OnEndpointSliceUpdate(old, slice *discoveryv1.EndpointSlice)
	OnEndpointSliceDelete(slice *discoveryv1.EndpointSlice)
	OnEndpointSlicesSynced()
	OnTopologyChange(labels map[string]string)
	SyncLoop()
}

// Proxy carries what is sent to services to the pods behind them, by rules of nftables.
// The rules stay when the process ends, and are taken over by the next.
type Proxy struct {
	table   *Table
	carrier carrier
	log     hclog.Logger
	lock    net.Listener
	objects *prometheus.GaugeVec

	services map[key]*corev1.Service // that are carried
	slices   map[key]*discoveryv1.EndpointSlice
	topology string
	begun    bool
}

// ProxyConfig says what a Proxy needs.
type ProxyConfig struct {
	Table    *Table
	Node     string
	NodeIP   netip.Addr
	Registry prometheus.Registerer // nil: nobody counts
	Logger   hclog.Logger
}

// OpenProxy makes sure that the machine lets it carry services. There is one in a network namespace.
func OpenProxy(ctx context.Context, c ProxyConfig) (*Proxy, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("only root may load rules of nftables")
	}
	lock, err := net.Listen("unix", "@dev.berth.services")
	if err != nil {
		return nil, fmt.Errorf("another worker on this machine's network carries services already: %w", err)
	}
	p, err := openProxy(ctx, c)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	p.lock = lock
	return p, nil
}

func openProxy(ctx context.Context, c ProxyConfig) (*Proxy, error) {
	proxymetrics.RegisterMetrics(proxyconfig.ProxyModeNFTables)
	ctx = klog.NewContext(ctx, klog.Background().V(proxyVerbosity))
	local := proxyutil.NewNoOpLocalDetector()
	// Balancers that ask the port of a service's health are told whether the rules are up to date, too.
	health := healthcheck.NewProxyHealthServer("", 2*syncPeriod, nil)
	nodeIP := func(v6 bool) net.IP {
		if c.NodeIP.Is6() == v6 && c.NodeIP.IsValid() {
			return c.NodeIP.AsSlice()
		}
		return nil
	}
	v4, err := nftables.NewProxier(ctx, corev1.IPv4Protocol, syncPeriod, minSyncPeriod, false, masqueradeBit, local, c.Node, nodeIP(false), nil, health, nil, false)
	if err != nil {
		return nil, fmt.Errorf("rules of nftables (Debian's package nftables, Linux 5.13): %w", err)
	}
	var carrier carrier = v4
	if _, err := os.Stat("/proc/net/if_inet6"); err == nil {
		v6, err := nftables.NewProxier(ctx, corev1.IPv6Protocol, syncPeriod, minSyncPeriod, false, masqueradeBit, local, c.Node, nodeIP(true), nil, health, nil, false)
		if err != nil {
			return nil, fmt.Errorf("rules of nftables for IPv6: %w", err)
		}
		carrier = metaproxier.NewMetaProxier(v4, v6)
	}
	p := newProxy(c.Table, carrier, c.Logger)
	if c.Registry != nil {
		if err := c.Registry.Register(p.objects); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// proxyVerbosity is from which level of klog's on it is told what Kubernetes' proxy does; its errors always are.
const proxyVerbosity = 3

func newProxy(table *Table, c carrier, log hclog.Logger) *Proxy {
	return &Proxy{
		table: table, carrier: c, log: log, services: map[key]*corev1.Service{}, slices: map[key]*discoveryv1.EndpointSlice{},
		objects: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "berth_services_carried", Help: "Services, endpoint slices and endpoints that this node carries traffic for or to.",
		}, []string{"what"}),
	}
}

// Close lets another one begin; the rules stay.
func (p *Proxy) Close() {
	if p.lock != nil {
		_ = p.lock.Close() // nothing was sent on it
	}
}

// Run follows the table until ctx ends. Kubernetes' proxy cannot be told to end: what it still does
// ends with the process.
func (p *Proxy) Run(ctx context.Context) {
	bridged(p.log)
	changed := p.table.follow()
	var once sync.Once
	for {
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		p.follow(p.table.takeChanges())
		once.Do(func() { go p.carrier.SyncLoop() })
	}
}

// follow tells the carrier what has changed.
func (p *Proxy) follow(c changes) {
	for k, s := range c.services {
		if s != nil && !carried(k, s) {
			s = nil
		}
		old := p.services[k]
		if old == nil && s == nil {
			continue
		}
		p.carrier.OnServiceUpdate(old, s)
		put(p.services, k, s)
	}
	for k, s := range c.slices {
		if s != nil && isHeadless(s) {
			s = nil
		}
		old := p.slices[k]
		switch {
		case s != nil:
			p.carrier.OnEndpointSliceUpdate(old, s)
		case old != nil:
			p.carrier.OnEndpointSliceDelete(old)
		}
		put(p.slices, k, s)
	}
	if labels := fmt.Sprint(c.topology); labels != p.topology {
		p.topology = labels
		p.carrier.OnTopologyChange(c.topology)
	}
	if !p.begun {
		p.begun = true
		p.carrier.OnServiceSynced()
		p.carrier.OnEndpointSlicesSynced()
	}
	endpoints := 0
	for _, s := range p.slices {
		endpoints += len(s.Endpoints)
	}
	p.objects.WithLabelValues("services").Set(float64(len(p.services)))
	p.objects.WithLabelValues("slices").Set(float64(len(p.slices)))
	p.objects.WithLabelValues("endpoints").Set(float64(endpoints))
}

func put[T any](in map[key]*T, k key, v *T) {
	if v == nil {
		delete(in, k)
	} else {
		in[k] = v
	}
}

// carried: another proxy may have asked for it, or nobody has to carry it.
func carried(k key, s *corev1.Service) bool {
	_, others := s.Labels[apis.LabelServiceProxyName]
	return !others && !answeredHere(k, s) && len(addressesOf(s)) > 0
}

// bridged has what pods on one bridge send each other pass the rules: an answer that comes from the pod itself, and not from
// the address that was asked, would be thrown away.
func bridged(log hclog.Logger) {
	for _, name := range []string{"bridge-nf-call-iptables", "bridge-nf-call-ip6tables"} {
		path := "/proc/sys/net/bridge/" + name
		b, err := os.ReadFile(path)
		if err == nil && strings.TrimSpace(string(b)) != "1" {
			err = os.WriteFile(path, []byte("1"), 0o644) // #nosec G306 -- the file is the kernel's, and has its mode already
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			log.Warn("where pods are on a bridge they do not reach services whose pods are on the same one: load the module br_netfilter", "missing", path)
			return
		case err != nil:
			log.Warn("pods may not reach services whose pods are on the same bridge", "error", err)
		}
	}
}
