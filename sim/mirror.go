package sim

import (
	"fmt"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
)

// mirror is the state as the changes tell it, one after the other: what a decision
// was made on is known when it is told. Whoever uses it holds the checker's mu.
type mirror struct {
	at    int64 // the last revision that is in it
	pods  map[string]*corev1.Pod
	nodes map[string]*corev1.Node

	claims map[string]*fsm.Nomination // by pod
	ended  map[string]*fsm.Nomination // by pod: those that have gone with the present entry

	entry       int64                         // the time of the entry that is being told
	victims     map[types.UID]*corev1.Pod     // those that it has preempted
	nominations map[types.UID]*fsm.Nomination // by victim: those that it has made

	rationed bool // the quota is there

	ticks map[string]*batchv1.Job // of the CronJob: those that go on
	runs  map[string]types.UID    // of a CronJob and a time of its schedule: the Job that was made
	// chimes are the times of a schedule for which there was a Job, in seconds since 1970.
	chimes map[int64]bool

	volumes map[string]*corev1.PersistentVolume
	alone   map[string]bool // claims: one pod at a time may use it
	devices claimed

	pieces map[types.UID]map[string]bool // of Jobs: those that have succeeded

	found []error // what must never be, and was not told yet
}

func newMirror() *mirror {
	return &mirror{pods: map[string]*corev1.Pod{}, nodes: map[string]*corev1.Node{}, claims: map[string]*fsm.Nomination{}, ended: map[string]*fsm.Nomination{},
		victims: map[types.UID]*corev1.Pod{}, nominations: map[types.UID]*fsm.Nomination{}, pieces: map[types.UID]map[string]bool{},
		ticks: map[string]*batchv1.Job{}, runs: map[string]types.UID{}, chimes: map[int64]bool{}, volumes: map[string]*corev1.PersistentVolume{}, alone: map[string]bool{}, devices: newClaimed()}
}

func (m *mirror) fault(revision int64, format string, args ...any) {
	m.found = append(m.found, fmt.Errorf("revision %d: %s", revision, fmt.Sprintf(format, args...)))
}

// load begins anew with a whole state, after changes that nobody was told.
func (m *mirror) load(v *fsm.View) {
	pieces, chimes := m.pieces, m.chimes
	*m = *newMirror()
	m.pieces, m.chimes = pieces, chimes
	m.at = v.Revision()
	_, m.rationed = v.Objects.Get(fsm.ObjectKey("resourcequotas", space, ration))
	v.Pods.Scan("", func(key string, p *corev1.Pod) bool { m.pods[key] = p; m.piece(p); return true })
	v.Nodes.Scan("", func(key string, n *corev1.Node) bool { m.nodes[key] = n; return true })
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool { m.claims[key] = n; return true })
	v.Objects.Scan("", func(key string, o *fsm.Object) bool {
		switch is := o.Value.(type) {
		case *resourcev1.ResourceClaim:
			m.deviceClaim(m.at, key, is)
		case *corev1.PersistentVolume:
			m.volumes[is.Name] = is
		case *corev1.PersistentVolumeClaim:
			m.alone[is.Name] = slices.Contains(is.Spec.AccessModes, corev1.ReadWriteOncePod)
		case *batchv1.Job:
			m.chime(is)
		}
		return true
	})
}

// take takes in a change. view is asked when there is a gap before it.
func (m *mirror) take(c *store.Change, view func() *fsm.View) {
	switch {
	case c.Revision <= m.at:
		return
	case c.Revision > m.at+1:
		m.load(view())
		return
	}
	m.at = c.Revision
	if c.TimeUnixNano != m.entry {
		m.close(c.Revision)
		clear(m.ended)
		if c.TimeUnixNano < m.entry {
			m.fault(c.Revision, "the state's time goes back by %d ns", m.entry-c.TimeUnixNano)
		}
		m.entry = c.TimeUnixNano
	}
	switch is := c.New.(type) {
	case *corev1.Pod:
		old, _ := c.Old.(*corev1.Pod)
		m.pod(c.Revision, old, is)
		m.pods[c.Key] = is
	case *corev1.Node:
		m.nodes[c.Key] = is
	case *fsm.Object:
		switch is := is.Value.(type) {
		case *batchv1.Job:
			m.job(c.Revision, c.Key, is)
		case *corev1.ResourceQuota:
			m.rationed = true
		case *corev1.PersistentVolumeClaim:
			old, _ := before(c).(*corev1.PersistentVolumeClaim)
			m.claim(c.Revision, old, is)
		case *corev1.PersistentVolume:
			old, _ := before(c).(*corev1.PersistentVolume)
			m.volume(c.Revision, old, is)
		case *resourcev1.ResourceClaim:
			m.deviceClaim(c.Revision, c.Key, is)
		}
	case *policyv1.PodDisruptionBudget:
		if s := &is.Status; s.DisruptionsAllowed > max(0, s.CurrentHealthy-s.DesiredHealthy) {
			m.fault(c.Revision, "budget %s allows %d disruptions, and %d of %d that it demands are well", is.Name, s.DisruptionsAllowed, s.CurrentHealthy, s.DesiredHealthy)
		}
	case *fsm.Nomination:
		m.claims[c.Key] = is
		for _, v := range is.Victims {
			m.nominations[v.UID] = is
		}
	case nil:
		switch was := c.Old.(type) {
		case *corev1.Pod:
			delete(m.pods, c.Key)
		case *corev1.Node:
			delete(m.nodes, c.Key)
		case *fsm.Nomination:
			delete(m.claims, c.Key)
			m.ended[c.Key] = was
		case *fsm.Object:
			switch was := was.Value.(type) {
			case *corev1.PersistentVolume:
				delete(m.volumes, was.Name)
			case *batchv1.Job:
				delete(m.ticks, c.Key)
			case *resourcev1.ResourceClaim:
				m.deviceClaim(c.Revision, c.Key, nil)
			}
		}
	}
}

// before is what an object was before a change; nil: it was not there.
func before(c *store.Change) any {
	if o, ok := c.Old.(*fsm.Object); ok {
		return o.Value
	}
	return nil
}

// close looks at an entry that is over: whoever was preempted has a nominee, of a
// higher priority.
func (m *mirror) close(revision int64) {
	var lone []string
	for uid, victim := range m.victims {
		n := m.nominations[uid]
		switch {
		case n == nil:
			lone = append(lone, victim.Name)
		case n.Priority <= model.Priority(victim):
			m.fault(revision, "pod %s was preempted for one of no higher priority", victim.Name)
		}
	}
	if slices.Sort(lone); len(lone) > 0 {
		m.fault(revision, "preempted, and nobody is nominated for it: %s", strings.Join(lone, ", "))
	}
	clear(m.victims)
	clear(m.nominations)
	m.closeDevices(revision)
}

// pod looks at a change of a pod, in the state before it.
func (m *mirror) pod(revision int64, old, pod *corev1.Pod) {
	if pod.Spec.NodeName != "" && (old == nil || old.Spec.NodeName == "") {
		m.binding(revision, pod)
	}
	m.piece(pod)
	if old == nil || old.UID != pod.UID {
		m.kept(revision, pod)
		m.rations(revision, pod)
		return
	}
	why := disruption(pod)
	if why == "" || why == disruption(old) {
		return
	}
	if old.DeletionTimestamp != nil {
		m.fault(revision, "pod %s was on its way out already, and is evicted: %s", pod.Name, why)
	}
	switch why {
	case corev1.PodReasonPreemptionByScheduler:
		m.victims[pod.UID] = pod
	case "EvictionByEvictionAPI":
		m.eviction(revision, old)
	}
}

// disruption is who has evicted a pod, or "": of those who may do so once.
func disruption(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue &&
			(c.Reason == corev1.PodReasonPreemptionByScheduler || c.Reason == "EvictionByEvictionAPI") {
			return c.Reason
		}
	}
	return ""
}

// eviction: of the pods under a budget enough are well without the one that goes.
func (m *mirror) eviction(revision int64, pod *corev1.Pod) {
	set := pod.Labels["set"]
	if set == "" || !model.Ready(pod) {
		return
	}
	well := 0
	for _, p := range m.pods {
		if p.Labels["set"] == set && p.UID != pod.UID && p.DeletionTimestamp == nil && model.Ready(p) && !ended(p) {
			well++
		}
	}
	if well < leastOfSet {
		m.fault(revision, "pod %s is evicted, its budget demands %d, and %d are left", pod.Name, leastOfSet, well)
	}
}

// binding: the node takes the pod.
func (m *mirror) binding(revision int64, pod *corev1.Pod) {
	node := m.nodes[pod.Spec.NodeName]
	if node == nil {
		m.fault(revision, "pod %s is bound to node %s, which is not there", pod.Name, pod.Spec.NodeName)
		return
	}
	taints := slices.Clone(node.Spec.Taints)
	if node.Spec.Unschedulable {
		taints = append(taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule})
	}
	for i := range taints {
		tolerates := func(t corev1.Toleration) bool { return model.Tolerates(&t, &taints[i]) }
		if taints[i].Effect != corev1.TaintEffectPreferNoSchedule && !slices.ContainsFunc(pod.Spec.Tolerations, tolerates) {
			m.fault(revision, "pod %s is bound to node %s, which has taint %s", pod.Name, node.Name, taints[i].Key)
		}
	}
	if !labels.SelectorFromSet(pod.Spec.NodeSelector).Matches(labels.Set(node.Labels)) {
		m.fault(revision, "pod %s is bound to node %s, which it did not ask for", pod.Name, node.Name)
	}
	m.room(revision, pod, node)
	m.usesClaims(revision, pod)
	m.usesDevices(revision, pod)
	apart := pod.Labels["apart"]
	for _, p := range m.pods {
		if apart != "" && p.Labels["apart"] == apart && p.Spec.NodeName == node.Name && p.UID != pod.UID && !ended(p) {
			m.fault(revision, "pods %s and %s keep apart, and both are on node %s", pod.Name, p.Name, node.Name)
		}
	}
}

// room: who is nominated to a node, and of no lower priority, keeps his room there.
// Of two of one priority that are nominated there the first does not wait for the
// other's victims: their room is not his.
func (m *mirror) room(revision int64, pod *corev1.Pod, node *corev1.Node) {
	key := pod.Namespace + "/" + pod.Name
	own := m.claims[key]
	if own == nil {
		own = m.ended[key]
	}
	yields := func(n *fsm.Nomination) bool {
		return own != nil && own.Node == node.Name && n.Priority == own.Priority && n.FirstRevision > own.FirstRevision
	}
	used := model.PodRequest(pod)
	for _, p := range m.pods {
		if p.Spec.NodeName == node.Name && p.UID != pod.UID && !ended(p) {
			used = used.Add(model.PodRequest(model.Charged(p)))
		}
	}
	claimed := false
	for key, n := range m.claims {
		p := m.pods[key]
		if p != nil && n.Node == node.Name && n.UID != pod.UID && n.Priority >= model.Priority(pod) && !yields(n) {
			used = used.Add(model.PodRequest(p))
			claimed = true
		}
	}
	if has := model.Allocatable(node); claimed && (used.MilliCPU > has.MilliCPU || used.MemoryBytes > has.MemoryBytes) {
		m.fault(revision, "pod %s takes room of node %s that others are nominated to", pod.Name, node.Name)
	}
}
