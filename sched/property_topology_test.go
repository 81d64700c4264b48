package sched

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// A world with zones, racks and hosts, and pods that ask where other pods are.

const (
	zoneKey = corev1.LabelTopologyZone
	hostKey = corev1.LabelHostname
)

func (w *world) putTopologyNode(i int) {
	spec := fmt.Sprintf("n%d cpu=%s mem=8Gi pods=%s", i, w.pick("cpu", "2", "4", "16"), w.pick("pods", "3", "110", "110"))
	for _, extra := range []string{
		w.pick("zone", "", " label=zone=a", " label=zone=b"),
		w.pick("zone label", "", " label="+zoneKey+"=a", " label="+zoneKey+"=b", " label="+zoneKey+"=b",
			" label="+zoneKey+"=c"),
		w.pick("host", "", fmt.Sprintf(" label=%s=n%d", hostKey, i), fmt.Sprintf(" label=%s=n%d", hostKey, i),
			fmt.Sprintf(" label=%s=n%d", hostKey, i), " label="+hostKey+"=n0"),
		w.pick("rack", "", " label=rack=1", " label=rack=2"),
		w.pick("taint", "", "", "", "", " taint=team=x:NoSchedule", " taint=old=y:PreferNoSchedule"),
		w.pick("cordon", "", "", "", "", "", " cordoned"),
		w.pick("image", "", "", " image=web:1@900Mi", " image=web:1@400Mi image=db:latest@2Gi"),
	} {
		spec += extra
	}
	w.PutNode(clustertest.Node(spec))
}

func (w *world) somePodSelector() string {
	return w.pick("of", "app=web", "app=web", "app=db", "app!=web", "app=web&rev=1", "*", "-")
}

// randomTerms draws what a pod asks of other pods.
func (w *world) randomTerms() string {
	var out strings.Builder
	taken := map[string]bool{}
	for range rapid.IntRange(0, 2).Draw(w.t, "constraints") {
		key := w.pick("spread key", zoneKey, hostKey, "rack", "zone")
		soft := w.pick("soft", "", ":soft")
		if taken[key+soft] {
			continue // a pair of key and kind is unique
		}
		taken[key+soft] = true
		of := w.somePodSelector()
		fmt.Fprintf(&out, " spread=%s:%s:%s%s", key, w.pick("skew", "1", "1", "2", "3"), of, soft)
		if soft == "" {
			out.WriteString(w.pick("min", "", "", "", ":min=2", ":min=4"))
		}
		out.WriteString(w.pick("node affinity policy", "", "", ":affinity=Ignore"))
		out.WriteString(w.pick("node taints policy", "", "", ":taints=Honor"))
		if of != "-" {
			out.WriteString(w.pick("keys", "", "", "", ":keys=rev"))
		}
	}
	for range rapid.IntRange(0, 2).Draw(w.t, "terms") {
		of := w.somePodSelector()
		fmt.Fprintf(&out, " %s=%s:%s", w.pick("side", "near", "far"), w.pick("term key", zoneKey, hostKey, hostKey, "rack",
			"zone"), of)
		out.WriteString(w.pick("weight", "", "", ":w=1", ":w=10", ":w=100"))
		out.WriteString(w.pick("namespaces", "", "", "", ":ns=other", ":ns=default+other", ":nsel=team=a", ":nsel=*",
			":ns=other:nsel=team=b"))
		if of != "-" {
			out.WriteString(w.pick("keys", "", "", "", "", ":keys=rev", ":notkeys=rev"))
		}
	}
	return out.String()
}

func (w *world) topologyPod(bound bool) *corev1.Pod {
	spec := fmt.Sprintf("p%d priority=%s", w.Admitted, w.pick("priority", "0", "0", "1", "5"))
	for _, extra := range []string{
		w.pick("never", "", "", "", " never"),
		w.pick("cpu", "", " cpu=1", " cpu=500m"), w.pick("select", "", "", "", "", " select=zone=a"),
		w.pick("tolerate", "", "", " tolerate=team"), w.pick("prefer", "", "", "", " prefer=3:zone=a"),
		w.pick("app", "", " label=app=web", " label=app=web", " label=app=db"),
		w.pick("rev", "", " label=rev=1", " label=rev=2"),
		w.pick("namespace", "", "", "", " ns=other"), w.pick("image", "", " image=web:1", " image=db",
			" image=web:1 image=db"),
		w.pick("scheduler", "", "", "", " scheduler=odd"), w.pick("owner", "", "", "", " owner=web"),
	} {
		spec += extra
	}
	if rapid.IntRange(0, 2).Draw(w.t, "terms at all") > 0 {
		spec += w.randomTerms()
	}
	if bound {
		spec += " node=" + w.someNode()
	}
	p := clustertest.Pod(spec)
	if !*w.State.View().SchedulerConfig().Spec.Preemption.Enabled { // then pods have no priorities (PC11)
		p.Spec.Priority, p.Spec.PreemptionPolicy = nil, nil
	}
	return p
}

// happenAround lets one thing happen to the cluster.
func (w *world) happenAround(nodes int) {
	most := 10
	if w.relabels {
		most = 13
	}
	switch rapid.IntRange(0, most).Draw(w.t, "event") {
	case 11, 12, 13:
		w.relabel()
	case 0, 1, 2, 3:
		for range rapid.IntRange(1, 4).Draw(w.t, "pods") {
			w.AdmitPod(w.topologyPod(false))
		}
	case 4:
		w.AdmitPod(w.topologyPod(true))
	case 5:
		w.Confirm()
	case 6:
		if key, ok := w.somePod(); ok {
			w.Must(&fsm.DeletePod{Key: key})
		}
	case 7:
		w.putTopologyNode(rapid.IntRange(0, nodes).Draw(w.t, "which"))
	case 8:
		if name := w.someNode(); w.State.View().Nodes.Len() > 1 {
			w.Must(&fsm.DeleteNode{Name: name})
		}
	case 9:
		if key, ok := w.somePod(); ok {
			w.end(key)
		}
	case 10:
		w.PutNamespace("other", map[string]string{"team": w.pick("team", "a", "b")})
	}
	w.NowUnixNano += 20 * second
}

// relabel gives a pod other labels, one that waits for its victims if there is one.
func (w *world) relabel() {
	var keys []string
	w.State.View().Nominations.Scan("", func(key string, _ *fsm.Nomination) bool {
		keys = append(keys, key)
		return true
	})
	key, ok := "", len(keys) > 0
	if ok {
		key = w.pick("nominated", keys...)
	} else if key, ok = w.somePod(); !ok {
		return
	}
	old, _ := w.State.View().Pods.Get(key)
	p := old.DeepCopy()
	p.Labels = map[string]string{"app": w.pick("app", "web", "db", "none"), "rev": w.pick("rev", "1", "2")}
	w.Must(&fsm.UpdatePod{Pod: fsm.PodWire{Object: p}})
}

func newTopologyWorld(t *rapid.T, nodes int) *world {
	w := &world{harness: newHarness(), t: t}
	w.furnishTopology(nodes)
	return w
}

// furnishTopology fills an empty world.
func (w *world) furnishTopology(nodes int) {
	t := w.t
	w.PutNamespace("other", map[string]string{"team": "a"})
	w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
		s.Profiles = append(s.Profiles, berthv1.SchedulerProfile{SchedulerName: "odd", Plugins: berthv1.ProfilePlugins{
			Weights: map[string]int32{berthv1.PluginPodTopologySpread: 7, berthv1.PluginNodeResourcesFit: 3,
				berthv1.PluginTaintToleration: 0}}})
		if rapid.IntRange(0, 3).Draw(t, "list of defaults") == 0 {
			s.PodTopologySpread.DefaultingType = berthv1.SpreadList
			for _, word := range []string{zoneKey + ":1:-", "rack:2:-:soft"} {
				c, _ := clustertest.Constraint(word)
				s.PodTopologySpread.DefaultConstraints = append(s.PodTopologySpread.DefaultConstraints, c)
			}
		}
		weight := rapid.Int32Range(0, 3).Draw(t, "hardPodAffinityWeight")
		s.HardPodAffinityWeight = &weight
	})
	w.configuresPlugins("odd")
	if rapid.Bool().Draw(t, "services") {
		w.PutService("web", map[string]string{"app": "web"})
		w.PutService("first", map[string]string{"app": "web", "rev": "1"})
		w.PutReplicaSet("web", clustertest.Selector("app=web"), 1)
	}
	for i := range nodes {
		w.putTopologyNode(i)
	}
	for range rapid.IntRange(0, 3*nodes).Draw(t, "bound") {
		w.AdmitPod(w.topologyPod(true))
	}
}

// TestOracleTopology: on random clusters with zones, racks and hosts, and pods with all kinds of rules about each
// other, every decision is the oracle's: same node, victims as good as the best, same count of every reason.
func TestOracleTopology(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 6).Draw(t, "nodes")
		w := newTopologyWorld(t, nodes)
		w.relabels = true
		w.drawWork()
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			limit, others := int32(1_000_000), rapid.Int32Range(0, 3).Draw(t, "other nodes")
			s.Preemption.SearchLimit, s.Preemption.MaxOtherNodes = &limit, &others
		})
		for range rapid.IntRange(1, 8).Draw(t, "rounds") {
			w.happenAround(nodes)
			w.runBeside(func() *oracle {
				o := newOracle(w.State.View(), budgetTable{})
				o.cross = true
				for _, e := range w.ready() {
					pod, _ := w.State.View().Pods.Get(e.Key())
					w.namesThem(o, pod)
				}
				return o
			})
		}
	})
}

// TestPipelineTopology is TestPipeline among pods with rules about each other.
func TestPipelineTopology(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w := newTopologyWorld(t, nodes)
		w.pipeline(nodes, w.happenAround)
		w.nobodySleepsBesideRoom()
	})
}
