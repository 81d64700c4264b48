package sim

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/fsm"
)

// observer follows one server as an informer does.
type observer struct {
	server string
	pods   cache.Store
	nodes  cache.Store
}

// observe starts an observer of every server.
func (u *user) observe(ctx context.Context) (out []*observer) {
	for i, m := range u.world.servers {
		o := &observer{server: m.name, pods: cache.NewStore(cache.MetaNamespaceKeyFunc), nodes: cache.NewStore(cache.MetaNamespaceKeyFunc)}
		client := u.clients[i].CoreV1().RESTClient()
		for _, r := range []struct {
			resource string
			of       any
			into     cache.Store
		}{{"pods", &corev1.Pod{}, o.pods}, {"nodes", &corev1.Node{}, o.nodes}} {
			lw := cache.NewListWatchFromClient(client, r.resource, metav1.NamespaceAll, fields.Everything())
			reflector := cache.NewReflectorWithOptions(lw, r.of, r.into, cache.ReflectorOptions{Name: "observer of " + m.name + "'s " + r.resource})
			go reflector.RunWithContext(ctx)
		}
		out = append(out, o)
	}
	return out
}

// same says how what an observer has differs from a state.
func (o *observer) same(v *fsm.View) error {
	var errs []error
	compare := func(kind string, have cache.Store, each func(f func(key string, want any))) {
		seen := 0
		each(func(key string, want any) {
			got, ok, _ := have.GetByKey(key)
			seen++
			if !ok {
				errs = append(errs, fmt.Errorf("the observer of %s lacks %s %s", o.server, kind, key))
				return
			}
			if a, b := versionOf(got), versionOf(want); a != b {
				errs = append(errs, fmt.Errorf("the observer of %s has %s %s of revision %s, and the state of %s", o.server, kind, key, a, b))
			}
		})
		if n := len(have.ListKeys()); n != seen {
			errs = append(errs, fmt.Errorf("the observer of %s has %d %ss, and the state %d", o.server, n, kind, seen))
		}
	}
	compare("pod", o.pods, func(f func(string, any)) {
		v.Pods.Scan("", func(key string, p *corev1.Pod) bool { f(key, p); return true })
	})
	compare("node", o.nodes, func(f func(string, any)) {
		v.Nodes.Scan("", func(key string, n *corev1.Node) bool { f(key, n); return true })
	})
	return errors.Join(errs...)
}

func versionOf(o any) string {
	m, ok := o.(metav1.Object)
	if !ok {
		return "none"
	}
	return m.GetResourceVersion()
}
