package fsm

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

func (r *random) owner() string {
	if r.rules {
		return r.pick("owner", "", "", "owner=r1", "owner=r2")
	}
	return r.pick("owner", "", "", "owner=w", "owner=w", "owner=Job:j")
}

// selectors changes by what default constraints select pods (TS12).
func (r *random) selectors() {
	selector := func() string {
		return r.pick("selector", "app:x", "app:x", "app:y", "app:x,tier:1", "tier:1")
	}
	switch r.pick("what", "service", "service", "delete service", "set", "delete set", "claim", "orphan", "relabel") {
	case "service":
		r.line(fmt.Sprintf("object services %s selector=%s %s", r.pick("service", "s1", "s2"), selector(), r.pick("how", "", "update")))
	case "delete service":
		r.line("delete-object services " + r.pick("service", "s1", "s2"))
	case "set":
		r.line(fmt.Sprintf("object replicasets %s replicas=2 selector=%s %s", r.setName(), selector(), r.pick("how", "", "update")))
	case "delete set":
		r.line(fmt.Sprintf("delete-object replicasets %s propagation=%s", r.setName(), r.pick("propagation", "Background", "Orphan")))
		if r.pick("collect", "yes", "no") == "yes" {
			r.collect()
		}
	case "claim":
		r.line(fmt.Sprintf("claim %s adopt=%s release=%s", r.setName(), r.podName(), r.podName()))
	case "orphan":
		r.line(fmt.Sprintf("update-pod %s owners=%s", r.podName(), r.pick("owner", "", "controller:replicasets/r1", "controller:replicasets/r2")))
	case "relabel":
		r.line(fmt.Sprintf("update-pod %s labels=%s", r.podName(), r.pick("labels", "", "app:x", "app:y", "app:x,tier:1")))
	}
}

// rule is what a pod demands of where other pods are.
func (r *random) rule() string {
	return r.pick("rule", "labels=app:x", "labels=app:y", "labels=app:x", "labels=app:x,tier:1", "labels=app:x,tier:1 anti=host:app:y", "labels=app:x spread=zone:1:app:x", "labels=app:x spread=zone:1:app:x,host:1:app:x",
		"labels=app:x spread=zone:1:app:x taints-policy=Honor", "labels=app:x spread=zone:1:app:x min-domains=2",
		"labels=app:x anti=zone:app:x", "labels=app:y anti=host:app:x", "anti=zone:app:y", "labels=app:x affinity=zone:app:x", "affinity=host:app:y",
		"labels=app:y anti=zone:app:x:*team:1", "anti=zone:app:x prefer=zone:app:y")
}

// TestNobodySleepsBesideRules (QU8): the same where pods have rules about each
// other.
func TestNobodySleepsBesideRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t, true)
		r.rules = true
		all, actions := r.actions(), map[string]func(*rapid.T){}
		for _, name := range []string{"admit", "admit again", "node", "delete node", "health", "update", "delete", "gone", "plan", "plan again", "advance", "snapshot"} {
			actions[name] = all[name]
		}
		actions["team"] = func(t *rapid.T) {
			r.t, r.world.t, r.transcript.t = t, t, t
			r.line("update-namespace default labels=" + r.pick("team", "team:1", "team:2"))
		}
		actions["settle"] = func(t *rapid.T) {
			r.t, r.world.t, r.transcript.t = t, t, t
			r.settle()
		}
		actions["settle again"] = actions["settle"]
		actions[""] = func(t *rapid.T) {
			r.sound(t)
			r.awake(t)
			r.counted(t)
		}
		t.Repeat(actions)
	})
}

// TestNobodySleepsBesideSelectors (QU8, TS12): nor where the cluster's default
// constraints keep pods off, by what services and workloads select, while these
// come and go and select otherwise, and pods change their labels and owners.
func TestNobodySleepsBesideSelectors(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := newRandom(t, true)
		r.rules = true
		do := func(f func()) func(*rapid.T) {
			return func(t *rapid.T) {
				r.t, r.world.t, r.transcript.t = t, t, t
				f()
			}
		}
		r.line("node n4 labels=zone:a,host:n4 cpu=9 mem=1Gi")
		r.line("node n1 labels=zone:b,host:n1 cpu=2")
		if r.pick("service", "yes", "no") == "yes" {
			r.line("object services s1 selector=app:x")
		}
		r.line("object replicasets r1 replicas=2 selector=app:x")
		configure := func() {
			r.line("configure " + r.pick("defaults", "spread-defaults=zone:1", "spread-defaults=zone:1", "spread-defaults=zone:1,host:1", "spread-defaults=zone:1 honor-taints", ""))
		}
		configure()
		admit := func() {
			r.uids++
			r.line(fmt.Sprintf("pod %s uid=u%d labels=%s cpu=1 %s grace=5 %s", r.podName(), r.uids, r.pick("labels", "app:x", "app:x", "app:x,tier:1", "app:y"),
				r.owner(), r.pick("rule", "", "", "", "anti=host:app:y", "spread=zone:1:app:x", "priority=5")))
		}
		all := r.actions()
		t.Repeat(map[string]func(*rapid.T){
			"admit": do(admit), "admit again": do(admit), "admit more": do(admit), "settle": do(r.settle), "settle again": do(r.settle),
			"selectors": do(r.selectors), "selectors again": do(r.selectors), "plan": all["plan"], "delete": all["delete"], "gone": all["gone"],
			"late plan": do(func() {
				c := decide(r.view(), r.now, 5)
				r.selectors()
				r.propose(one(c))
			}),
			"advance": all["advance"], "snapshot": all["snapshot"], "configure": do(configure),
			"node": do(func() {
				r.line("node n1 labels=zone:b,host:n1 cpu=2 " + r.pick("taint", "taints=", "taints=t:v:NoSchedule"))
			}),
			"": func(t *rapid.T) {
				r.sound(t)
				r.awake(t)
				r.counted(t)
			},
		})
	})
}

// settle lets everybody be tried whose turn comes, until nothing happens any
// more.
func (r *random) settle() {
	for range 6 {
		r.now = r.now.Add(20 * time.Second)
		r.propose(one(decide(r.view(), r.now, 1)))
		r.propose(one(decide(r.view(), r.now, 20)))
	}
}

// counted: the counters that the indexes keep say what new ones say.
func (r *random) counted(t *rapid.T) {
	live := r.state.live
	fresh := r.view().Fork().live.topology()
	live.Queue.Scan("", func(key string, e *QueueEntry) bool {
		live.Nodes.Scan("", func(node string, _ *corev1.Node) bool {
			c := live.ruledClassOf(key, e.Class())
			want, got := fresh.Judge(c.class).Fails(node), live.judge(c).Fails(node)
			if want != got {
				t.Fatalf("%s on %s: the live counters say %b, new ones %b", key, node, got, want)
			}
			return true
		})
		return true
	})
}
