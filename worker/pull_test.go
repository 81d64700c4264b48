package worker

import (
	"context"
	"errors"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
)

// An image that nobody waits for any more is not looked for any longer, or it would take the turn of others: that of a pod that ends, and that of
// a container that is to run another one.
func TestPullIsCut(t *testing.T) {
	for name, c := range map[string]struct {
		change func(pod *corev1.Pod)
		next   ActionKind // what is done when the call is over
	}{
		"the pod ends":               {func(pod *corev1.Pod) { pod.DeletionTimestamp = &metav1.Time{Time: epoch} }, 0},
		"it is to run another image": {func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "web:2" }, ActionPull},
	} {
		t.Run(name, func(t *testing.T) {
			var told []string
			core := NewCore(CoreOptions{Node: testNode(t), RuntimeName: "fake", Images: true,
				Event: func(_ *corev1.Pod, _, reason, _ string) { told = append(told, reason) }})
			pod := testPod("web")
			pod.Spec.Containers[0].Image = "web:1"
			core.Assign(Assignment{Full: true, Pods: []*corev1.Pod{pod}}, epoch)
			actions := core.TakeActions()
			if len(actions) != 1 || actions[0].Kind != ActionPull {
				t.Fatalf("got %v", actions)
			}
			pull := actions[0]
			for range 2 { // cut once
				pod = pod.DeepCopy()
				c.change(pod)
				core.Assign(Assignment{Pods: []*corev1.Pod{pod}}, epoch)
			}
			actions = core.TakeActions()
			if len(actions) == 0 || actions[0].Kind != ActionPullEnd || actions[0].ID != pull.ID {
				t.Fatalf("got %v", actions)
			}
			for _, a := range actions[1:] {
				if a.Kind == ActionPullEnd || a.Kind == ActionPull {
					t.Errorf("%s while the call is under way", a.Kind)
				}
			}
			core.Done(Outcome{Action: pull, Err: context.Canceled}, epoch)
			if got := core.TakeActions(); c.next != 0 && (len(got) != 1 || got[0].Kind != c.next || got[0].Container.Image != "web:2") {
				t.Errorf("then %v", got)
			}
			if len(told) > 0 {
				t.Errorf("told: %q", told)
			}
		})
	}
}

// hungRegistry is a store of images that never come.
type hungRegistry struct {
	runtime.Runtime
	asked chan struct{}
}

func (h *hungRegistry) Images() ([]runtime.Image, error)                  { return nil, nil }
func (h *hungRegistry) FindImage(context.Context, string) (string, error) { return "", nil }
func (h *hungRegistry) ImageKeys(string, []*corev1.Secret) ([]runtime.ImageKey, error) {
	return nil, nil
}
func (h *hungRegistry) PullImage(ctx context.Context, _ string, _ []*corev1.Secret, _ func() error) (runtime.Pulled, error) {
	close(h.asked)
	<-ctx.Done()
	return runtime.Pulled{}, ctx.Err()
}

// The call itself ends.
func TestPullEnds(t *testing.T) {
	store := &hungRegistry{asked: make(chan struct{})}
	c := caller{runtime: store}
	a := Action{Kind: ActionPull, Pod: testPod("web"), ID: runtime.ID{Pod: "web", Container: "main"}, Timeout: pullTimeout}
	a.Container = &corev1.Container{Name: "main", Image: "web:1"}
	ctx, over := c.cuttable.begin(t.Context(), a)
	done := make(chan Outcome, 1)
	go func() {
		defer over()
		done <- c.do(ctx, a)
	}()
	<-store.asked
	c.do(t.Context(), Action{Kind: ActionPullEnd, ID: a.ID})
	if o := <-done; !errors.Is(o.Err, context.Canceled) {
		t.Errorf("%v", o.Err)
	}
}
