package server

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/rpc"
)

const pathOfLeases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"

// leaseAs makes a request about a lease, and returns the answer.
func leaseAs(t *testing.T, c *testCluster, s *Server, method, path string, in *coordinationv1.Lease, want int) *coordinationv1.Lease {
	t.Helper()
	body := []byte(nil)
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			t.Fatal(err)
		}
	}
	code, answer := c.call(s, method, path, string(body), true)
	if code != want {
		t.Fatalf("%s %s: %d %s", method, path, code, answer)
	}
	out := new(coordinationv1.Lease)
	if err := json.Unmarshal([]byte(answer), out); code < 300 && err != nil {
		t.Fatal(err)
	}
	return out
}

// leasesAreRenewed: what changes nothing but the time of a node's lease is no entry of the log, is seen by everybody who
// reads the lease, and is never mixed up with what is stored.
func leasesAreRenewed(t *testing.T, c *testCluster) {
	leader, follower := c.leader(), c.followers()[0]
	begun := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(seconds int) *metav1.MicroTime {
		renewed := metav1.NewMicroTime(begun.Add(time.Duration(seconds) * time.Second))
		return &renewed
	}
	holder := "k1"
	lease := leaseAs(t, c, leader, http.MethodPost, pathOfLeases, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "k1"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: at(0)},
	}, http.StatusCreated)
	one := pathOfLeases + "/k1"
	stored := func() *coordinationv1.Lease {
		o, ok := leader.View().Objects.Get(nodeLease("k1"))
		if !ok {
			t.Fatal("there is no lease")
		}
		return o.Value.(*coordinationv1.Lease)
	}
	for i, s := range []*Server{leader, follower, follower, leader} {
		renewed := lease.DeepCopy()
		renewed.Spec.RenewTime = at(10 * (i + 1))
		answer := leaseAs(t, c, s, http.MethodPut, one, renewed, http.StatusOK)
		if answer.ResourceVersion != lease.ResourceVersion || !answer.Spec.RenewTime.Equal(renewed.Spec.RenewTime) {
			t.Errorf("renewal %d is answered with %+v", i, answer)
		}
		for _, reader := range c.servers {
			if got := leaseAs(t, c, reader, http.MethodGet, one, nil, http.StatusOK); !got.Spec.RenewTime.Equal(renewed.Spec.RenewTime) || got.ResourceVersion != lease.ResourceVersion {
				t.Errorf("after renewal %d %s says %v at %s", i, reader.Name(), got.Spec.RenewTime, got.ResourceVersion)
			}
		}
		if now := stored(); now.ResourceVersion != lease.ResourceVersion || !now.Spec.RenewTime.Equal(at(0)) {
			t.Errorf("renewal %d is in the log: %+v", i, now)
		}
		if _, ok := leader.renewals.seen("k1"); !ok {
			t.Errorf("the leader has not heard of renewal %d", i)
		}
	}

	// Whoever changes something else does not take the renewal back, and ends what was remembered of the lease before.
	labelled := leaseAs(t, c, follower, http.MethodGet, one, nil, http.StatusOK)
	labelled.Labels, labelled.Spec.RenewTime = map[string]string{"a": "b"}, at(0)
	answer := leaseAs(t, c, follower, http.MethodPut, one, labelled, http.StatusOK)
	if now := stored(); answer.ResourceVersion == lease.ResourceVersion || !now.Spec.RenewTime.Equal(at(40)) || now.Labels["a"] != "b" {
		t.Errorf("what is stored is %+v", now)
	}
	late := lease.DeepCopy()
	late.Spec.RenewTime = at(50)
	leaseAs(t, c, follower, http.MethodPut, one, late, http.StatusConflict)
	leaseAs(t, c, leader, http.MethodPut, one, late, http.StatusConflict)
	other := "somebody"
	taken := answer.DeepCopy()
	taken.Spec.HolderIdentity, taken.Spec.RenewTime = &other, at(60)
	if taken = leaseAs(t, c, follower, http.MethodPut, one, taken, http.StatusOK); *stored().Spec.HolderIdentity != other {
		t.Error("another holder is not stored")
	}

	// Elsewhere every renewal counts: who else wants such a lease goes by its resource version.
	const elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
	app := leaseAs(t, c, leader, http.MethodPost, elsewhere, &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: at(0)},
	}, http.StatusCreated)
	renewed := app.DeepCopy()
	renewed.Spec.RenewTime = at(10)
	if got := leaseAs(t, c, leader, http.MethodPut, elsewhere+"/app", renewed, http.StatusOK); got.ResourceVersion == app.ResourceVersion {
		t.Error("the renewal of a lease that stands for no node is not stored")
	}
	leaseAs(t, c, leader, http.MethodDelete, one, nil, http.StatusOK)
	eventually(t, "the leader to forget", func() bool { _, ok := leader.renewals.seen("k1"); return !ok })
}

// A lease that is only renewed is stored now and then.
func TestRenewalsAreStoredNowAndThen(t *testing.T) {
	var h renewals
	r := func(version string, at int64) *rpc.RenewalRequest {
		return &rpc.RenewalRequest{Node: "n", UID: "u", ResourceVersion: version, RenewedUnixMicro: at}
	}
	bound := storeRenewal.Nanoseconds()
	for i, step := range []struct {
		version string
		now     int64
		taken   bool
	}{
		{"1", 0, true}, {"1", bound - 1, true}, {"1", bound, false}, {"1", bound + 1, false}, {"2", bound + 2, true}, {"2", 2 * bound, true}, {"2", 2*bound + 2, false},
	} {
		if got := h.take(r(step.version, step.now+1), step.now); got != step.taken {
			t.Errorf("step %d: %v", i, got)
		}
	}
	if got := h.newest(r("2", 0)); got != 2*bound+1 {
		t.Errorf("the newest is %d", got)
	}
	if newest := 2*bound + 1; !h.take(r("2", newest-1000), 2*bound) || h.newest(r("2", 0)) != newest {
		t.Errorf("one that was overtaken takes back another: %d", h.newest(r("2", 0)))
	}
	if before := 2*bound - time.Minute.Microseconds(); !h.take(r("2", before), 2*bound) || h.newest(r("2", 0)) != before {
		t.Errorf("the node's clock was set back, and it is shown as renewed at %d", h.newest(r("2", 0)))
	}
	if got := h.newest(r("1", 0)); got != 0 {
		t.Errorf("of what is stored no more there is %d", got)
	}
	if at, ok := h.seen("n"); !ok || at != 2*bound {
		t.Errorf("seen at %d, %v", at, ok)
	}
	h.clear()
	if _, ok := h.seen("n"); ok {
		t.Error("another leadership remembers")
	}
}
