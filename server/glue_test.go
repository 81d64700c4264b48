package server

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/apiserver/tokens"
	"github.com/berth-dev/berth/apiserver/vault"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/model"
	"github.com/berth-dev/berth/raftnode"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/store"
)

// What consensus and other servers say keeps its meaning for the API: above all,
// nothing that may have been done is told as not done.
func TestBackendError(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want error
	}{
		{raftnode.ErrUnknownOutcome, apiserver.ErrUnknownOutcome},
		{rpc.ErrUnknownOutcome, apiserver.ErrUnknownOutcome},
		{fmt.Errorf("%w: %w", rpc.ErrUnknownOutcome, rpc.ErrNoLeader), apiserver.ErrUnknownOutcome},
		{raftnode.ErrBusy, apiserver.ErrBusy},
		{rpc.ErrBusy, apiserver.ErrBusy},
		{fmt.Errorf("%w: %w", raftnode.ErrNotProposed, context.DeadlineExceeded), apiserver.ErrBusy},
		{raftnode.ErrNoLeader, apiserver.ErrNoLeader},
		{raftnode.ErrShutdown, apiserver.ErrNoLeader},
		{&raftnode.NotLeaderError{LeaderID: "b"}, apiserver.ErrNoLeader},
		{&rpc.NotLeaderError{Leader: "b"}, apiserver.ErrNoLeader},
		{rpc.ErrNotSent, apiserver.ErrNoLeader},
		{rpc.ErrStopping, apiserver.ErrNoLeader},
	} {
		got := backendError(fmt.Errorf("doing it: %w", tt.err))
		for _, is := range []error{apiserver.ErrUnknownOutcome, apiserver.ErrBusy, apiserver.ErrNoLeader} {
			if errors.Is(got, is) != (is == tt.want) {
				t.Errorf("%v became %v, want only %v", tt.err, got, tt.want)
			}
		}
	}
	if err := backendError(nil); err != nil {
		t.Error(err)
	}
	if err := backendError(fmt.Errorf("propose: %w", raftnode.ErrTooLarge)); !apierrors.IsRequestEntityTooLargeError(err) {
		t.Errorf("what is too large for the log became %v", err)
	}
	if err := backendError(fmt.Errorf("propose: %w", rpc.ErrInvalid)); !apierrors.IsBadRequest(err) {
		t.Errorf("what another server could not read became %v", err)
	}
	if err := backendError(&raftnode.VersionError{Command: "PutObject", Needs: 3, ClusterHas: 2}); !apierrors.IsBadRequest(err) {
		t.Errorf("what not every server knows became %v", err)
	}
}

// An error keeps its meaning from the leader over the wire to the API.
func TestPeerErrorKeepsItsMeaning(t *testing.T) {
	for _, tt := range []struct{ err, want error }{
		{raftnode.ErrUnknownOutcome, apiserver.ErrUnknownOutcome},
		{raftnode.ErrBusy, apiserver.ErrBusy},
		{raftnode.ErrNoLeader, apiserver.ErrNoLeader},
		{raftnode.ErrShutdown, apiserver.ErrNoLeader},
		{&raftnode.NotLeaderError{LeaderID: "b", LeaderAddr: "b:1"}, apiserver.ErrNoLeader},
	} {
		if got := backendError(peerError(tt.err)); !errors.Is(got, tt.want) {
			t.Errorf("%v became %v, want %v", tt.err, got, tt.want)
		}
	}
	if got := peerError(&raftnode.VersionError{Command: "PutObject", Needs: 3, ClusterHas: 2}); !errors.Is(got, rpc.ErrInvalid) {
		t.Errorf("what not every server knows became %v", got)
	}
	if got := backendError(peerError(fmt.Errorf("propose: %w", raftnode.ErrTooLarge))); !apierrors.IsRequestEntityTooLargeError(got) {
		t.Errorf("what is too large became %v: it is 413 whoever is asked", got)
	}
}

func TestOperatorCode(t *testing.T) {
	for _, tt := range []struct {
		err  error
		code int
	}{
		{raftnode.ErrUnknownServer, http.StatusNotFound},
		{raftnode.ErrLastVoter, http.StatusBadRequest},
		{store.ErrSnapshot, http.StatusBadRequest},
		{errBadRequest, http.StatusBadRequest},
		{errStillAlive, http.StatusConflict},
		{raftnode.ErrBusy, http.StatusTooManyRequests},
		{apiserver.ErrBusy, http.StatusTooManyRequests},
		{&raftnode.NotLeaderError{LeaderID: "b"}, http.StatusServiceUnavailable},
		{apiserver.ErrNoLeader, http.StatusServiceUnavailable},
		{raftnode.ErrUnknownOutcome, http.StatusGatewayTimeout},
		{fmt.Errorf("%w: %w", apiserver.ErrUnknownOutcome, raftnode.ErrShutdown), http.StatusGatewayTimeout},
		{context.DeadlineExceeded, http.StatusGatewayTimeout},
		{errors.New("a bug"), http.StatusInternalServerError},
	} {
		if code, reason := operatorCode(fmt.Errorf("doing it: %w", tt.err)); code != tt.code || reason == "" {
			t.Errorf("%v is answered with %d %s, want %d", tt.err, code, reason, tt.code)
		}
	}
}

// A decision that was refused counts as refused, and as nothing else.
func TestObservePlan(t *testing.T) {
	m, err := newMetrics(prometheus.NewRegistry(), fsm.NewState())
	if err != nil {
		t.Fatal(err)
	}
	m.observePlan(&fsm.ApplyPlan{
		Bindings:    []fsm.BindDecision{{Key: "a"}, {Key: "b"}, {Key: "c"}},
		Failures:    []fsm.FailDecision{{Pods: []fsm.PodRef{{Key: "d"}, {Key: "e"}}}, {Pods: []fsm.PodRef{{Key: "f"}}, Error: true}},
		Preemptions: []fsm.PreemptDecision{{Key: "g"}, {Key: "h"}},
	}, &fsm.PlanResult{Refused: []fsm.PlanRefusal{{Key: "b"}, {Key: "e"}, {Key: "h"}}, Evicted: []int{3}})
	for result, want := range map[string]float64{"scheduled": 2, "unschedulable": 1, "error": 1, "refused": 3} {
		if got := testutil.ToFloat64(m.decisions.WithLabelValues(result)); got != want {
			t.Errorf("%v attempts are %s, want %v", got, result, want)
		}
	}
}

// What one of several decisions took is not known; their mean is.
func TestObserveStep(t *testing.T) {
	r := prometheus.NewRegistry()
	m, err := newMetrics(r, fsm.NewState())
	if err != nil {
		t.Fatal(err)
	}
	m.observeStep(&sched.Plan{Command: &fsm.ApplyPlan{}, Decisions: 3}, time.Second)
	m.observeStep(&sched.Plan{Command: &fsm.ApplyPlan{Preemptions: make([]fsm.PreemptDecision, 2)}, Decisions: 4}, 8*time.Millisecond)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == PreemptionSeconds {
			if h := f.GetMetric()[0].GetHistogram(); h.GetSampleCount() != 2 || math.Abs(h.GetSampleSum()-0.004) > 1e-9 {
				t.Errorf("%d preemptions took %v s", h.GetSampleCount(), h.GetSampleSum())
			}
		}
	}
}

func TestMetricsTwiceInOneRegistry(t *testing.T) {
	r := prometheus.NewRegistry()
	if _, err := newMetrics(r, fsm.NewState()); err != nil {
		t.Fatal(err)
	}
	if _, err := newMetrics(r, fsm.NewState()); err == nil {
		t.Error("two servers share a registry, and nobody says so")
	}
}

// Only what a worker does not know itself is sent to it.
func TestConcernsWorker(t *testing.T) {
	grace, now := int64(30), metav1.Now()
	for _, tt := range []struct {
		name   string
		change func(p *corev1.Pod)
		want   bool
	}{
		{"nothing", func(*corev1.Pod) {}, false},
		{"its own status", func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, false},
		{"another's status", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }, true},
		{"a start time", func(p *corev1.Pod) { p.Status.StartTime = &now }, false},
		{"a condition", func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget}}
		}, false},
		{"the resource version", func(p *corev1.Pod) { p.ResourceVersion = "7" }, false},
		{"binding", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, true},
		{"the spec", func(p *corev1.Pod) { p.Generation++ }, true},
		{"its end", func(p *corev1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &now, &grace }, true},
		{"labels, which the pod may read", func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b"} }, true},
		{"annotations", func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, true},
		{"a readiness gate's condition", func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}}
		}, true},
	} {
		old := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 1}, Spec: corev1.PodSpec{NodeName: "n1"}}
		pod := *old
		s := &Server{}
		s.said.said("n1", "", model.WorkerStatusDigest(&corev1.PodStatus{Phase: corev1.PodRunning}))
		tt.change(&pod)
		if got := s.concernsWorker(old, &pod); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}

// A worker is told of what it did not say, and when that has passed, and nothing is kept of what has arrived.
func TestReportedStatuses(t *testing.T) {
	var r reportedStatuses
	for i, step := range []struct {
		said, held uint64 // 0: nothing
		want       bool
	}{
		{said: 1}, {held: 1}, // its own
		{held: 2, want: true}, {said: 1}, {held: 1, want: true}, // another's, and back
		{said: 3}, {held: 3},
		{said: 4}, {said: 5}, {held: 4, want: true}, {held: 5, want: true}, // late, and then the same again
	} {
		if step.said != 0 {
			r.said("n1", "a", step.said)
		}
		if step.held != 0 {
			if got := r.news("n1", "a", step.held); got != step.want {
				t.Errorf("step %d: %v", i, got)
			}
		}
	}
	if len(r.nodes["n1"]) != 0 {
		t.Errorf("kept: %v", r.nodes)
	}
	r.said("n1", "a", 1)
	r.said("n1", "b", 1)
	r.forget("n1", "a")
	if len(r.nodes["n1"]) != 1 {
		t.Errorf("kept: %v", r.nodes)
	}
	if r.forgetNode("n1"); len(r.nodes) != 0 {
		t.Errorf("kept: %v", r.nodes)
	}
}

// A worker reads what the pods of its own node refer to, and nothing else.
func TestWorkerFetchIsForItsOwnPods(t *testing.T) {
	s := &Server{state: fsm.NewState(), shares: newShares()}
	addNamespace(t, s.state, "default")
	addNamespace(t, s.state, "other")
	raw, err := (&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "there"}}).Marshal()
	if err != nil {
		t.Fatal(err)
	}
	applyTo(t, s.state, &fsm.PutObject{Resource: "configmaps", Raw: raw, Create: true})
	put := func(resource string, o interface{ Marshal() ([]byte, error) }) {
		raw, err := o.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		applyTo(t, s.state, &fsm.PutObject{Resource: resource, Raw: raw, Create: true})
	}
	put("serviceaccounts", &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "robot"},
		ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}})
	put("runtimeclasses", &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "gvisor"}, Handler: "runsc"})
	yes := true
	env := func(name string) corev1.EnvFromSource {
		return corev1.EnvFromSource{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &yes}}
	}
	applyTo(t, s.state, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "uid-p"},
		Spec: corev1.PodSpec{
			NodeName:           "n1",
			Containers:         []corev1.Container{{Name: "main", Image: "none", EnvFrom: []corev1.EnvFromSource{env("there"), env("missing")}}},
			Volumes:            []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}}},
			ServiceAccountName: "robot",
		},
	}}})
	class := "gvisor"
	applyTo(t, s.state, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "q", UID: "uid-q"},
		Spec: corev1.PodSpec{
			NodeName: "n3", Containers: []corev1.Container{{Name: "main", Image: "none"}}, ServiceAccountName: "robot", RuntimeClassName: &class,
			ImagePullSecrets: []corev1.LocalObjectReference{{Name: "own"}},
		},
	}}})
	for _, tt := range []struct {
		node, resource, namespace, name string
		want                            error
	}{
		{"n1", "configmaps", "default", "there", nil},
		{"n1", "configmaps", "default", "missing", rpc.ErrNotFound},
		{"n1", "secrets", "default", "key", rpc.ErrNotFound},
		{"n1", "secrets", "default", "there", rpc.ErrForbidden},
		{"n1", "configmaps", "default", "key", rpc.ErrForbidden},
		{"n1", "configmaps", "other", "there", rpc.ErrForbidden},
		{"n1", "services", "default", "there", rpc.ErrForbidden},
		{"n1", "services", "default", "", nil}, // all with addresses
		{"n1", "services", "other", "", rpc.ErrForbidden},
		{"n2", "configmaps", "default", "there", rpc.ErrForbidden},
		{"n1", "serviceaccounts", "default", "robot", nil},
		{"n1", "serviceaccounts", "default", "default", rpc.ErrForbidden},
		{"n1", "serviceaccounts", "other", "robot", rpc.ErrForbidden},
		{"n1", "secrets", "default", "pull", rpc.ErrNotFound}, // the service account's
		{"n3", "secrets", "default", "own", rpc.ErrNotFound},
		{"n3", "secrets", "default", "pull", rpc.ErrForbidden}, // the pod has its own
		{"n3", "runtimeclasses", "", "gvisor", nil},
		{"n1", "runtimeclasses", "", "gvisor", rpc.ErrForbidden},
		{"n3", "runtimeclasses", "default", "gvisor", rpc.ErrForbidden},
	} {
		_, err := s.WorkerFetch(t.Context(), &rpc.FetchRequest{Node: tt.node, Resource: tt.resource, Namespace: tt.namespace, Name: tt.name})
		if !errors.Is(err, tt.want) {
			t.Errorf("%s asks for %s %s/%s: %v, want %v", tt.node, tt.resource, tt.namespace, tt.name, err, tt.want)
		}
	}
}

// A worker is told which volumes are to go from its own node, and lets those go and no others.
func TestWorkersAreToldWhichVolumesGo(t *testing.T) {
	s := &Server{state: fsm.NewState(), shares: newShares()}
	now := metav1.Now()
	for name, of := range map[string]struct {
		node       string
		ends       *metav1.Time
		finalizers []string
	}{
		"going": {"n1", &now, []string{model.LocalFinalizer}},
		"used":  {"n1", nil, []string{model.LocalFinalizer}},
		"held":  {"n1", &now, []string{model.LocalFinalizer, model.VolumeProtection}},
		"far":   {"n2", &now, []string{model.LocalFinalizer}},
	} {
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", UID: types.UID(name)}}
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: of.node}}
		v := model.LocalVolume(claim, new(storagev1.StorageClass), node, types.UID(name), now)
		v.Name, v.DeletionTimestamp, v.Finalizers = name, of.ends, of.finalizers
		raw, err := v.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		entry, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: now.UnixNano()}, []fsm.Proposal{
			{User: "test", Command: &fsm.PutObject{Resource: fsm.PersistentVolumes, Raw: raw, Create: true}},
		})
		if err != nil {
			t.Fatal(err)
		}
		rs, err := s.state.Apply(s.state.View().Index()+1, 1, entry)
		if err != nil || rs[0].Err() != nil {
			t.Fatal(err, rs)
		}
	}
	for node, want := range map[string]string{"n1": "going", "n2": "far", "n3": ""} {
		r, err := s.WorkerFetch(t.Context(), &rpc.FetchRequest{Node: node, Resource: fsm.PersistentVolumes, Namespace: node})
		if err != nil {
			t.Fatal(err)
		}
		list, names := new(corev1.PersistentVolumeList), []string{}
		if err := list.Unmarshal(r.Object); err != nil {
			t.Fatal(err)
		}
		for i := range list.Items {
			names = append(names, list.Items[i].Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%s is told of %q, want %q", node, got, want)
		}
	}
	for _, r := range []rpc.FetchRequest{
		{Node: "n2", Resource: fsm.PersistentVolumes, Namespace: "n1"},
		{Node: "n2", Resource: fsm.PersistentVolumes, Name: "going"},
		{Node: "n2", Resource: fsm.PersistentVolumes, Name: "going", Gone: true},
		{Node: "n1", Resource: fsm.PersistentVolumes, Name: "used", Gone: true},
		{Node: "n1", Resource: fsm.PersistentVolumes, Name: "held", Gone: true},
	} {
		if _, err := s.WorkerFetch(t.Context(), &r); !errors.Is(err, rpc.ErrForbidden) {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestWorkerTokenIsForItsOwnPods: a worker has the tokens that the pods on its node mount, as they mount them.
func TestWorkerTokenIsForItsOwnPods(t *testing.T) {
	s := &Server{state: fsm.NewState(), shares: newShares(), vault: noVault(t)}
	s.accounts = tokens.New(s, s.vault)
	addNamespace(t, s.state, "default")
	hour := int64(3600)
	mounts := corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "t", ExpirationSeconds: &hour}},
	}}}}
	for name, volumes := range map[string][]corev1.Volume{"p": {mounts}, "bare": nil} {
		applyTo(t, s.state, &fsm.AdmitPod{Pod: fsm.PodWire{Object: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "none"}}, Volumes: volumes, ServiceAccountName: "default"},
		}}})
	}
	right := rpc.TokenRequest{Node: "n1", Namespace: "default", Pod: "p", PodUID: "uid-p", ExpirationSeconds: hour}
	if _, err := s.WorkerToken(t.Context(), &right); !errors.Is(err, rpc.ErrBusy) {
		t.Errorf("without a key: %v", err)
	}
	key, err := tokens.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	applyTo(t, s.state, key)
	for what, wrong := range map[string]func(r *rpc.TokenRequest){
		"another node":      func(r *rpc.TokenRequest) { r.Node = "n2" },
		"an earlier pod":    func(r *rpc.TokenRequest) { r.PodUID = "uid-before" },
		"another audience":  func(r *rpc.TokenRequest) { r.Audience = "vault" },
		"a longer life":     func(r *rpc.TokenRequest) { r.ExpirationSeconds = 1 << 40 },
		"no such pod":       func(r *rpc.TokenRequest) { r.Pod = "none" },
		"a pod without any": func(r *rpc.TokenRequest) { r.Pod, r.PodUID = "bare", "uid-bare" },
	} {
		r := right
		wrong(&r)
		if got, err := s.WorkerToken(t.Context(), &r); !errors.Is(err, rpc.ErrForbidden) {
			t.Errorf("%s: %v, %v", what, got, err)
		}
	}
	got, err := s.WorkerToken(t.Context(), &right)
	if err != nil {
		t.Fatal(err)
	}
	who, ok, err := s.accounts.Authenticator().AuthenticateToken(t.Context(), got.Token)
	if err != nil || !ok || who.User.GetName() != "system:serviceaccount:default:default" ||
		slices.Equal(who.User.GetExtra()["authentication.kubernetes.io/node-name"], []string{"n1"}) == false {
		t.Errorf("%+v, %v, %v", who, ok, err)
	}
}

func TestHeartbeats(t *testing.T) {
	var h heartbeats
	if _, ok := h.LastSeenUnixNano("a"); ok {
		t.Error("a node was seen that nobody heard of")
	}
	h.note([]string{"a", "b"}, 1)
	h.note([]string{"b", "c"}, 2)
	for node, want := range map[string]int64{"a": 1, "b": 2, "c": 2} {
		if at, ok := h.LastSeenUnixNano(node); !ok || at != want {
			t.Errorf("%s was seen at %d, want %d", node, at, want)
		}
	}
	h.forget(func(node string) bool { return node != "a" })
	if _, ok := h.LastSeenUnixNano("a"); ok {
		t.Error("a node that is gone is remembered")
	}
}

// noVault seals nothing.
func noVault(t *testing.T) *vault.Vault {
	t.Helper()
	v, err := vault.Open(vault.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}
