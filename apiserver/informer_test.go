package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// countingTransport counts how a client begins to read config maps.
type countingTransport struct {
	http.RoundTripper
	lists, resumes *atomic.Int64
}

func (c countingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	q := r.URL.Query()
	if strings.HasSuffix(r.URL.Path, "/configmaps") && r.Method == http.MethodGet {
		switch {
		case q.Get("watch") == "" || q.Get("sendInitialEvents") == "true":
			c.lists.Add(1)
		default:
			c.resumes.Add(1)
		}
	}
	return c.RoundTripper.RoundTrip(r)
}

// TestInformerSurvivesRestart: an informer whose server goes away and comes back
// (or that finds another with the same state) goes on from the revision that it
// had, without listing again, and misses nothing.
func TestInformerSurvivesRestart(t *testing.T) {
	d := newDouble(t)
	first := start(t, d, nil)
	address := first.Addr().String()
	var lists, resumes atomic.Int64
	config := first.config(t, "root", "system:masters")
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper { return countingTransport{rt, &lists, &resumes} })
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = "value" }))
	informer := factory.Core().V1().ConfigMaps().Informer()
	var mu sync.Mutex
	var seen []string
	note := func(what string, obj any) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, what+" "+obj.(*corev1.ConfigMap).Name)
	}
	_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { note("add", o) },
		UpdateFunc: func(_, o any) { note("update", o) },
		DeleteFunc: func(o any) { note("delete", o) },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer factory.Shutdown()
	defer cancel()
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("the informer did not sync")
	}
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(seen) }

	d.must(t, configMap("default", "a", "1"))
	eventually(t, "the first change came", func() bool { return count() == 1 })
	before := lists.Load()
	first.stop()
	d.must(t, configMap("default", "b", "1"), putConfigMap("default", "a", "2", false))
	second, err := startOn(d, address, t.TempDir(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer second.stop()
	eventually(t, "the changes of the meantime came", func() bool { return count() == 3 })
	d.must(t, putConfigMap("default", "b", "2", false))
	eventually(t, "later changes came", func() bool { return count() == 4 })
	mu.Lock()
	defer mu.Unlock()
	if got := fmt.Sprint(seen); got != "[add a add b update a update b]" {
		t.Errorf("seen %s", got)
	}
	if lists.Load() != before || resumes.Load() == 0 {
		t.Errorf("%d lists after the first, %d resumed watches", lists.Load()-before, resumes.Load())
	}
}
