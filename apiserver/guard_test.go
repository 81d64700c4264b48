package apiserver

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"

	"github.com/berth-dev/berth/fsm"
)

// brokenKind is one whose rows the server breaks over.
func brokenKind() *kind {
	k := *configMapKind()
	k.present = func(*fsm.View) presenter { return func(any, runtime.Object) error { panic("broken") } }
	k.presentChange = k.present
	return &k
}

// A watch over which the server breaks ends with an error; the others go on, and so does the server.
func TestBrokenWatchEndsAlone(t *testing.T) {
	d := newDouble(t)
	h := newHub(d, newPins(time.Now))
	var broken []string
	h.guard = func(what string, f func()) (ok bool) {
		defer func() {
			if recover() != nil {
				broken = append(broken, what)
			}
		}()
		f()
		return true
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { h.run(ctx) })
	defer running.Wait()
	defer cancel()
	begin := func(k *kind) watch.Interface {
		t.Helper()
		tb := &tables{kind: k, prefix: "/configmaps/", backend: d, pins: h.pins, hub: h, attrs: storage.DefaultNamespaceScopedAttr}
		w, err := tb.Watch(ctx, "/configmaps/default", storage.ListOptions{Recursive: true, ResourceVersion: strconv.FormatInt(d.View().Revision(), 10), Predicate: storage.Everything})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	sound, bad := begin(configMapKind()), begin(brokenKind())
	d.must(t, putConfigMap("default", "x", "1", true))
	if e := next(t, sound); e.Type != watch.Added {
		t.Errorf("the other watch: %v", e.Type)
	}
	e := next(t, bad)
	if err := apierrors.FromObject(e.Object); e.Type != watch.Error || err.(apierrors.APIStatus).Status().Code != http.StatusInternalServerError {
		t.Errorf("%v, %v", e.Type, err)
	}
	if _, open := <-bad.ResultChan(); open {
		t.Error("it goes on")
	}
	d.must(t, putConfigMap("default", "x", "2", false))
	if e := next(t, sound); e.Type != watch.Modified {
		t.Errorf("the other watch afterwards: %v", e.Type)
	}
	sound.Stop()
	if len(broken) != 1 || broken[0] != "watch" {
		t.Errorf("counted: %q", broken)
	}
}
