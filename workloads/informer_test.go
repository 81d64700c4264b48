package workloads

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	podcontroller "k8s.io/kubernetes/pkg/controller"
	"k8s.io/kubernetes/pkg/controller/history"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/informers"
	"github.com/berth-dev/berth/informers/worldtest"
)

// TestTheIndexIsClientGos: what a lister reads from the state is what it would read from
// client-go's own store of the same objects, by every index.
func TestTheIndexIsClientGos(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := worldtest.New(t)
		for range rapid.IntRange(0, 40).Draw(t, "steps") {
			w.Step(t)
		}
		for _, r := range []*informers.Rows{pods(), revisions(), informers.Plain("statefulsets"), informers.Plain(fsm.VolumeClaims)} {
			ours := informers.New(r, w.View)
			if err := ours.AddIndexers(indexers()); err != nil {
				t.Fatalf("%v", err)
			}
			theirs := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
			if err := theirs.AddIndexers(indexers()); err != nil {
				t.Fatalf("%v", err)
			}
			for _, o := range ours.List() {
				if err := theirs.Add(o); err != nil {
					t.Fatalf("%v", err)
				}
			}
			for name := range theirs.GetIndexers() {
				for _, value := range append(theirs.ListIndexFuncValues(name), "nobody") {
					equal(t, ours, theirs, name, value)
				}
			}
			for _, key := range append(theirs.ListKeys(), "a/none") {
				x, okX, _ := ours.GetByKey(key)
				y, okY, _ := theirs.GetByKey(key)
				if x != y || okX != okY {
					t.Fatalf("%s is %v and %v", key, x, y)
				}
			}
		}
	})
}

func equal(t *rapid.T, ours, theirs cache.Indexer, name, value string) {
	x, errX := ours.ByIndex(name, value)
	y, errY := theirs.ByIndex(name, value)
	set := func(list []any) map[any]bool {
		m := map[any]bool{}
		for _, o := range list {
			m[o] = true
		}
		return m
	}
	if errX != nil || errY != nil || len(x) != len(y) || !reflect.DeepEqual(set(x), set(y)) {
		t.Fatalf("%s of %s: %d objects and %d (%v, %v)", name, value, len(x), len(y), errX, errY)
	}
	keysX, _ := ours.IndexKeys(name, value)
	keysY, _ := theirs.IndexKeys(name, value)
	if len(keysX) != len(keysY) {
		t.Fatalf("%s of %s: keys %v and %v", name, value, keysX, keysY)
	}
}

// indexers are those that Kubernetes' controllers ask for, and one that the state does
// not have.
func indexers() cache.Indexers {
	return cache.Indexers{
		podcontroller.PodControllerIndex: func(o any) ([]string, error) {
			if pod, ok := o.(*corev1.Pod); ok {
				return []string{podcontroller.PodControllerIndexKey(pod.Namespace, metav1.GetControllerOf(pod))}, nil
			}
			return nil, nil
		},
		podcontroller.PodNodeNameKeyIndex: func(o any) ([]string, error) {
			if pod, ok := o.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
				return []string{pod.Spec.NodeName}, nil
			}
			return nil, nil
		},
		history.ControllerRevisionControllerIndex: func(o any) ([]string, error) {
			if r, ok := o.(*appsv1.ControllerRevision); ok {
				return []string{history.ControllerRevisionControllerIndexKey(r.Namespace, metav1.GetControllerOf(r))}, nil
			}
			return nil, nil
		},
		"name": func(o any) ([]string, error) { return []string{o.(metav1.Object).GetName()}, nil },
	}
}
