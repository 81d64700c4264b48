package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hosts is a folder of the machine that no pod is given: what is in it must stay as it is, and nobody's.
type hosts struct{ folder, file string }

const hostsWord = "the-machines-own"

func newHosts(t *testing.T) hosts {
	t.Helper()
	folder := t.TempDir()
	h := hosts{folder: folder, file: filepath.Join(folder, "key")}
	if err := os.WriteFile(h.file, []byte(hostsWord), 0o600); err != nil {
		t.Fatal(err)
	}
	return h
}

// untouched: nothing was written there, given away, or made.
func (h hosts) untouched(t *testing.T) {
	t.Helper()
	if text, err := os.ReadFile(h.file); err != nil || string(text) != hostsWord {
		t.Errorf("the machine's file says %q: %v", text, err)
	}
	if fi, err := os.Stat(h.file); err != nil || fi.Mode() != 0o600 {
		t.Errorf("the machine's file is another: %v, %v", fi, err)
	}
	if fi, err := os.Stat(h.folder); err != nil || fi.Mode()&(os.ModeSetgid|0o020) != 0 {
		t.Errorf("the machine's folder is another: %v, %v", fi, err)
	}
	if entries, err := os.ReadDir(h.folder); err != nil || len(entries) != 1 {
		t.Errorf("in the machine's folder there are %v: %v", entries, err)
	}
}

// What shows a secret, a config map, labels or a token is written by the agent alone: nobody can put a link where it is going to write.
func (a *attacked) volumesOfObjects(t *testing.T) {
	h := newHosts(t)
	p := pod(a.ns, "writer", `for at in /secret /labels /var/run/secrets/kubernetes.io/serviceaccount; do
  (echo mine > $at/new) 2>/dev/null && echo wrote $at
  rm -f $at/..data 2>/dev/null && echo removed $at
  ln -s "$OUTSIDE" $at/..tmp 2>/dev/null && echo linked $at
done
echo tried
until grep -q new /labels/labels; do sleep 0.1; done; echo seen; exec sleep 1000`, on("w1"),
		volume("secret", "/secret", corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "secret"}}),
		volume("labels", "/labels", corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.labels"}}}}}))
	p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OUTSIDE", Value: h.folder}}
	create(t, a.Reader().Kube, p)
	a.waitRunning(t, a.ns, "writer")
	a.berth(t, "label", "pod", "writer", "is=new", "-n", a.ns)
	a.eventually(t, "the pod to see its new label", func(context.Context) error {
		if log := a.berth(t, "logs", "writer", "-n", a.ns); log != "tried\nseen\n" {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	h.untouched(t)
}

// movers is how many pods are started while the links move.
const movers = 12

// While somebody makes a link of a folder, and a folder of the link, over and over, pods start that mount it by a sub path and want the volume
// given to their group; others leave a link for their last word. The agent follows none of them out of the volume.
func (a *attacked) linksThatMove(t *testing.T) {
	h := newHosts(t)
	kube := a.Reader().Kube
	mode, name := storagev1.VolumeBindingWaitForFirstConsumer, "attacks"
	if _, err := kube.StorageV1().StorageClasses().Create(t.Context(), &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name},
		Provisioner: "berth.dev/local", VolumeBindingMode: &mode}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := kube.CoreV1().PersistentVolumeClaims(a.ns).Create(t.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	data := volume("data", "/data", corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	mover := pod(a.ns, "mover", `mkdir -p /data/at/deep; echo ours > /data/at/key; echo moving
while :; do mv /data/at /data/away; ln -s "$OUTSIDE" /data/at; rm /data/at; mv /data/away /data/at; done`, on("w1"), data)
	mover.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "OUTSIDE", Value: h.folder}}
	create(t, kube, mover)
	a.eventually(t, "the links to move", func(context.Context) error {
		if log := run(t, a.env, "", "logs", "mover", "-n", a.ns).out; !strings.Contains(log, "moving") {
			return fmt.Errorf("it says %q", log)
		}
		return nil
	})
	group := int64(4321)
	for i := range movers {
		p := pod(a.ns, "follower-"+strconv.Itoa(i), `cat /data/key; ln -sf "$OUTSIDE/key" "$BERTH_TERMINATION_LOG"; exit 1`, on("w1"), data)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: &group}
		p.Spec.Containers[0].VolumeMounts[0].SubPath = "at"
		p.Spec.Containers[0].Env = mover.Spec.Containers[0].Env
		create(t, kube, p)
	}
	for i := range movers {
		a.followed(t, "follower-"+strconv.Itoa(i))
	}
	h.untouched(t)
	grace := int64(0)
	if err := kube.CoreV1().Pods(a.ns).Delete(t.Context(), "mover", metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
		t.Error(err)
	}
}

// followed waits until a pod has ended, or was not started because what it mounts was a link just then; it saw nothing of the machine's.
func (a *attacked) followed(t *testing.T, name string) {
	t.Helper()
	a.eventually(t, name+" to have tried", func(ctx context.Context) error {
		p, err := a.Reader().Kube.CoreV1().Pods(a.ns).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(p.Status.ContainerStatuses) == 0 {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		state := p.Status.ContainerStatuses[0].State
		if state.Waiting != nil && strings.Contains(state.Waiting.Reason, "Error") {
			return nil
		}
		if state.Terminated == nil {
			return fmt.Errorf("it is %+v", state)
		}
		if strings.Contains(state.Terminated.Message, hostsWord) {
			t.Errorf("the last word of %s is the machine's", name)
		}
		if log := run(t, a.env, "", "logs", name, "-n", a.ns).out; strings.Contains(log, hostsWord) {
			t.Errorf("%s reads the machine's", name)
		}
		return nil
	})
}
