package apiserver

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	restclient "k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/apis/batch"
	core "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
)

// TestManagersOfManyFields: every write walks through what each manager manages, so all of them together have a bound; what is stored
// already may be written on, but gets no manager more.
func TestManagersOfManyFields(t *testing.T) {
	s := start(t, newDouble(t), nil)
	ctx := t.Context()
	maps := s.client(t).CoreV1().ConfigMaps("default")
	o := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "many"}, Data: numbered(maxEntries)}
	body, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	force := true
	apply := func(manager int) error {
		_, err := maps.Patch(ctx, "many", types.ApplyYAMLPatchType, body, metav1.PatchOptions{FieldManager: fmt.Sprint("m", manager), Force: &force})
		return err
	}
	n := 0
	for err = apply(n); err == nil && n < 8; err = apply(n) {
		n++
	}
	if n != 3 { // two values for each key, and three and a half such sets would be too many
		t.Errorf("%d managers manage the same 16384 fields", n)
	}
	wantStatus(t, err, 422, "managers may manage 131072 fields together")
	if _, err := maps.Patch(ctx, "many", types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`), metav1.PatchOptions{FieldManager: "m0"}); err != nil {
		t.Errorf("who manages some: %v", err)
	}
}

// TestPortsOfServices: a controller writes what is behind each port for each pod.
func TestPortsOfServices(t *testing.T) {
	ports := make([]core.ServicePort, maxServicePorts+1)
	ends := make([]core.EndpointPort, maxServicePorts+1)
	slice := make([]discovery.EndpointPort, maxServicePorts+1)
	for what, o := range map[string]func(n int) runtime.Object{
		"spec.ports":       func(n int) runtime.Object { return &core.Service{Spec: core.ServiceSpec{Ports: ports[:n]}} },
		"subsets[0].ports": func(n int) runtime.Object { return &core.Endpoints{Subsets: []core.EndpointSubset{{Ports: ends[:n]}}} },
		"ports":            func(n int) runtime.Object { return &discovery.EndpointSlice{Ports: slice[:n]} },
	} {
		if err := checkLimits(o(maxServicePorts)); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		wantStatus(t, checkLimits(o(maxServicePorts+1)), 422, what+": Too many: 513: must have at most 512 items")
	}
	cron := &batch.CronJob{Spec: batch.CronJobSpec{Schedule: strings.Repeat("*", maxSchedule)}}
	if err := checkLimits(cron); err != nil {
		t.Error(err)
	}
	cron.Spec.Schedule += "*"
	wantStatus(t, checkLimits(cron), 422, "spec.schedule: Too long: may not be more than 1024 bytes")
}

// TestLongTokens: who shows a long text instead of a token is refused before anybody reads it.
func TestLongTokens(t *testing.T) {
	s := share(t)
	for name, value := range map[string]string{"Authorization": "Bearer " + strings.Repeat("x", maxTokenBytes), "Sec-Websocket-Protocol": strings.Repeat("x", maxTokenBytes+1)} {
		config := s.anonymous()
		config.WrapTransport = func(next http.RoundTripper) http.RoundTripper { return showing{next, name, value} }
		client, err := restclient.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		if code, body := get(t, client, "https://"+s.Addr().String()+"/api/v1/pods"); code != 401 || !strings.Contains(body, "and may have 16384") {
			t.Errorf("%s: %d %s", name, code, body)
		}
	}
}

// showing shows something of its own in a header.
type showing struct {
	next        http.RoundTripper
	name, value string
}

// RoundTrip implements http.RoundTripper.
func (s showing) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set(s.name, s.value)
	return s.next.RoundTrip(r)
}

// TestWhatIsOwed: who has one dear object written owes it beside his account, and no more than paceDeepDebt; it is
// waited for only while somebody else asks.
func TestWhatIsOwed(t *testing.T) {
	p := pace{share: 1}
	p.charge("ann", time.Hour)
	if got := -p.accounts["ann"].left; got != paceDebt {
		t.Errorf("by charges %s are owed", got)
	}
	p.owe("ann", time.Hour)
	if wait := p.tryOwed("ann"); wait != 0 {
		t.Errorf("while nobody else asks he waits for %s", wait)
	}
	p.ask("bob")
	if wait := p.tryOwed("ann"); wait < time.Second || wait > paceDeepDebt {
		t.Errorf("by one object he waits for %s", wait)
	}
	if wait := p.tryOwed("bob"); wait != 0 {
		t.Errorf("who owes nothing waits for %s", wait)
	}
	if left := p.accounts["ann"].left; left < -paceDebt {
		t.Errorf("his account holds %s by it", left)
	}
}
