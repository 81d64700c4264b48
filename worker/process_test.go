package worker

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/process"
)

// TestProcesses is a pod of real processes through an agent's restart, from its init container to its removal.
func TestProcesses(t *testing.T) {
	s := newServers()
	dir := t.TempDir()
	volumes := &Volumes{Root: filepath.Join(dir, "pods")}
	start := func() func() {
		rt, err := process.New(process.Options{Root: filepath.Join(dir, "containers"), CgroupParent: "none"})
		if err != nil {
			t.Fatal(err)
		}
		a, stop := run(t, Options{Node: testNode(t), Uplink: s, Runtime: rt, Volumes: volumes})
		t.Cleanup(rt.Close)
		return func() {
			rc, err := a.Logs(context.Background(), "web", "main", LogOptions{})
			if err != nil {
				t.Fatal(err)
			}
			defer rc.Close()
			if b, err := io.ReadAll(rc); err != nil || string(b) != "from init web\n" {
				t.Errorf("log is %q, %v", b, err)
			}
			stop()
			rt.Close()
		}
	}
	web := testPod("web")
	// A mount point that the host does not have would hide from the host what the pod writes beside it.
	if err := os.Mkdir(filepath.Join(dir, "mnt"), 0o755); err != nil {
		t.Fatal(err)
	}
	mount := []corev1.VolumeMount{{Name: "share", MountPath: filepath.Join(dir, "mnt")}}
	web.Spec.Volumes = []corev1.Volume{{Name: "share", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	web.Spec.InitContainers = []corev1.Container{{Name: "init", VolumeMounts: mount,
		Env:     []corev1.EnvVar{{Name: "WHO", Value: "init"}},
		Command: []string{"/bin/sh", "-c", "echo from $(WHO) > $BERTH_VOLUME_SHARE/word"}}}
	// In its first run it prints and fails, as any other it prints and stays until it is asked to go.
	web.Spec.Containers = []corev1.Container{{Name: "main", VolumeMounts: mount, Env: []corev1.EnvVar{{Name: "POD",
		ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}}},
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"/bin/sh", "-c", "touch " + dir + "/stopping"}}}},
		Command: []string{"/bin/sh", "-c", `trap 'exit 0' TERM; cd $BERTH_VOLUME_SHARE; echo "$(cat word) $POD"
			test -e again || { touch again; exit 9; }; touch ` + dir + `/up; while :; do sleep 0.02; done`}}}
	web.Spec.Containers[0].ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{
		Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "test -e " + dir + "/up"}}}}

	stop := start()
	s.assignments <- Assignment{Full: true, Revision: 1, Pods: []*corev1.Pod{web}}
	restarted := func() bool {
		cs := s.pods["web"].Status.ContainerStatuses
		return len(cs) == 1 && cs[0].RestartCount == 1 && cs[0].Ready
	}
	s.await(t, "it runs again after it failed", restarted)
	web = web.DeepCopy() // the agent has the other one
	web.Status = s.status("web")
	if got := web.Status.ContainerStatuses[0].LastTerminationState.Terminated; got == nil || got.ExitCode != 9 || got.Reason != runtime.ReasonError {
		t.Errorf("last state is %+v", got)
	}
	s.await(t, "its output is there", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "containers", "web", "containers", "main", "1", "log"))
		return len(b) > 0
	})
	stop()

	stop = start()
	s.assignments <- Assignment{Full: true, Revision: 2, Pods: []*corev1.Pod{deleted(web, 30)}}
	s.await(t, "it is gone", func() bool { return s.pods["web"].Removed })
	if got := s.status("web"); got.Phase != corev1.PodSucceeded || got.ContainerStatuses[0].RestartCount != 1 {
		t.Errorf("last status is %+v", got)
	}
	if _, err := os.Stat(filepath.Join(dir, "up")); err != nil {
		t.Errorf("it was ready without what its readiness probe asks for: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "stopping")); err != nil {
		t.Errorf("the preStop hook did not run: %v", err)
	}
	for _, left := range []string{"containers/web", "pods/web"} {
		if _, err := os.Stat(filepath.Join(dir, left)); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", left, err)
		}
	}
}
