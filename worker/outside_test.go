package worker

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/mounts"
)

// fakeMount has a program be the machine's mount. It finds the directory in $dir.
func fakeMount(t *testing.T, program string) (bin string) {
	t.Helper()
	bin = t.TempDir()
	for name, text := range map[string]string{"mount.nfs": "", "mount": "for dir; do :; done\n" + program + "\n"} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	return bin
}

func nfsPod(name string) *corev1.Pod {
	p := testPod(name)
	p.Spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}
	return p
}

func mountNFSOf(ctx context.Context, v *Volumes, p *corev1.Pod) error {
	_, err := v.mounts(ctx, &resolver{pod: p}, &p.Spec.Containers[0], nil)
	return err
}

// A mount that fails says why; one that has done nothing, or is going on without anybody waiting for it, has failed.
func TestMountsThatFail(t *testing.T) {
	for _, c := range []struct{ name, program, says string }{
		{"refused", "echo mount.nfs: Connection refused >&2; exit 32", "spec.nfs: mounting s:/p: exit status 32: mount.nfs: Connection refused"},
		{"in the background", "exit 0", "nothing is mounted"},
		{"a daemon has its output", "setsid sleep 1000 & echo $! > ${0%/*}/daemon; exit 0", "nothing is mounted"},
		{"hangs", "sleep 1000 & wait", "spec.nfs: mounting s:/p: the server has not answered for 100ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bin := fakeMount(t, c.program)
			v := &Volumes{Root: t.TempDir(), MountPatience: 100 * time.Millisecond}
			if c.name != "hangs" {
				v.MountPatience = time.Hour
			}
			if err := mountNFSOf(t.Context(), v, nfsPod("u1")); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
			if err := v.remove(context.Background(), "u1"); err != nil {
				t.Error(err)
			}
			if b, err := os.ReadFile(filepath.Join(bin, "daemon")); err == nil {
				if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil || syscall.Kill(pid, syscall.SIGKILL) != nil {
					t.Errorf("the daemon %s: %v", b, err)
				}
			}
		})
	}
}

// What mount has begun ends with the patience, and what it has mounted in the last moment is unmounted.
func TestMountThatIsGivenUp(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root may mount")
	}
	// A child of mount's, as mount.nfs is, goes on after it.
	fakeMount(t, `(PATH=/sbin:/usr/sbin:/bin:/usr/bin; command mount -t tmpfs late "$dir"; echo $$ > ${0%/*}/child; exec sleep 1000) & wait`)
	v := &Volumes{Root: t.TempDir(), MountPatience: time.Hour}
	ctx, cancel := context.WithCancelCause(t.Context())
	done := make(chan error, 1)
	go func() { done <- mountNFSOf(ctx, v, nfsPod("u1")) }()
	dir := v.dir("u1", "data")
	awaitTrue(t, "something is mounted", func() bool { mounted, err := mounts.At(dir); return err == nil && mounted })
	given := errors.New("nobody waits any more")
	cancel(given)
	if err := <-done; !errors.Is(err, given) {
		t.Errorf("%v", err)
	}
	awaitTrue(t, "nothing is mounted", func() bool { mounted, err := mounts.At(dir); return err == nil && !mounted })
	if err := v.remove(context.Background(), "u1"); err != nil {
		t.Error(err)
	}
}

func awaitTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	newServers().await(t, what, ok)
}

// A volume that does not answer keeps one goroutine and nothing else: neither a lock of the pod's, nor a place among the calls.
func TestVolumesThatDoNotAnswer(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe") // to open it waits in the kernel
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	answer := func() {
		f, err := os.OpenFile(pipe, os.O_RDWR, 0)
		if err != nil {
			t.Error(err)
			return
		}
		t.Cleanup(func() { _ = f.Close() })
	}
	hung := testPod("hung")
	create := corev1.HostPathFileOrCreate
	hung.Spec.Volumes = []corev1.Volume{
		{Name: "data", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: pipe, Type: &create}}},
		{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
	}
	hung.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "scratch", MountPath: "/s"}, {Name: "data", MountPath: "/d"}}

	s := newServers()
	v := &Volumes{Root: t.TempDir()}
	_, stop := run(t, Options{Node: testNode(t), Uplink: s, Runtime: fake.New(runTimeline(t)), Volumes: v, CallsAtOnce: 1})
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{hung}}
	awaitTrue(t, "it is being started", func() bool { _, err := os.Stat(v.dir("hung", "scratch")); return err == nil })
	s.assignments <- Assignment{Revision: 2, Pods: []*corev1.Pod{testPod("other")}}
	s.await(t, "another one runs", func() bool { return s.pods["other"].Status.Phase == corev1.PodRunning })
	stop() // does not wait for it either
	if err := v.remove(context.Background(), "hung"); err != nil {
		t.Error(err)
	}
	answer()
}

// Who has waited for nothing leaves whoever comes next to wait behind it, and not beside it.
func TestOneWaitsForAVolume(t *testing.T) {
	v := &Volumes{}
	owner := func(name string) func() (string, error) { return func() (string, error) { return name, nil } }
	answers := make(chan struct{})
	over := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	cancelled := make(chan error, 1)
	began := make(chan struct{})
	go func() {
		cancelled <- v.reach(ctx, "u1", owner("s"), func(*podVolumes) error { close(began); <-answers; close(over); return nil })
	}()
	<-began
	cancel()
	if err := <-cancelled; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	if err := v.reach(ctx, "u1", owner("s"), func(*podVolumes) error { t.Error("it was called"); return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("beside another one: %v", err)
	}
	v.mu.Lock()
	waiting := v.reaching["s"]
	v.reaching["others"] = mostReaching - waiting
	v.mu.Unlock()
	if waiting != 1 {
		t.Errorf("%d wait", waiting)
	}
	if err := v.reach(t.Context(), "u2", owner("t"), func(*podVolumes) error { return nil }); err == nil || !strings.Contains(err.Error(), "that do not answer") {
		t.Errorf("one too many: %v", err)
	}
	close(answers)
	<-over
	v.mu.Lock()
	v.reaching["others"] = 0
	v.mu.Unlock()
	if err := v.reach(t.Context(), "u1", owner("s"), func(*podVolumes) error { return nil }); err != nil {
		t.Errorf("after it has answered: %v", err)
	}
}

// A server that is gone takes no more than its share of the places.
func TestPlacesOfOneServer(t *testing.T) {
	if server := mounts.ServerOf("/"); server != "" {
		t.Skipf("all of this machine's paths are on %s", server)
	}
	v := &Volumes{}
	hostPath := func(path string) *corev1.Volume {
		return &corev1.Volume{VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: path}}}
	}
	claim := &corev1.Volume{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{}}}
	gone := whose(&nfsPod("p").Spec.Volumes[0], nil)
	for i := range mostOfOne {
		if err := v.mayReach(gone); err != nil {
			t.Fatalf("the %d. volume: %v", i+1, err)
		}
	}
	nfs := func(server string) corev1.PersistentVolumeSource {
		return corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: server, Path: "/other"}}
	}
	if err := v.mayReach(whose(claim, volumeOf("c", nfs("s")))); err == nil || !strings.Contains(err.Error(), "of the server s already") {
		t.Errorf("one more of the server that is gone: %v", err)
	}
	for _, other := range []string{
		whose(claim, volumeOf("c", nfs("other"))), whose(claim, volumeOf("d", localVolume("pvc-d"))), whose(hostPath("/a"), nil), whose(hostPath("/b/"), nil),
		whose(claim, volumeOf("e", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/c"}})),
		whose(claim, volumeOf("f", corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/d"}})),
	} {
		if err := v.mayReach(other); err != nil || v.reaching[other] != 1 {
			t.Errorf("%s: %d, %v", other, v.reaching[other], err)
		}
	}
	if a, b := whose(hostPath("/b"), nil), whose(hostPath("/b/"), nil); a != b {
		t.Errorf("%q and %q", a, b)
	}
}

// What is done to a volume for a pod ends when the pod is gone.
func TestWalkEndsWithItsPod(t *testing.T) {
	v := &Volumes{Root: t.TempDir(), Kept: filepath.Join(t.TempDir(), "volumes")}
	pv := volumeOf("c", localVolume("pvc-c"))
	r := claimant(t, "c", pv)
	file := filepath.Join(v.Kept, "pvc-c", "file")
	if _, err := v.keep(t.Context(), pv, nil, false); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	group := int64(os.Getegid())
	r.pod.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
	kept := v.of(r.pod.UID)
	if err := v.remove(context.Background(), r.pod.UID); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.persistent(t.Context(), r, &r.pod.Spec.Volumes[0], pv, kept); !errors.Is(err, context.Canceled) {
		t.Errorf("for a pod that is gone: %v", err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("its file was given away: %v, %v", fi, err)
	}
	if _, _, err := v.persistent(t.Context(), r, &r.pod.Spec.Volumes[0], pv, v.of(r.pod.UID)); err != nil {
		t.Errorf("for one that has come back: %v", err)
	}
	if fi, err := os.Stat(file); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("its file: %v, %v", fi, err)
	}
}

// Who needs a volume while it is being removed waits no longer than its call.
func TestVolumeThatIsBeingRemoved(t *testing.T) {
	v := &Volumes{Root: t.TempDir()}
	p := testPod("u1")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	v.of("u1").writing <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	aside := make(chan struct{}, 1)
	done := make(chan error, 1)
	go func() { done <- mountNFSOf(withAside(ctx, func() { aside <- struct{}{} }), v, p) }()
	<-aside
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}
