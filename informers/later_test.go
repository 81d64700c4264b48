package informers

import (
	"fmt"
	"slices"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers/worldtest"
)

// TestWhatRestsIsToldLater: what has something left to do is told of at once, with a little of what was changed last; the rest a little
// at a time, and what changes meanwhile when it does.
func TestWhatRestsIsToldLater(t *testing.T) {
	w := worldtest.New(t)
	name := func(i int) string { return fmt.Sprintf("s%03d", i) }
	put := func(i int, selects string) {
		w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("a", name(i), 0), Spec: corev1.ServiceSpec{Selector: map[string]string{"app": selects}}})
	}
	// As they are told of, the last first: they are put in the other order.
	const all, busy = 3*laterAtOnce + 10, 2*laterAtOnce + 6
	for i := range all {
		put(all-1-i, "x")
	}
	f := NewFeed(w)
	rows := Plain("services")
	rows.Rests = func(_ *fsm.View, o any) bool { return o.(metav1.Object).GetName() != name(busy) }
	i := f.Add(rows)
	var told []string
	note := func(what string) func(o any) {
		return func(o any) { told = append(told, what+o.(metav1.Object).GetName()) }
	}
	if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: note("+"), UpdateFunc: func(_, o any) { note("~")(o) }, DeleteFunc: note("-"),
	}); err != nil {
		t.Fatal(err)
	}
	expect := func(when string, want ...string) {
		t.Helper()
		if !slices.Equal(told, want) {
			t.Errorf("%s, told of %v, and not of %v", when, told, want)
		}
		told = nil
	}
	at := f.Begin()
	first := []string{"+" + name(busy)}
	for n := range laterAtOnce {
		first = append(first, "+"+name(n))
	}
	expect("at the beginning", first...)
	const gone = laterAtOnce + 1
	w.Do(t, &fsm.DeleteObject{Resource: "services", Namespace: "a", Name: name(gone)})
	w.Put(t, "services", &corev1.Service{ObjectMeta: worldtest.Meta("a", name(all), 0)})
	changes, err := w.Feed().After(at, changesAtOnce)
	if err != nil {
		t.Fatal(err)
	}
	for c := range changes {
		f.tell(&changes[c])
	}
	expect("of changes", "+"+name(gone), "-"+name(gone), "+"+name(all))
	for _, want := range []struct {
		from, to int
		more     bool
	}{{laterAtOnce, 2*laterAtOnce + 1, true}, {2*laterAtOnce + 1, 3*laterAtOnce + 2, true}, {3*laterAtOnce + 2, all, false}} {
		if more := f.tellLater(); more != want.more {
			t.Errorf("before %d: more %t", want.to, more)
		}
		var names []string
		for n := want.from; n < want.to; n++ {
			if n != gone && n != busy {
				names = append(names, "+"+name(n))
			}
		}
		expect("later", names...)
	}
	if f.tellLater(); len(told) > 0 || i.later.objects != nil {
		t.Errorf("told of %v again", told)
	}
}

// TestPodsAtRestAreFound: a pod that runs, and is somebody's, is found by whoever keeps it when that one looks.
func TestPodsAtRestAreFound(t *testing.T) {
	yes := true
	pod := func(change func(p *corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", OwnerReferences: []metav1.OwnerReference{{Controller: &yes}}}}
		p.Status.Phase = corev1.PodRunning
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		change(p)
		return p
	}
	sets, claims := &Interest{in: map[string]int{"a": 1}}, WithClaims()
	for what, c := range map[string]struct {
		change func(p *corev1.Pod)
		by     *Interest
		told   bool
	}{
		"at rest":      {func(*corev1.Pod) {}, sets, false},
		"not ready":    {func(p *corev1.Pod) { p.Status.Conditions = nil }, sets, true},
		"ended":        {func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, sets, true},
		"about to end": {func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }, sets, true},
		"nobody's":     {func(p *corev1.Pod) { p.OwnerReferences = nil }, sets, true},
		"held":         {func(p *corev1.Pod) { p.Finalizers = []string{"example.com/mine"} }, sets, true},
		"counted":      {func(p *corev1.Pod) { p.Finalizers = []string{batchv1.JobTrackingFinalizer} }, sets, false},
		"ended, to be counted": {func(p *corev1.Pod) {
			p.Finalizers, p.Status.Phase = []string{batchv1.JobTrackingFinalizer}, corev1.PodSucceeded
		}, sets, true},
		"of elsewhere":   {func(p *corev1.Pod) { p.Namespace, p.OwnerReferences = "b", nil }, sets, false},
		"by no interest": {func(*corev1.Pod) {}, nil, true},
		"with a claim": {func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}, claims, true},
	} {
		told := false
		i := &Informer{interest: c.by, synced: make(chan struct{})}
		if _, err := i.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) { told = true }}); err != nil {
			t.Fatal(err)
		}
		if i.tellOf(pod(c.change)); told != c.told {
			t.Errorf("%s: told of at the beginning: %t", what, told)
		}
	}
}
