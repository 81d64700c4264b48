package access

import (
	"strings"
	"testing"
)

func TestMayAsk(t *testing.T) {
	who := map[string][]string{
		"nobody": nil, "ann": {"people", Authenticated}, "root": {Masters, Authenticated},
		"prometheus": {Monitoring, Authenticated}, "worker": {Workers, Authenticated}, "server": {Servers, Authenticated},
		"app": {Accounts, Accounts + ":team", Authenticated}, "grown": {Accounts, Accounts + ":team", Masters, Authenticated},
		"homeless": {Accounts, Accounts + ":team", Accounts + ":default", Authenticated},
		"odd":      {Workers, Masters, Authenticated}, // no certificate and no token is this
	}
	for _, tt := range []struct {
		ask string // verb resource-or-path [namespace]
		may string
	}{
		{"get /healthz", "nobody ann root prometheus worker server odd app grown homeless"},
		{"head /version", "nobody ann root prometheus worker server odd app grown homeless"},
		{"post /healthz", "root"},
		{"get /healthz/etcd", "root prometheus"},
		{"get /healthzz", "root"},
		{"get /api", "ann root prometheus app grown homeless"},
		{"get /apis/apps/v1", "ann root prometheus app grown homeless"},
		{"get /metrics", "root prometheus"},
		{"get /berth/v1/status", "ann root prometheus"},
		{"get /berth/v1/why", "ann root prometheus"},
		{"get /berth/v1/snapshot", "root"},
		{"put /berth/v1/snapshot", "root"},
		{"put /berth/v1/status", "root"},
		{"delete /berth/v1/raft/servers/s1", "root"},
		{"post /berth/v1/raft/transfer-leader", "root"},
		{"post /berth/v1/verify", "root"},
		{"get /berth/v1/raft/configuration", "root"},
		{"get /debug/pprof/heap", "root"},
		{"get pods default", "ann root prometheus"},
		{"list pods", "ann root prometheus"},
		{"list pods kube-system", "ann root prometheus"},
		{"create pods default", "ann root prometheus"},
		{"create pods kube-system", "root"},
		{"deletecollection pods kube-node-lease", "root"},
		{"create pods/binding default", "root"},
		{"create bindings default", "root"},
		{"update pods/status default", "root"},
		{"create pods/eviction default", "ann root prometheus"},
		{"get pods/log default", "ann root prometheus"},
		{"get pods/log kube-system", "root"},
		{"create pods/exec default", "ann prometheus root"},
		{"get secrets default", "root"},
		{"list secrets", "root"},
		{"watch secrets default", "root"},
		{"create secrets default", "root"},
		{"update nodes", "root"},
		{"delete nodes", "root"},
		{"patch nodes/status", "root"},
		{"create namespaces", "root"},
		{"create priorityclasses.scheduling.k8s.io", "root"},
		{"update schedulerconfigurations.berth.dev", "root"},
		{"get schedulerconfigurations.berth.dev", "ann root prometheus"},
		{"create events default", "root"},
		{"impersonate users", "root"},
		{"impersonate groups", "root"},
		{"create plans.berth.dev", "ann root prometheus"},
		{"update replicasets.apps/scale default", "ann root prometheus"},
		{"update replicasets.apps/status default", "root"},
		{"create selfsubjectaccessreviews.authorization.k8s.io", "ann root prometheus app grown homeless"},
		{"get /openid/v1/jwks", "ann root prometheus app grown homeless"},
		{"create tokenreviews.authentication.k8s.io", "root"},
		{"create serviceaccounts/token default", "ann root prometheus"},
		{"create serviceaccounts/token kube-system", "root"},
		{"get pods team", "ann root prometheus app grown"},
		{"watch configmaps team", "ann root prometheus app grown"},
		{"create pods team", "ann root prometheus"},
		{"get secrets team", "root"},
		{"get pods/log team", "ann root prometheus"},
		{"list nodes", "ann root prometheus"},
		{"list leases.coordination.k8s.io default", "ann root prometheus"},
	} {
		for name, groups := range who {
			want := contains(tt.may, name)
			if name == "odd" {
				want = contains(tt.may, "nobody")
			}
			if got := MayAsk(groups, false, parse(tt.ask)); got != want {
				t.Errorf("%s: %s: %v, want %v", name, tt.ask, got, want)
			}
		}
	}
}

// TestMayAskWithRoles: what was everybody's before there were roles is nobody's by the table.
func TestMayAskWithRoles(t *testing.T) {
	ann, app := []string{Authenticated}, []string{Accounts, Accounts + ":team", Authenticated}
	for ask, may := range map[string]bool{
		"get pods default": false, "get pods team": false, "create pods default": false, "create plans.berth.dev": false,
		"get /berth/v1/status": false, "get /apis/apps/v1": true, "get /healthz": true, "get /openid/v1/jwks": true,
		"create selfsubjectaccessreviews.authorization.k8s.io": true, "create selfsubjectrulesreviews.authorization.k8s.io": true,
	} {
		for _, groups := range [][]string{ann, app} {
			if got := MayAsk(groups, true, parse(ask)); got != may {
				t.Errorf("%v: %s: %v, want %v", groups, ask, got, may)
			}
		}
		if !MayAsk([]string{Masters}, true, parse(ask)) {
			t.Errorf("masters may not %s", ask)
		}
	}
}

func contains(list, name string) bool { return strings.Contains(" "+list+" ", " "+name+" ") }

func parse(s string) Request {
	f := append(strings.Fields(s), "")
	if strings.HasPrefix(f[1], "/") {
		return Request{Verb: f[0], Path: f[1]}
	}
	r := Request{Verb: f[0], Namespace: f[2]}
	r.Resource, r.Subresource, _ = strings.Cut(f[1], "/")
	r.Resource, r.Group, _ = strings.Cut(r.Resource, ".")
	return r
}

func TestMayCall(t *testing.T) {
	for _, tt := range []struct {
		group, method string
		want          bool
	}{
		{Workers, "/berth.rpc.Worker/Connect", true},
		{Workers, "/berth.rpc.Server/Forward", false},
		{Workers, "/berth.rpc.Server/Tunnel", false},
		{Workers, "/berth.rpc.Worker/Other", false},
		{Servers, "/berth.rpc.Server/Forward", true},
		{Servers, "/berth.rpc.Worker/Connect", true},
		{Masters, "/berth.rpc.Worker/Connect", false},
		{Masters, "/berth.rpc.Server/Status", false},
		{Authenticated, "/berth.rpc.Server/Status", false},
		{"", "/berth.rpc.Server/Status", false},
	} {
		if got := MayCall([]string{tt.group}, tt.method); got != tt.want {
			t.Errorf("%s calls %s: %v, want %v", tt.group, tt.method, got, tt.want)
		}
	}
}
