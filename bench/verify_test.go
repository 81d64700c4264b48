package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
)

// The checks must find what is wrong, or a figure means nothing.
func TestVerifyFindsWhatIsWrong(t *testing.T) {
	state, do := newState(t, time.Now(), 1)
	place := func(name, cpu, node string) {
		pod := newPod(cpu, "1Gi")
		pod.Name, pod.UID, pod.Spec.NodeName = name, "", node // placed by hand: no room is asked for
		do(&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
	}
	expect := func(pods int, want string) {
		t.Helper()
		err := verifyView(state.View(), pods)
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	place("a", "2", nodeName(0))
	expect(1, "")
	expect(2, "1 pods are bound, and not 2")
	place("b", "3", nodeName(0))
	expect(2, "offers 4000 of cpu, and its pods ask for 5000")
	place("c", "1", "nowhere")
	expect(3, "which is not there")
}

// Each rule between pods is broken once.
func TestVerifyFindsBrokenRules(t *testing.T) {
	for _, tt := range []struct {
		name string
		rule func(pod *corev1.Pod, app *metav1.LabelSelector)
		good []int // nodes; 0 and 10 are in one zone
		bad  int
		want string
	}{
		{"spread", spreadRule, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 20, "one domain has 3 pods, another 1"},
		{"anti-affinity", antiAffinityRule, []int{0, 10}, 10, "one domain has 2 pods"},
		{"affinity", affinityRule, []int{0, 10}, 1, "the pods are in 2 domains"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			state, do := newState(t, time.Now(), 21)
			place := func(i, node int) {
				pod := newPod("100m", "1Gi")
				tt.rule(pod, &metav1.LabelSelector{MatchLabels: pod.Labels})
				pod.Name, pod.Spec.NodeName = fmt.Sprintf("p-%d", i), nodeName(node)
				do(&fsm.AdmitPod{Pod: fsm.PodWire{Object: pod}})
			}
			for i, node := range tt.good {
				place(i, node)
			}
			if err := verifyTopology(state.View()); err != nil {
				t.Fatalf("as it should be: %v", err)
			}
			place(len(tt.good), tt.bad)
			if err := verifyTopology(state.View()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

// newState is a state with some nodes, and what carries out commands on it.
func newState(t *testing.T, now time.Time, nodes int) (state *fsm.State, do func(c fsm.Command)) {
	t.Helper()
	state = fsm.NewState()
	do = func(c fsm.Command) {
		t.Helper()
		if r := state.Try(now.UnixNano(), fsm.Proposal{User: user, Groups: groups, Command: c})[0]; r.Refused() {
			t.Fatalf("%T: %s", c, r.Message)
		}
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	do(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: namespace}, Create: true})
	for i := range nodes {
		do(&fsm.RegisterNode{Node: fsm.NodeWire{Object: stubNode(i)}})
	}
	return state, do
}

// Behind a stub nobody ends the victims: a nomination must outlast what is measured, or its preemptor is decided on again in
// the midst of it.
func TestNominationsOutlastTheMeasurement(t *testing.T) {
	now := time.Now()
	state, do := newState(t, now, 1)
	for name, value := range map[string]int32{lowClass: lowPriority, highClass: highPriority} {
		class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value}
		do(&fsm.CreatePriorityClass{Class: fsm.PriorityClassWire{Object: class}})
	}
	scheduler := sched.New(state)
	for _, pods := range []fsm.AdmitPods{{Template: fsm.PodWire{Object: lowPod()}, Count: lowPods}, {Template: fsm.PodWire{Object: highPod()}, Count: 1}} {
		do(&pods)
		plan := scheduler.Step(now.UnixNano(), lowPods)
		do(plan.Command)
		scheduler.Settle(plan)
	}
	nominated := 0
	state.View().Nominations.Scan("", func(_ string, n *fsm.Nomination) bool {
		nominated++
		if lasts := time.Unix(0, n.DeadlineUnixNano).Sub(now); lasts < time.Hour {
			t.Errorf("a nomination lasts %s", lasts)
		}
		return true
	})
	if nominated != 1 {
		t.Errorf("%d pods are nominated, and not one", nominated)
	}
}
