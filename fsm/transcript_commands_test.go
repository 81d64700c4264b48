package fsm

import (
	"encoding/json"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/codec"
)

// proposals are the directives that propose a command (or, rarely, several in
// one entry).
var proposals = map[string]func(s *transcript, a words, input string) []Command{
	"class": func(s *transcript, a words, _ string) []Command {
		return one(&CreatePriorityClass{Class: PriorityClassWire{Object: a.class()}})
	},
	"update-class": func(s *transcript, a words, _ string) []Command {
		class := a.class()
		s.endIn(a, &class.ObjectMeta)
		return one(&UpdatePriorityClass{Class: PriorityClassWire{Object: class}, Revision: s.revision(a)})
	},
	"delete-class": func(s *transcript, a words, _ string) []Command {
		return one(&DeletePriorityClass{Name: a.name(), Precondition: s.precondition(a)})
	},
	"namespace": func(s *transcript, a words, _ string) []Command {
		return one(&PutNamespace{Create: true, RootCA: a.or("ca", ""), Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: s.meta(a, "")}}})
	},
	"update-namespace": func(s *transcript, a words, _ string) []Command {
		ns := &corev1.Namespace{ObjectMeta: s.meta(a, "")}
		if old, ok := s.view().Namespaces.Get(a.name()); ok {
			ns = old.DeepCopy()
			ns.Labels = pairs(a.list("labels"))
		}
		return one(&PutNamespace{Namespace: NamespaceWire{Object: ns}, Revision: s.revision(a), RootCA: a.or("ca", ""), Furnish: a.has("furnish")})
	},
	"delete-namespace": func(s *transcript, a words, _ string) []Command {
		return one(&DeleteNamespace{Name: a.name(), Precondition: s.precondition(a)})
	},
	"stage": (*transcript).stage,
	"abandon": func(_ *transcript, a words, _ string) []Command { // abandon ID
		return one(&AbandonSnapshot{ID: a.name()})
	},
	"key": func(_ *transcript, a words, _ string) []Command { // key ID [revoke] [if-none]
		return one(&AddSigningKey{ID: a.name(), Private: []byte("private " + a.name()), Public: []byte("public " + a.name()),
			Revoke: a.has("revoke"), OnlyIfNone: a.has("if-none")})
	},
	"restore":     (*transcript).restoreSaved,
	"node":        (*transcript).putNode,
	"update-node": (*transcript).putNode,
	"register": func(s *transcript, a words, _ string) []Command {
		n := &corev1.Node{ObjectMeta: s.meta(a, "")}
		a.fillNode(n)
		n.UID = ""
		return one(&RegisterNode{Node: NodeWire{Object: n}})
	},
	"health": func(s *transcript, a words, _ string) []Command { // health n1 Unknown [let-go], or wordless: it keeps its words
		if a.has("wordless") {
			return one(&SetNodeHealth{Nodes: []NodeHealth{{Name: a[0], Ready: a[1], LetGo: a.has("let-go")}}})
		}
		return one(&SetNodeHealth{Nodes: []NodeHealth{{Name: a[0], Ready: a[1], Reason: a.or("reason", "Test"), Message: a.or("message", "test"), LetGo: a.has("let-go")}}})
	},
	"delete-node": func(s *transcript, a words, _ string) []Command {
		return one(&DeleteNode{Name: a.name(), Precondition: s.precondition(a)})
	},
	"pod": func(s *transcript, a words, _ string) []Command {
		return one(&AdmitPod{Pod: PodWire{Object: s.pod(a)}})
	},
	"pods-of": func(s *transcript, a words, _ string) []Command { // pods-of web- count=3 …
		p := s.pod(a)
		p.GenerateName, p.Name, p.UID = p.Name, "", ""
		n, _ := strconv.Atoi(a.or("count", "1"))
		c := &AdmitPods{Template: PodWire{Object: p}, Count: int32(n)}
		if name, ok := a.get("for"); ok {
			owner := s.workloadRef(a, name)
			c.Owner = &owner
			if g := a.number("generation"); g != nil {
				c.Generation = *g
			}
		}
		return one(c)
	},
	"update-pod": (*transcript).updatePod,
	"delete": func(s *transcript, a words, _ string) []Command {
		return one(&DeletePod{Key: a.key(), Precondition: s.precondition(a), GraceSeconds: a.number("grace"), Propagation: Propagation(a.or("propagation", "")),
			DisruptionReason: a.or("reason", ""), DisruptionMessage: a.or("message", ""), Fail: a.has("fail")})
	},
	"let-go": func(s *transcript, a words, _ string) []Command { // let-go NAME finalizers=...
		return one(&ReleasePod{Key: a.key(), Precondition: s.precondition(a), Finalizers: a.list("finalizers")})
	},
	"evict": func(s *transcript, a words, _ string) []Command {
		return one(&EvictPod{Key: a.key(), Precondition: s.precondition(a), GraceSeconds: a.number("grace")})
	},
	"bind": func(s *transcript, a words, _ string) []Command {
		return one(&BindPod{Key: a.key(), Node: a[1], UID: a.or("uid", "")})
	},
	"report": (*transcript).report,
	"plan":   (*transcript).plan,
	"configure": func(s *transcript, a words, _ string) []Command {
		return one(&ConfigureScheduler{JSON: a.config(), Revision: s.revision(a), OnlyIfAbsent: a.has("only-if-absent")})
	},
	"release": func(s *transcript, a words, _ string) []Command {
		return one(&ReleaseNominations{Pods: []PodRef{s.ref(a.name())}})
	},
	"event": func(s *transcript, a words, _ string) []Command {
		e := &corev1.Event{ObjectMeta: s.meta(a, "default"), Type: "Normal", Reason: a.or("reason", "Test"), Message: a.or("message", ""),
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", Name: a.or("about", "web")},
			FirstTimestamp: metav1.NewTime(s.now), LastTimestamp: metav1.NewTime(s.now), Count: 1}
		return one(&PutEvent{Event: EventWire{Object: e}, Create: !a.has("update"), Revision: s.revision(a)})
	},
	"delete-events": func(s *transcript, a words, _ string) []Command { // delete-events NAME | before=1m limit=2
		c := &DeleteEvents{Precondition: s.precondition(a)}
		if d, ok := a.get("before"); ok {
			c.BeforeUnixNano, c.Limit = worldStart.Add(duration(d)).UnixNano(), int32(*a.number("limit"))
		} else {
			c.Key = a.key()
		}
		return one(c)
	},
	"budget":        (*transcript).budget,
	"delete-budget": (*transcript).deleteBudget,
	"replicaset":    (*transcript).replicaSet,
	"object":        (*transcript).object,
	"delete-object": func(s *transcript, a words, _ string) []Command { // delete-object configmaps NAME
		return one(&DeleteObject{Resource: a[0], Namespace: a.or("ns", "default"), Name: a[1], Precondition: s.precondition(a), Propagation: Propagation(a.or("propagation", ""))})
	},
	"scale-in": func(s *transcript, a words, _ string) []Command { // scale-in SET POD…
		c := &ScaleIn{Owner: s.workloadRef(a, a.name())}
		for _, pod := range a[1:] {
			if !strings.Contains(pod, "=") {
				c.Victims = append(c.Victims, s.ref(pod))
			}
		}
		return one(c)
	},
	"claim": func(s *transcript, a words, _ string) []Command { // claim SET adopt=POD,… release=POD,…
		c := &ClaimPods{Owner: s.workloadRef(a, a.name())}
		for _, pod := range a.list("adopt") {
			c.Adopt = append(c.Adopt, s.ref(pod))
		}
		for _, pod := range a.list("release") {
			c.Release = append(c.Release, s.ref(pod))
		}
		return one(c)
	},
	"status": (*transcript).setStatus,
	"collect": func(s *transcript, a words, _ string) []Command { // collect pods/POD replicasets/SET …
		c := &CollectGarbage{}
		for _, key := range a {
			resource, name, _ := strings.Cut(key, "/")
			ref := ObjectRef{Resource: resource, Namespace: "default", Name: name}
			if o, ok := s.view().owned(ref); ok {
				ref.UID = string(o.GetUID())
			}
			c.Objects = append(c.Objects, ref)
		}
		return one(c)
	},
	"checkpoint": func(*transcript, words, string) []Command { return one(&Checkpoint{}) },
}

func one(c Command) []Command { return []Command{c} }

func (w words) key() string {
	if strings.Contains(w.name(), "/") {
		return w.name()
	}
	return PodKey(w.or("ns", "default"), w.name())
}

func (w words) number(key string) *int64 {
	v, ok := w.get(key)
	if !ok {
		return nil
	}
	n, err := strconv.ParseInt(v, 10, 64)
	if err != nil {
		panic(err)
	}
	return &n
}

func duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return d
}

func pairs(list []string) map[string]string {
	if len(list) == 0 {
		return nil
	}
	m := map[string]string{}
	for _, p := range list {
		k, v, _ := strings.Cut(p, ":")
		m[k] = v
	}
	return m
}

func sortedPairs(m map[string]string) iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// revision is at=NAME (remembered), at=NUMBER, or 0.
func (s *transcript) revision(a words) int64 {
	v, ok := a.get("at")
	if !ok {
		return 0
	}
	if r, ok := s.views[v]; ok {
		return r
	}
	return *a.number("at")
}

func (s *transcript) precondition(a words) Precondition {
	return Precondition{UID: a.or("uid", ""), Revision: s.revision(a)}
}

func (s *transcript) meta(a words, namespace string) metav1.ObjectMeta {
	if namespace != "" {
		namespace = a.or("ns", namespace)
	}
	return metav1.ObjectMeta{Namespace: namespace, Name: a.name(), UID: types.UID(a.or("uid", "uid-"+a.name())),
		Labels: pairs(a.list("labels")), Annotations: pairs(a.list("annotations")), OwnerReferences: a.owners(), Finalizers: a.list("finalizers"), CreationTimestamp: metav1.NewTime(s.now), Generation: 1}
}

func (w words) class() *schedulingv1.PriorityClass {
	c := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: w.name(), UID: types.UID("uid-" + w.name()), Annotations: pairs(w.list("annotations")), Labels: pairs(w.list("labels")),
		Finalizers: w.list("finalizers")},
		GlobalDefault: w.has("default"), Description: w.or("description", "")}
	if v := w.number("value"); v != nil {
		c.Value = int32(*v)
	}
	policy := corev1.PreemptLowerPriority
	if w.has("never") {
		policy = corev1.PreemptNever
	}
	c.PreemptionPolicy = &policy
	return c
}

func (w words) config() []byte {
	if raw, ok := w.get("json"); ok {
		return []byte(raw)
	}
	c := &berthv1.SchedulerConfiguration{ObjectMeta: metav1.ObjectMeta{Name: w.or("name", berthv1.SchedulerConfigurationName)}}
	if v, ok := w.get("preemption"); ok {
		on := v == "on"
		c.Spec.Preemption.Enabled = &on
	}
	c.Spec.Preemption.Budgets = berthv1.BudgetPolicy(w.or("budgets", ""))
	c.Spec.Preemption.SystemClassBudgets = berthv1.BudgetPolicy(w.or("system-budgets", ""))
	c.Spec.Queue = berthv1.QueueOrder(w.or("queue", ""))
	for key, field := range map[string]**int32{
		"initial-backoff": &c.Spec.PodInitialBackoffSeconds, "max-backoff": &c.Spec.PodMaxBackoffSeconds,
		"slack": &c.Spec.NominationSlackSeconds, "events": &c.Spec.EventLimit,
		"reserve-after": &c.Spec.Reservation.AfterSeconds, "aging": &c.Spec.Aging.SecondsPerPoint,
	} {
		if n := w.number(key); n != nil {
			v := int32(*n)
			*field = &v
		}
	}
	if users := w.list("system-users"); users != nil {
		c.Spec.SystemClasses = &berthv1.SystemClasses{Users: users}
	}
	if _, ok := w.get("spread-defaults"); ok { // KEY:SKEW,… [honor-taints]
		policy := corev1.NodeInclusionPolicyIgnore
		if w.has("honor-taints") {
			policy = corev1.NodeInclusionPolicyHonor
		}
		c.Spec.PodTopologySpread.DefaultingType = berthv1.SpreadList
		for _, text := range w.list("spread-defaults") {
			key, skew, _ := strings.Cut(text, ":")
			n, _ := strconv.Atoi(skew)
			c.Spec.PodTopologySpread.DefaultConstraints = append(c.Spec.PodTopologySpread.DefaultConstraints,
				corev1.TopologySpreadConstraint{TopologyKey: key, MaxSkew: int32(n), WhenUnsatisfiable: corev1.DoNotSchedule, NodeTaintsPolicy: &policy})
		}
	}
	for _, name := range w.list("profiles") {
		c.Spec.Profiles = append(c.Spec.Profiles, berthv1.SchedulerProfile{SchedulerName: name})
	}
	b, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return b
}

func (s *transcript) ref(name string) PodRef {
	key := words{name}.key()
	if pod, ok := s.view().Pods.Get(key); ok {
		return PodRef{Key: key, UID: string(pod.UID)}
	}
	return PodRef{Key: key, UID: "uid-" + name}
}

func (s *transcript) object(a words, _ string) []Command { // object configmaps NAME data=k:v [update]
	resource := a[0]
	meta := s.meta(a[1:], "default")
	var o codec.Object
	switch resource {
	case "secrets":
		o = &corev1.Secret{ObjectMeta: meta}
	case "services":
		o = &corev1.Service{ObjectMeta: meta, Spec: corev1.ServiceSpec{Selector: pairs(a.list("selector"))}}
		s.serviceOf(a, o.(*corev1.Service))
	case ReplicaSets:
		o = s.setOf(a, meta)
	case ResourceQuotas:
		o = s.quotaOf(a, meta)
	case PersistentVolumes, VolumeClaims, StorageClasses:
		o = s.volumeObject(a, resource)
	case ResourceClaims:
		o = s.deviceClaim(a, meta)
	case "runtimeclasses": // overhead=CPU selector=k:v,… tolerate=key:effect,…
		o = s.runtimeClass(a[1:])
	default:
		o = &corev1.ConfigMap{ObjectMeta: meta, Data: pairs(a.list("data"))}
		if kind, _ := KindOf(resource); kind.Since > 0 {
			o = s.laterObject(kind, a, meta)
		}
	}
	raw, err := o.Marshal()
	if err != nil {
		s.t.Fatal(err)
	}
	if a.has("garbage") {
		raw = []byte{0xff}
	}
	return one(&PutObject{Resource: resource, Raw: raw, Create: !a.has("update"), Revision: s.revision(a)})
}
