package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"github.com/berth-dev/berth/fsm"
)

// fill makes n config maps in a namespace, from one entry.
func fill(t testing.TB, s *testServer, ns string, n int) {
	t.Helper()
	commands := make([]fsm.Command, n)
	for i := range commands {
		commands[i] = configMap(ns, fmt.Sprintf("c%03d", i), strconv.Itoa(i%2))
	}
	s.double.must(t, commands...)
}

func TestChunks(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	fill(t, s, ns, 25)
	maps := s.client(t).CoreV1().ConfigMaps(ns)
	ctx := context.Background()
	options := metav1.ListOptions{Limit: 10}
	var names []string
	var remaining []int64
	revision := ""
	for {
		page, err := maps.List(ctx, options)
		if err != nil {
			t.Fatal(err)
		}
		if revision == "" {
			revision = page.ResourceVersion
			// What happens between two parts shows in neither.
			s.double.must(t, configMap(ns, "c999", "1"))
			if err := maps.Delete(ctx, "c020", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if page.ResourceVersion != revision {
			t.Fatalf("a part of revision %s in a list of %s", page.ResourceVersion, revision)
		}
		for _, cm := range page.Items {
			names = append(names, cm.Name)
		}
		if page.Continue == "" {
			break
		}
		remaining = append(remaining, *page.RemainingItemCount)
		options.Continue = page.Continue
	}
	if len(names) != 26 || names[20] != "c020" || fmt.Sprint(remaining) != "[16 6]" {
		t.Fatalf("got %d names, remaining %v", len(names), remaining)
	}
}

func TestChunksOfSelected(t *testing.T) {
	s := share(t)
	ns := s.namespace(t)
	fill(t, s, ns, 20)
	maps := s.client(t).CoreV1().ConfigMaps(ns)
	options := metav1.ListOptions{Limit: 4, LabelSelector: "value=1"}
	n := 0
	for {
		page, err := maps.List(context.Background(), options)
		if err != nil {
			t.Fatal(err)
		}
		n += len(page.Items)
		if page.RemainingItemCount != nil {
			t.Fatal("nobody has counted what is selected")
		}
		if page.Continue == "" {
			break
		}
		options.Continue = page.Continue
	}
	if n != 10 {
		t.Fatalf("got %d", n)
	}
}

// TestChunksExpire: when the state of a list is no longer kept, the client is
// told so and may go on with the latest.
func TestChunksExpire(t *testing.T) {
	d := small(t)
	s := start(t, d, nil)
	fill(t, s, "default", 10)
	maps := s.client(t).CoreV1().ConfigMaps("default")
	ctx := context.Background()
	page, err := maps.List(ctx, metav1.ListOptions{Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	s.double.must(t, configMap("default", "c999", "1"))
	for i := range 10_000 { // the feed forgets
		d.must(t, putConfigMap("kube-system", "x", strconv.Itoa(i), i == 0))
	}
	s.hub.pins.now = func() time.Time { return time.Now().Add(2 * pinTTL) }
	s.hub.pins.expire(d.View().Revision(), 0)
	_, err = maps.List(ctx, metav1.ListOptions{Limit: 4, Continue: page.Continue})
	wantStatus(t, err, 410, "continue parameter is too old")
	status := err.(apierrors.APIStatus).Status()
	rest, err := maps.List(ctx, metav1.ListOptions{Continue: status.Continue})
	if err != nil || len(rest.Items) != 8 { // 10 of ours, one more, one of the namespace, less 4
		t.Fatalf("got %d, %v", len(rest.Items), err)
	}
	_, err = maps.List(ctx, metav1.ListOptions{Continue: "nonsense"})
	wantStatus(t, err, 400, "invalid continue token")
}

// TestSlowListsGoOnWithWhatIsThere: a list of which the first part was read minutes ago is not of its state for ever, though
// the feed holds what changed since.
func TestSlowListsGoOnWithWhatIsThere(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	fill(t, s, "default", 10)
	maps := s.client(t).CoreV1().ConfigMaps("default")
	first, err := maps.List(t.Context(), metav1.ListOptions{Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	more := func(token string) (*corev1.ConfigMapList, error) {
		return maps.List(t.Context(), metav1.ListOptions{Limit: 4, Continue: token})
	}
	d.must(t, configMap("default", "c999", "1")) // from now on the state is another
	pass := func(by time.Duration) {
		s.hub.pins.now = func() time.Time { return time.Now().Add(by) }
		s.hub.pins.expire(d.View().Revision(), 0)
		d.ahead.Store(int64(by))
		d.must(t, configMap("kube-system", fmt.Sprint("later-", int(by.Minutes())), "1"))
	}
	pass(pinTTL - time.Minute)
	if page, err := more(first.Continue); err != nil || page.ResourceVersion != first.ResourceVersion {
		t.Fatalf("%v, %v", page, err)
	}
	pass(pinTTL + time.Minute)
	_, err = more(first.Continue)
	wantStatus(t, err, 410, "continue parameter is too old")
	page, err := more(err.(apierrors.APIStatus).Status().Continue)
	if err != nil || page.ResourceVersion == first.ResourceVersion || len(page.Items) != 4 || page.Continue == "" {
		t.Fatalf("%v, %v", page, err)
	}
	if rest, err := more(page.Continue); err != nil || rest.ResourceVersion != page.ResourceVersion || len(rest.Items) != 4 {
		t.Fatalf("%v, %v", rest, err)
	}
}

func TestPinsAreBounded(t *testing.T) {
	now := time.Unix(0, 0)
	p := newPins(func() time.Time { return now })
	d := newDouble(t)
	first := d.View().Revision() + 1
	for i := range maxPins + 10 {
		d.must(t, configMap("default", strconv.Itoa(i), "1"))
		p.keep(d.View())
		now = now.Add(time.Second)
	}
	if len(p.views) != maxPins {
		t.Fatalf("%d views are kept", len(p.views))
	}
	if _, ok := p.get(first); ok {
		t.Fatal("the oldest is still kept")
	}
	if _, ok := p.get(d.View().Revision()); !ok {
		t.Fatal("the newest is not kept")
	}
	p.expire(d.View().Revision()+maxPinLag-4, 0)
	if len(p.views) != 5 {
		t.Fatalf("%d views are not too far behind", len(p.views))
	}
	p.expire(d.View().Revision(), d.View().Revision()-1)
	if len(p.views) != 2 {
		t.Fatalf("%d views are not behind the feed", len(p.views))
	}
	now = now.Add(pinTTL)
	p.expire(d.View().Revision(), 0)
	if len(p.views) != 0 {
		t.Fatalf("%d views outlived their time", len(p.views))
	}
}

// TestConsistency is the table of how fresh a read is.
func TestConsistency(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	maps := s.client(t).CoreV1().ConfigMaps("default")
	ctx := context.Background()
	rev := strconv.FormatInt(d.must(t, configMap("default", "a", "1"))[0].Revision, 10)
	for _, c := range []struct {
		name  string
		read  func() error
		reads int64
	}{
		{"get", func() error { _, err := maps.Get(ctx, "a", metav1.GetOptions{}); return err }, 1},
		{"get 0", func() error { _, err := maps.Get(ctx, "a", metav1.GetOptions{ResourceVersion: "0"}); return err }, 0},
		{"get not older", func() error { _, err := maps.Get(ctx, "a", metav1.GetOptions{ResourceVersion: rev}); return err }, 0},
		{"list", func() error { _, err := maps.List(ctx, metav1.ListOptions{}); return err }, 1},
		{"list 0", func() error { _, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: "0"}); return err }, 0},
		{"list exact", func() error {
			_, err := maps.List(ctx, metav1.ListOptions{ResourceVersion: rev, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
			return err
		}, 0},
	} {
		before := d.reads.Load()
		if err := c.read(); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := d.reads.Load() - before; got != c.reads {
			t.Errorf("%s asked the leader %d times, want %d", c.name, got, c.reads)
		}
	}
}

// TestPodFields: what selectors read from the row is what upstream reads from
// the converted pod.
func TestPodFields(t *testing.T) {
	for _, p := range []*corev1.Pod{
		{},
		{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "n"},
			Spec: corev1.PodSpec{
				NodeName: "node", RestartPolicy: corev1.RestartPolicyNever, SchedulerName: "s", ServiceAccountName: "sa", HostNetwork: true,
			},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", NominatedNodeName: "other"},
		},
		{Status: corev1.PodStatus{PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd::1"}}}},
	} {
		internal := new(core.Pod)
		if err := podKind().present(nil)(p, internal); err != nil {
			t.Fatal(err)
		}
		ours := podFields{p}
		want := pod.ToSelectableFields(internal)
		for field, value := range want {
			if !ours.Has(field) || ours.Get(field) != value {
				t.Errorf("%s is %q here and %q there", field, ours.Get(field), value)
			}
		}
		if ours.Has("spec.none") {
			t.Error("there is a field that nobody has")
		}
	}
}

func TestMatcherPresentsFew(t *testing.T) {
	k := podKind()
	selector, err := labels.Parse("a=b")
	if err != nil {
		t.Fatal(err)
	}
	predicate := pod.MatchPod(selector, fields.OneTermEqualSelector("status.phase", "Running"))
	m := newMatcher(k, predicate, nil)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"a": "b"}}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	ok, err := m.matches(p, nil) // presenting it would panic
	if !ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
}
