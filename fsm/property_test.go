package fsm

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// random drives a transcript's directives at random. Nodes never shrink and no
// pod comes bound, so nothing but a wrong decision could overcommit a node.
type random struct {
	*transcript
	t        *rapid.T
	bound    map[string]string // UID -> node
	uids     int
	restores int
	honest   bool                             // every failure is true of the state that it was decided on
	rules    bool                             // pods have rules about each other
	quotas   map[string]*corev1.ResourceQuota // as they were last
}

func newRandom(t *rapid.T, honest bool) *random {
	r := &random{transcript: newTranscript(t), t: t, bound: map[string]string{}, honest: honest}
	r.quiet = true
	return r
}

func (r *random) pick(label string, from ...string) string {
	return rapid.SampledFrom(from).Draw(r.t, label)
}

func (r *random) podName() string {
	return r.pick("pod", "p0", "p1", "p2", "p3", "p4", "p5", "p6", "p7", "p8")
}

func (r *random) nodeName() string { return r.pick("node", "n1", "n2", "n3", "n4") }

func (r *random) actions() map[string]func(*rapid.T) {
	do := func(f func() string) func(*rapid.T) {
		return func(t *rapid.T) {
			r.t, r.world.t, r.transcript.t = t, t, t
			f()
		}
	}
	line := func(format string, args ...func() string) func(*rapid.T) {
		return do(func() string {
			words := make([]any, len(args))
			for i, a := range args {
				words[i] = a()
			}
			return r.line(fmt.Sprintf(format, words...))
		})
	}
	cpu := func() string { return r.pick("cpu", "0", "1", "1", "2", "3", "9") }
	actions := map[string]func(*rapid.T){
		"admit":       do(r.admit),
		"admit again": do(r.admit),
		"admit many":  line("pods-of g- count=%s cpu=%s priority=%s", func() string { return r.pick("count", "1", "3") }, cpu, r.priority),
		"node":        do(r.node),
		"delete node": line("delete-node %s", r.nodeName),
		"health": line("health %s %s %s", r.nodeName, func() string { return r.pick("ready", "True", "True", "False", "Unknown") },
			func() string { return r.pick("let go", "", "let-go") }),
		"update": line("update-pod %s %s", r.podName, func() string {
			return r.pick("change", "labels=a:1", "labels=a:2", "annotations=berth.dev/disruption-policy:Strict", "annotations=", "labels=app:x", "labels=app:y", "ungate", "phase=Failed", "phase=Running", "unfinalize", "end", "cpu=1", "cpu=3", "deadline=9")
		}),
		"resize":        do(r.resize),
		"resized":       do(r.carryOut),
		"delete":        line("delete %s %s", r.podName, func() string { return r.pick("grace", "", "grace=0", "grace=5", "grace=100") }),
		"evict":         do(r.evict),
		"taint away":    line("delete %s reason=DeletionByTaintManager", r.podName),
		"budget":        do(r.randomBudget),
		"delete budget": line("delete-budget %s", r.budgetName),
		"announce":      line("budget %s update announce=%s", r.budgetName, r.podName),
		"replicaset": line("replicaset w replicas=%s %s", func() string { return r.pick("replicas", "0", "1", "3", "9") },
			func() string { return r.pick("how", "", "update", "update") }),
		"delete replicaset": line("delete-object replicasets w"),
		"report ready":      do(r.allReady),
		"bind":              line("bind %s %s", r.podName, r.nodeName),
		"report": line("report %s %s %s", r.nodeName, r.podName, func() string {
			return r.pick("status", "Running ready", "Running ready", "Running unready", "Pending ready", "Succeeded", "removed", "removed", "Running removed")
		}),
		"gone":       do(r.confirmAll),
		"plan":       do(r.honestPlan),
		"plan again": do(r.honestPlan),
		"stale plan": do(func() string { return r.honestPlan() }),
		"advance":    line("advance %s", func() string { return r.pick("time", "100ms", "1s", "20s") }),
		"release":    line("release %s", r.podName),
		"configure": line("configure %s", func() string {
			return r.pick("configuration", "queue=fifo", "queue=priority", "preemption=off", "preemption=on", "budgets=Strict", "max-backoff=0", "events=3", "profiles=other", "profiles=default-scheduler,other", "")
		}),
		"save":     do(func() string { r.save("s"); return "" }),
		"restore":  do(r.restoreSome),
		"snapshot": do(func() string { return r.run("snapshot", nil, "") }),
		"object":   line("object configmaps %s %s", func() string { return r.pick("object", "a", "b") }, func() string { return r.pick("how", "", "update", "data=a:1 update") }),
		"storage claim": line("object persistentvolumeclaims %s size=%s %s %s %s", func() string { return r.pick("claim", "a", "b", "c") },
			func() string { return r.pick("size", "1Gi", "2Gi", "400Ti") }, func() string { return r.pick("given", "", "given=3Gi", "given=16E") },
			func() string { return r.pick("attributes", "", "attributes=gold", "attributes=iron") }, func() string { return r.pick("how", "", "update") }),
		"delete storage claim": line("delete-object persistentvolumeclaims %s", func() string { return r.pick("claim", "a", "b", "c") }),
		"service": line("object services %s ports=%s type=%s %s", func() string { return r.pick("service", "a", "b") }, func() string { return r.pick("ports", "1", "2") },
			func() string { return r.pick("type", "ClusterIP", "NodePort") }, func() string { return r.pick("how", "", "update") }),
		"delete service": line("delete-object services %s", func() string { return r.pick("service", "a", "b") }),
		"quota": line("object resourcequotas %s hard=%s,requests.cpu:%s %s %s", func() string { return r.pick("quota", "q1", "q2") },
			func() string {
				return r.pick("pods", "pods:0", "pods:2", "pods:5", "count/pods:4", "configmaps:1,count/replicasets.apps:1",
					"persistentvolumeclaims:1,requests.storage:3Gi", "requests.storage:600Ti", "services:1,services.nodeports:2")
			}, cpu,
			func() string {
				return r.pick("scope", "", "", "scopes=BestEffort", "scopes=NotTerminating", "class=In:p0:p5", "class=NotIn:p5:p10", "class=DoesNotExist", "attributes=In:gold", "attributes=DoesNotExist")
			},
			func() string { return r.pick("how", "", "update") }),
		"delete quota": line("delete-object resourcequotas %s", func() string { return r.pick("quota", "q1", "q2") }),
		"binding": line("object %s b subjects=%s %s", func() string { return r.pick("bindings", "rolebindings", "clusterrolebindings") },
			func() string {
				return r.pick("subjects", "user:ann", "group:ops,user:ann", "account:app,group:ops", "")
			},
			func() string { return r.pick("how", "", "update") }),
		"delete binding": line("delete-object rolebindings b"),
		"events":         line("delete-events before=1h limit=2"),
		"set": line("object replicasets %s replicas=%s selector=a:1 %s", r.setName, func() string { return r.pick("replicas", "0", "2", "4") },
			func() string { return r.pick("how", "", "update", "update finalizers=mine") }),
		"scale out": line("pods-of r- count=%s for=%s labels=%s", func() string { return r.pick("count", "1", "5") }, r.setName,
			func() string { return r.pick("labels", "a:1", "a:1,b:2") }),
		"scale in":   do(r.scaleIn),
		"claim":      line("claim %s adopt=%s release=%s", r.setName, r.podName, r.podName),
		"delete set": line("delete-object replicasets %s propagation=%s", r.setName, func() string { return r.pick("propagation", "Background", "Foreground", "Orphan") }),
		"collect":    do(r.collect),
	}
	if !r.honest {
		actions["nonsense"] = do(r.nonsense)
		actions["class"] = line("class %s value=%s %s", func() string { return r.pick("class", "a", "b") }, r.priority, func() string { return r.pick("default", "", "default") })
		actions["delete class"] = line("delete-class %s", func() string { return r.pick("class", "a", "b", "p5") })
	}
	return actions
}

func (r *random) priority() string { return r.pick("priority", "-1", "0", "0", "5", "10") }

func (r *random) admit() string {
	r.uids++
	rules := ""
	if r.rules {
		if r.pick("plain", "yes", "yes", "no") == "yes" {
			return r.line(fmt.Sprintf("pod %s uid=u%d %s cpu=%s priority=%s grace=5 %s", r.podName(), r.uids, r.rule(), r.pick("cpu", "0", "1", "2"), r.pick("priority", "0", "0", "0", "5"), r.owner()))
		}
		rules = r.rule()
	}
	return r.line(fmt.Sprintf("pod %s uid=u%d %s cpu=%s mem=%s priority=%s grace=%s %s %s", r.podName(), r.uids, rules,
		r.pick("cpu", "0", "1", "1", "2", "3", "9"), r.pick("memory", "0", "1Gi"), r.priority(), r.pick("grace", "0", "5", "30"),
		r.owner(),
		r.pick("more", "", "", "", "never", "port=80", "gates=g", "tolerate=t:", "selector=l:1", "labels=a:1", "labels=a:1,b:2", "labels=a:2 annotations=berth.dev/disruption-policy:Strict", "finalizers=f", "scheduler=other", "scheduler=other gates=g")))
}

// node makes or changes a node; its capacity depends on its name alone.
func (r *random) node() string {
	name := r.nodeName()
	capacity := map[string]string{"n1": "cpu=2", "n2": "cpu=3", "n3": "cpu=4 pods=2", "n4": "cpu=9 mem=1Gi"}[name]
	return r.line(fmt.Sprintf("node %s %s %s %s %s", name, capacity,
		r.pick("taint", "taints=", "taints=", "taints=t:v:NoSchedule"), r.pick("cordon", "uncordon", "uncordon", "cordon"), r.label(name)))
}

func (r *random) label(node string) string {
	if r.rules {
		return "labels=" + r.pick("label", "l:1", "zone:a", "zone:a", "zone:b", "zone:c") + r.pick("host", "", ",host:"+node, ",host:"+node)
	}
	return r.pick("label", "labels=l:1", "labels=l:2")
}

// confirmAll is every worker's word that what was to end has ended.
func (r *random) confirmAll() string {
	var lines []string
	r.view().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		if model.Terminating(p) && p.Spec.NodeName != "" {
			lines = append(lines, fmt.Sprintf("report %s %s removed uid=%s", p.Spec.NodeName, key, p.UID))
		}
		return true
	})
	for _, l := range lines {
		r.line(l)
	}
	return ""
}

func (r *random) setName() string { return r.pick("set", "r1", "r2") }

// scaleIn names all pods of a set as victims.
func (r *random) scaleIn() string {
	line := "scale-in " + r.setName()
	r.view().Pods.Scan("", func(key string, p *corev1.Pod) bool {
		line += " " + key
		return true
	})
	return r.line(line)
}

// collect looks at everything, as the collector does in the end.
func (r *random) collect() string {
	c := &CollectGarbage{}
	r.view().ScanDependents("", func(_ string, ref ObjectRef) bool {
		c.Objects = append(c.Objects, ref)
		return true
	})
	r.view().Objects.Scan("", func(key string, _ *Object) bool {
		ref, _ := r.view().refOf(ownableKey(key))
		c.Objects = append(c.Objects, ref)
		return true
	})
	return r.propose(one(c))
}

// nonsense is a plan that no scheduler would make: wrong nodes, wrong victims,
// pods that are long gone.
func (r *random) nonsense() string {
	c := &ApplyPlan{Revision: rapid.Int64Range(0, r.view().Revision()+2).Draw(r.t, "revision")}
	ref := func() PodRef {
		p := r.ref(r.podName())
		if rapid.IntRange(0, 9).Draw(r.t, "wrong") == 0 {
			p.UID = r.pick("uid", "", "u1", "u2")
		}
		return p
	}
	for range rapid.IntRange(0, 3).Draw(r.t, "bindings") {
		p := ref()
		c.Bindings = append(c.Bindings, BindDecision{Key: p.Key, UID: p.UID, Node: r.nodeName()})
	}
	for range rapid.IntRange(0, 2).Draw(r.t, "preemptions") {
		p := ref()
		d := PreemptDecision{Key: p.Key, UID: p.UID, Node: r.nodeName()}
		for range rapid.IntRange(0, 3).Draw(r.t, "victims") {
			v := ref()
			d.Victims = append(d.Victims, PlannedVictim{Key: v.Key, UID: v.UID})
		}
		c.Preemptions = append(c.Preemptions, d)
	}
	for range rapid.IntRange(0, 2).Draw(r.t, "failures") {
		d := FailDecision{Pods: []PodRef{ref(), ref()}, Error: rapid.Bool().Draw(r.t, "error"), ClearNomination: rapid.Bool().Draw(r.t, "clear")}
		if rapid.Bool().Draw(r.t, "diagnosed") {
			d.Diagnosis = r.diagnosis(words{r.pick("reason", "cpu:1", "taint:1", "port:1", "capacity:2")})
		}
		c.Failures = append(c.Failures, d)
	}
	return r.propose(one(c))
}

// TestRandomCommands: whatever is proposed, the state stays sound.
func TestRandomCommands(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t, false)
		actions := r.actions()
		actions[""] = func(t *rapid.T) { r.sound(t) }
		t.Repeat(actions)
	})
}

// TestNobodySleepsBesideRoom (QU8): as long as every failure was true when it
// was decided, however much later its plan is applied, no pod waits for a
// change while a node has room for it, unless one of its group is on its way
// to being tried.
func TestNobodySleepsBesideRoom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t, true)
		actions := r.actions()
		actions[""] = func(t *rapid.T) {
			r.sound(t)
			r.awake(t)
		}
		t.Repeat(actions)
	})
}

// awake checks QU8.
func (r *random) awake(t *rapid.T) {
	v := r.view().Fork().live
	onTheirWay := map[string]bool{}
	v.Queue.Scan("", func(_ string, e *QueueEntry) bool {
		if e.State == berthv1.QueueActive || e.State == berthv1.QueueBackoff {
			onTheirWay[e.Group()] = true
		}
		return true
	})
	v.Queue.Scan("", func(key string, e *QueueEntry) bool {
		if e.State != berthv1.QueueUnschedulable || onTheirWay[e.Group()] {
			return true
		}
		v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
			if v.unhindered(v.ruledClassOf(key, e.Class()), n, key, nil) {
				t.Fatalf("%s sleeps beside the room on %s: %s", key, name, describeEntry(e))
			}
			return true
		})
		if _, nominated := v.Nominations.Get(key); !nominated {
			if d, ok := evictFor(v, e); ok {
				t.Fatalf("%s sleeps beside the room that it could make on %s: %s", key, d.Node, describeEntry(e))
			}
		}
		return true
	})
}

// honestPlan decides for some pods on a state that may be older than the one
// that the plan meets, and applies it.
func (r *random) honestPlan() string {
	decidedOn := r.view()
	now := r.now
	most := rapid.IntRange(1, 5).Draw(r.t, "decisions")
	c := decide(decidedOn, now, most)
	for range rapid.IntRange(0, 2).Draw(r.t, "meanwhile") {
		switch r.pick("what", "gone", "node", "delete", "bind", "update", "configure", "select") {
		case "gone":
			r.confirmAll()
		case "node":
			r.node()
		case "delete":
			r.line(fmt.Sprintf("delete %s grace=0", r.podName()))
		case "bind":
			r.line(fmt.Sprintf("bind %s %s", r.podName(), r.nodeName()))
		case "update":
			r.line(fmt.Sprintf("update-pod %s %s", r.podName(), r.pick("change", "labels=a:1", "labels=", "ungate", "phase=Failed", "cpu=1")))
		case "configure":
			r.line("configure " + r.pick("preemption", "preemption=off", "preemption=on"))
		case "select":
			if r.rules {
				r.selectors()
			}
		}
	}
	return r.propose(one(c))
}

// decide is a plain scheduler: it takes the first node that fits, else the
// first that evictions could free, and otherwise says why not.
func decide(decidedOn *View, now time.Time, most int) *ApplyPlan {
	v := decidedOn.Fork().live
	c := &ApplyPlan{Revision: v.Revision()}
	v.Ready(now.UnixNano(), func(e *QueueEntry) bool {
		most--
		if node, ok := fittingNode(v, e); ok {
			c.Bindings = append(c.Bindings, BindDecision{Key: e.Key(), UID: string(e.UID), Node: node})
			return most > 0
		}
		fail := FailDecision{Pods: []PodRef{{Key: e.Key(), UID: string(e.UID)}}, Diagnosis: diagnose(v, e)}
		n, nominated := v.Nominations.Get(e.Key())
		switch {
		case nominated && v.stillPromised(n): // T5
		default:
			if d, ok := evictFor(v, e); ok {
				c.Preemptions = append(c.Preemptions, d)
				return most > 0
			}
			fail.ClearNomination = nominated
		}
		c.Failures = append(c.Failures, fail)
		return most > 0
	})
	return c
}

func fittingNode(v *live, e *QueueEntry) (string, bool) {
	found := ""
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		if v.unhindered(v.ruledClassOf(e.Key(), e.Class()), n, e.Key(), nil) {
			found = name
		}
		return found == ""
	})
	return found, found != ""
}

func diagnose(v *live, e *QueueEntry) *Diagnosis {
	d := &Diagnosis{Nodes: int32(v.Nodes.Len()), Message: "no node takes it"}
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		o := v.obstacles(v.ruledClassOf(e.Key(), e.Class()), n, e.Key(), nil)
		for _, r := range o.reasons() {
			d.Reasons = append(d.Reasons, ReasonCount{Kind: r.Kind, Resource: r.Resource, Text: r.Text(), Nodes: 1})
		}
		return true
	})
	return d
}

func evictFor(v *live, e *QueueEntry) (PreemptDecision, bool) {
	d := PreemptDecision{Key: e.Key(), UID: string(e.UID), Diagnosis: diagnose(v, e)}
	if e.Class().NeverPreempts || !*v.SchedulerConfig().Spec.Preemption.Enabled {
		return d, false
	}
	v.Nodes.Scan("", func(name string, n *corev1.Node) bool {
		var victims []PlannedVictim
		var gone []*corev1.Pod
		v.PodsOnNode(name, func(p *corev1.Pod) bool {
			if !model.Terminal(p) && model.Priority(p) < e.Priority && !v.unhindered(v.ruledClassOf(e.Key(), e.Class()), n, e.Key(), gone) {
				victims = append(victims, PlannedVictim{Key: PodKey(p.Namespace, p.Name), UID: string(p.UID)})
				gone = append(gone, p)
			}
			return true
		})
		if len(victims) > 0 && v.unhindered(v.ruledClassOf(e.Key(), e.Class()), n, e.Key(), gone) {
			d.Node, d.Victims = name, victims
		}
		return d.Node == ""
	})
	return d, d.Node != ""
}

// unhindered says that a node takes a waiting pod, were the given pods gone.
func (v *live) unhindered(c ruled, node *corev1.Node, self string, without []*corev1.Pod) bool {
	o := v.obstacles(c, node, self, without)
	return o.none()
}
