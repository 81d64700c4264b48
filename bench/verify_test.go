package bench

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/fsm"
)

// The checks must find what is wrong, or a figure means nothing.
func TestVerifyFindsWhatIsWrong(t *testing.T) {
	state := fsm.NewState()
	do := func(c fsm.Command) {
		t.Helper()
		if r := state.Try(time.Now().UnixNano(), fsm.Proposal{User: user, Groups: groups, Command: c})[0]; r.Refused() {
			t.Fatalf("%T: %s", c, r.Message)
		}
	}
	do(&fsm.PutNamespace{Namespace: fsm.NamespaceWire{Object: defaultNamespace()}, Create: true})
	do(&fsm.RegisterNode{Node: fsm.NodeWire{Object: stubNode(0)}})
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

func defaultNamespace() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
}
