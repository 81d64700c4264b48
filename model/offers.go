package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// FreeVolume is a volume that any claim of its class can be given, with what has to be known of it whenever somebody chooses.
type FreeVolume struct {
	Volume *corev1.PersistentVolume
	// Traits is equal for volumes of one mode, with the same access modes and attributes: what claims demand beside labels.
	Traits string
	site   *site
	size   string
	sum    [sha256.Size]byte // of where it is, how much it holds and its name
}

// site is from where some volumes can be reached.
type site struct {
	// key is another for whatever is reached from elsewhere. Those of one host come together.
	key    string
	host   string // the only one that has it, by name
	hosted bool
	alone  bool // it says nothing of zones beside: these are chosen first
	at     reach
	asks   int // conditions for a node's labels
}

// NewFreeVolume asks for a volume that is at the same site, by the prefix of its FreeKey, or for the next one or nil: what sites
// are is kept once.
func NewFreeVolume(v *corev1.PersistentVolume, near func(site string) *FreeVolume) *FreeVolume {
	key, host, hosted := siteOf(v)
	beside := near(key)
	f := &FreeVolume{Volume: v, size: sizeKey(v.Spec.Capacity[corev1.ResourceStorage])}
	f.sum = sha256.Sum256([]byte(key + f.size + v.Name))
	if f.Traits = traitsOf(v); beside != nil && beside.Traits == f.Traits {
		f.Traits = beside.Traits // in the same place of memory: a list is looked through faster
	}
	if beside != nil && beside.site.key == key {
		f.site = beside.site
		return f
	}
	f.site = &site{key: key, host: host, hosted: hosted, alone: hosted && zonesOf(v) == nil, at: compileReach(v), asks: ReachAsks(v)}
	return f
}

func traitsOf(v *corev1.PersistentVolume) string {
	var b strings.Builder
	if v.Spec.VolumeMode != nil {
		writeText(&b, "mode", string(*v.Spec.VolumeMode))
	}
	if v.Spec.VolumeAttributesClassName != nil {
		writeText(&b, "attributes", *v.Spec.VolumeAttributesClassName)
	}
	for _, mode := range v.Spec.AccessModes {
		writeText(&b, string(mode))
	}
	return b.String()
}

// siteOf gives a key that is equal for volumes that are reached from the same nodes, and the host that has them alone.
func siteOf(v *corev1.PersistentVolume) (key, host string, hosted bool) {
	sum := sha256.Sum256([]byte(reachText(v)))
	if host, hosted = hostOf(v); hosted && !strings.Contains(host, "\x00") { // which no label has
		return "host " + host + "\x00" + string(sum[:]), host, true
	}
	return "some " + string(sum[:]), "", false
}

// FreeKey sorts free volumes by sites, those of one site by how much they hold, and those of one size by name.
func FreeKey(v *corev1.PersistentVolume) string {
	site, _, _ := siteOf(v)
	return site + sizeKey(v.Spec.Capacity[corev1.ResourceStorage]) + v.Name
}

// Key is the volume's FreeKey.
func (f *FreeVolume) Key() string { return f.site.key + f.size + f.Volume.Name }

// sizeKey sorts amounts, which have no more than nine digits behind the point, as Cmp does; those below zero, which no volume
// has and no claim asks for, are none.
func sizeKey(q resource.Quantity) string {
	if q.Sign() < 0 {
		q = resource.Quantity{}
	}
	whole, below := q.Value(), int64(0) // rounded up
	if _, is := q.AsInt64(); !is {
		left := *resource.NewQuantity(whole, resource.DecimalSI)
		left.Sub(q)
		below = left.ScaledValue(resource.Nano)
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], uint64(whole))
	binary.BigEndian.PutUint64(b[8:], uint64(math.MaxInt64-below))
	return string(b[:])
}

// Offer are the free volumes of a class that meet what a claim demands beside a size, by where they are reached from. It is immutable:
// all claims that demand the same choose from it.
type Offer struct {
	sum    string
	stocks []stock // those of hosts first, by host
	hosted int     // how many of the stocks are
	most   string  // the size of the largest
	asks   int     // conditions for the labels of one node, at the most
	atOnce int     // stocks that one node can reach, at the most
	count  int
}

// stock are volumes of one site, smallest first.
type stock struct {
	*site
	volumes []*FreeVolume
}

// NewOffer is of volumes in the order of FreeKey; it keeps the slice.
func NewOffer(volumes []*FreeVolume) *Offer {
	o := &Offer{count: len(volumes), stocks: make([]stock, 0, countSites(volumes))}
	sums := make([]byte, 0, len(volumes)*sha256.Size)
	for from := 0; from < len(volumes); {
		to, at := from, volumes[from].site
		for ; to < len(volumes) && volumes[to].site.key == at.key; to++ {
			sums = append(sums, volumes[to].sum[:]...)
			o.most = max(o.most, volumes[to].size)
		}
		o.stocks = append(o.stocks, stock{at, volumes[from:to]})
		from = to
	}
	sum := sha256.Sum256(sums)
	o.sum = string(sum[:])
	o.weigh()
	return o
}

func countSites(volumes []*FreeVolume) (n int) {
	for i := range volumes {
		if i == 0 || volumes[i].site.key != volumes[i-1].site.key {
			n++
		}
	}
	return n
}

// weigh finds out what a node is asked at the most.
func (o *Offer) weigh() {
	asks, stocks := 0, 0 // of one host
	for i := range o.stocks {
		s := &o.stocks[i]
		if !s.hosted {
			break
		}
		if i == 0 || s.host != o.stocks[i-1].host {
			asks, stocks = 0, 0
		}
		asks, stocks, o.hosted = asks+s.asks, stocks+1, i+1
		o.asks, o.atOnce = max(o.asks, asks), max(o.atOnce, stocks)
	}
	for i := range o.stocks[o.hosted:] {
		o.asks += o.stocks[o.hosted+i].asks
		o.atOnce++
	}
}

// Bytes is about what memory it holds.
func (o *Offer) Bytes() int { return 256 + 64*len(o.stocks) + 8*o.count }

// has says whether there is a volume of at least a size, on whichever node.
func (o *Offer) has(size string) bool { return o.most >= size && o.count > 0 }

// Has says whether there is a volume of at least so much, on whichever node.
func (o *Offer) Has(q resource.Quantity) bool { return o.has(sizeKey(q)) }

// ofHost are the stocks of a host.
func (o *Offer) ofHost(host string) []stock {
	stocks := o.stocks[:o.hosted]
	first, _ := slices.BinarySearchFunc(stocks, host, func(s stock, host string) int { return cmp.Compare(s.host, host) })
	last := first
	for last < len(stocks) && stocks[last].host == host {
		last++
	}
	return stocks[first:last]
}

// from are the volumes of at least a size.
func (s *stock) from(size string) []*FreeVolume {
	at, _ := slices.BinarySearchFunc(s.volumes, size, func(f *FreeVolume, size string) int { return cmp.Compare(f.size, size) })
	return s.volumes[at:]
}

// fitting counts those of at least a size, as they were counted before version 26 of the log's rules: those of no one host, and the
// most of one.
func (o *Offer) fitting(size string) (all, others, most int) {
	one := 0
	for i := range o.stocks {
		s := &o.stocks[i]
		n := len(s.from(size))
		all += n
		if !s.alone {
			others += n
			continue
		}
		if i > 0 && o.stocks[i-1].host != s.host {
			one = 0
		}
		one += n
		most = max(most, one)
	}
	return all, others, most
}

// chooser chooses volumes for one claim after the other on one node, those that ask for the least first.
type chooser struct {
	node  *corev1.Node
	near  [][]stock // what is left of each offer on the node: of its host alone, and else
	far   [][]stock
	known []bool
	taken map[string]bool
}

func newChooser(n *corev1.Node, offers int) *chooser {
	return &chooser{node: n, near: make([][]stock, offers), far: make([][]stock, offers), known: make([]bool, offers), taken: map[string]bool{}}
}

// choose takes the smallest volume of at least a size from the i-th offer.
func (c *chooser) choose(i int, o *Offer, size string) (name string, ok bool) {
	if !c.known[i] {
		c.known[i] = true
		for _, s := range c.reached(o.ofHost(c.node.Labels[corev1.LabelHostname])) {
			if s.alone {
				c.near[i] = append(c.near[i], s)
			} else {
				c.far[i] = append(c.far[i], s)
			}
		}
		c.far[i] = append(c.far[i], c.reached(o.stocks[o.hosted:])...)
	}
	for _, stocks := range [...][]stock{c.near[i], c.far[i]} {
		if s := c.smallest(stocks, size); s != nil {
			name = s.volumes[0].Volume.Name
			c.taken[name] = true
			return name, true
		}
	}
	return "", false
}

func (c *chooser) reached(stocks []stock) (out []stock) {
	for i := range stocks {
		if at := &stocks[i].at; at.reachedFrom(c.node) && at.inZone(c.node) {
			out = append(out, stocks[i])
		}
	}
	return out
}

// smallest is the stock whose first volume is the smallest that is large enough and not taken. What it passes is of no use to the
// claims that follow either.
func (c *chooser) smallest(stocks []stock, size string) (best *stock) {
	for i := range stocks {
		s := &stocks[i]
		if len(s.volumes) > 0 && s.volumes[0].size < size {
			s.volumes = s.from(size)
		}
		for len(s.volumes) > 0 && c.taken[s.volumes[0].Volume.Name] {
			s.volumes = s.volumes[1:]
		}
		if len(s.volumes) > 0 && (best == nil || s.volumes[0].compare(best.volumes[0]) < 0) {
			best = s
		}
	}
	return best
}

func (f *FreeVolume) compare(o *FreeVolume) int {
	return cmp.Or(cmp.Compare(f.size, o.size), cmp.Compare(f.Volume.Name, o.Volume.Name))
}

// ReachAsks is how many conditions a volume has for the labels of a node.
func ReachAsks(v *corev1.PersistentVolume) int {
	n := 1
	if a := v.Spec.NodeAffinity; a != nil {
		n += asksOf(&corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.Required})
	}
	return n
}

func (s *nodeSelector) asks() (n int) {
	for i := range s.terms {
		for j := range s.terms[i].labels {
			n += 1 + len(s.terms[i].labels[j].values)
		}
	}
	return n
}
