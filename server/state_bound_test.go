package server

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// TestReserve: who may go beyond the bound, for what, and how far.
func TestReserve(t *testing.T) {
	const most = 1000
	for _, tt := range []struct {
		kind                 fsm.GrowthKind
		anybody, keeper, own int64
	}{
		{fsm.GrowsAsNeeded, 100, 100, 100},
		{fsm.GrowsSlightly, 50, 100, 100},
		{fsm.GrowsInPlace, 0, 100, 100},
		{fsm.GrowsByObjects, 0, 0, 100},
		{fsm.GrowsByPods, 0, 0, 0},
	} {
		for who, want := range map[proposer]int64{anybody: tt.anybody, keeper: tt.keeper, berth: tt.own} {
			if got := reserved(tt.kind, who, most); got != want {
				t.Errorf("kind %d, proposer %d: %d beyond the bound, want %d", tt.kind, who, got, want)
			}
		}
	}
	for _, tt := range []struct {
		p    fsm.Proposal
		here bool
		want proposer
	}{
		{fsm.Proposal{User: "ada", Groups: []string{"system:masters"}}, false, anybody},
		{fsm.Proposal{User: "system:serviceaccount:kube-system:job-controller"}, false, anybody},
		{fsm.Proposal{User: "system:serviceaccount:kube-system:job-controller"}, true, keeper},
		{fsm.Proposal{User: "system:node:n1", Groups: []string{access.Nodes}}, false, keeper},
		{fsm.Proposal{User: workerUser("w1"), Groups: workerGroups}, false, keeper},
		{fsm.Proposal{User: systemUser, Groups: systemGroups}, false, berth},
	} {
		if got := whoIs(tt.p, tt.here); got != tt.want {
			t.Errorf("%+v, here %t: %d, want %d", tt.p, tt.here, got, tt.want)
		}
	}
}

// fullCluster are two servers of which one takes little.
type fullCluster struct {
	*testCluster
	leader, follower *Server
}

const littleState = 8 << 20

func newFullCluster(t *testing.T) *fullCluster {
	c := &fullCluster{testCluster: newTestCluster(t)}
	for name, most := range map[string]int64{"a": littleState, "b": 1 << 30} {
		c.start(name, func(cfg *Config) { cfg.BootstrapExpect, cfg.MaxState = 2, most })
	}
	c.leader = c.testCluster.leader()
	c.follower = c.followers()[0]
	for _, s := range c.servers {
		eventually(t, "the servers to have told what they take", func() bool { return s.maxState() == littleState })
	}
	return c
}

// ask makes a request of an administrator's.
func (c *fullCluster) ask(s *Server, method, path, contentType, body string) (int, http.Header, string) {
	c.t.Helper()
	r, err := http.NewRequestWithContext(c.t.Context(), method, "https://"+s.HTTPAddr()+path, bytes.NewBufferString(body))
	if err != nil {
		c.t.Error(err)
		return 0, nil, ""
	}
	r.Header.Set("Authorization", "Bearer "+token)
	r.Header.Set("Content-Type", contentType)
	resp, err := c.http.Do(r)
	if err != nil {
		c.t.Error(err)
		return 0, nil, ""
	}
	defer func() { _ = resp.Body.Close() }() // it was read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Error(err)
	}
	return resp.StatusCode, resp.Header, string(b)
}

const (
	jsonType     = "application/json"
	patchType    = "application/merge-patch+json"
	configMaps   = "/api/v1/namespaces/default/configmaps"
	replicaSets  = "/apis/apps/v1/namespaces/default/replicasets"
	oneFinalizer = `,"finalizers":["example.com/hold"]`
)

func configMapOf(name, more string, bytes int) string {
	return fmt.Sprintf(`{"metadata":{"name":%q%s},"data":{"d":%q}}`, name, more, strings.Repeat("x", bytes))
}

func (c *fullCluster) create(s *Server, name, more string, bytes int) (int, http.Header, string) {
	c.t.Helper()
	return c.ask(s, http.MethodPost, configMaps, jsonType, configMapOf(name, more, bytes))
}

// must is for what has to be done.
func (c *fullCluster) must(code int, _ http.Header, body string) string {
	c.t.Helper()
	if code/100 != 2 {
		c.t.Fatalf("%d: %.400s", code, body)
	}
	return body
}

// fill makes config maps, ever smaller ones, until there is room for none.
func (c *fullCluster) fill() (made []string) {
	c.t.Helper()
	for _, size := range []int{700_000, 50_000, 2000} {
		for n := 0; ; n++ {
			name := fmt.Sprintf("fill-%d-%d", size, n)
			code, _, body := c.create(c.servers[n%2], name, "", size)
			if code == http.StatusTooManyRequests {
				break
			}
			c.must(code, nil, body)
			made = append(made, name)
		}
	}
	return made
}

// TestAFullState: what makes a full state larger is refused on every server, and told; all else goes on, and the state
// can be emptied.
func TestAFullState(t *testing.T) {
	c := newFullCluster(t)
	worker := func(name string) {
		node := workerNode(name)
		node.Labels = map[string]string{"name": name}
		raw, err := node.Marshal()
		if err == nil {
			err = c.follower.WorkerHello(t.Context(), &rpc.Hello{Name: name, Node: raw})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	worker("w1")
	c.propose(c.leader, admit("runs", "w1"))
	later := admit("later", "")
	later.Pod.Object.Spec.NodeSelector = map[string]string{"name": "w2"}
	c.propose(c.leader, later)
	c.must(c.create(c.leader, "held", oneFinalizer, 10))
	c.must(c.ask(c.leader, http.MethodPost, replicaSets, jsonType, `{"metadata":{"name":"rs"},"spec":{"replicas":1,"selector":{"matchLabels":{"app":"rs"}},`+
		`"template":{"metadata":{"labels":{"app":"rs"}},"spec":{"containers":[{"name":"main","image":"none"}]}}}}`))
	await(t, c.leader, "the workload's pod", func(v *fsm.View) bool { return v.Pods.Len() == 3 })

	made := c.fill()
	for _, s := range c.servers {
		code, header, body := c.create(s, "more", "", 5000)
		if code != http.StatusTooManyRequests || header.Get("Retry-After") == "" || !strings.Contains(body, "8.0 MiB (server.max_state)") {
			t.Errorf("by way of %s: %d %v %.400s", s.Name(), code, header, body)
		}
	}
	if code, _, _ := c.ask(c.leader, http.MethodPatch, configMaps+"/"+made[0], patchType, configMapOf(made[0], "", 900_000)); code != http.StatusTooManyRequests {
		t.Errorf("an object that becomes much larger: %d", code)
	}
	c.goesOn(worker)
	c.isTold()

	for i, name := range made {
		c.must(c.ask(c.servers[i%2], http.MethodDelete, configMaps+"/"+name, jsonType, ""))
	}
	await(t, c.leader, "the workload's second pod", func(v *fsm.View) bool { return v.Pods.Len() == 4 })
	for _, s := range c.servers {
		c.must(c.create(s, "more-of-"+s.Name(), "", 5000))
	}
	if n := c.leader.bound.underWay; n != 0 {
		t.Errorf("%d bytes are under way", n)
	}
}

// goesOn: what a full cluster does all the same.
func (c *fullCluster) goesOn(worker func(name string)) {
	t := c.t
	t.Helper()
	c.must(c.ask(c.follower, http.MethodGet, configMaps+"/held", jsonType, ""))
	status, err := (&corev1.PodStatus{Phase: corev1.PodRunning, Message: strings.Repeat("x", 4000)}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	err = c.follower.WorkerStatus(t.Context(), "w1", &rpc.StatusBatch{Pods: []rpc.PodReport{{Namespace: "default", Name: "runs", UID: "uid-runs", Status: status}}})
	if p, _ := c.follower.View().Pods.Get("default/runs"); err != nil || p.Status.Phase != corev1.PodRunning {
		t.Errorf("the status of a pod: %v: %s", err, p.Status.Phase)
	}
	worker("w2")
	await(t, c.leader, "a pod to be placed", func(v *fsm.View) bool { p, _ := v.Pods.Get("default/later"); return p.Spec.NodeName == "w2" })
	c.must(c.ask(c.leader, http.MethodPatch, configMaps+"/held", patchType, `{"metadata":{"annotations":{"a":"b"}}}`))
	c.must(c.ask(c.follower, http.MethodDelete, configMaps+"/held", jsonType, ""))
	c.must(c.ask(c.follower, http.MethodPatch, configMaps+"/held", patchType, `{"metadata":{"finalizers":null}}`))
	if _, there := c.leader.View().Objects.Get("configmaps/default/held"); there {
		t.Error("a config map without finalizers is still there")
	}
	c.must(c.ask(c.leader, http.MethodPatch, replicaSets+"/rs", patchType, `{"spec":{"replicas":2}}`))
	await(t, c.leader, "the workload to say what is wrong", func(v *fsm.View) bool {
		o, _ := v.Objects.Get("replicasets/default/rs")
		return slices.ContainsFunc(o.Value.(*appsv1.ReplicaSet).Status.Conditions, func(c appsv1.ReplicaSetCondition) bool {
			return c.Type == appsv1.ReplicaSetReplicaFailure && strings.Contains(c.Message, "server.max_state")
		})
	})
	await(t, c.leader, "an event of it", func(v *fsm.View) (told bool) {
		v.Events.Scan("default/rs", func(_ string, e *corev1.Event) bool {
			told = e.Reason == "FailedCreate" && strings.Contains(e.Message, "server.max_state")
			return !told
		})
		return told
	})
	c.must(c.ask(c.leader, http.MethodDelete, "/api/v1/namespaces/default/pods/runs", jsonType, ""))
}

func (c *fullCluster) isTold() {
	t := c.t
	t.Helper()
	status := c.follower.Status()
	if status.MaxStateBytes != littleState || status.StateBytes < littleState/100*90 || status.StateBytes > littleState+littleState/reservePart {
		t.Errorf("the status says %d of %d bytes", status.StateBytes, status.MaxStateBytes)
	}
	for _, says := range []string{"berth_state_bytes 8", "berth_state_bytes_limit 8.388608e+06", "berth_state_growth_refused_total"} {
		if code, body := c.call(c.leader, http.MethodGet, "/metrics", "", true); code != http.StatusOK || !strings.Contains(body, "\n"+says) {
			t.Errorf("/metrics: %d, and nothing begins with %q", code, says)
		}
	}
	if code, body := c.call(c.follower, http.MethodGet, operator.PathStatus, "", true); code != http.StatusOK || !strings.Contains(body, `"maxStateBytes":8388608`) {
		t.Errorf("the status: %d %s", code, body)
	}
}

// TestManyWritersDoNotFillMore: what is under way counts, also that of whom nobody waits for any more.
func TestManyWritersDoNotFillMore(t *testing.T) {
	c := newFullCluster(t)
	var writers sync.WaitGroup
	refused := make([]int, 32)
	for i := range refused {
		writers.Go(func() {
			for n := range 4 {
				ctx, cancel := context.WithCancel(t.Context())
				if n == 3 {
					cancel()
				}
				cm := &corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("w-%d-%d", i, n), UID: types.UID(fmt.Sprint(i, n))},
					Data:       map[string]string{"d": strings.Repeat("x", 200_000)},
				}
				raw, err := cm.Marshal()
				if err != nil {
					t.Error(err)
				}
				rs, err := c.servers[i%2].Propose(ctx, fsm.Proposal{User: "test", Groups: systemGroups, Command: &fsm.PutObject{Resource: "configmaps", Raw: raw, Create: true}})
				cancel()
				if err == nil && rs[0].Code == http.StatusTooManyRequests {
					refused[i]++
				} else if err != nil && n < 3 || err == nil && rs[0].Refused() {
					t.Errorf("%v %v", rs, err)
				}
			}
		})
	}
	writers.Wait()
	eventually(t, "nothing to be under way", func() bool {
		c.leader.bound.mu.Lock()
		defer c.leader.bound.mu.Unlock()
		return c.leader.bound.underWay == 0
	})
	v := c.leader.View()
	if v.Bytes() > littleState || v.Bytes() < littleState-(1<<20) || slices.Max(refused) == 0 {
		t.Errorf("the state has %d bytes, of %d; refused were %v", v.Bytes(), littleState, refused)
	}
	var small bytes.Buffer
	if err := fsm.NewState().View().Write(&small); err != nil {
		t.Fatal(err)
	}
	if _, err := c.follower.spoolSnapshot(&small); err != nil {
		t.Errorf("a small snapshot: %v", err)
	}
	if err := c.follower.checkRestored(littleState + littleState/reservePart + 1); err == nil || !strings.Contains(err.Error(), "server.max_state") {
		t.Errorf("a snapshot of more than a server takes: %v", err)
	}
}
