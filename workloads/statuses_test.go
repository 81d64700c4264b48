package workloads

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	deploymentutil "k8s.io/kubernetes/pkg/controller/deployment/util"
)

// TestStatusesLater: what others ask of a Deployment is told at once, and statuses are a while later, several as one, and each is told once.
func TestStatusesLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var told []string
		h := &statusHandler{waits: map[types.UID]bool{}, ResourceEventHandler: cache.ResourceEventHandlerDetailedFuncs{
			AddFunc: func(o any, _ bool) { told = append(told, "add "+o.(*appsv1.Deployment).Name) },
			UpdateFunc: func(_, now any) {
				mu.Lock()
				defer mu.Unlock()
				told = append(told, now.(*appsv1.Deployment).Name)
			},
			DeleteFunc: func(o any) { told = append(told, "delete "+o.(*appsv1.Deployment).Name) },
		}}
		heard := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if slices.Sort(told); !slices.Equal(told, want) { // of one moment in any order: who is told reads the newest
				t.Errorf("%s it hears of %q, and not of %q", what, told, want)
			}
			told = nil
		}
		d := func(name string, change func(d *appsv1.Deployment)) *appsv1.Deployment {
			d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, Annotations: map[string]string{"a": "b"}}}
			change(d)
			return d
		}
		as := func(replicas int32) func(d *appsv1.Deployment) {
			return func(d *appsv1.Deployment) { d.Status.Replicas = replicas }
		}
		h.OnAdd(d("web", as(0)), false)
		heard("at once", "add web")
		h.OnUpdate(d("web", as(0)), d("web", as(1)))
		h.OnUpdate(d("web", as(1)), d("web", as(2)))
		h.OnUpdate(d("api", as(0)), d("api", func(d *appsv1.Deployment) { d.Annotations[deploymentutil.RevisionAnnotation] = "1" }))
		heard("at once")
		for what, change := range map[string]func(d *appsv1.Deployment){
			"the spec": func(d *appsv1.Deployment) { d.Generation = 2 }, "the end": func(d *appsv1.Deployment) { d.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} },
			"a label": func(d *appsv1.Deployment) { d.Labels = map[string]string{"a": "b"} }, "an annotation": func(d *appsv1.Deployment) { d.Annotations["a"] = "c" },
			"another one": func(d *appsv1.Deployment) { d.UID = "other" },
		} {
			h.OnUpdate(d("web", as(2)), d("web", change))
			heard(what, "web")
		}
		time.Sleep(statusDelay) // of the virtual time
		heard("later", "api", "web")
		h.OnUpdate(d("web", as(2)), d("web", as(3)))
		h.OnDelete(d("web", as(3)))
		heard("at once", "delete web")
		time.Sleep(statusDelay)
		heard("later", "web")
	})
}
