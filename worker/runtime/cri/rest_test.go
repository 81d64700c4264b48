package cri

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	criv1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// boxStub has sandboxes, one a pod, called by the pod's UID.
type boxStub struct {
	stub
	states  map[string]criv1.PodSandboxState
	calls   []string
	fails   int           // so many removals
	clings  int           // so many that are stopped hold what they have, and are stopped as far as can be seen
	refuses int           // so many that are to be made
	making  chan struct{} // a sandbox is made when it gives something; nil: at once
}

func (s *boxStub) ListPodSandbox(_ context.Context, req *criv1.ListPodSandboxRequest) (*criv1.ListPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := &criv1.ListPodSandboxResponse{}
	for uid, state := range s.states {
		if want := req.GetFilter().GetLabelSelector()[labelPodUID]; want == "" || want == uid {
			out.Items = append(out.Items, &criv1.PodSandbox{Id: uid, State: state, Labels: map[string]string{labelPodUID: uid},
				Metadata: &criv1.PodSandboxMetadata{Uid: uid}})
		}
	}
	return out, nil
}

func (s *boxStub) StopPodSandbox(_ context.Context, req *criv1.StopPodSandboxRequest) (*criv1.StopPodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "stop "+req.PodSandboxId)
	s.states[req.PodSandboxId] = criv1.PodSandboxState_SANDBOX_NOTREADY
	if s.clings > 0 {
		s.clings--
		return nil, status.Error(codes.Unknown, "a plugin of the network has failed")
	}
	return &criv1.StopPodSandboxResponse{}, nil
}

func (s *boxStub) RemovePodSandbox(_ context.Context, req *criv1.RemovePodSandboxRequest) (*criv1.RemovePodSandboxResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails > 0 {
		s.fails--
		return nil, status.Error(codes.Unknown, "it does not want to")
	}
	s.calls = append(s.calls, "remove "+req.PodSandboxId)
	delete(s.states, req.PodSandboxId)
	return &criv1.RemovePodSandboxResponse{}, nil
}

func (s *boxStub) RunPodSandbox(ctx context.Context, req *criv1.RunPodSandboxRequest) (*criv1.RunPodSandboxResponse, error) {
	if s.making != nil {
		<-s.making
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuses > 0 {
		s.refuses--
		return nil, status.Error(codes.Unknown, "there is no address left")
	}
	uid := req.Config.Metadata.Uid
	s.calls = append(s.calls, "run "+uid)
	s.states[uid] = criv1.PodSandboxState_SANDBOX_READY
	return &criv1.RunPodSandboxResponse{PodSandboxId: uid}, nil
}

func (s *boxStub) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.calls)
}

func stubOfBoxes(name string) *boxStub {
	return &boxStub{stub: stub{deaf: true, name: name}, states: map[string]criv1.PodSandboxState{}}
}

// stubParent keeps the tests' pods out of the machine's own cgroups.
func stubParent(o *Options) { o.CgroupParent = fmt.Sprintf("/berth-stub-%d", os.Getpid()) }

func hosted(name string) *corev1.Pod {
	p := pod(name, corev1.Container{Name: "a"})
	p.Spec.HostNetwork = true
	return p
}

func runBox(t *testing.T, r *Runtime, p *corev1.Pod) {
	t.Helper()
	if _, err := r.RunSandbox(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}

// A pod is gone when nothing of it is held. Its records go when no pod waits for the runtime, and are tried again where they do not.
func TestRecordsGoBehind(t *testing.T) {
	for _, name := range [...]string{containerd, crio} {
		t.Run(name, func(t *testing.T) {
			s := stubOfBoxes(name)
			r, _ := openFor(t, s, s, stubParent)
			first, second := hosted("first"), hosted("second")
			runBox(t, r, first)
			if err := os.WriteFile(filepath.Join(r.logDir(first.UID), "log"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			s.mu.Lock()
			s.making = make(chan struct{})
			s.mu.Unlock()
			made := make(chan error, 1)
			go func() {
				_, err := r.RunSandbox(context.Background(), second)
				made <- err
			}()
			eventually(t, "a pod to wait for its sandbox", func() bool {
				return func() bool { r.rests.mu.Lock(); defer r.rests.mu.Unlock(); return r.rests.calls > 0 }()
			})
			if err := r.Remove(t.Context(), first.UID); err != nil {
				t.Fatal(err)
			}
			if err := r.Remove(t.Context(), first.UID); err != nil { // a worker that was started again does not know that it was
				t.Fatal(err)
			}
			if got, want := s.told(), []string{"run uid-first", "stop uid-first"}; !slices.Equal(got, want) {
				t.Errorf("while another pod waits: %q, want %q", got, want)
			}
			if groups, _ := r.cgroups.Dirs(podCgroupName(first)); slices.ContainsFunc(groups, exists) {
				t.Errorf("it still has cgroups: %v", groups)
			}
			close(s.making)
			if err := <-made; err != nil {
				t.Fatal(err)
			}
			eventually(t, "nothing of it to be left", func() bool { return !exists(r.podDir(first.UID)) })
			if got := s.told(); !slices.Contains(got, "remove uid-first") {
				t.Errorf("it is not removed: %q", got)
			}
			if err := r.Remove(t.Context(), second.UID); err != nil {
				t.Fatal(err)
			}
			eventually(t, "nothing to be left", func() bool { return len(r.rests.pods()) == 0 })
		})
	}
}

// What an agent did not come to remove the next one does, unless something runs all the same.
func TestRecordsFoundAgain(t *testing.T) {
	s := stubOfBoxes(crio)
	s.states["uid-gone"], s.states["uid-runs"] = criv1.PodSandboxState_SANDBOX_NOTREADY, criv1.PodSandboxState_SANDBOX_READY
	r, found := openFor(t, s, s, func(o *Options) {
		stubParent(o)
		for uid := range s.states {
			dir := filepath.Join(o.Root, uid)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, restFile), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	})
	if len(found) != 1 || found[0].Pod.UID != "uid-runs" {
		t.Errorf("found %+v", found)
	}
	eventually(t, "nothing of the other to be left", func() bool { return !exists(r.podDir("uid-gone")) })
	if exists(filepath.Join(r.podDir("uid-runs"), restFile)) {
		t.Error("what runs still counts as gone")
	}
	if got, want := s.told(), []string{"stop uid-gone", "remove uid-gone"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if err := r.Remove(t.Context(), "uid-runs"); err != nil {
		t.Error(err)
	}
}

// What the network holds of a pod is given back once, unless that failed, or the runtime says that the sandbox is there all the same.
func TestStoppedOnce(t *testing.T) {
	s := stubOfBoxes(containerd)
	r, _ := openFor(t, s, s, stubParent)
	over := r.rests.hold()
	once, again, broken := hosted("once"), hosted("again"), hosted("broken")
	for _, p := range [...]*corev1.Pod{once, again, broken} {
		runBox(t, r, p)
	}
	stop := func(p *corev1.Pod) error { return r.StopSandbox(t.Context(), p.UID) }
	for _, err := range [...]error{stop(once), stop(again)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.refuses = 1
	s.mu.Unlock()
	if _, err := r.RunSandbox(t.Context(), once); err == nil {
		t.Error("a sandbox that is not made is not told")
	}
	s.mu.Lock()
	s.states["uid-again"] = criv1.PodSandboxState_SANDBOX_READY
	s.clings = 1
	s.mu.Unlock()
	if stop(broken) == nil {
		t.Error("a failure is not told")
	}
	for _, p := range [...]*corev1.Pod{once, again, broken} {
		if err := r.Remove(t.Context(), p.UID); err != nil {
			t.Error(err)
		}
	}
	want := []string{"run uid-once", "run uid-again", "run uid-broken", "stop uid-once", "stop uid-again", "stop uid-broken", "stop uid-again", "stop uid-broken"}
	if got := s.told(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	over()
	eventually(t, "nothing to be left", func() bool { return len(r.rests.pods()) == 0 })
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.emptied) > 0 {
		t.Errorf("of what is gone it knows %v", r.emptied)
	}
}

// A pod that is to be there again, as the servers went back to a state of theirs, begins with nothing of before.
func TestRecordsBeforeAnotherSandbox(t *testing.T) {
	s := stubOfBoxes(crio)
	r, _ := openFor(t, s, s, stubParent)
	p := hosted("again")
	runBox(t, r, p)
	defer r.rests.hold()()
	if err := r.Remove(t.Context(), p.UID); err != nil {
		t.Fatal(err)
	}
	runBox(t, r, p)
	want := []string{"run uid-again", "stop uid-again", "stop uid-again", "remove uid-again", "run uid-again"}
	if got := s.told(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	if exists(filepath.Join(r.podDir(p.UID), restFile)) || len(r.rests.pods()) > 0 {
		t.Error("it counts as gone")
	}
	if err := r.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
}

// With too many that are gone one is gone when its records are; what fails is told and tried again, by whoever comes first.
func TestRecordsAreBounded(t *testing.T) {
	s := stubOfBoxes(crio)
	r, _ := openFor(t, s, s, stubParent)
	over := r.rests.hold()
	for i := range maxRests {
		r.rests.add(types.UID(fmt.Sprintf("uid-%d", i)), time.Now())
	}
	p := hosted("last")
	runBox(t, r, p)
	s.mu.Lock()
	s.fails = 2
	s.mu.Unlock()
	for range 2 { // whoever asks again is told the same
		if err := r.Remove(t.Context(), p.UID); err == nil {
			t.Error("it is gone, and its records are not")
		}
	}
	q := hosted("next")
	runBox(t, r, q)
	if err := r.Remove(t.Context(), q.UID); err != nil {
		t.Error(err)
	}
	if exists(r.podDir(q.UID)) || !exists(r.podDir(p.UID)) {
		t.Error("other records are gone")
	}
	over()
	r.Close()
	if exists(r.podDir(p.UID)) {
		t.Error("a runtime that was closed has left records")
	}
}

// What cannot be removed as a runtime is closed keeps nothing else.
func TestRecordsAtTheEnd(t *testing.T) {
	s := stubOfBoxes(crio)
	r, _ := openFor(t, s, s, stubParent)
	defer r.rests.hold()()
	for _, p := range [...]*corev1.Pod{hosted("stays"), hosted("goes")} {
		runBox(t, r, p)
		if err := r.Remove(t.Context(), p.UID); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	s.fails = 1
	s.mu.Unlock()
	r.Close()
	if !exists(r.podDir("uid-stays")) || exists(r.podDir("uid-goes")) {
		t.Errorf("told %q", s.told())
	}
}

// A pod that cannot be marked as gone, as its disk takes nothing more, goes with its records.
func TestRecordsWithoutAMark(t *testing.T) {
	s := stubOfBoxes(crio)
	r, _ := openFor(t, s, s, stubParent)
	p := hosted("full")
	runBox(t, r, p)
	if err := os.Mkdir(filepath.Join(r.podDir(p.UID), restFile), 0o755); err != nil { // so that there can be no such file
		t.Fatal(err)
	}
	defer r.rests.hold()()
	if err := r.Remove(t.Context(), p.UID); err != nil {
		t.Error(err)
	}
	if exists(r.podDir(p.UID)) || len(r.rests.pods()) > 0 || !slices.Contains(s.told(), "remove uid-full") {
		t.Errorf("something of it is left; told %q", s.told())
	}
}

// Whose turn it is.
func TestNextRest(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, c := range []struct {
		name  string
		calls int
		in    []rest
		pod   types.UID
		wait  time.Duration
	}{
		{"nobody", 0, nil, "", restPatience},
		{"the first", 0, []rest{{pod: "a", at: now}, {pod: "b", at: now}}, "a", 0},
		{"pods wait", 1, []rest{{pod: "a", at: now, latest: now.Add(time.Second)}}, "", time.Second},
		{"pods wait for too long", 1, []rest{{pod: "a", at: now, latest: now}}, "a", 0},
		{"the first has failed", 0, []rest{{pod: "a", at: now.Add(restAgain)}, {pod: "b", at: now}}, "b", 0},
		{"one has waited for too long", 1, []rest{{pod: "a", at: now, latest: now.Add(time.Second)}, {pod: "b", at: now, latest: now}}, "b", 0},
		{"who is due next", 0, []rest{{pod: "a", at: now.Add(restAgain)}, {pod: "b", at: now.Add(time.Second)}}, "", time.Second},
		{"it failed", 0, []rest{{pod: "a", at: now.Add(restAgain), latest: now.Add(restAgain)}}, "", restAgain},
	} {
		q := newRests()
		q.waiting, q.calls = c.in, c.calls
		if pod, wait := q.next(now); pod != c.pod || wait != c.wait {
			t.Errorf("%s: %q in %v, want %q in %v", c.name, pod, wait, c.pod, c.wait)
		}
	}
}
