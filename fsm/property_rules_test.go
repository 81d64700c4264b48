package fsm

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// rule is what a pod demands of where other pods are.
func (r *random) rule() string {
	return r.pick("rule", "labels=app:x", "labels=app:y", "labels=app:x spread=zone:1:app:x", "labels=app:x spread=zone:1:app:x,host:1:app:x",
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
	if live.cache.topology == nil {
		return
	}
	fresh := r.view().Fork().live.topology()
	live.Queue.Scan("", func(key string, e *QueueEntry) bool {
		live.Nodes.Scan("", func(node string, _ *corev1.Node) bool {
			want, got := fresh.Judge(e.class).Fails(node), live.cache.topology.Judge(e.class).Fails(node)
			if want != got {
				t.Fatalf("%s on %s: the live counters say %b, new ones %b", key, node, got, want)
			}
			return true
		})
		return true
	})
}
