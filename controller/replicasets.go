package controller

import (
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
	"github.com/berth-dev/berth/store"
)

// ReplicaSets keeps the number of every ReplicaSet's pods (WC1). It follows the
// state's changes and looks again only at ReplicaSets that one of them concerns,
// so a round costs what has changed. While commands for a ReplicaSet are under
// way it is left alone: whatever happens meanwhile, it is looked at again on a
// state that has them applied. That a count is never exceeded does not depend on
// this memory; Apply sees to it.
type ReplicaSets struct {
	// Finish makes a pod of a template complete, as the API does with one that
	// is created, or says why it cannot be created. nil: it is complete.
	Finish func(template *corev1.Pod) (*corev1.Pod, error)

	sets     map[string]*replicaSet // by namespace/name
	queue    []*replicaSet          // to be looked at, in turn
	timed    []*replicaSet          // to be looked at when their time has come
	matching selectors
	more     bool // the last Step left some to the next
}

// replicaSet is what is remembered of one.
type replicaSet struct {
	key      string
	id       owners.ID
	selector labels.Selector

	queued, timed bool
	busy          bool  // commands are under way
	looked        int64 // the revision at which they were wanted
	after         int64 // the revision by which the last ones were applied
	// idleUnixNano is until when it is left alone: what was wanted has changed nothing.
	idleUnixNano int64
	// orphans are pods that match and seem to have no controller; all: look at
	// all orphans of the namespace.
	orphans []string
	all     bool

	// failures counts creations that failed, one after the other.
	failures      int
	retryUnixNano int64
	failure       *appsv1.ReplicaSetCondition
	// reported: the failure is in the status, and on record.
	reported bool
	// statusUnixNano is when the status was last written, dueUnixNano when it
	// changes by the passage of time alone.
	statusUnixNano, dueUnixNano int64
	// available is how many pods were available when they were last counted.
	available       int32
	countedUnixNano int64
}

// Reset forgets everything and looks at every ReplicaSet of a view.
func (r *ReplicaSets) Reset(v *fsm.View) {
	*r = ReplicaSets{Finish: r.Finish, sets: map[string]*replicaSet{}, matching: selectors{}}
	v.ScanReplicaSets("", func(rs *appsv1.ReplicaSet) bool {
		r.put(rs)
		return true
	})
}

// Observe takes note of changes. The view has them.
func (r *ReplicaSets) Observe(_ *fsm.View, changes []store.Change) {
	for i := range changes {
		c := &changes[i]
		switch row := either(c).(type) {
		case *corev1.Pod:
			oldPod, _ := c.Old.(*corev1.Pod)
			newPod, _ := c.New.(*corev1.Pod)
			r.observePod(c.Key, oldPod, newPod)
		case *fsm.Object:
			switch row.Resource {
			case fsm.ReplicaSets:
				r.observeSet(c)
			case fsm.ValidatingPolicies, fsm.ValidatingPolicyBindings, fsm.MutatingPolicies, fsm.MutatingPolicyBindings,
				fsm.ValidatingWebhooks, fsm.MutatingWebhooks:
				r.tryAgain("")
			case fsm.LimitRanges:
				r.tryAgain(row.Value.GetNamespace() + "/")
			case fsm.ResourceQuotas:
				if allowsMore(c) {
					r.tryAgain(row.Value.GetNamespace() + "/")
				}
			}
		default:
			r.observeOther(c)
		}
	}
}

// either is the row after a change, or, if it is gone, the one before.
func either(c *store.Change) any {
	if c.New != nil {
		return c.New
	}
	return c.Old
}

func (r *ReplicaSets) observePod(key string, old, now *corev1.Pod) {
	was, is := controllerUID(old), controllerUID(now)
	if was != "" || is != "" {
		if was == is && old != nil && now != nil && countsTheSame(old, now) {
			return
		}
		r.wake(old, was)
		if is != was {
			r.wake(now, is)
		}
	}
	if now == nil || is != "" || !owners.Active(now) {
		return
	}
	if old != nil && was == "" && owners.Active(old) && labels.Equals(old.Labels, now.Labels) {
		return
	}
	for _, s := range r.matching.of(now) {
		if s.selector.Matches(labels.Set(now.Labels)) {
			s.orphans = append(s.orphans, key)
			r.enqueue(s)
		}
	}
}

// countsTheSame: nothing that a ReplicaSet's count or status says of the pod
// has changed.
func countsTheSame(old, now *corev1.Pod) bool {
	return owners.Active(old) == owners.Active(now) && model.Ready(old) == model.Ready(now) &&
		(old.DeletionTimestamp == nil) == (now.DeletionTimestamp == nil) && labels.Equals(old.Labels, now.Labels)
}

func controllerUID(pod *corev1.Pod) types.UID {
	if pod == nil {
		return ""
	}
	if c := owners.ControllerOf(pod); c != nil {
		return c.UID
	}
	return ""
}

// wake has the pod's ReplicaSet looked at.
func (r *ReplicaSets) wake(pod *corev1.Pod, uid types.UID) {
	if pod == nil || uid == "" {
		return
	}
	c := owners.ControllerOf(pod)
	if s := r.sets[pod.Namespace+"/"+c.Name]; s != nil && s.id == (owners.ID{Namespace: pod.Namespace, UID: uid}) {
		r.enqueue(s)
	}
}

func (r *ReplicaSets) observeSet(c *store.Change) {
	if c.New == nil {
		old := c.Old.(*fsm.Object).Value
		r.drop(old.GetNamespace() + "/" + old.GetName())
		return
	}
	r.put(c.New.(*fsm.Object).Value.(*appsv1.ReplicaSet))
}

// observeOther: a class, a namespace or the configuration has changed, so
// creations that failed may succeed.
func (r *ReplicaSets) observeOther(c *store.Change) {
	switch c.Table {
	case "priorityclasses", "namespaces", "schedulerconfigurations":
		r.tryAgain("")
	}
}

// allowsMore: a quota may allow more pods than it did, other than by pods that go, which
// are many: for those who failed wait as long as they do.
func allowsMore(c *store.Change) bool {
	if c.Old == nil || c.New == nil {
		return c.New == nil
	}
	was, is := c.Old.(*fsm.Object).Value.(*corev1.ResourceQuota), c.New.(*fsm.Object).Value.(*corev1.ResourceQuota)
	return !equality.Semantic.DeepEqual(was.Spec, is.Spec)
}

// tryAgain makes creations at once that failed, of ReplicaSets whose keys begin so.
func (r *ReplicaSets) tryAgain(prefix string) {
	for _, s := range r.timed {
		if s.failures > 0 && strings.HasPrefix(s.key, prefix) {
			s.failures, s.retryUnixNano = 1, 0
		}
	}
}

// put has a ReplicaSet, new or changed, looked at.
func (r *ReplicaSets) put(rs *appsv1.ReplicaSet) {
	key := rs.Namespace + "/" + rs.Name
	s := r.sets[key]
	if s == nil || s.id.UID != rs.UID {
		r.drop(key)
		selector, err := metav1.LabelSelectorAsSelector(rs.Spec.Selector)
		if err != nil || selector.Empty() {
			return // the API takes no such thing
		}
		s = &replicaSet{key: key, id: owners.IDOf(rs), selector: selector, all: true}
		r.sets[key] = s
		r.matching.add(rs, s)
	}
	r.enqueue(s)
}

func (r *ReplicaSets) drop(key string) {
	if s := r.sets[key]; s != nil {
		delete(r.sets, key)
		r.matching.remove(s)
	}
}

func (r *ReplicaSets) enqueue(s *replicaSet) {
	if !s.queued {
		s.queued = true
		r.queue = append(r.queue, s)
	}
}

// later has a ReplicaSet looked at when its time has come.
func (r *ReplicaSets) later(s *replicaSet) {
	if !s.timed {
		s.timed = true
		r.timed = append(r.timed, s)
	}
}

// due has those looked at whose time has come.
func (r *ReplicaSets) due(nowUnixNano int64) {
	r.timed = slices.DeleteFunc(r.timed, func(s *replicaSet) bool {
		if s.next() > nowUnixNano {
			return false
		}
		s.timed = false
		if r.sets[s.key] == s {
			r.enqueue(s)
		}
		return true
	})
}

// next is when the ReplicaSet has to be looked at though nothing has changed.
func (s *replicaSet) next() int64 {
	at := int64(never)
	if s.idleUnixNano > 0 {
		return s.idleUnixNano
	}
	if s.failures > 0 {
		at = s.retryUnixNano
	}
	if s.dueUnixNano > 0 {
		at = min(at, s.dueUnixNano)
	}
	return at
}

// NextUnixNano is when Step has something to do though nothing has changed.
func (r *ReplicaSets) NextUnixNano() (int64, bool) {
	at := int64(never)
	for _, s := range r.timed {
		at = min(at, s.next())
	}
	return at, at != never
}

// Step looks at the ReplicaSets that need it and returns what they want, for at
// most so many of them; the rest follows with the next call.
func (r *ReplicaSets) Step(v *fsm.View, nowUnixNano int64, most int) []Work {
	r.due(nowUnixNano)
	var out []Work
	var kept []*replicaSet
	queue := r.queue
	r.queue, r.more = nil, false
	for i, s := range queue {
		if len(out) == most {
			kept, r.more = append(kept, queue[i:]...), true
			break
		}
		if r.sets[s.key] != s {
			continue
		}
		if s.busy || v.Revision() < s.after {
			kept = append(kept, s)
			continue
		}
		s.queued = false
		if nowUnixNano < s.idleUnixNano {
			r.later(s)
			continue
		}
		s.idleUnixNano = 0
		commands := r.look(v, s, nowUnixNano)
		if s.next() != never {
			r.later(s)
		}
		if len(commands) > 0 {
			s.busy, s.looked = true, v.Revision()
			out = append(out, Work{For: s.key, Commands: commands})
		}
	}
	r.queue = append(kept, r.queue...)
	return out
}

// Pending says whether there is more to look at than the last Step did.
func (r *ReplicaSets) Pending() bool { return r.more }

// Settle takes note of what became of a Work.
func (r *ReplicaSets) Settle(_ *fsm.View, o Outcome, nowUnixNano int64) {
	s := r.sets[o.Work.For]
	if s == nil || !s.busy {
		return
	}
	s.busy = false
	if _, unclaimed := refused[*fsm.ClaimPods](&o); o.Err != nil || unclaimed {
		s.all = true // which orphans it was about is forgotten
	}
	if o.Err != nil {
		r.enqueue(s) // it may have been done: the state tells
		return
	}
	for _, result := range o.Results {
		s.after = max(s.after, result.Revision)
	}
	r.settleCreation(s, &o, nowUnixNano)
	if s.after == s.looked && s.failures == 0 {
		// The state that was looked at and the one that the commands met are the same, and
		// nothing came of them: it would be so again, and again.
		s.idleUnixNano = nowUnixNano + retryFirst
	}
	r.enqueue(s)
}

// selectors find the ReplicaSets that a pod could match by one pair of labels,
// without asking every ReplicaSet of the namespace.
type selectors map[selectorKey][]*replicaSet

type selectorKey struct{ namespace, pair string }

func (m selectors) add(rs *appsv1.ReplicaSet, s *replicaSet) {
	k := selectorKey{namespace: rs.Namespace}
	// order does not matter: the least
	for key, value := range rs.Spec.Selector.MatchLabels {
		if pair := key + "=" + value; k.pair == "" || pair < k.pair {
			k.pair = pair
		}
	}
	m[k] = append(m[k], s)
}

func (m selectors) remove(s *replicaSet) {
	// order does not matter: it is in one of them
	for k, list := range m {
		if i := slices.Index(list, s); i >= 0 {
			m[k] = slices.Delete(list, i, i+1)
			if len(m[k]) == 0 {
				delete(m, k)
			}
			return
		}
	}
}

// of are the ReplicaSets whose selectors ask for one of the pod's labels, or for
// none in particular, in the order of their names.
func (m selectors) of(pod *corev1.Pod) []*replicaSet {
	out := slices.Clone(m[selectorKey{namespace: pod.Namespace}])
	// order does not matter: sorted below
	for key, value := range pod.Labels {
		out = append(out, m[selectorKey{pod.Namespace, key + "=" + value}]...)
	}
	slices.SortFunc(out, func(a, b *replicaSet) int { return strings.Compare(a.key, b.key) })
	return out
}
