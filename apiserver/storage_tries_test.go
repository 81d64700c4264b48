package apiserver

import (
	"context"
	"net/http"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/fsm"
)

// contested is a backend in which somebody else is always faster: before every
// proposal the object is changed.
type contested struct {
	*double
	t     *testing.T
	tries int
}

func (c *contested) Propose(ctx context.Context, ps ...fsm.Proposal) ([]fsm.Result, error) {
	c.tries++
	c.must(c.t, putConfigMap("default", "x", strconv.Itoa(c.tries), false))
	return c.double.Propose(ctx, ps...)
}

// TestNoWriteTriesForEver: a write whose object is changed by others again and
// again ends with the conflict, and validates nothing but what it would write.
func TestNoWriteTriesForEver(t *testing.T) {
	d := newDouble(t)
	d.must(t, putConfigMap("default", "x", "0", true))
	c := &contested{double: d, t: t}
	tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: c, pins: newPins(time.Now), attrs: storage.DefaultNamespaceScopedAttr}
	seen := map[string]bool{}
	update := func(obj runtime.Object, _ storage.ResponseMeta) (runtime.Object, *uint64, error) {
		m := obj.(*core.ConfigMap)
		seen[m.Labels["value"]] = true
		m.Labels = map[string]string{"value": "mine"}
		return m, nil, nil
	}
	err := tb.GuaranteedUpdate(t.Context(), "/configmaps/default/x", &core.ConfigMap{}, false, nil, update, nil)
	wantStatus(t, err, http.StatusConflict, "the object has been modified")
	if c.tries != maxTries+1 || len(seen) != c.tries {
		t.Errorf("%d tries, on %d states", c.tries, len(seen))
	}
	c.tries = 0
	clear(seen)
	validate := func(_ context.Context, obj runtime.Object) error {
		seen[obj.(metav1.Object).GetLabels()["value"]] = true
		return nil
	}
	err = tb.Delete(t.Context(), "/configmaps/default/x", &core.ConfigMap{}, nil, validate, nil, storage.DeleteOptions{})
	wantStatus(t, err, http.StatusConflict, "the object has been modified")
	if c.tries != maxTries+1 || len(seen) < maxTries {
		t.Errorf("%d tries, on %d states", c.tries, len(seen))
	}
	if v, _ := d.View().Objects.Get(fsm.ObjectKey("configmaps", "default", "x")); v == nil {
		t.Error("it was deleted without being validated")
	}
}
