package e2e

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/agent/fleet"
)

func transportOf(p *fleet.Process) (http.RoundTripper, error) {
	return rest.TransportFor(p.RESTConfig())
}

// Any server answers reads with what was written through any other before, and
// shows changes as they happen.
func TestFollowerServes(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "follower")
	leader := c.waitLeader(t).Kube.CoreV1().ConfigMaps(ns)
	follower := c.followers(t)[0].Kube.CoreV1().ConfigMaps(ns)
	mine := metav1.ListOptions{LabelSelector: "mine=yes"} // a namespace has a ConfigMap of its own
	w, err := follower.Watch(t.Context(), mine)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 20 {
		name := fmt.Sprintf("c-%d", i)
		made, err := leader.Create(t.Context(), &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"mine": "yes"}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Not "eventually": a read that begins after a write sees it.
		got, err := follower.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || got.ResourceVersion != made.ResourceVersion {
			t.Fatalf("a follower does not know what was acknowledged: %v, %v", got, err)
		}
		list, err := follower.List(t.Context(), mine)
		if err != nil || len(list.Items) != i+1 {
			t.Fatalf("a follower lists %d of %d: %v", len(list.Items), i+1, err)
		}
		got.Data = map[string]string{"through": "a follower"}
		if _, err := follower.Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		back, err := leader.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || back.Data["through"] == "" {
			t.Fatalf("the leader does not know what a follower acknowledged: %v", err)
		}
		for _, want := range []string{"ADDED", "MODIFIED"} {
			select {
			case e := <-w.ResultChan():
				if o, ok := e.Object.(*corev1.ConfigMap); !ok || string(e.Type) != want || o.Name != name {
					t.Fatalf("the watch shows %s of %+v, not %s of %s", e.Type, e.Object, want, name)
				}
			case <-time.After(patience):
				t.Fatal("the watch shows nothing")
			}
		}
	}
}

// lists counts how often a client had everything sent to it.
type lists struct{ n atomic.Int64 }

func (l *lists) seen(r *http.Request) {
	q := r.URL.Query()
	if r.Method == http.MethodGet && (q.Get("watch") == "" || q.Get("sendInitialEvents") == "true") {
		l.n.Add(1)
	}
}

// Informers go on through the loss of the leader, also those whose own server
// it was: the watch is taken up on another server where it broke off.
func TestInformersSurviveLeaderChange(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "informers")
	leader := c.waitLeader(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()

	counts := make([]lists, 3)
	stores := make([]cache.Store, 3)
	for i := range c.Servers() {
		factory := informers.NewSharedInformerFactoryWithOptions(c.balanced(t, i, counts[i].seen), 0, informers.WithNamespace(ns))
		informer := factory.Core().V1().Pods().Informer()
		stores[i] = informer.GetStore()
		running.Go(func() { informer.Run(ctx.Done()) })
		if !cache.WaitForCacheSync(t.Context().Done(), informer.HasSynced) {
			t.Fatal("the informer does not get in step")
		}
	}
	sameEverywhere := func(want int) {
		t.Helper()
		for i, store := range stores {
			c.eventually(t, "the informer to see the pods", func(context.Context) error {
				if n := len(store.List()); n != want {
					return fmt.Errorf("informer %d has %d of %d", i, n, want)
				}
				return nil
			})
		}
	}
	before := c.followers(t)[0].Kube
	for i := range 5 {
		create(t, before, pod(ns, fmt.Sprintf("a-%d", i), "exec sleep 1000", pretended))
	}
	sameEverywhere(5)
	counted := make([]int64, len(counts))
	for i := range counts {
		counted[i] = counts[i].n.Load()
	}
	leader.Kill()
	t.Cleanup(func() {
		if !leader.Running() {
			c.restart(t, leader)
		}
	})
	after := c.waitLeader(t).Kube
	for i := range 5 {
		create(t, after, pod(ns, fmt.Sprintf("b-%d", i), "exec sleep 1000", pretended))
	}
	sameEverywhere(10)
	for i := range counts {
		if n := counts[i].n.Load(); n != counted[i] || counted[i] != 1 {
			t.Errorf("the informer that began on %s had everything sent %d times before the leader died, and %d times more", c.Servers()[i].Name, counted[i], n-counted[i])
		}
	}
}
