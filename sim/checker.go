package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/store"
	"github.com/berth-dev/berth/worker/runtime"
)

// checker holds what every server shows against the others, and against what must
// never be.
type checker struct {
	story *story
	truth *truth

	mu      sync.Mutex
	changes map[int64]change     // by revision, as the first server told them
	bound   map[types.UID]string // where a pod was bound to
	states  map[uint64]*state    // by index: the first that a server showed
	summed  map[string]*fsm.View // by server: the last state of it that was compared
	leaders map[uint64]string    // by term
	looked  int64                // the newest revision that was looked at
	mirror  *mirror
	broken  []error
	// burst is called, once after it is set, when one of the controllers is about to make pods: a Job has come, or a pod of the DaemonSet has gone.
	burst atomic.Pointer[func()]
	// ticked is called, once after it is set, when the CronJob whose Jobs come one after the other has a new one.
	ticked atomic.Pointer[func()]
	// forgotten is when somebody first restored a snapshot, after the world's begin; 0:
	// nobody has. What was acknowledged in the time before it may be gone, any time later.
	forgotten time.Duration
}

type change struct {
	sum  uint64
	what string
	by   string
}

// state is what a server showed first at an index.
type state struct {
	view *fsm.View // nil: there is its digest
	sum  string
	by   string
}

func (s *state) digest() string {
	if s.view != nil {
		s.sum, s.view = s.view.Digest(), nil
	}
	return s.sum
}

// maxLone is how many states are kept whole that no other server has shown yet.
const maxLone = 10

func newChecker(s *story) *checker {
	return &checker{story: s, truth: newTruth(), mirror: newMirror(), changes: map[int64]change{}, bound: map[types.UID]string{}, states: map[uint64]*state{},
		summed: map[string]*fsm.View{}, leaders: map[uint64]string{}}
}

// endsWithin is how long what is left of a server may take to end, once it is told to.
const endsWithin = 2 * time.Minute

// strayWithin is how long what was under way may go on when it has ended.
const strayWithin = 10 * time.Second

// ends: what is left of a server that was killed, and reaches nobody, ends, and nothing of it goes on.
func (k *checker) ends(server string, life int, of *host, ended <-chan struct{}) {
	select {
	case <-ended:
		time.Sleep(strayWithin)
		stray := func(addr string) {
			k.violated("life %d of server %s has ended, and something of it goes on: it dials %s", life, server, addr)
		}
		of.over.Store(&stray)
	case <-time.After(endsWithin):
		k.violated("life %d of server %s was told to end %s ago, and has not", life, server, endsWithin)
	}
}

// leads: nobody else has led in this term. It says whether the server has not been seen to, either.
func (k *checker) leads(name string, term uint64) (first bool) {
	before := k.leaders[term]
	if before != "" && before != name {
		k.violated("servers %s and %s both lead in term %d", before, name, term)
	}
	k.leaders[term] = name
	return before == ""
}

// violated notes what must never be.
func (k *checker) violated(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	k.story.tell("CHECK", "%v", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.broken = append(k.broken, err); len(k.broken) == 1 {
		k.story.hold()
	}
}

// forgets notes that somebody restores a snapshot.
func (k *checker) forgets() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.forgotten == 0 {
		k.forgotten = time.Since(begin)
	}
}

// founds notes that an operator has made a cluster of what is left of one: entries and
// terms may mean something else from now on, and revisions may not.
func (k *checker) founds() {
	k.forgets()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.states, k.leaders = map[uint64]*state{}, map[uint64]string{}
}

// contradicted notes what must never be, unless somebody has restored a snapshot: what was
// before it says nothing then of what is.
func (k *checker) contradicted(format string, args ...any) {
	if !k.hasForgotten() {
		k.violated(format, args...)
	}
}

func (k *checker) hasForgotten() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.forgotten > 0
}

// Err is what was found so far.
func (k *checker) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.broken...)
}

// follow reads every change of a server's life, until ctx ends.
func (k *checker) follow(ctx context.Context, name string, feed *store.Feed, view func() *fsm.View) {
	at := view().Revision()
	for {
		if err := feed.Wait(ctx, at); err != nil {
			return
		}
		changes, err := feed.After(at, 1000)
		if errors.Is(err, store.ErrCompacted) { // a snapshot replaced the state
			now := view().Revision()
			if now == at { // who follows would ask again and again
				k.violated("server %s shows revision %d, and its changes do not go on from there", name, at)
				return
			}
			at = now
			continue
		}
		for _, c := range changes {
			if c.Revision != at+1 {
				k.violated("server %s: revision %d is followed by %d", name, at, c.Revision)
			}
			at = c.Revision
			k.take(name, &c, view)
		}
	}
}

func (k *checker) take(name string, c *store.Change, view func() *fsm.View) {
	h := xxhash.New()
	mine := change{what: c.Table + " " + c.Key, by: name}
	_, _ = h.WriteString(mine.what) // it never fails, as below
	if c.New == nil {
		_, _ = h.WriteString(" goes")
	}
	if m, ok := c.New.(interface{ Marshal() ([]byte, error) }); ok {
		b, err := m.Marshal()
		if err != nil {
			k.violated("server %s: revision %d can not be encoded: %v", name, c.Revision, err)
		}
		_, _ = h.Write(b)
	}
	mine.sum = h.Sum64()
	k.mu.Lock()
	first, known := k.changes[c.Revision]
	var found []error
	if !known {
		k.changes[c.Revision] = mine
		k.mirror.take(c, view)
		found, k.mirror.found = k.mirror.found, nil
	}
	k.mu.Unlock()
	for _, err := range found {
		k.violated("%v", err)
	}
	k.story.change(name, c.Revision, &mine)
	if known && first.sum != mine.sum {
		k.violated("revision %d is %s on server %s, and %s on server %s, with other content", c.Revision, first.what, first.by, mine.what, name)
	}
	if known {
		return // what is equal was looked at
	}
	old, _ := c.Old.(*corev1.Pod)
	if makesWork(c) {
		call(&k.burst)
	}
	if job := newJob(c); job != nil && ticks(job) {
		call(&k.ticked)
	}
	if pod, ok := c.New.(*corev1.Pod); ok {
		k.pod(c.Revision, old, pod)
	}
	if c.New == nil && old != nil {
		if k.truth.runs(old.UID, old.Spec.NodeName) {
			k.contradicted("revision %d: pod %s is gone, and its container runs", c.Revision, old.Name) // that it was bound may be forgotten
		}
		if id, ok := k.truth.untold(old); ok {
			k.contradicted("revision %d: pod %s is gone, and nobody was told how container %s has ended", c.Revision, old.Name, id)
		}
	}
}

// call calls what is to be called once.
func call(f *atomic.Pointer[func()]) {
	if do := f.Swap(nil); do != nil {
		(*do)()
	}
}

// newJob is the Job that has come; nil: none has.
func newJob(c *store.Change) *batchv1.Job {
	is, ok := c.New.(*fsm.Object)
	if !ok || before(c) != nil {
		return nil
	}
	job, _ := is.Value.(*batchv1.Job)
	return job
}

// makesWork: a controller is about to make pods.
func makesWork(c *store.Change) bool {
	old, ok := c.Old.(*corev1.Pod)
	return newJob(c) != nil || c.New == nil && ok && old.Labels[keptBy] == daemons
}

// pod looks at one change of a pod.
func (k *checker) pod(revision int64, old, pod *corev1.Pod) {
	if node := pod.Spec.NodeName; node != "" {
		k.mu.Lock()
		before, ok := k.bound[pod.UID]
		k.bound[pod.UID] = node
		k.mu.Unlock()
		if ok && before != node {
			k.contradicted("revision %d: pod %s was bound to %s, and is bound to %s", revision, pod.Name, before, node)
		}
	}
	for _, wrong := range k.truth.told(pod, k.hasForgotten()) {
		k.violated("revision %d: %s", revision, wrong)
	}
	if old == nil || old.UID != pod.UID {
		return
	}
	if old.Spec.NodeName != "" && pod.Spec.NodeName == "" {
		k.violated("revision %d: pod %s is bound no longer", revision, pod.Name)
	}
	if old.DeletionTimestamp != nil && pod.DeletionTimestamp == nil {
		k.violated("revision %d: pod %s was to go, and is not any more", revision, pod.Name)
	}
	if ended(old) && pod.Status.Phase != old.Status.Phase {
		k.violated("revision %d: pod %s was %s, and is %s", revision, pod.Name, old.Status.Phase, pod.Status.Phase)
	}
	if ended(pod) && !ended(old) && pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && pod.Status.Reason == "" && pod.DeletionTimestamp == nil {
		k.contradicted("revision %d: pod %s, which is always started again, is %s", revision, pod.Name, pod.Status.Phase)
	}
	for i := range old.Status.ContainerStatuses {
		was := old.Status.ContainerStatuses[i].State.Terminated
		if was == nil || pod.Spec.RestartPolicy != corev1.RestartPolicyNever || i >= len(pod.Status.ContainerStatuses) {
			continue
		}
		if now := pod.Status.ContainerStatuses[i]; now.State.Terminated == nil || now.RestartCount > 0 {
			k.contradicted("revision %d: a container of pod %s, which never restarts, has ended and goes on", revision, pod.Name)
		}
	}
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// view looks at a whole state: no node may have more than it can hold, and whoever waits has no room. That
// of another server at the same revision is the same, or will be told to differ.
func (k *checker) view(name string, v *fsm.View) {
	if v.Revision() == k.looked {
		return
	}
	k.looked = v.Revision()
	k.woken(name, v)
	k.rationed(name, v)
	used := map[string]model.Resources{}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Spec.NodeName != "" && !ended(p) {
			used[p.Spec.NodeName] = used[p.Spec.NodeName].Add(setAside(p)) // what it merely asks for may be more than there is
		}
		return true
	})
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		u, room := used[n.Name], model.Allocatable(n)
		if u.MilliCPU > room.MilliCPU || u.MemoryBytes > room.MemoryBytes || u.Pods > room.Pods {
			k.violated("server %s, revision %d: node %s holds %dm cpu, %d bytes and %d pods, and has %dm, %d and %d:%s",
				name, v.Revision(), n.Name, u.MilliCPU, u.MemoryBytes, u.Pods, room.MilliCPU, room.MemoryBytes, room.Pods, holders(v, n.Name))
		}
		return true
	})
}

// holders are the pods of a node, what it has set aside for each, and what each asks for.
func holders(v *fsm.View, node string) (out string) {
	for _, p := range podsOn(v, node) {
		if ended(p) {
			continue
		}
		asks, has := model.PodRequest(p), setAside(p)
		out += fmt.Sprintf(" %s %s %s %dm of %dm", p.Name, p.UID, p.Status.Phase, has.MilliCPU, asks.MilliCPU)
		if model.Terminating(p) {
			out += " ends"
		}
		out += ","
	}
	return out
}

// rationed: what a quota is said to be used of is what is used.
func (k *checker) rationed(name string, v *fsm.View) {
	o, ok := v.Objects.Get(fsm.ObjectKey("resourcequotas", space, ration))
	if !ok {
		return
	}
	quota, ok := o.Value.(*corev1.ResourceQuota)
	if !ok {
		return
	}
	have := int64(0)
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Namespace == space && p.Spec.PriorityClassName == rationed && !ended(p) {
			have++
		}
		return true
	})
	if used := quota.Status.Used[corev1.ResourcePods]; used.Value() != have {
		k.violated("server %s, revision %d: of quota %s %s pods are used, and there are %d", name, v.Revision(), ration, used.String(), have)
	}
}

// whole compares the digest of a state with that of another server at its index. A digest costs a walk over everything: none is made
// of a state before another server shows one at its index.
func (k *checker) whole(name string, v *fsm.View) {
	if k.summed[name] == v {
		return
	}
	k.summed[name] = v
	k.mu.Lock()
	first := k.states[v.Index()]
	if first == nil {
		k.states[v.Index()] = &state{view: v, by: name}
	}
	k.mu.Unlock()
	if first != nil && first.digest() != v.Digest() {
		k.violated("after entry %d servers %s and %s hold different states", v.Index(), first.by, name)
	}
}

// alone settles what becomes of the states that one server alone has shown: what is behind every server none will show any more, and of
// too many a digest is kept. least is how far the one is that is furthest behind.
func (k *checker) alone(least uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	var lone []uint64
	for at, s := range k.states {
		switch {
		case at < least:
			delete(k.states, at)
		case s.view != nil:
			lone = append(lone, at)
		}
	}
	slices.Sort(lone)
	for _, at := range lone[:max(0, len(lone)-maxLone)] {
		k.states[at].digest()
	}
}

// settled looks at a state that had time to come to rest: everybody who can be
// placed is, everybody who must go is gone, and everybody who was placed runs.
func (k *checker) settled(v *fsm.View, nowUnixNano int64) (unsettled []string) {
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		if len(n.Spec.Taints) > 0 && !n.Spec.Unschedulable && n.Name != foreign && (n.Name != rack || !isReady(n)) { // whoever was draining it has gone home
			unsettled = append(unsettled, fmt.Sprintf("node %s has taints %v", n.Name, n.Spec.Taints))
		}
		return true
	})
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		switch {
		case ended(p):
		case p.DeletionTimestamp != nil && nowUnixNano > p.DeletionTimestamp.UnixNano()+30e9:
			unsettled = append(unsettled, fmt.Sprintf("pod %s was to be gone at %s", p.Name, p.DeletionTimestamp.UTC().Format("15:04:05")))
		case p.Spec.NodeName != "" && p.Status.Phase != corev1.PodRunning && p.DeletionTimestamp == nil:
			unsettled = append(unsettled, fmt.Sprintf("pod %s on %s is %s", p.Name, p.Spec.NodeName, p.Status.Phase))
		}
		return true
	})
	if v.Nominations.Len() == 0 {
		free := roomOf(v)
		v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
			if p.Spec.NodeName == "" && !ended(p) {
				if node := free.placeOf(p); node != "" {
					unsettled = append(unsettled, fmt.Sprintf("pod %s waits, and %s has room", p.Name, node))
				}
			}
			return true
		})
	}
	return slices.Concat(unsettled, workloads(v), kept(v), unclaimed(v), equipped(v), lost(v), served(v), k.truth.settled(v, nowUnixNano))
}

// woken looks at a state in which nobody is to be tried: whoever waits there waits
// because there is no room.
func (k *checker) woken(name string, v *fsm.View) {
	l := v.QueueLengths()
	if l.Waiting == 0 || l.Active+l.Backoff > 0 || v.WorkPending() || v.Nominations.Len() > 0 {
		return
	}
	free := roomOf(v)
	v.Blocked(func(e *fsm.QueueEntry) bool {
		if p, ok := v.Pods.Get(e.Key()); ok {
			if node := free.placeOf(p); node != "" {
				k.violated("server %s, revision %d: pod %s waits, node %s has room, and nobody looks for it", name, v.Revision(), p.Name, node)
				return false
			}
		}
		return true
	})
}

// room is what nodes have left that take anybody, or whoever does not mind that they are being drained.
type room struct {
	names []string // in order, of those that take anybody
	nodes map[string]*corev1.Node
	free  map[string]model.Resources
}

func roomOf(v *fsm.View) *room {
	r := &room{nodes: map[string]*corev1.Node{}, free: map[string]model.Resources{}}
	v.Nodes.Scan("", func(_ string, n *corev1.Node) bool {
		if slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key != corev1.TaintNodeUnschedulable }) {
			return true
		}
		r.nodes[n.Name], r.free[n.Name] = n, model.Allocatable(n)
		if !n.Spec.Unschedulable && len(n.Spec.Taints) == 0 {
			r.names = append(r.names, n.Name)
		}
		return true
	})
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if f, ok := r.free[p.Spec.NodeName]; ok && !ended(p) {
			u := model.PodRequest(model.Charged(p))
			f.MilliCPU, f.MemoryBytes, f.Pods = f.MilliCPU-u.MilliCPU, f.MemoryBytes-u.MemoryBytes, f.Pods-u.Pods
			r.free[p.Spec.NodeName] = f
		}
		return true
	})
	return r
}

// placeOf is a node that has room for a pod which asks for nothing else, or for the one that it is made for; "": there is none, or
// the pod has rules.
func (r *room) placeOf(p *corev1.Pod) string {
	names, wanted := r.names, wantsNode(p)
	switch {
	case p.DeletionTimestamp != nil, len(model.Claims(p)) > 0, len(p.Spec.ResourceClaims) > 0, p.Status.NominatedNodeName != "", p.Spec.Affinity != nil && wanted == "":
		return ""
	case wanted != "" && r.nodes[wanted] == nil:
		return ""
	case wanted != "":
		names = []string{wanted}
	}
	u, want := model.PodRequest(p), labels.SelectorFromSet(p.Spec.NodeSelector)
	for _, name := range names {
		f := r.free[name]
		if f.MilliCPU >= u.MilliCPU && f.MemoryBytes >= u.MemoryBytes && f.Pods >= u.Pods && want.Matches(labels.Set(r.nodes[name].Labels)) {
			return name
		}
	}
	return ""
}

// workloads: every ReplicaSet has as many pods as it wants.
func workloads(v *fsm.View) (unsettled []string) {
	have := map[string]int{}
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if set := p.Labels["set"]; set != "" && p.DeletionTimestamp == nil && !ended(p) {
			have[set]++
		}
		return true
	})
	for i := range replicaSets {
		name := nameOfSet(i)
		o, ok := v.Objects.Get(fsm.ObjectKey("replicasets", space, name))
		if !ok {
			continue
		}
		if set, ok := o.Value.(*appsv1.ReplicaSet); ok && set.Spec.Replicas != nil && have[name] != int(*set.Spec.Replicas) {
			unsettled = append(unsettled, fmt.Sprintf("ReplicaSet %s wants %d pods, and has %d", name, *set.Spec.Replicas, have[name]))
		}
	}
	return unsettled
}

// kills is told that a container is killed that was asked to end so long ago: as
// long as its pod is there it has the grace of the pod.
func (k *checker) kills(id runtime.ID, since time.Duration, heard bool) {
	k.mu.Lock()
	var pod *corev1.Pod
	for _, p := range k.mirror.pods {
		if p.UID == id.Pod {
			pod = p
		}
	}
	k.mu.Unlock()
	if !heard {
		k.violated("container %s is killed, and was never asked to end", id)
	}
	if pod != nil && pod.DeletionTimestamp != nil && since < grace-time.Second {
		k.contradicted("container %s is killed %s after it was asked to end, and has %s", id, since, grace)
	}
}

// podsOn are the pods that are bound to a node.
func podsOn(v *fsm.View, node string) (out []*corev1.Pod) {
	v.Pods.Scan("", func(_ string, p *corev1.Pod) bool {
		if p.Spec.NodeName == node {
			out = append(out, p)
		}
		return true
	})
	return out
}

func restarts(p *corev1.Pod) int32 {
	if len(p.Status.ContainerStatuses) == 0 {
		return 0
	}
	return p.Status.ContainerStatuses[0].RestartCount
}
