package devices

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// randomWorld is one in which anything happens that has to do with devices.
type randomWorld struct {
	*world
	t     *rapid.T
	nodes int
	pods  int
}

func (w *randomWorld) pick(label string, of ...string) string {
	return rapid.SampledFrom(of).Draw(w.t, label)
}

func (w *randomWorld) somePod() string {
	var names []string
	w.State.View().Pods.Scan("", func(_ string, pod *corev1.Pod) bool {
		names = append(names, pod.Name)
		return true
	})
	if len(names) == 0 {
		return ""
	}
	return w.pick("pod", names...)
}

func (w *randomWorld) happen() {
	switch what := w.pick("what", "pod", "pod", "pod", "plain", "gone", "gone", "ends", "slice", "node", "leader", "write fails", "claim gone", "share"); what {
	case "pod": // with one or two claims of its own
		name := fmt.Sprint("p", w.pods)
		w.pods++
		var claims []string
		for i := range len(w.pick("claims", "1", "1", "12")) {
			claims = append(claims, fmt.Sprint(name, "-", i))
			w.claim(claims[i], request(int64(rapid.IntRange(1, 2).Draw(w.t, "count")), w.pick("model", "", "big", "small")))
		}
		w.pod(fmt.Sprintf("%s cpu=%s priority=%s", name, w.pick("cpu", "1", "2"), w.pick("priority", "1", "5", "10")), claims...)
	case "plain":
		w.pod(fmt.Sprintf("plain%d cpu=%s priority=%s", w.pods, w.pick("cpu", "1", "2"), w.pick("priority", "1", "5", "10")))
		w.pods++
	case "share": // the claim of another
		name := w.somePod()
		if c, ok := w.State.View().ResourceClaim("default", name+"-0"); ok {
			w.pod(fmt.Sprintf("p%d cpu=1 priority=5", w.pods), c.Name)
			w.pods++
		}
	case "gone":
		if name := w.somePod(); name != "" {
			w.Remove("default/" + name)
			w.takeBack()
		}
	case "ends":
		w.Confirm()
	case "slice":
		w.someGPUs(rapid.IntRange(0, w.nodes-1).Draw(w.t, "node"))
	case "node":
		w.kubelet(fmt.Sprintf("n%d cpu=%s mem=8Gi pods=110", rapid.IntRange(0, w.nodes-1).Draw(w.t, "node"), w.pick("cpu", "1", "2", "4")))
	case "leader":
		w.begin()
	case "write fails":
		at := rapid.IntRange(1, 3).Draw(w.t, "which")
		w.fails = func() bool { at--; return at == 0 }
	case "claim gone":
		if c, ok := w.State.View().ResourceClaim("default", w.somePod()+"-0"); ok && len(c.Finalizers) == 0 {
			w.Must(&fsm.DeleteObject{Resource: fsm.ResourceClaims, Namespace: "default", Name: c.Name})
		}
	}
}

func (w *randomWorld) someGPUs(node int) {
	w.gpus(fmt.Sprint("n", node), rapid.SliceOfN(rapid.SampledFrom([]string{"big", "small"}), 0, 3).Draw(w.t, "gpus")...)
}

// TestWhoCanHaveDevicesHasThem: whatever happens, once everything is settled no device is two claims', every pod on a node has all that it
// claims where it can be used and is noted there, whoever waits is not to be helped by any node, and has nothing that keeps it from others.
func TestWhoCanHaveDevicesHasThem(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := &randomWorld{world: newWorld(t), t: rt, nodes: rapid.IntRange(1, 3).Draw(rt, "nodes")}
		for i := range w.nodes {
			w.kubelet(fmt.Sprintf("n%d cpu=%s mem=8Gi pods=110", i, w.pick("cpu", "1", "2", "4")))
			w.someGPUs(i)
		}
		for range rapid.IntRange(1, 8).Draw(rt, "rounds") {
			for range rapid.IntRange(1, 4).Draw(rt, "things") {
				w.happen()
				if rapid.Bool().Draw(rt, "between") {
					w.settle(t.Context(), 1)
				}
				w.devicesAreOnes()
			}
			w.settle(t.Context(), 200)
			w.Confirm() // victims go
			w.settle(t.Context(), 200)
			w.devicesAreOnes()
			w.allIsAsItShouldBe()
		}
	})
}

// devicesAreOnes: no device is two claims'.
func (w *randomWorld) devicesAreOnes() {
	by := map[string]string{}
	each(w.State.View(), fsm.ResourceClaims+"/", func(c *resourcev1.ResourceClaim) {
		if c.Status.Allocation == nil {
			return
		}
		for _, r := range c.Status.Allocation.Devices.Results {
			at := r.Pool + "/" + r.Device
			if other, taken := by[at]; taken {
				w.t.Fatalf("%s is given to %s and %s", at, other, c.Name)
			}
			by[at] = c.Name
		}
	})
}

func (w *randomWorld) allIsAsItShouldBe() {
	v := w.State.View()
	v.Pods.Scan("", func(key string, pod *corev1.Pod) bool {
		if pod.DeletionTimestamp != nil || len(pod.Spec.ResourceClaims) == 0 {
			return true
		}
		wants := wantsOf(v, pod)
		if pod.Spec.NodeName != "" {
			for _, c := range wants.given {
				if !resourceclaim.IsReservedForPod(pod, c, false) || c.Status.Allocation.Devices.Results[0].Pool != pod.Spec.NodeName {
					w.t.Fatalf("%s is on %s, and its claim %s has %+v", key, pod.Spec.NodeName, c.Name, c.Status)
				}
			}
			if len(wants.without) > 0 {
				w.t.Fatalf("%s is on %s without what it claims", key, pod.Spec.NodeName)
			}
			return true
		}
		if _, nominated := v.Nominations.Get(key); nominated || wants.unusable {
			return true
		}
		if len(wants.own) > 0 && len(wants.without) == 0 {
			w.t.Fatalf("%s waits, and keeps %s", key, wants.own[0].Name)
		}
		if node := w.couldBeOn(v, wants); node != "" {
			w.t.Fatalf("%s waits, and could be on %s: %s", key, node, w.DescribeQueue())
		}
		return true
	})
}

// couldBeOn is a node that could take a pod, by trying all ways to give it devices; "" for none.
func (w *randomWorld) couldBeOn(v *fsm.View, wants *wants) string {
	verdicts, err := sched.Explain(w.tb.Context(), v, w.a.searchFor(v, wants).bare, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for i := range verdicts {
		n := &verdicts[i]
		if len(n.Reasons) > 0 && len(n.Victims)+len(n.Ending) == 0 {
			continue
		}
		if slices.ContainsFunc(wants.given, func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation.Devices.Results[0].Pool != n.Node }) {
			continue
		}
		if allDiffer(w.free(v, n.Node), wants.without) {
			return n.Node
		}
	}
	return ""
}

// free are the models of a node's devices that are nobody's.
func (w *randomWorld) free(v *fsm.View, node string) (models []string) {
	taken := map[string]bool{}
	each(v, fsm.ResourceClaims+"/", func(c *resourcev1.ResourceClaim) {
		if c.Status.Allocation != nil {
			for _, r := range c.Status.Allocation.Devices.Results {
				taken[r.Pool+"/"+r.Device] = true
			}
		}
	})
	s, ok := v.ResourceSlice(node + "-gpus")
	if !ok {
		return nil
	}
	for _, d := range s.Spec.Devices {
		if !taken[node+"/"+d.Name] {
			models = append(models, *d.Attributes["model"].StringValue)
		}
	}
	return models
}

// allDiffer says whether devices of these models meet all requests: "" is met by any.
func allDiffer(models []string, claims []*resourcev1.ResourceClaim) bool {
	need, whichever := map[string]int{}, 0
	for _, c := range claims {
		for _, r := range c.Spec.Devices.Requests {
			if len(r.Exactly.Selectors) == 0 {
				whichever += int(r.Exactly.Count)
				continue
			}
			for _, model := range []string{"big", "small"} {
				if r.Exactly.Selectors[0].CEL.Expression == request(1, model).Exactly.Selectors[0].CEL.Expression {
					need[model] += int(r.Exactly.Count)
				}
			}
		}
	}
	left := 0
	for _, model := range []string{"big", "small"} {
		n := 0
		for _, m := range models {
			if m == model {
				n++
			}
		}
		if n < need[model] {
			return false
		}
		left += n - need[model]
	}
	return left >= whichever
}
