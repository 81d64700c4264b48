package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/api/operator"
	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/rpc"
)

// TestCluster is the life of one cluster of three, from its founding to the
// loss of its quorum.
func TestCluster(t *testing.T) {
	c := newTestCluster(t)
	authority := c.signing()
	for _, name := range []string{"a", "b", "c"} {
		c.start(name, func(cfg *Config) {
			if cfg.BootstrapExpect = 3; name != "c" {
				cfg.Authority = authority
			}
		})
	}
	c.leader()
	for _, step := range []struct {
		name string
		run  func(t *testing.T, c *testCluster)
	}{
		{"a write is seen where it was made", writeThroughAnyServer},
		{"a worker's hello brings its server up to date", helloIsABarrier},
		{"a worker is not sent what it knows", knownIsNotSent},
		{"a worker hears what concerns it", workerHears},
		{"what nodes use is known everywhere", usageIsKnownEverywhere},
		{"leases of nodes are renewed beside the log", leasesAreRenewed},
		{"operators are answered", operatorsAreAnswered},
		{"workloads are kept", workloadsAreKept},
		{"certificates are signed", certificatesAreSigned(authority)},
		{"the cluster's own services are kept", ownServicesAreKept},
		{"a group that is served here is available", localAPIServiceIsAvailable},
		{"a new leader furnishes nothing anew and goes on", newLeaderGoesOn},
		{"a server that stops loses nothing", stopLosesNothing},
		{"without a quorum nothing is done", noQuorum},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			c.t = t
			step.run(t, c)
		}) {
			break
		}
	}
	c.t = t
}

func writeThroughAnyServer(t *testing.T, c *testCluster) {
	for i, s := range c.servers {
		name := fmt.Sprintf("ns-%d", i)
		c.propose(s, namespace(name))
		if _, ok := s.View().Namespaces.Get(name); !ok {
			t.Errorf("%s does not see what was written through it", s.Name())
		}
		for _, other := range c.servers {
			if err := other.ReadIndex(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, ok := other.View().Namespaces.Get(name); !ok {
				t.Errorf("%s read after a write through %s was acknowledged, and does not see it", other.Name(), s.Name())
			}
		}
	}
}

func namespace(name string) *fsm.PutNamespace {
	return &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u"}}}}
}

// A worker that was restarted remembers no revision. It must not be told of an
// older set of pods than another server has told it: it would end the newer ones.
func helloIsABarrier(t *testing.T, c *testCluster) {
	leader, behind := c.leader(), c.followers()
	for i := range 3 * workerHellos { // one that comes more often at once is held up
		worker, pods := fmt.Sprintf("again-%d", i/workerHellos), i%workerHellos+1
		raw, err := workerNode(worker).Marshal()
		if err != nil {
			t.Fatal(err)
		}
		c.propose(leader, admit(fmt.Sprintf("again-%d", i), worker))
		for _, s := range behind {
			if err := s.WorkerHello(t.Context(), &rpc.Hello{Name: worker, Node: raw}); err != nil {
				t.Fatal(err)
			}
			a, err := s.WorkerAssignments(t.Context(), worker, 0, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(a.Pods) != pods {
				t.Fatalf("%s tells a restarted worker of %d pods, and it runs %d", s.Name(), len(a.Pods), pods)
			}
		}
	}
}

// A worker whose server is gone is sent its pods only if they are others now, or it may have missed something.
func knownIsNotSent(t *testing.T, c *testCluster) {
	const worker = "knowing"
	leader, s := c.leader(), c.followers()[0]
	raw, err := workerNode(worker).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	c.propose(leader, admit("known-1", worker))
	c.propose(leader, admit("known-2", worker))
	c.propose(leader, admit("known-elsewhere", "w2"))
	if err := s.WorkerHello(t.Context(), &rpc.Hello{Name: worker, Node: raw}); err != nil {
		t.Fatal(err)
	}
	at := s.View().Revision()
	told := func(names ...string) []byte {
		out := rpc.Told{}
		for _, name := range names {
			pod, there := s.View().Pods.Get(fsm.PodKey("default", name))
			if !there {
				t.Fatalf("there is no pod %s", name)
			}
			out.Add(pod)
		}
		return out.Sum()
	}
	both := told("known-1", "known-2")
	expect := func(what string, since int64, sum []byte, pods int) {
		t.Helper()
		a, err := s.WorkerAssignments(t.Context(), worker, since, sum)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if a.Full != (pods > 0) || len(a.Pods) != pods || len(a.Node) == 0 || a.Revision < at {
			t.Errorf("%s: it is sent %d pods, want %d; full %t, its labels %d bytes, at revision %d of %d", what, len(a.Pods), pods, a.Full, len(a.Node), a.Revision, at)
		}
	}
	c.propose(leader, admit("known-later", "w2"))
	expect("it knows them", at, both, 0)
	expect("it was told of one", at, told("known-1"), 2)
	expect("it was told of more", at, told("known-1", "known-2", "known-elsewhere"), 2)
	expect("it was told of nothing", at, nil, 2)
	expect("it says nonsense", at, []byte("nonsense"), 2)
	expect("it remembers no revision", 0, both, 2)
	c.propose(leader, admit("known-3", worker))
	if err := s.WorkerHello(t.Context(), &rpc.Hello{Name: worker, Node: raw}); err != nil { // a barrier
		t.Fatal(err)
	}
	expect("there is another", at, both, 3)
	expect("it missed how that came to be", at, told("known-1", "known-2", "known-3"), 3)
	expect("it missed nothing", s.View().Revision(), told("known-1", "known-2", "known-3"), 0)

	// What was said of its pods meanwhile may be far back: a feed gives its changes in pieces.
	since := s.View().Revision()
	for i := range 12 {
		machine := workerNode(worker)
		machine.Annotations = map[string]string{"a": strings.Repeat(string(rune('a'+i)), 200<<10)}
		c.propose(leader, &fsm.PutNode{Node: fsm.NodeWire{Object: machine}})
	}
	catchUp := func() {
		t.Helper()
		await(t, s, "what was proposed", func(v *fsm.View) bool { return v.Revision() >= leader.View().Revision() })
	}
	catchUp()
	expect("it missed what was said of its node", since, told("known-1", "known-2", "known-3"), 0)
	c.propose(leader, &fsm.ReportPods{Node: worker, Reports: []fsm.PodReport{
		{Key: fsm.PodKey("default", "known-1"), UID: "uid-known-1", Status: fsm.PodStatusWire{Object: &corev1.PodStatus{Phase: corev1.PodRunning}}}}})
	catchUp()
	expect("it missed what was said of its pod", since, told("known-1", "known-2", "known-3"), 3)
}

func workerHears(t *testing.T, c *testCluster) {
	leader, follower := c.leader(), c.followers()[0]
	w, stop := connect(t, "w1", follower)
	defer stop()
	eventually(t, "the first assignments", func() bool { return w.full() == 1 })
	if len(w.labels(t)) == 0 {
		t.Error("a worker that comes is not told of its node's labels")
	}
	labelled, _ := follower.View().Nodes.Get("w1")
	labelled = labelled.DeepCopy()
	labelled.Labels["disk"], labelled.ResourceVersion = "ssd", ""
	c.propose(leader, &fsm.PutNode{Node: fsm.NodeWire{Object: labelled}})
	eventually(t, "the new label", func() bool { return w.labels(t)["disk"] == "ssd" })
	c.propose(leader, admit("p1", "w1"))
	c.propose(leader, admit("elsewhere", "w2"))
	eventually(t, "the pod", func() bool { return len(w.pods(t)) == 1 })

	// What it reports itself does not come back; its end does.
	status, err := (&corev1.PodStatus{Phase: corev1.PodRunning}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	w.client.Report(rpc.PodReport{Namespace: "default", Name: "p1", UID: "uid-p1", Status: status})
	await(t, leader, "the report", func(v *fsm.View) bool {
		p, ok := v.Pods.Get("default/p1")
		return ok && p.Status.Phase == corev1.PodRunning
	})
	c.propose(leader, &fsm.DeletePod{Key: "default/p1"})
	eventually(t, "the pod's end", func() bool { return len(w.pods(t)) > 1 })
	if pods := w.pods(t); len(pods) != 2 || pods[1].DeletionTimestamp == nil || pods[1].Name != "p1" {
		t.Errorf("%d pods were sent, the last one %s", len(pods), pods[len(pods)-1].Name)
	}
	w.client.Report(rpc.PodReport{Namespace: "default", Name: "p1", UID: "uid-p1", Removed: true})
	await(t, leader, "the pod to be gone", func(v *fsm.View) bool { _, ok := v.Pods.Get("default/p1"); return !ok })

	// The leader knows of the worker although its stream ends elsewhere.
	eventually(t, "the leader to hear of the worker", func() bool { _, ok := leader.beats.LastSeenUnixNano("w1"); return ok })

	// What others make of its pods is told to a worker: it knows better.
	c.propose(leader, admit("p3", "w1"))
	eventually(t, "the pod", func() bool { p := w.pods(t); return p[len(p)-1].Name == "p3" })
	w.client.Report(rpc.PodReport{Namespace: "default", Name: "p3", UID: "uid-p3", Status: readyStatus(t)})
	ready := func(want corev1.ConditionStatus) func(v *fsm.View) bool {
		return func(v *fsm.View) bool {
			p, ok := v.Pods.Get("default/p3")
			return ok && len(p.Status.Conditions) == 1 && p.Status.Conditions[0].Status == want
		}
	}
	await(t, leader, "the pod to be ready", ready(corev1.ConditionTrue))
	await(t, follower, "the pod to be ready", ready(corev1.ConditionTrue))
	seen := len(w.pods(t))
	lost := &fsm.SetNodeHealth{Nodes: []fsm.NodeHealth{{Name: "w1", Ready: "Unknown"}}}
	c.propose(leader, lost)
	eventually(t, "what the servers made of the pod", func() bool { return len(w.pods(t)) > seen })
	pods := w.pods(t)
	if last := pods[len(pods)-1]; last.Name != "p3" || last.Status.Conditions[0].Reason != "NodeNotReady" {
		t.Errorf("the worker was told of %s with %v", last.Name, last.Status.Conditions)
	}
	// Its answer comes back once, so that it knows that it was heard.
	w.client.Report(rpc.PodReport{Namespace: "default", Name: "p3", UID: "uid-p3", Status: readyStatus(t)})
	eventually(t, "the pod as it is", func() bool { return len(w.pods(t)) > len(pods) })
	if last := w.pods(t)[len(pods)]; last.Status.Conditions[0].Status != corev1.ConditionTrue {
		t.Errorf("the worker was told %v", last.Status.Conditions)
	}
	w.client.Report(rpc.PodReport{Namespace: "default", Name: "p3", UID: "uid-p3", Removed: true})

	// The node was lost and is heard again: its worker says anew what else is true of it.
	await(t, leader, "the node to be ready, and its pressure to be known", func(v *fsm.View) bool {
		n, _ := v.Nodes.Get("w1")
		return fsm.NodeReady(n) && slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeMemoryPressure && c.Status == corev1.ConditionFalse
		})
	})
	eventually(t, "the second connection's assignments", func() bool { return w.full() == 2 })

	// A status does not bring back a node that was deleted: its worker does, which registers again.
	before, _ := leader.View().Nodes.Get("w1")
	c.propose(leader, &fsm.DeleteNode{Name: "w1"})
	await(t, leader, "the node to be registered again", func(v *fsm.View) bool {
		n, ok := v.Nodes.Get("w1")
		return ok && n.UID != before.UID
	})
	nodeStatus, err := workerNode("w4").Status.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	if err := follower.WorkerStatus(t.Context(), "w4", &rpc.StatusBatch{ID: 1, NodeStatus: nodeStatus}); err != nil {
		t.Error(err)
	}
	if _, ok := follower.View().Nodes.Get("w4"); ok {
		t.Error("a status made a node")
	}

	// When the state is replaced, what happened was not pushed: workers read
	// everything anew.
	eventually(t, "the third connection's assignments", func() bool { return w.full() == 3 })
	eventually(t, "all servers to have told their version", func() bool { return leader.versionNow(t.Context()) == fsm.LogVersion })
	_, snapshot := c.call(leader, http.MethodGet, operator.PathSnapshot, "", true)
	if code, body := c.call(leader, http.MethodPut, operator.PathSnapshot, snapshot, true); code != http.StatusOK {
		t.Fatalf("restore: %d %s", code, body)
	}
	eventually(t, "a new full set", func() bool { return w.full() == 4 })
	c.propose(leader, admit("p2", "w1"))
	eventually(t, "a pod after the restore", func() bool { p := w.pods(t); return p[len(p)-1].Name == "p2" })
}

// readyStatus is what a worker reports of a pod that runs and is ready.
func readyStatus(t *testing.T) []byte {
	t.Helper()
	b, err := (&corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func operatorsAreAnswered(t *testing.T, c *testCluster) {
	leader, follower := c.leader(), c.followers()[0]
	servers := operator.PathRaftServers + "/"
	for _, tt := range []struct {
		s            *Server
		method, path string
		body         string
		want         int
		says         string
	}{
		{leader, http.MethodGet, "/api/v1/nodes", "", 200, "NodeList"}, // for what is measured of it
		{follower, http.MethodGet, operator.PathMembers, "", 200, leader.Name()},
		{follower, http.MethodGet, operator.PathStatus, "", 200, `"follower"`},
		{leader, http.MethodGet, operator.PathStatus, "", 200, `"leader"`},
		{follower, http.MethodGet, operator.PathRaftConfiguration, "", 200, `"voter"`},
		{follower, http.MethodPost, operator.PathVerify, "", 200, `"equal":true`},
		{follower, http.MethodGet, operator.PathClassDrift, "", 200, `"pods":[]`},
		{follower, http.MethodGet, operator.PathSnapshot, "", 200, ""},
		{leader, http.MethodDelete, servers + "nobody", "", 404, "no such server"},
		{leader, http.MethodDelete, servers + follower.Name(), "", 409, "alive"},
		{leader, http.MethodPut, operator.PathSnapshot, "garbage", 400, "nothing was changed"},
		{follower, http.MethodPut, operator.PathSnapshot, "garbage", 400, "not a valid snapshot"},
		{leader, http.MethodPost, operator.PathTransferLeader, "{", 400, "read the request"},
		{leader, http.MethodPost, operator.PathTransferLeader, `{"id":"nobody"}`, 404, "no such server"},
		{leader, http.MethodPost, operator.PathTransferLeader, `{"id":"` + strings.Repeat("a", operatorBytes) + `"}`, 413, "request body too large"},
		{leader, http.MethodPost, operator.PathSigningKey, `{"revoke":"` + strings.Repeat("a", operatorBytes) + `"}`, 413, "request body too large"},
		{leader, http.MethodPost, operator.PathTransferLeader, `{"id":"` + leader.Name() + `"}`, 200, leader.Name()},
		{leader, http.MethodDelete, operator.PathMembers, "", 405, ""},
		{leader, http.MethodGet, "/berth/v1/nothing", "", 404, ""},
		{leader, http.MethodGet, "/metrics", "", 200, "berth_pods "},
		{leader, http.MethodGet, "/metrics", "", 200, `scheduler_pending_pods{queue="active"}`},
		{leader, http.MethodGet, "/metrics", "", 200, "scheduler_preemption_attempts_total"}, // PR19
		{leader, http.MethodGet, "/metrics", "", 200, "berth_raft_leader 1"},
		{leader, http.MethodGet, "/metrics", "", 200, "go_goroutines "},
		{leader, http.MethodGet, "/metrics", "", 200, "apiserver_request_total{"},
		{leader, http.MethodGet, "/metrics", "", 200, `berth_handshakes_refused_total{door="rpc"} 0`},
		{leader, http.MethodGet, "/metrics", "", 200, "berth_clock_offset_seconds "},
		{follower, http.MethodGet, "/metrics", "", 200, "berth_state_time_ahead_seconds "},
	} {
		code, body := c.call(tt.s, tt.method, tt.path, tt.body, true)
		if code != tt.want || !strings.Contains(body, tt.says) {
			t.Errorf("%s %s on %s: %d %.300s, want %d with %q", tt.method, tt.path, tt.s.Name(), code, body, tt.want, tt.says)
		}
	}
	for _, path := range []string{operator.PathMembers, operator.PathSnapshot, "/metrics"} {
		if code, _ := c.call(leader, http.MethodGet, path, "", false); code != http.StatusUnauthorized {
			t.Errorf("%s answers %d to somebody unknown, want 401", path, code)
		}
	}
}

func newLeaderGoesOn(t *testing.T, c *testCluster) {
	before := c.leader()
	made, _ := before.View().PriorityClasses.Get("system-node-critical")
	config, _ := before.View().Config.Get(before.config.Scheduler.Name)
	w, stop := connect(t, "w3", before)
	defer stop()
	eventually(t, "the worker", func() bool { return w.full() == 1 })
	if code, body := c.call(before, http.MethodPost, operator.PathTransferLeader, "", true); code != http.StatusOK {
		t.Fatalf("transfer: %d %s", code, body)
	}
	eventually(t, "another leader", func() bool { l := c.leader(); return l != before })
	after := c.leader()
	c.propose(before, admit("late", "")) // by way of the follower that it is now
	await(t, after, "the new leader to place a pod", func(v *fsm.View) bool {
		p, ok := v.Pods.Get("default/late")
		return ok && p.Spec.NodeName == "w3"
	})
	eventually(t, "the worker to be told", func() bool { return len(w.pods(t)) == 1 })
	if again, _ := after.View().PriorityClasses.Get("system-node-critical"); again.UID != made.UID || again.ResourceVersion != made.ResourceVersion {
		t.Error("the new leader made a class again")
	}
	if again, _ := after.View().Config.Get(config.Name); again.ResourceVersion != config.ResourceVersion {
		t.Error("the new leader stored its configuration again")
	}
}

// While the leader stops, writes through the others go on; what is acknowledged
// is there, once.
func stopLosesNothing(t *testing.T, c *testCluster) {
	leader, follower := c.leader(), c.followers()[0]
	var acknowledged []string
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	var writing sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			name := fmt.Sprintf("during-%d", i)
			rs, err := follower.Propose(t.Context(), fsm.Proposal{User: "test", Command: namespace(name)})
			switch {
			case err == nil && !rs[0].Refused():
				acknowledged = append(acknowledged, name)
			case err != nil && !errors.Is(err, apiserver.ErrUnknownOutcome):
				t.Errorf("%s: %v", name, err)
			}
		}
	})
	c.stop(leader)
	eventually(t, "another leader", func() bool { return c.leader() != leader })
	c.propose(follower, namespace("after"))
	enough()
	writing.Wait()
	if err := follower.ReadIndex(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range acknowledged {
		if _, ok := follower.View().Namespaces.Get(name); !ok {
			t.Errorf("%s was acknowledged and is lost", name)
		}
	}
	if err := leader.Stop(t.Context()); err == nil {
		t.Error("a server was stopped twice")
	}
	if _, err := leader.Propose(t.Context(), fsm.Proposal{Command: namespace("no")}); !errors.Is(err, apiserver.ErrNoLeader) {
		t.Errorf("a stopped server says %v, want ErrNoLeader", err)
	}
	if err := leader.ReadIndex(t.Context()); !errors.Is(err, apiserver.ErrNoLeader) {
		t.Errorf("a stopped server reads: %v, want ErrNoLeader", err)
	}
}

func noQuorum(t *testing.T, c *testCluster) {
	last := c.followers()[0]
	c.stop(c.leader())
	var asking sync.WaitGroup
	asking.Go(func() {
		if err := last.ReadIndex(t.Context()); !errors.Is(err, apiserver.ErrNoLeader) {
			t.Errorf("a read without a quorum: %v, want ErrNoLeader", err)
		}
	})
	asking.Go(func() {
		// It may have been handed the leadership, and take a moment to lose it.
		eventually(t, "ErrNoLeader for a write", func() bool {
			_, err := last.Propose(t.Context(), fsm.Proposal{User: "test", Command: namespace("lonely")})
			if !errors.Is(err, apiserver.ErrNoLeader) && !errors.Is(err, apiserver.ErrUnknownOutcome) {
				t.Errorf("a write without a quorum: %v, want ErrNoLeader", err)
			}
			return errors.Is(err, apiserver.ErrNoLeader)
		})
	})
	asking.Wait()
	c.t = t
	for path, want := range map[string]string{"/readyz?verbose": "[-]leader failed", "/api/v1/namespaces": "do not answer server " + last.Name()} {
		eventually(t, path+" to say what is missing", func() bool {
			code, body := c.call(last, http.MethodGet, path, "", true)
			return code >= 500 && strings.Contains(body, want) && (path != "/readyz?verbose" || strings.Contains(body, "[+]caught-up ok"))
		})
	}
	if code, _ := c.call(last, http.MethodGet, "/livez", "", false); code != http.StatusOK {
		t.Errorf("it lives, and /livez says %d", code)
	}
	if code, body := c.call(last, http.MethodGet, operator.PathStatus, "", true); code != http.StatusOK {
		t.Errorf("status without a quorum: %d %s", code, body)
	}
}

// TestMembership: the leader takes in servers that gossip shows, follows them
// when they move, and gives a vote to those that may have one.
func TestMembership(t *testing.T) {
	c := newTestCluster(t)
	first := c.start("a", func(cfg *Config) {
		cfg.BootstrapExpect = 1
		cfg.Autopilot = Autopilot{ServerStabilizationTime: time.Millisecond, LastContactThreshold: 10 * time.Second}
	})
	c.leader()
	voteless := c.start("b", func(cfg *Config) { cfg.NonVoter = true })
	c.start("c", nil)
	address := func(id string) string {
		for _, m := range first.node.Configuration() {
			if m.ID == id {
				return m.Address
			}
		}
		return ""
	}
	eventually(t, "both to be taken in", func() bool { return address("b") != "" && address("c") != "" })
	await(t, voteless, "the state to reach the one without a vote", func(v *fsm.View) bool { _, ok := v.Namespaces.Get("default"); return ok })

	before := address("b")
	c.stop(voteless)
	voteless = c.start("b", func(cfg *Config) { cfg.NonVoter = true })
	eventually(t, "the move to be noticed", func() bool { return address("b") == voteless.config.RaftAddr })
	if address("b") == before {
		t.Error("the server has not moved")
	}
	c.propose(voteless, namespace("moved"))

	eventually(t, "a vote for the one that may have one", func() bool { return votes(first, "c") })
	if votes(first, "b") {
		t.Error("a server has a vote that asked for none")
	}
	if code, body := c.call(first, http.MethodPost, operator.PathTransferLeader, `{"id":"b"}`, true); code != http.StatusBadRequest {
		t.Errorf("a server without a vote is made leader: %d %s", code, body)
	}
}

func votes(s *Server, id string) bool {
	for _, m := range s.node.Configuration() {
		if m.ID == id {
			return !m.NonVoter
		}
	}
	return false
}
