package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// configMap is what most watch tests change: nothing follows from it.
func configMap(ns, name, value string) fsm.Command { return putConfigMap(ns, name, value, true) }

func putConfigMap(ns, name, value string, create bool) fsm.Command {
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: "u-" + "1", Labels: map[string]string{"value": value}},
		Data:       map[string]string{"value": value},
	}
	raw, err := cm.Marshal()
	if err != nil {
		panic(err)
	}
	return &fsm.PutObject{Resource: "configmaps", Raw: raw, Create: create}
}

// next gives a watch's next event.
func next(t testing.TB, w watch.Interface) watch.Event {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	select {
	case e, ok := <-w.ResultChan():
		if !ok {
			t.Fatal("the watch has ended")
		}
		return e
	case <-deadline.C:
		t.Fatal("no event came")
		return watch.Event{}
	}
}

func describe(e watch.Event) string {
	switch o := e.Object.(type) {
	case *corev1.ConfigMap:
		if e.Type == watch.Bookmark {
			return fmt.Sprintf("BOOKMARK %v", o.Annotations[metav1.InitialEventsAnnotationKey])
		}
		return fmt.Sprintf("%s %s=%s", e.Type, o.Name, o.Data["value"])
	case *metav1.Status:
		return fmt.Sprintf("%s %d", e.Type, o.Code)
	}
	return fmt.Sprintf("%s %T", e.Type, e.Object)
}

func expectEvents(t testing.TB, w watch.Interface, want ...string) (last watch.Event) {
	t.Helper()
	for _, x := range want {
		last = next(t, w)
		if got := describe(last); got != x {
			t.Fatalf("got %q, want %q", got, x)
		}
	}
	return last
}

// TestWatchBegins is the table of what a watch begins with.
func TestWatchBegins(t *testing.T) {
	s := share(t)
	yes, no := true, false
	notOlder := metav1.ResourceVersionMatchNotOlderThan
	for _, c := range []struct {
		name    string
		options func(first, last string) metav1.ListOptions
		want    []string // before the change that comes last
	}{
		{"unset", func(string, string) metav1.ListOptions { return metav1.ListOptions{} }, []string{"ADDED a=2", "ADDED b=1"}},
		{"zero", func(string, string) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: "0"} }, []string{"ADDED a=2", "ADDED b=1"}},
		{"exact last", func(_, last string) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: last} }, nil},
		{"exact first", func(first, _ string) metav1.ListOptions { return metav1.ListOptions{ResourceVersion: first} }, []string{"MODIFIED a=2", "ADDED b=1"}},
		{"list, unset", func(string, string) metav1.ListOptions {
			return metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: notOlder, AllowWatchBookmarks: true}
		}, []string{"ADDED a=2", "ADDED b=1", "BOOKMARK true"}},
		{"list, from the first", func(first, _ string) metav1.ListOptions {
			return metav1.ListOptions{SendInitialEvents: &yes, ResourceVersionMatch: notOlder, AllowWatchBookmarks: true, ResourceVersion: first}
		}, []string{"ADDED a=2", "ADDED b=1", "BOOKMARK true"}},
		{"no list, unset", func(string, string) metav1.ListOptions {
			return metav1.ListOptions{SendInitialEvents: &no, ResourceVersionMatch: notOlder}
		}, nil},
		{"name", func(string, string) metav1.ListOptions { return metav1.ListOptions{FieldSelector: "metadata.name=a"} }, []string{"ADDED a=2"}},
		{"label", func(string, string) metav1.ListOptions { return metav1.ListOptions{LabelSelector: "value=1"} }, []string{"ADDED b=1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := s.namespace(t)
			first := s.double.must(t, configMap(ns, "a", "1"))[0].Revision
			s.double.must(t, putConfigMap(ns, "a", "2", false))
			last := s.double.must(t, configMap(ns, "b", "1"))[0].Revision
			options := c.options(strconv.FormatInt(first, 10), strconv.FormatInt(last, 10))
			options.FieldSelector = joinSelectors(options.FieldSelector, "metadata.name!=kube-root-ca.crt")
			w, err := s.client(t).CoreV1().ConfigMaps(ns).Watch(context.Background(), options)
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			expectEvents(t, w, c.want...)
			s.double.must(t, putConfigMap(ns, "a", "1", false))
			want := "MODIFIED a=1"
			if options.LabelSelector != "" {
				want = "ADDED a=1" // it begins to match
			}
			expectEvents(t, w, want)
			s.double.must(t, putConfigMap(ns, "a", "2", false))
			want = "MODIFIED a=2"
			if options.LabelSelector != "" {
				want = "DELETED a=1" // it ceases to match
			}
			e := expectEvents(t, w, want)
			if got := metaOf(e.Object).GetResourceVersion(); got != strconv.FormatInt(s.double.View().Revision(), 10) {
				t.Fatalf("the event has resourceVersion %s", got)
			}
		})
	}
}

func joinSelectors(a, b string) string {
	if a == "" {
		return b
	}
	return a + "," + b
}

// small is a double whose feed keeps few changes.
func small(t testing.TB) *double {
	d := newDouble(t)
	d.state = d.state.View().Fork()
	return d
}

func TestWatchGone(t *testing.T) {
	d := small(t)
	s := start(t, d, nil)
	client := s.client(t).CoreV1()
	ctx := context.Background()
	old := d.View().Revision()
	stuck, err := client.ConfigMaps("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer stuck.Stop()
	for i := range 5000 {
		d.must(t, putConfigMap("default", "x", strconv.Itoa(i), i == 0))
	}
	_, err = client.ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(old, 10)})
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Fatalf("got %v, want 410", err)
	}
	wantStatus(t, err, 410, "too old resource version")
	// A watch of something else, which saw none of it, goes on.
	_, err = client.ConfigMaps("default").List(ctx, metav1.ListOptions{ResourceVersion: strconv.FormatInt(old, 10), ResourceVersionMatch: metav1.ResourceVersionMatchExact})
	wantStatus(t, err, 410, "too old")
}

// TestSlowWatcher: a watcher that does not read is let go by the hub, catches up
// from the feed, and misses nothing.
func TestSlowWatcher(t *testing.T) {
	d := newDouble(t)
	h := newHub(d, newPins(time.Now))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Add(1)
	go func() { defer running.Done(); h.run(ctx) }()
	defer running.Wait()
	defer cancel()
	tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
	w, err := tb.Watch(ctx, "/configmaps/default", storage.ListOptions{Recursive: true, ResourceVersion: strconv.FormatInt(d.View().Revision(), 10), Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	const n = 20 * watcherBuffer
	for i := range n {
		d.must(t, putConfigMap("default", "x", strconv.Itoa(i), i == 0))
	}
	for i := range n {
		e := next(t, w)
		if got := metaOf(e.Object.(runtime.CacheableObject).GetObject()).GetLabels()["value"]; got != strconv.Itoa(i) {
			t.Fatalf("change %d came as %s", i, got)
		}
	}
	w.Stop()
	eventually(t, "the watch ended", func() bool { _, open := <-w.ResultChan(); return !open })
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.groups) != 0 {
		t.Fatalf("the hub still has %d groups", len(h.groups))
	}
}

// TestCompactedWatcher: a watcher that stays behind for too long is told to list
// again.
func TestCompactedWatcher(t *testing.T) {
	d := small(t)
	h := newHub(d, newPins(time.Now))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Add(1)
	go func() { defer running.Done(); h.run(ctx) }()
	defer running.Wait()
	defer cancel()
	tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
	w, err := tb.Watch(ctx, "/configmaps/default", storage.ListOptions{Recursive: true, ResourceVersion: strconv.FormatInt(d.View().Revision(), 10), Predicate: storage.Everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for i := range 10_000 {
		d.must(t, putConfigMap("default", "x", strconv.Itoa(i), i == 0))
	}
	for {
		e := next(t, w)
		if e.Type == watch.Error {
			if got := describe(e); got != "ERROR 410" {
				t.Fatalf("got %s", got)
			}
			break
		}
	}
	if _, open := <-w.ResultChan(); open {
		t.Fatal("the watch went on after its error")
	}
}

// TestBookmarks: a watcher of what never changes is told how far the state is,
// so that it can resume.
func TestBookmarks(t *testing.T) {
	d := newDouble(t)
	h := newHub(d, newPins(time.Now))
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Add(1)
	go func() { defer running.Done(); h.run(ctx) }()
	defer running.Wait()
	defer cancel()
	tb := &tables{kind: secretKind(), prefix: "/secrets/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
	everything := storage.Everything
	everything.AllowWatchBookmarks = true
	w, err := tb.Watch(ctx, "/secrets", storage.ListOptions{Recursive: true, ResourceVersion: strconv.FormatInt(d.View().Revision(), 10), Predicate: everything})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	eventually(t, "the watch is on the routes", func() bool {
		h.mu.Lock()
		defer h.mu.Unlock()
		return len(h.groups) == 1
	})
	last := d.must(t, configMap("default", "x", "1"))[0].Revision
	eventually(t, "the hub is as far", func() bool { return h.at() == last })
	h.bookmark(time.Now().Add(2 * bookmarkEvery))
	e := next(t, w)
	if e.Type != watch.Bookmark || metaOf(e.Object).GetResourceVersion() != strconv.FormatInt(last, 10) {
		t.Fatalf("got %v", e)
	}
}

// TestWatchOfTheFuture: a server that is behind what the client has seen
// elsewhere waits for a while.
func TestWatchOfTheFuture(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	client := s.client(t).CoreV1()
	ctx := context.Background()
	future := strconv.FormatInt(d.View().Revision()+1, 10)
	arrived := make(chan error, 1)
	go func() {
		_, err := client.ConfigMaps("default").Get(ctx, "late", metav1.GetOptions{ResourceVersion: future})
		arrived <- err
	}()
	d.must(t, configMap("default", "late", "1"))
	if err := <-arrived; err != nil {
		t.Fatal(err)
	}
	err := client.RESTClient().Get().AbsPath("/api/v1/configmaps").Param("resourceVersion", "999999999").MaxRetries(0).Do(ctx).Error()
	wantStatus(t, err, 504, "Too large resource version")
	if !apierrors.HasStatusCause(err, metav1.CauseTypeResourceVersionTooLarge) {
		t.Fatalf("no cause in %v", err)
	}
}

// TestPodsOfANode: a watch by node sees pods come and go, and the hub routes
// nothing else to it.
func TestPodsOfANode(t *testing.T) {
	s := share(t)
	ctx := context.Background()
	ns := s.namespace(t)
	node := ns + "-node"
	s.node(t, node)
	pods := s.client(t).CoreV1().Pods(ns)
	w, err := s.client(t).CoreV1().Pods("").Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for _, name := range []string{"here", "elsewhere"} {
		if _, err := pods.Create(ctx, testPod(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	if err := pods.Bind(ctx, binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := next(t, w)
	if p := e.Object.(*corev1.Pod); e.Type != watch.Added || p.Name != "here" || p.Spec.NodeName != node {
		t.Fatalf("got %s %s", e.Type, p.Name)
	}
	list, err := s.client(t).CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil || len(list.Items) != 1 || list.Items[0].Name != "here" {
		t.Fatalf("got %v, %v", list, err)
	}
	zero := int64(0)
	if err := pods.Delete(ctx, "here", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	for e = next(t, w); e.Type == watch.Modified; e = next(t, w) {
	}
	if e.Type != watch.Deleted {
		t.Fatalf("got %s", e.Type)
	}
}

// TestStalledEvents: so is what a watch holds in events that nobody has taken yet, or that are being written; and of those
// that nobody reads the error is the first.
func TestStalledEvents(t *testing.T) {
	for what, taken := range map[string]bool{"not taken": false, "being written": true} {
		t.Run(what, func(t *testing.T) {
			d := small(t)
			d.must(t, putConfigMap("default", "0", "0", true), putConfigMap("kube-system", "0", "0", true))
			h := newHub(d, newPins(time.Now))
			ctx, cancel := context.WithCancel(context.WithValue(t.Context(), deliveryKey{}, &delivery{writing: taken}))
			var running sync.WaitGroup
			running.Go(func() { h.run(ctx) })
			defer running.Wait()
			defer cancel()
			tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
			w, err := tb.Watch(ctx, "/configmaps/default", storage.ListOptions{
				Recursive: true, ResourceVersion: strconv.FormatInt(d.View().Revision(), 10), Predicate: storage.Everything})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			d.must(t, putConfigMap("default", "0", "1", false))
			if taken {
				next(t, w)
			} else {
				d.must(t, putConfigMap("default", "0", "2", false))
			}
			for i := range 10_000 {
				d.must(t, putConfigMap("kube-system", "0", strconv.Itoa(i), false))
			}
			eventually(t, "the hub lets it go", func() bool {
				h.endStalled(d.Feed().First())
				h.mu.Lock()
				defer h.mu.Unlock()
				return len(h.all) == 0 && len(h.groups) == 0
			})
			if got := describe(next(t, w)); got != "ERROR 410" {
				t.Errorf("got %s", got)
			}
		})
	}
}

// TestStalledWatcher: what a watch holds for a client that does not read is let go of once the feed does not have it any more, at
// whatever the watch is.
func TestStalledWatcher(t *testing.T) {
	for what, begin := range map[string]string{"what is there": "", "changes": "now"} {
		t.Run(what, func(t *testing.T) {
			d := small(t)
			for i := range 2 * (watcherBuffer + resultBuffer) {
				d.must(t, putConfigMap("default", strconv.Itoa(i), "0", true))
			}
			h := newHub(d, newPins(time.Now))
			ctx, cancel := context.WithCancel(context.Background())
			var running sync.WaitGroup
			running.Go(func() { h.run(ctx) })
			defer running.Wait()
			defer cancel()
			if begin != "" {
				begin = strconv.FormatInt(d.View().Revision(), 10)
			}
			tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
			w, err := tb.Watch(ctx, "/configmaps/default", storage.ListOptions{Recursive: true, ResourceVersion: begin, Predicate: storage.Everything})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			for i := range 10_000 {
				d.must(t, putConfigMap("default", "0", strconv.Itoa(i), false))
			}
			eventually(t, "the hub lets it go", func() bool {
				h.endStalled(d.Feed().First())
				h.mu.Lock()
				defer h.mu.Unlock()
				return len(h.all) == 0 && len(h.groups) == 0
			})
			for {
				if e := next(t, w); e.Type == watch.Error {
					if got := describe(e); got != "ERROR 410" {
						t.Fatalf("got %s", got)
					}
					break
				}
			}
		})
	}
}
