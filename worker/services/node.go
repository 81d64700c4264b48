package services

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
)

const (
	// tellTimeout is how long a pod waits for a server to tell where names are answered.
	tellTimeout = 15 * time.Second
	// ownAge is for how long the addresses of this machine are taken to stay.
	ownAge = 5 * time.Second
	// listenPause is the pause after an address could not be listened at.
	listenPause = 5 * time.Second
)

// Options says what a node's part in services is.
type Options struct {
	// Node is the node's name, NodeIP its address.
	Node   string
	NodeIP netip.Addr
	// Domain is that of the cluster's names.
	Domain string
	// HasPod says whether an address is that of a pod of this node.
	HasPod func(address string) bool
	// Resolvers are files like /etc/resolv.conf, for the names of others; the first that names one counts.
	Resolvers []string
	Registry  prometheus.Registerer
	Logger    hclog.Logger
}

// Node is a node's part in services.
type Node struct {
	Table    *Table
	opts     Options
	log      hclog.Logger
	proxy    *Proxy
	resolver *Resolver

	mu      sync.Mutex
	own     []netip.Addr
	ownRead time.Time
	gaveUp  bool
}

// Open makes sure that the machine lets it do its part.
func Open(ctx context.Context, o Options) (*Node, error) {
	n := &Node{Table: NewTable(), opts: o, log: o.Logger.Named("services")}
	var err error
	n.proxy, err = OpenProxy(ctx, ProxyConfig{Table: n.Table, Node: o.Node, NodeIP: o.NodeIP, Registry: o.Registry, Logger: n.log})
	if err != nil {
		return nil, err
	}
	host := &Host{Files: o.Resolvers, Except: func() []netip.Addr { addresses, _ := n.Table.ResolverAddresses(); return addresses }}
	n.resolver, err = NewResolver(ResolverConfig{
		Table: n.Table, Domain: o.Domain, Admit: n.admit, Upstream: host, Registry: o.Registry, Logger: n.log,
	})
	if err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close lets another worker of this machine do it. What is carried goes on being carried.
func (n *Node) Close() { n.proxy.Close() }

// Run does it until ctx ends.
func (n *Node) Run(ctx context.Context) {
	var loops sync.WaitGroup
	loops.Go(func() { n.proxy.Run(ctx) })
	loops.Go(func() { n.answer(ctx) })
	loops.Wait()
}

// answer keeps answering at the addresses at which pods ask for names.
func (n *Node) answer(ctx context.Context) {
	changed := n.Table.follow()
	type serving struct {
		cancel context.CancelFunc
		done   chan struct{}
	}
	at := map[netip.Addr]serving{}
	end := func(ip netip.Addr) {
		at[ip].cancel()
		<-at[ip].done
		delete(at, ip)
	}
	defer func() {
		for ip := range at {
			end(ip)
		}
	}()
	for {
		addresses, here := n.Table.ResolverAddresses()
		if !here {
			addresses = nil
		}
		for ip := range at {
			if !slices.Contains(addresses, ip) {
				end(ip)
				n.letGo(ip)
			}
		}
		for _, ip := range addresses {
			if _, ok := at[ip]; !ok {
				one, cancel := context.WithCancel(ctx) // #nosec G118 -- it is kept in at, and called by end
				s := serving{cancel, make(chan struct{})}
				at[ip] = s
				go func() {
					defer close(s.done)
					n.answerAt(one, ip)
				}()
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}

// answerAt makes an address this machine's own and answers there.
func (n *Node) answerAt(ctx context.Context, ip netip.Addr) {
	for ctx.Err() == nil {
		err := own(ip)
		if err == nil {
			n.log.Info("answering for names", "address", ip, "domain", n.opts.Domain)
			err = n.resolver.Serve(ctx, portOf(ip))
		}
		if ctx.Err() != nil {
			return
		}
		n.log.Error("this node does not answer for names; trying again", "address", ip, "error", err)
		select {
		case <-time.After(listenPause):
		case <-ctx.Done():
		}
	}
}

// own puts an address on the loopback interface: it is this machine's alone, and nobody is told of it.
func own(ip netip.Addr) error {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrReplace(lo, addressOn(ip))
	}
	if err != nil {
		return fmt.Errorf("putting %s on the loopback interface: %w", ip, err)
	}
	return nil
}

func (n *Node) letGo(ip netip.Addr) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.AddrDel(lo, addressOn(ip))
	}
	if err != nil {
		n.log.Warn("an address stays on the loopback interface", "address", ip, "error", err)
	}
}

func addressOn(ip netip.Addr) *netlink.Addr {
	return &netlink.Addr{IPNet: &net.IPNet{IP: ip.AsSlice(), Mask: net.CIDRMask(ip.BitLen(), ip.BitLen())}}
}

// admit: the node itself and its pods may ask.
func (n *Node) admit(from netip.Addr) bool {
	if from.IsLoopback() || n.opts.HasPod != nil && n.opts.HasPod(from.String()) {
		return true
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if now := time.Now(); now.Sub(n.ownRead) > ownAge {
		n.ownRead, n.own = now, nil
		addresses, err := net.InterfaceAddrs()
		if err != nil {
			n.log.Warn("this machine's addresses are not known", "error", err)
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil {
				n.own = append(n.own, prefix.Addr().Unmap().WithZone(""))
			}
		}
	}
	return slices.Contains(n.own, from)
}

// errNotTold: no server has told yet where names are answered.
var errNotTold = errors.New("no server has told yet where names of the cluster are answered")

// Resolver is where pods ask for names. A server of an earlier version tells of no services: then, and where
// the service kube-system/kube-dns is there no more, there are none. The leader of a new cluster makes that service
// beside its first pods.
func (n *Node) Resolver(ctx context.Context) (servers []string, domain string, err error) {
	if err := n.wait(ctx); err != nil {
		return nil, "", err
	}
	addresses, _ := n.Table.ResolverAddresses()
	for _, ip := range addresses {
		servers = append(servers, ip.String())
	}
	return servers, strings.TrimSuffix(n.opts.Domain, "."), nil
}

// wait waits until it was told where names are answered. The first that waited in vain speaks for all.
func (n *Node) wait(ctx context.Context) error {
	n.mu.Lock()
	gaveUp := n.gaveUp
	n.mu.Unlock()
	if gaveUp {
		return nil
	}
	timer := time.NewTimer(tellTimeout)
	defer timer.Stop()
	for _, told := range [...]<-chan struct{}{n.Table.Synced(), n.Table.named} {
		select {
		case <-told:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", errNotTold, ctx.Err())
		case <-timer.C:
			n.log.Warn("pods start without names of the cluster", "reason", errNotTold)
			n.mu.Lock()
			n.gaveUp = true
			n.mu.Unlock()
			return nil
		}
	}
	return nil
}
