package controller

import (
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/owners"
)

const (
	// podsPerCommand bounds the pods that one command makes, deletes or claims,
	// so that no command keeps the others waiting for long.
	podsPerCommand = 1000
	// commandsAtOnce bounds the commands of one look at a ReplicaSet.
	commandsAtOnce = 10
	// statusEvery is how often a status is written at most, and progressEvery while pods are still missing or not available: every pod of
	// a ReplicaSet that begins would be news, to all servers, to its Deployment and to whoever watches.
	statusEvery   = int64(100 * time.Millisecond)
	progressEvery = int64(250 * time.Millisecond)
	// A creation that failed is tried again after a second, then after two, …
	retryFirst = int64(time.Second)
	retryLast  = int64(time.Minute)
	// countAlways is how many pods are looked at without a second thought.
	countAlways = 1000
)

// look compares a ReplicaSet with its pods and returns what has to be done.
func (r *ReplicaSets) look(v *fsm.View, s *replicaSet, nowUnixNano int64) []fsm.Command {
	namespace, name, _ := strings.Cut(s.key, "/")
	rs, ok := v.ReplicaSet(namespace, name)
	if !ok || rs.UID != s.id.UID {
		return nil // the change that says so follows
	}
	s.dueUnixNano = 0
	var commands []fsm.Command
	if rs.DeletionTimestamp == nil && !terminating(v, namespace) {
		if claims := s.claims(v, rs); len(claims) > 0 {
			return claims
		}
		commands = r.scale(v, s, rs, nowUnixNano)
	}
	if len(commands) > 0 && s.statusUnixNano == 0 { // the first status is that with the pods that are made now
		s.dueUnixNano = nowUnixNano + statusEvery
		return commands
	}
	return append(commands, s.status(v, rs, nowUnixNano)...)
}

// terminating: nothing new can be made in the namespace.
func terminating(v *fsm.View, namespace string) bool {
	ns, ok := v.Namespaces.Get(namespace)
	return !ok || ns.DeletionTimestamp != nil
}

func refTo(rs *appsv1.ReplicaSet) fsm.ObjectRef { return refOf(fsm.ReplicaSets, rs) }

// claims are the pods that match and have no controller, and those that have
// this one and match no longer.
func (s *replicaSet) claims(v *fsm.View, rs *appsv1.ReplicaSet) []fsm.Command {
	c := &fsm.ClaimPods{Owner: refTo(rs)}
	add := func(key string, pod *corev1.Pod) {
		if s.selector.Matches(labels.Set(pod.Labels)) {
			c.Adopt = append(c.Adopt, fsm.PodRef{Key: key, UID: string(pod.UID)})
		}
	}
	if s.all {
		v.Orphans(rs.Namespace, func(key string, pod *corev1.Pod) bool {
			add(key, pod)
			return len(c.Adopt) < podsPerCommand
		})
	} else {
		slices.Sort(s.orphans)
		for _, key := range slices.Compact(s.orphans) {
			if pod, ok := v.Pods.Get(key); ok && v.Orphan(key) && len(c.Adopt) < podsPerCommand {
				add(key, pod)
			}
		}
	}
	s.all = len(c.Adopt) == podsPerCommand // there may be more
	s.orphans = nil
	if s.strays(v) {
		v.PodsOf(owners.IDOf(rs), func(key string, pod *corev1.Pod) bool {
			if owners.Active(pod) && !s.selector.Matches(labels.Set(pod.Labels)) {
				c.Release = append(c.Release, fsm.PodRef{Key: key, UID: string(pod.UID)})
			}
			return len(c.Release) < podsPerCommand
		})
	}
	if len(c.Adopt)+len(c.Release) == 0 {
		return nil
	}
	return []fsm.Command{c}
}

// strays: active pods have this controller and do not match. The pods are
// counted by their labels, so none has to be looked at to tell.
func (s *replicaSet) strays(v *fsm.View) bool {
	strays := false
	v.Tallies(s.id, func(t *owners.Tally) bool {
		strays = t.Active > 0 && !s.selector.Matches(labels.Set(t.Labels))
		return !strays
	})
	return strays
}

// scale makes pods or deletes some, until there are as many as are wanted.
func (r *ReplicaSets) scale(v *fsm.View, s *replicaSet, rs *appsv1.ReplicaSet, nowUnixNano int64) []fsm.Command {
	missing := int(fsm.ReplicasOf(rs) - v.TallyOf(owners.IDOf(rs)).Active)
	switch {
	case missing > 0 && s.failures > 0 && s.retryUnixNano > nowUnixNano:
		return nil
	case missing > 0:
		return r.create(s, rs, missing, nowUnixNano)
	}
	s.succeeded()
	if missing == 0 {
		return nil
	}
	victims := ScaleIn(v, rs, min(-missing, podsPerCommand*commandsAtOnce), nowUnixNano)
	var out []fsm.Command
	for part := range slices.Chunk(victims, podsPerCommand) {
		c := &fsm.ScaleIn{Owner: refTo(rs), Victims: make([]fsm.PodRef, len(part))}
		for i := range part {
			c.Victims[i] = fsm.PodRef{Key: part[i].Key, UID: string(part[i].Pod.UID)}
		}
		out = append(out, c)
	}
	return out
}

func (r *ReplicaSets) create(s *replicaSet, rs *appsv1.ReplicaSet, missing int, nowUnixNano int64) []fsm.Command {
	pod, err := r.NewPod(rs)
	if err != nil {
		s.failed(err.Error(), nowUnixNano)
		return nil
	}
	owner := refTo(rs)
	var out []fsm.Command
	for ; missing > 0 && len(out) < commandsAtOnce; missing -= podsPerCommand {
		out = append(out, &fsm.AdmitPods{
			Template: fsm.PodWire{Object: pod}, Count: int32(min(missing, podsPerCommand)),
			Owner: &owner, Generation: rs.Generation,
		})
	}
	return out
}

// NewPod is what the pods of a ReplicaSet are made from: its template,
// finished, without a name of its own.
func (r *ReplicaSets) NewPod(rs *appsv1.ReplicaSet) (*corev1.Pod, error) {
	template := &rs.Spec.Template
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: rs.Namespace, GenerateName: rs.Name + "-",
			Labels: template.Labels, Annotations: template.Annotations, Finalizers: template.Finalizers,
		},
		Spec: template.Spec,
	}
	if r.Finish == nil {
		return pod, nil
	}
	return r.Finish(pod)
}

// settleCreation takes note of whether pods could be made.
func (r *ReplicaSets) settleCreation(s *replicaSet, o *Outcome, nowUnixNano int64) {
	result, bad := refused[*fsm.AdmitPods](o)
	switch {
	case bad && apierrors.IsConflict(result.Err()) || bad && apierrors.IsNotFound(result.Err()):
		// It has changed, or is gone; the next look sees it.
	case bad:
		s.failed(result.Message, nowUnixNano)
	case slices.ContainsFunc(o.Work.Commands, isAdmission):
		s.succeeded()
	}
}

func isAdmission(c fsm.Command) bool { _, ok := c.(*fsm.AdmitPods); return ok }

// failed: the next try waits, twice as long each time.
func (s *replicaSet) failed(message string, nowUnixNano int64) {
	s.failures++
	s.retryUnixNano = nowUnixNano + min(retryFirst<<min(s.failures-1, 10), retryLast)
	now := metav1.Time{Time: time.Unix(0, nowUnixNano).UTC().Truncate(time.Second)}
	if s.failure != nil {
		now = s.failure.LastTransitionTime
	}
	s.failure = &appsv1.ReplicaSetCondition{
		Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, LastTransitionTime: now,
		Reason: "FailedCreate", Message: message,
	}
	s.reported = false
}

func (s *replicaSet) succeeded() {
	s.failures, s.retryUnixNano, s.failure, s.reported = 0, 0, nil, false
}

// status writes the status, if it has changed and the last time is long enough
// ago.
func (s *replicaSet) status(v *fsm.View, rs *appsv1.ReplicaSet, nowUnixNano int64) []fsm.Command {
	next := s.statusOf(v, rs, nowUnixNano)
	warn := s.failure != nil && !s.reported
	if equality.Semantic.DeepEqual(next, &rs.Status) && !warn {
		return nil
	}
	every := statusEvery
	if want := fsm.ReplicasOf(rs); !warn && next.ObservedGeneration == rs.Status.ObservedGeneration && min(next.Replicas, next.AvailableReplicas) < want {
		every = progressEvery
	}
	if at := s.statusUnixNano + every; nowUnixNano < at {
		s.dueUnixNano = at
		return nil
	}
	raw, err := next.Marshal()
	if err != nil {
		return nil // a status of our own encodes
	}
	s.statusUnixNano = nowUnixNano
	c := &fsm.SetStatus{Owner: refTo(rs), Status: raw}
	if warn {
		s.reported = true
		c.WarningReason, c.WarningMessage = s.failure.Reason, "Error creating: "+s.failure.Message
	}
	return []fsm.Command{c}
}

func (s *replicaSet) statusOf(v *fsm.View, rs *appsv1.ReplicaSet, nowUnixNano int64) *appsv1.ReplicaSetStatus {
	var terminating int32
	next := &appsv1.ReplicaSetStatus{ObservedGeneration: rs.Generation, TerminatingReplicas: &terminating}
	template := labels.Set(rs.Spec.Template.Labels).AsSelectorPreValidated()
	v.Tallies(owners.IDOf(rs), func(t *owners.Tally) bool {
		if !s.selector.Matches(labels.Set(t.Labels)) {
			return true
		}
		next.Replicas += t.Active
		next.ReadyReplicas += t.Ready
		terminating += t.Terminating
		if template.Matches(labels.Set(t.Labels)) {
			next.FullyLabeledReplicas += t.Active
		}
		return true
	})
	next.AvailableReplicas = next.ReadyReplicas
	if rs.Spec.MinReadySeconds > 0 {
		next.AvailableReplicas = s.countAvailable(v, rs, next.ReadyReplicas, nowUnixNano)
	}
	for _, c := range rs.Status.Conditions {
		if c.Type != appsv1.ReplicaSetReplicaFailure {
			next.Conditions = append(next.Conditions, c)
		}
	}
	if s.failure != nil {
		next.Conditions = append(next.Conditions, *s.failure)
	}
	return next
}

// countAvailable counts the pods that have been ready for long enough, and notes
// when the next will have been. It looks at every pod, so large sets are counted
// at most once a second: minReadySeconds are seconds.
func (s *replicaSet) countAvailable(v *fsm.View, rs *appsv1.ReplicaSet, ready int32, nowUnixNano int64) int32 {
	if again := s.countedUnixNano + seconds(1); ready > countAlways && nowUnixNano < again {
		s.dueUnixNano = again
		return min(s.available, ready)
	}
	s.available, s.countedUnixNano = 0, nowUnixNano
	next := int64(never)
	v.PodsOf(owners.IDOf(rs), func(_ string, pod *corev1.Pod) bool {
		if !owners.Active(pod) || !model.Ready(pod) {
			return true
		}
		at := after(readySince(pod).UnixNano(), int64(rs.Spec.MinReadySeconds))
		if at <= nowUnixNano {
			s.available++
		} else {
			next = min(next, at)
		}
		return true
	})
	if next != never {
		s.dueUnixNano = max(next, nowUnixNano+statusEvery)
	}
	return s.available
}
