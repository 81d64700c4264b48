package fsm

import (
	"maps"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// systemSpread is how pods are spread that do not say it themselves (TS13).
var systemSpread = []corev1.TopologySpreadConstraint{
	{TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 3},
	{TopologyKey: corev1.LabelTopologyZone, WhenUnsatisfiable: corev1.ScheduleAnyway, MaxSkew: 5},
}

// spreadDefaults are the cluster's own constraints, and whether they are the
// built-in ones.
func (v *View) spreadDefaults() ([]corev1.TopologySpreadConstraint, bool) {
	c := &v.SchedulerConfig().Spec.PodTopologySpread
	if c.DefaultingType == berthv1.SpreadList { // TS14
		return c.DefaultConstraints, false
	}
	return systemSpread, true
}

// hardDefaults says whether the cluster's default constraints can keep a pod
// off a node; the built-in ones cannot (TS13).
func (v *View) hardDefaults() bool {
	constraints, system := v.spreadDefaults()
	if system {
		return false
	}
	for i := range constraints {
		if constraints[i].WhenUnsatisfiable == corev1.DoNotSchedule {
			return true
		}
	}
	return false
}

// EffectiveClass is the class by which the pod is to be judged: with what its
// profile asks of nodes and what its claims do, and with the cluster's default
// spread constraints if it has none of its own and belongs to a service or a workload (TS12). It may
// be asked of any view by anybody, and costs a few look-ups.
func (v *View) EffectiveClass(c *model.Class, pod *corev1.Pod) *model.Class {
	return v.withAdditions(c, v.defaultsFor(c, pod), v.volumesFor(pod))
}

// defaultSpread are the default constraints of a pod; the zero value is none.
type defaultSpread struct {
	constraints []corev1.TopologySpreadConstraint
	system      bool                  // the built-in ones
	owner       *metav1.LabelSelector // of its workload; nil: none
	services    map[string]string     // the selectors of its services, merged
}

// defaultsFor are the default constraints that hold for a pod.
func (v *View) defaultsFor(c *model.Class, pod *corev1.Pod) defaultSpread {
	if len(c.Spread) > 0 {
		return defaultSpread{}
	}
	d := defaultSpread{}
	if d.constraints, d.system = v.spreadDefaults(); len(d.constraints) == 0 {
		return defaultSpread{}
	}
	d.owner, d.services = v.ownerSelector(pod), v.serviceSelectors(pod)
	if len(d.services) == 0 && d.owner == nil {
		return defaultSpread{}
	}
	return d
}

// selector says which pods count for the constraints.
func (d *defaultSpread) selector() labels.Selector {
	selector := labels.SelectorFromSet(d.services)
	if d.owner != nil {
		if own, err := metav1.LabelSelectorAsSelector(d.owner); err == nil {
			requirements, _ := own.Requirements()
			selector = selector.Add(requirements...)
		}
	}
	return selector
}

// withAdditions is the class with what the configuration and a pod's claims add to
// it.
func (v *View) withAdditions(c *model.Class, d defaultSpread, volumes *model.Volumes) *model.Class {
	config := v.SchedulerConfig()
	var added *corev1.NodeAffinity
	profile := config.Spec.Profile(c.SchedulerName)
	if profile != nil {
		added = profile.AddedAffinity()
	}
	if added == nil && len(d.constraints) == 0 && volumes == nil {
		return c
	}
	key := effectiveKey{class: c, config: config, owner: d.owner, services: pairsText(d.services), volumes: volumes.Sum()}
	return v.effective.get(key, key.bytes(len(d.constraints))+volumes.Bytes(), func() *model.Class {
		c := c
		if len(d.constraints) > 0 {
			c = c.WithSpread(d.constraints, d.selector(), d.system)
		}
		if added != nil {
			c = c.WithAddedAffinity(v.effective.compiled(added))
		}
		return c.WithVolumes(volumes)
	})
}

// ownerSelector is that of the workload that controls the pod; nil if none
// does.
func (v *View) ownerSelector(pod *corev1.Pod) *metav1.LabelSelector {
	key := spreadOwner(pod)
	if key == "" {
		return nil
	}
	o, _ := v.Objects.Get(key)
	return workloadSelector(o)
}

// spreadOwner is the key of the workload that controls the pod, if it is of a
// kind whose selector counts (TS12); else "".
func spreadOwner(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	switch {
	case owner == nil || owner.APIVersion != "apps/v1":
	case owner.Kind == "ReplicaSet":
		return ObjectKey(ReplicaSets, pod.Namespace, owner.Name)
	case owner.Kind == "StatefulSet":
		return ObjectKey("statefulsets", pod.Namespace, owner.Name)
	}
	return ""
}

// workloadSelector says which pods can be a workload's; nil if it is none.
func workloadSelector(o *Object) *metav1.LabelSelector {
	if o == nil {
		return nil
	}
	if w := objectKinds[o.Resource].Workload; w != nil && w.Selector != nil {
		return w.Selector(o.Value)
	}
	return nil
}

// serviceSelectors merges the selectors of the services that the pod belongs
// to: all match it, so they cannot contradict each other. What it costs grows with the
// labels that the namespace's services demand first, or with the pod's own: with
// whatever is less.
func (v *View) serviceSelectors(pod *corev1.Pod) map[string]string {
	if v.services.Len() == 0 {
		return nil
	}
	merged := map[string]string{}
	merge := func(key, value string) {
		prefix := servicePrefix(pod.Namespace, key, value)
		v.services.ScanFrom(prefix, prefix, func(_ string, selector map[string]string) bool {
			if labels.SelectorFromSet(selector).Matches(labels.Set(pod.Labels)) {
				maps.Copy(merged, selector)
			}
			return true
		})
	}
	from := pod.Namespace + "\x00"
	for range len(pod.Labels) + 1 {
		key, ok := v.demandedFirst(pod.Namespace, from)
		if !ok {
			return merged
		}
		if value, has := pod.Labels[key]; has {
			merge(key, value)
		}
		from = pod.Namespace + "\x00" + key + "\x01"
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Labels)) {
		merge(key, pod.Labels[key])
	}
	return merged
}

// demandedFirst is the next label that services of a namespace stand under.
func (v *View) demandedFirst(namespace, from string) (label string, ok bool) {
	at, _, ok := v.services.First(from)
	rest, is := strings.CutPrefix(at, namespace+"\x00")
	label, _, _ = strings.Cut(rest, "\x00")
	return label, ok && is
}

func servicePrefix(namespace, key, value string) string {
	return namespace + "\x00" + key + "\x00" + value + "\x00"
}

// indexService keeps the services by a label that they demand of their pods.
func indexService(v *live, old, now *Object) {
	if at, _, ok := servicePlace(old); ok {
		v.services.Delete(at)
	}
	if at, selector, ok := servicePlace(now); ok {
		v.services.Set(at, selector)
	}
}

// servicePlace is where a service stands in the index; a service without a
// selector has no pods (TS12).
func servicePlace(o *Object) (string, map[string]string, bool) {
	if o == nil {
		return "", nil, false
	}
	s, ok := o.Value.(*corev1.Service)
	if !ok || len(s.Spec.Selector) == 0 {
		return "", nil, false
	}
	key := slices.Sorted(maps.Keys(s.Spec.Selector))[0]
	return servicePrefix(s.Namespace, key, s.Spec.Selector[key]) + s.Name, s.Spec.Selector, true
}

func pairsText(m map[string]string) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(m)) {
		b.WriteString(k)
		b.WriteByte(0)
		b.WriteString(m[k])
		b.WriteByte(0)
	}
	return b.String()
}

// effectiveClasses remembers classes with what is added to them, so that equal
// pods go on having one class. All views of a state share it.
type effectiveClasses struct {
	mu    sync.Mutex
	of    map[effectiveKey]*model.Class
	bytes int // of them
	// added are the added affinities of profiles, by their addresses in rows.
	added map[*corev1.NodeAffinity]*model.AddedAffinity
	// claims are what claims ask as they are at one time, offers what they can be given;
	// and what that holds.
	claims     map[volumesKey]*model.Volumes
	claimsAt   *volumesAt
	claimBytes int
	offers     map[VolumeList]*model.Offer
	offerBytes int
}

// effectiveKey names rows of tables, which never change, by their addresses.
type effectiveKey struct {
	class    *model.Class
	config   *berthv1.SchedulerConfiguration
	owner    *metav1.LabelSelector
	services string
	volumes  string // model.Volumes.Sum
}

// maxEffectiveBytes and maxAdded bound what is remembered.
const maxEffectiveBytes, maxAdded = 32 << 20, 64

// bytes is about what a class holds beyond the one that it is made from, with
// constraints each of which selects by the key's services and owner.
func (k *effectiveKey) bytes(constraints int) int {
	n := len(k.services)
	if k.owner != nil {
		n += k.owner.Size()
	}
	return 2*structBytes + 4*constraints*n
}

func (x *effectiveClasses) get(key effectiveKey, bytes int, build func() *model.Class) *model.Class {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c, ok := x.of[key]; ok {
		return c
	}
	if x.bytes+bytes > maxEffectiveBytes || x.of == nil {
		x.of, x.bytes = map[effectiveKey]*model.Class{}, 0
	}
	c := build()
	x.of[key] = c
	x.bytes += bytes
	return c
}

// compiled is an added affinity, compiled once. The caller is in get.
func (x *effectiveClasses) compiled(a *corev1.NodeAffinity) *model.AddedAffinity {
	if c, ok := x.added[a]; ok {
		return c
	}
	if len(x.added) >= maxAdded || x.added == nil {
		x.added = map[*corev1.NodeAffinity]*model.AddedAffinity{}
	}
	c := model.CompileAddedAffinity(a)
	x.added[a] = c
	return c
}
