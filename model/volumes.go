package model

import (
	"crypto/sha256"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/component-helpers/storage/ephemeral"
)

// LocalProvisioner is what a StorageClass names whose volumes are directories of the nodes: Berth makes them, when the
// first pod that uses one is bound to a node. LocalDriver is the volumes' CSI driver, whose name may have no slash.
const (
	LocalProvisioner = "berth.dev/local"
	LocalDriver      = "local.berth.dev"
)

// NoProvisioner is what a class names whose volumes somebody makes by hand.
const NoProvisioner = "kubernetes.io/no-provisioner"

// ClaimOf is the name of the claim of a pod's volume, "" where it needs none. Those of ephemeral volumes are the pod's own.
func ClaimOf(pod *corev1.Pod, v *corev1.Volume) string {
	switch {
	case v.PersistentVolumeClaim != nil:
		return v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		return ephemeral.VolumeClaimName(pod, v)
	}
	return ""
}

// Claims are the names of all claims of a pod, each once and sorted; nil for most pods.
func Claims(pod *corev1.Pod) []string {
	var out []string
	for i := range pod.Spec.Volumes {
		if claim := ClaimOf(pod, &pod.Spec.Volumes[i]); claim != "" {
			out = append(out, claim)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// ClaimClass is the name of the class that a claim asks for; "" is none.
func ClaimClass(c *corev1.PersistentVolumeClaim) string {
	if class, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	if c.Spec.StorageClassName != nil {
		return *c.Spec.StorageClassName
	}
	return ""
}

// VolumeClass is the name of the class of a volume; "" is none.
func VolumeClass(v *corev1.PersistentVolume) string {
	if class, ok := v.Annotations[corev1.BetaStorageClassAnnotation]; ok {
		return class
	}
	return v.Spec.StorageClassName
}

// WaitsForPod says whether the claims of a class are given a volume only when a pod that uses them gets its node.
func WaitsForPod(c *storagev1.StorageClass) bool {
	return c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
}

// Volumes is what the claims of a pod say of the nodes that it may have, compiled. It is immutable; it is made anew when
// claims, volumes or classes change.
type Volumes struct {
	sum string
	// kept: the pod can be on no node as things are, for this reason.
	kept   Reason
	bound  []reach      // of the volumes that its claims have
	wants  []volumeWant // what claims have still to be given, smallest first
	offers []*Offer     // what they choose from
	// devices: the pod claims devices, which only nodes with drivers have. allocated says from where those can be used
	// that its claims have been given.
	devices   bool
	allocated []*nodeSelector
	// held: a claim that one pod at a time may use is used on these nodes, or on none that is known (""), by these
	// pods.
	held []Holder
	// looked is how many volumes were looked at to find that out, as it was counted before version 26 of the log's rules.
	looked int
	// asks are the conditions that there are for a node's labels, and bytes is about what of memory is held.
	asks, bytes int
	// refused: nobody looked what the claims ask, since that would take too much.
	refused bool
}

// Holder is a pod that uses a claim that the class wants for itself.
type Holder struct {
	Node, UID string
	Priority  int32
}

// reach says from which nodes a volume can be reached.
type reach struct {
	name     string
	selector *nodeSelector       // nil: from all
	zones    map[string][]string // labels that a node must have one of these values of, if it has any of them
}

// volumeWant is a claim that is given a volume together with its pod's node.
type volumeWant struct {
	// offer is which of the offers it chooses from, and size how large a volume has to be.
	offer int
	size  string
	// provided: a volume is made for it where there is none, on these nodes.
	provided bool
	on       *nodeSelector
}

// VolumesBuilder gathers what the claims of a pod say, those of devices too.
type VolumesBuilder struct {
	// CountsEach counts every volume for each claim that it could be given to, as before version 26 of the log's rules.
	CountsEach bool

	v   Volumes
	sum strings.Builder
}

// Keep says that no node can take the pod. The first reason counts.
func (b *VolumesBuilder) Keep(kind ReasonKind, what string) {
	if b.v.kept.Kind == ReasonNone {
		b.v.kept = Reason{Kind: kind, Resource: what}
		b.add("kept", string(rune(kind)), what)
	}
}

// Refuse says that no node can take the pod because it would take too much to find out which could.
func (b *VolumesBuilder) Refuse(why string) {
	if b.v.kept.Kind == DevicesAwaited { // what is awaited would not help
		b.v.kept = Reason{}
	}
	b.Keep(ClaimRefused, why)
	b.v.refused = true
}

// Bound says which volume a claim has.
func (b *VolumesBuilder) Bound(v *corev1.PersistentVolume) {
	b.v.looked++
	at := compileReach(v)
	if at.selector == nil && at.zones == nil {
		return
	}
	b.v.bound = append(b.v.bound, at)
	b.add("bound", reachText(v))
	asks := ReachAsks(v)
	b.v.bytes += 512 + 32*asks
	if b.CountsEach {
		asks = 1
	}
	b.v.asks += 1 + asks
}

// Want says that the next claim that has none is to be given one of the offer's volumes, of at least a size, or, where provided, a
// new one on one of some nodes (topologies; none: all). The claims that ask for the least come first. Which claim it is does
// not matter to a node.
func (b *VolumesBuilder) Want(o *Offer, asked resource.Quantity, provided bool, topologies []corev1.TopologySelectorTerm) {
	w := volumeWant{size: sizeKey(asked), provided: provided}
	b.add("want")
	if w.offer = slices.Index(b.v.offers, o); w.offer < 0 {
		w.offer = len(b.v.offers)
		b.v.offers = append(b.v.offers, o)
		b.v.bytes += o.Bytes()
		if !b.CountsEach {
			b.v.asks += o.asks
		}
	}
	if b.CountsEach {
		all, others, most := o.fitting(w.size)
		b.v.looked += all
		b.v.asks += 1 + 2*others + 2*most
		b.addFitting(o, w.size)
	} else {
		b.v.asks += 1 + o.atOnce
		b.add("offer", o.sum, w.size)
	}
	if provided {
		b.add("provided")
		if len(topologies) > 0 {
			w.on = compileTopologies(topologies)
			for i := range topologies {
				b.message(&topologies[i])
			}
			if !b.CountsEach {
				b.v.asks += w.on.asks()
			}
		}
	}
	b.v.wants = append(b.v.wants, w)
	b.v.bytes += 256
}

// addFitting makes the volumes of at least a size a part of what is asked, and no others.
func (b *VolumesBuilder) addFitting(o *Offer, size string) {
	for i := range o.stocks {
		s := &o.stocks[i]
		for _, f := range s.from(size) {
			b.add("volume", s.key, f.size, f.Volume.Name)
		}
	}
}

// Asks is how many conditions for a node's labels were gathered.
func (b *VolumesBuilder) Asks() int { return b.v.asks }

// Held says which pods use a claim that only one may use.
func (b *VolumesBuilder) Held(by Holder) {
	b.v.held = append(b.v.held, by)
	b.v.bytes += 64 + len(by.UID) + len(by.Node)
	if !b.CountsEach {
		b.v.asks++
	}
	b.add("held", by.Node, by.UID)
}

// Done gives what was gathered; nil where it asks nothing of any node.
func (b *VolumesBuilder) Done() *Volumes {
	if b.sum.Len() == 0 {
		return nil
	}
	sum := sha256.Sum256([]byte(b.sum.String()))
	b.v.sum = string(sum[:])
	return &b.v
}

func (b *VolumesBuilder) add(texts ...string) { writeText(&b.sum, texts...) }

// writeText writes texts so that no others give the same.
func writeText(w io.Writer, texts ...string) {
	for _, t := range texts {
		io.WriteString(w, strconv.Itoa(len(t))+" ")
		io.WriteString(w, t)
	}
}

func (b *VolumesBuilder) message(m interface{ Marshal() ([]byte, error) }) {
	text, err := m.Marshal()
	if err != nil {
		panic("model: marshalling where a volume is: " + err.Error()) // see signer.message
	}
	b.add(string(text))
}

// Bytes is about what memory it holds, with what it shares with others.
func (v *Volumes) Bytes() int {
	if v == nil {
		return 0
	}
	return 256 + v.bytes
}

// Sum identifies what is asked: equal ones ask the same. "" for nil.
func (v *Volumes) Sum() string {
	if v == nil {
		return ""
	}
	return v.sum
}

func compileReach(v *corev1.PersistentVolume) reach {
	at := reach{name: v.Name, zones: zonesOf(v)}
	if a := v.Spec.NodeAffinity; a != nil && a.Required != nil {
		at.selector = compileWholeSelector(a.Required)
	}
	return at
}

func compileTopologies(terms []corev1.TopologySelectorTerm) *nodeSelector {
	s := &corev1.NodeSelector{}
	for _, t := range terms {
		var term corev1.NodeSelectorTerm
		for _, e := range t.MatchLabelExpressions {
			term.MatchExpressions = append(term.MatchExpressions,
				corev1.NodeSelectorRequirement{Key: e.Key, Operator: corev1.NodeSelectorOpIn, Values: e.Values})
		}
		s.NodeSelectorTerms = append(s.NodeSelectorTerms, term)
	}
	return compileWholeSelector(s)
}

func reachText(v *corev1.PersistentVolume) string {
	var b VolumesBuilder
	if a := v.Spec.NodeAffinity; a != nil {
		b.message(a)
	}
	for _, label := range zoneLabels {
		b.add(v.Labels[label])
	}
	return b.sum.String()
}

// hostOf is the host name that a volume asks of its node, where it asks for one: such volumes are found by it.
func hostOf(v *corev1.PersistentVolume) (string, bool) {
	a := v.Spec.NodeAffinity
	if a == nil || a.Required == nil || len(a.Required.NodeSelectorTerms) != 1 {
		return "", false
	}
	for _, e := range a.Required.NodeSelectorTerms[0].MatchExpressions {
		if e.Key == corev1.LabelHostname && e.Operator == corev1.NodeSelectorOpIn && len(e.Values) == 1 {
			return e.Values[0], true
		}
	}
	return "", false
}

// zoneLabels are those of a volume that say in which zones it is (Kubernetes' VolumeZone).
var zoneLabels = [...]string{
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
}

func zonesOf(v *corev1.PersistentVolume) map[string][]string {
	var out map[string][]string
	for _, label := range zoneLabels {
		if value, ok := v.Labels[label]; ok {
			if out == nil {
				out = map[string][]string{}
			}
			out[label] = strings.Split(value, "__")
		}
	}
	return out
}

func (p *reach) reachedFrom(n *corev1.Node) bool { return p.selector == nil || p.selector.match(n) }

// inZone: a node that says nothing of zones is in each.
func (p *reach) inZone(n *corev1.Node) bool {
	if p.zones == nil {
		return true
	}
	says := false
	for _, label := range zoneLabels {
		_, has := n.Labels[label]
		says = says || has
	}
	if !says {
		return true
	}
	for _, label := range slices.Sorted(maps.Keys(p.zones)) {
		value, ok := n.Labels[label]
		if !ok { // the label of before and that of now say the same
			value, ok = n.Labels[zoneTwin[label]]
		}
		if !ok || !slices.Contains(p.zones[label], value) {
			return false
		}
	}
	return true
}

var zoneTwin = map[string]string{
	corev1.LabelFailureDomainBetaZone: corev1.LabelTopologyZone, corev1.LabelTopologyZone: corev1.LabelFailureDomainBetaZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion, corev1.LabelTopologyRegion: corev1.LabelFailureDomainBetaRegion,
}

// failures says why a node cannot take a pod with such claims.
func (v *Volumes) failures(n *corev1.Node) Failures {
	if v == nil {
		return 0
	}
	if v.kept.Kind != ReasonNone {
		return failVolumes
	}
	var f Failures
	for i := range v.held {
		if v.held[i].Node == n.Name {
			f |= failClaimInUse
		} else {
			f |= failClaimElsewhere
		}
	}
	for i := range v.bound {
		if !v.bound[i].reachedFrom(n) {
			f |= failVolumeNode
		}
		if !v.bound[i].inZone(n) {
			f |= failVolumeZone
		}
	}
	if _, ok := v.choose(n); !ok {
		f |= failVolumeBind
	}
	return f | v.deviceFailures(n)
}

// choose finds a volume for each claim that has none, "" for a new one: the smallest that is there, as in Kubernetes, or else
// a new one. The claims choose one after the other.
func (v *Volumes) choose(n *corev1.Node) ([]string, bool) {
	if len(v.wants) == 0 {
		return nil, true
	}
	out, c := make([]string, 0, len(v.wants)), newChooser(n, len(v.offers))
	for i := range v.wants {
		w := &v.wants[i]
		name, ok := c.choose(w.offer, v.offers[w.offer], w.size)
		if !ok && !(w.provided && (w.on == nil || w.on.match(n))) {
			return nil, false
		}
		out = append(out, name)
	}
	return out, true
}

// ChooseVolumes says which volumes the claims that have none, and wait for a node, get on this one, in the order in which
// VolumesBuilder was told of them; "" is a new one.
func (c *Class) ChooseVolumes(n *corev1.Node) []string {
	if c.volumes == nil {
		return nil
	}
	out, _ := c.volumes.choose(n)
	return out
}

// VolumeReasons are those for which the pod's claims keep it off a node.
func (c *Class) VolumeReasons(n *corev1.Node) []Reason { return c.volumes.failures(n).Reasons(c) }

// WithVolumes returns the class of a pod whose claims ask that of nodes; c itself where that is nothing.
func (c *Class) WithVolumes(v *Volumes) *Class {
	if v == nil {
		return c
	}
	d := *c
	d.volumes = v
	d.Signature, d.Shape = rehash(c.Signature, "volumes"+v.sum), rehash(c.Shape, "volumes"+v.sum)
	return &d
}

// VolumesLookedAt is how many volumes had to be looked at to find out what the claims of the class's pods ask, by the rules of the
// log before version 26.
func (c *Class) VolumesLookedAt() int {
	if c.volumes == nil {
		return 0
	}
	return c.volumes.looked
}

// ChoosesVolumes says whether pods of the class are given volumes that others may be given, too.
func (c *Class) ChoosesVolumes() bool {
	return c.volumes != nil && slices.ContainsFunc(c.volumes.wants, func(w volumeWant) bool { return c.volumes.offers[w.offer].has(w.size) })
}

// RefusesClaims says whether nobody looked what the claims of the class's pods ask (VolumesBuilder.Refuse).
func (c *Class) RefusesClaims() bool { return c.volumes != nil && c.volumes.refused }

// VolumesBytes is about what the class holds to know what its pods' claims ask.
func (c *Class) VolumesBytes() int { return c.volumes.Bytes() }

func (v *Volumes) conditions() int {
	if v == nil {
		return 0
	}
	return v.asks
}

// ReleasedBy says whether nobody uses the claims any more that the class wants for itself when some pods are gone.
func (c *Class) ReleasedBy(gone func(uid string) bool) bool {
	return c.volumes == nil || !slices.ContainsFunc(c.volumes.held, func(h Holder) bool { return !gone(h.UID) })
}

// WithoutHolders returns the class as it would be if some of the pods were gone that use its claims.
func (c *Class) WithoutHolders(gone func(uid string) bool) *Class {
	return c.withoutHolders(func(h Holder) bool { return gone(h.UID) })
}

func (c *Class) withoutHolders(gone func(h Holder) bool) *Class {
	if c.volumes == nil || !slices.ContainsFunc(c.volumes.held, gone) {
		return c
	}
	d, v := *c, *c.volumes
	v.held = slices.DeleteFunc(slices.Clone(v.held), gone)
	d.volumes = &v
	return &d
}

// WithoutHoldersBelow is WithoutHolders of those whose priority is below one.
func (c *Class) WithoutHoldersBelow(priority int32) *Class {
	return c.withoutHolders(func(h Holder) bool { return h.Priority < priority })
}

// HeldBy says whether a pod uses a claim that the class wants for itself.
func (c *Class) HeldBy(uid string) bool {
	return c.volumes != nil && slices.ContainsFunc(c.volumes.held, func(h Holder) bool { return h.UID == uid })
}
