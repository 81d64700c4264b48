package fsm

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

func claimingWorld(t *testing.T, v worstVolumes) *worstWorld {
	return worstPlan{Nodes: 10, Zones: 1, Waiting: 20, Shapes: 20, Namespaces: 1, Levels: 1, Volumes: v}.build(t)
}

// bindAll binds the waiting pods in one plan, the i-th to the i-th node.
func (w *worstWorld) bindAll(n int) *PlanResult {
	plan := &ApplyPlan{Revision: w.state.View().Revision()}
	for i := range n {
		pod := w.waitingName(i)
		plan.Bindings = append(plan.Bindings, BindDecision{Key: pod.Key, UID: pod.UID, Node: w.nodeName(i % w.Nodes)})
	}
	return w.may(plan)[0].Plan
}

// TestClaimsShareOneLook: what claims of one demand can be given is looked for once, for all claims of a pod, and by all pods until
// it changes.
func TestClaimsShareOneLook(t *testing.T) {
	w := claimingWorld(t, worstVolumes{Free: 3000, At: 2, Claims: 10})
	for _, want := range []struct{ pods, looks int }{{1, 1}, {3, 3}} {
		own := claimingWorld(t, w.Volumes)
		out := own.bindAll(want.pods)
		if len(out.Refused) > 0 {
			t.Fatalf("refused: %+v", out.Refused)
		}
		most := int64(want.looks*3000*costListed + want.pods*(10*(3*costClaim+4*costChange)+costDecision+1000))
		if out.Work > most || out.Work < int64(want.looks*2900) {
			t.Errorf("%d pods took %d units, and %d are the most", want.pods, out.Work, most)
		}
	}
	pods, _ := w.state.View().Pods.Get(w.waitingName(0).Key)
	known := map[VolumeList]bool{}
	if first, again := w.state.View().ClaimsWork(pods, known), w.state.View().ClaimsWork(pods, known); first != 3000*costListed+10*costClaim || again != 10*costClaim {
		t.Errorf("it takes %d units, and again %d", first, again)
	}
}

// TestClaimsAreChargedBefore: a plan does not begin to look at volumes for which it has no time.
func TestClaimsAreChargedBefore(t *testing.T) {
	w := claimingWorld(t, worstVolumes{Free: 3500, At: 2, Claims: 16, Demands: 16})
	out := w.bindAll(20)
	one, _ := w.state.View().Pods.Get(w.waitingName(19).Key)
	each := int64(w.state.View().ClaimsWork(one, map[VolumeList]bool{}))
	if each > maxClaimsWork || each < maxClaimsWork/2 {
		t.Fatalf("each takes %d units, which tries nothing", each)
	}
	var waits int
	for _, r := range out.Refused {
		if r.Reason != deferred || !r.Deferred {
			t.Errorf("refused: %+v", r)
		}
		waits++
	}
	if bound := 20 - waits; bound != int(MaxPlanWork/each) || out.Work > MaxPlanWork+each/10 {
		t.Errorf("%d pods are bound, each of which takes %d units, by %d units of work", bound, each, out.Work)
	}
}

// TestClaimsThatAreTooDear: a pod is told that it takes too much to find out what its claims ask, and is tried again until it takes less,
// without a change of its own.
func TestClaimsThatAreTooDear(t *testing.T) {
	for name, c := range map[string]struct {
		volumes worstVolumes
		limit   int
		what    string
	}{
		"demands":    {worstVolumes{Free: 1000, Claims: 256, Demands: 256}, maxClaimsWork, "units of work"},
		"conditions": {worstVolumes{Free: 7000, At: 4, Claims: 1}, maxClaimsAsks, "conditions for a node"},
		"alike":      {worstVolumes{Free: 11_000, At: 3, Claims: 1}, 0, ""}, // there are ten pairs of hosts
		"bound":      {worstVolumes{Free: 1, Claims: 256, Bound: true}, maxClaimsAsks, "conditions for a node"},
	} {
		t.Run(name, func(t *testing.T) {
			w := claimingWorld(t, c.volumes)
			out := w.bindAll(1)
			if c.limit == 0 {
				if len(out.Refused) > 0 {
					t.Errorf("%+v", out.Refused)
				}
				return
			}
			if len(out.Refused) != 1 || !strings.Contains(out.Refused[0].Reason, fmt.Sprint(c.limit)) || !strings.Contains(out.Refused[0].Reason, c.what) {
				t.Fatalf("refused: %+v", out.Refused)
			}
			if out.Work > maxClaimsWork+10_000 {
				t.Errorf("to find that out takes %d units", out.Work)
			}
			w.must(w.fail(0, 1))
			if e, _ := w.state.View().Queue.Get(w.waitingName(0).Key); e.State != berthv1.QueueBackoff {
				t.Errorf("it is %s", e.State)
			}
			text, err := os.ReadFile("../docs/limits.md")
			if err != nil {
				t.Fatal(err)
			}
			if n := strconv.Itoa(c.limit); !strings.Contains(strings.ReplaceAll(string(text), ",", ""), n) {
				t.Errorf("docs/limits.md does not say %s", n)
			}
		})
	}
}

// TestManyUseAClaimOfOne: those on nodes who use a claim that one pod at a time may use are looked at up to a bound; who waits for it,
// not at all.
func TestManyUseAClaimOfOne(t *testing.T) {
	w := claimingWorld(t, worstVolumes{Free: 10, At: 2, Claims: 1, Single: true})
	use := func(i int, node string) {
		pod := w.pod(fmt.Sprintf("user-%d", i), "user", 0, 0, worstRules{})
		pod.Spec.NodeName = node
		w.giveClaims(pod, 0)
		w.must(&AdmitPod{Pod: PodWire{Object: pod}})
	}
	reason := func() string {
		pod, _ := w.state.View().Pods.Get(w.waitingName(0).Key)
		class := w.state.live.ruledClass(w.state.live.classOf(pod), pod).class
		if class.RefusesClaims() {
			return class.VolumeReasons(&corev1.Node{})[0].Resource
		}
		return ""
	}
	for i := range 3 * maxHolders {
		use(i, "")
	}
	for i := range maxHolders {
		use(1000+i, w.nodeName(i%w.Nodes))
	}
	if got := reason(); got != "" {
		t.Errorf("%d pods on nodes: %s", maxHolders, got)
	}
	use(9_999, w.nodeName(0)) // it comes behind those that are looked at
	if got := reason(); !strings.Contains(got, fmt.Sprint("more than ", maxHolders)) {
		t.Errorf("one more: %q", got)
	}
}

// TestWhatClaimsSayIsBounded: what is remembered of it holds no more than it may, whatever it is that is to be kept next, and
// nothing of another time.
func TestWhatClaimsSayIsBounded(t *testing.T) {
	v := &corev1.PersistentVolume{}
	offer := model.NewOffer(slices.Repeat([]*model.FreeVolume{model.NewFreeVolume(v, func(string) *model.FreeVolume { return nil })}, maxVolumesBytes/8*2/5))
	x, at := new(effectiveClasses), new(volumesAt)
	for i := range 10 {
		asks := x.volumes(at, volumesKey{pod: fmt.Sprint(i)}, func() *model.Volumes {
			b := new(model.VolumesBuilder)
			b.Want(x.offer(VolumeList{demand: fmt.Sprint(i)}, func() *model.Offer { return offer }), apiresource.Quantity{}, false, nil)
			return b.Done()
		})
		if held := len(x.claims) * asks.Bytes(); held > maxVolumesBytes || len(x.claims) == 0 {
			t.Fatalf("%d bytes are held of what claims say", held)
		}
		if held := len(x.offers) * offer.Bytes(); held > maxOfferBytes || len(x.offers) == 0 {
			t.Fatalf("%d bytes are held of lists", held)
		}
	}
	if x.volumes(new(volumesAt), volumesKey{}, func() *model.Volumes { return nil }); len(x.claims) != 1 {
		t.Errorf("%d are kept of another time", len(x.claims)-1)
	}
}
