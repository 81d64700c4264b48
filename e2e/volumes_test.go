package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The pods of a StatefulSet come back to their volumes, on the nodes where these are,
// whether they are deleted, the leader is killed, or the node takes nobody for a while. With
// the StatefulSet the claims go, and with them the directories.
func TestVolumesOutliveTheirPods(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "volumes")
	s.kubectl("apply", "-f", "../examples/manifests/volumes.yaml")
	pod := s.back("store-0", "", 1)
	s.back("store-1", "", 1)
	has(t, "claims", s.kubectl("get", "pvc"), "data-store-0", "data-store-1", "Bound", "1Gi", "RWO", "local")
	has(t, "volumes", s.kubectl("get", "pv"), "volumes/data-store-0", "Delete", "Bound", "local")

	s.kubectl("delete", "pod", "store-0")
	pod = s.back("store-0", pod.UID, 2)
	leader := c.waitLeader(t)
	leader.Kill()
	c.waitLeader(t)
	s.kubectl("delete", "pod", "store-0")
	pod = s.back("store-0", pod.UID, 3)
	c.restart(t, leader)

	// Nobody is evicted for a pod whose volume is elsewhere, and it says so.
	c.berth(t, "cordon", pod.Spec.NodeName)
	defer c.uncordon(t, pod.Spec.NodeName)
	s.kubectl("delete", "pod", "store-0")
	s.eventually(t, "store-0 to wait for its node", func(context.Context) error {
		out := s.kubectl("get", "pod", "store-0", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		if !strings.Contains(out, "3 node(s) didn't match PersistentVolume's node affinity") {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	has(t, "why", s.kubectl("why", "store-0"), "didn't match PersistentVolume's node affinity", "node(s) were unschedulable")
	c.uncordon(t, pod.Spec.NodeName)
	s.back("store-0", pod.UID, 4)

	// A volume that was never mounted has no directory, and goes all the same.
	c.berthIn(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: bare}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: bare}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: none, command: [/bin/true], volumeMounts: [{name: none, mountPath: /none}, {name: data, mountPath: /data}]}
  volumes:
  - {name: none, configMap: {name: none}}
  - {name: data, persistentVolumeClaim: {claimName: bare}}
`, "apply", "-n", s.ns, "-f", "-")
	s.eventually(t, "a claim that waits for its pod to be bound", func(context.Context) error {
		if out := s.kubectl("get", "pvc", "bare", "-o", "jsonpath={.status.phase}"); out != "Bound" {
			return fmt.Errorf("it is %q", out)
		}
		return nil
	})
	s.kubectl("delete", "pod", "bare", "--timeout=60s")
	s.kubectl("delete", "pvc", "bare", "--timeout=60s")

	s.kubectl("delete", "statefulset", "store", "--timeout=90s")
	s.eventually(t, "the volumes to go", func(context.Context) error {
		if out := s.kubectl("get", "pv,pvc", "-o", "name"); strings.TrimSpace(out) != "" {
			return fmt.Errorf("there are %s", out)
		}
		for _, p := range c.Processes() {
			if left, _ := filepath.Glob(filepath.Join(p.DataDir, "worker", "volumes", "*")); len(left) > 0 {
				return fmt.Errorf("there are %v", left)
			}
		}
		return nil
	})
	c.berth(t, "delete", "storageclass", "local")
	c.verify(t, 3)
}

// back waits for a pod to run that is another than before, with what is in its volume,
// on the node where that is.
func (s *sets) back(name string, before types.UID, started int) *corev1.Pod {
	s.t.Helper()
	var pod *corev1.Pod
	s.eventually(s.t, fmt.Sprintf("%s to have been started %d times", name, started), func(ctx context.Context) (err error) {
		if pod, err = s.Reader().Kube.CoreV1().Pods(s.ns).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if pod.UID == before || pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("it is %s", pod.Status.Phase)
		}
		claim, err := s.Reader().Kube.CoreV1().PersistentVolumeClaims(s.ns).Get(ctx, "data-"+name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, p := range s.Processes() {
			text, err := os.ReadFile(filepath.Join(p.DataDir, "worker", "volumes", claim.Spec.VolumeName, "log"))
			if err != nil {
				continue
			}
			if n := strings.Count(string(text), "started\n"); n != started || p.Name != pod.Spec.NodeName {
				return fmt.Errorf("it was started %d times on %s, and is on %s", n, p.Name, pod.Spec.NodeName)
			}
			return nil
		}
		return fmt.Errorf("the volume %q is nowhere", claim.Spec.VolumeName)
	})
	return pod
}

// A claim without a class is given a volume that an administrator has made, by
// Kubernetes' controller; the pod waits for it, and one of higher priority takes a claim
// that one at a time may use.
func TestVolumesMadeByHand(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "by-hand")
	dir := t.TempDir()
	user := func(name, class string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  priorityClassName: %q
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: none, command: [/bin/sh, -c, 'echo %s >> /data/users; exec sleep 36000'], volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
`, name, class, name)
	}
	c.berthIn(t, user("first", ""), "apply", "-n", s.ns, "-f", "-")
	waits := func(why string) {
		t.Helper()
		s.eventually(t, "the pod to wait", func(context.Context) error {
			out := s.kubectl("get", "pod", "first", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
			if !strings.Contains(out, why) {
				return fmt.Errorf("it says %q", out)
			}
			return nil
		})
	}
	waits(`persistentvolumeclaim "data" not found`)
	c.berthIn(t, `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOncePod], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`, "apply", "-n", s.ns, "-f", "-")
	waits("pod has unbound immediate PersistentVolumeClaims")
	c.berthIn(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: by-hand}
spec:
  accessModes: [ReadWriteOncePod]
  capacity: {storage: 2Gi}
  persistentVolumeReclaimPolicy: Retain
  local: {path: %s}
  nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [worker-2]}]}]}}
---
apiVersion: scheduling.k8s.io/v1
kind: PriorityClass
metadata: {name: by-hand}
value: 1000
`, dir), "apply", "-f", "-")
	wrote := func(users string) {
		t.Helper()
		s.eventually(t, "the volume to be used", func(context.Context) error {
			text, err := os.ReadFile(filepath.Join(dir, "users"))
			if err == nil && string(text) != users {
				err = fmt.Errorf("it was used by %q", text)
			}
			return err
		})
	}
	wrote("first\n")
	has(t, "claim", s.kubectl("get", "pvc", "data"), "Bound", "by-hand", "2Gi", "RWOP")
	c.berthIn(t, user("second", "by-hand"), "apply", "-n", s.ns, "-f", "-")
	wrote("first\nsecond\n")
	has(t, "node", s.kubectl("get", "pod", "second", "-o", "jsonpath={.spec.nodeName}"), "worker-2")
	s.kubectl("delete", "pod", "second", "--timeout=60s")
	s.kubectl("delete", "pvc", "data", "--timeout=60s")
	s.eventually(t, "the volume to be released", func(context.Context) error {
		if out := c.berth(t, "get", "pv", "by-hand", "-o", "jsonpath={.status.phase}"); out != "Released" {
			return fmt.Errorf("it is %q", out)
		}
		return nil
	})
	if _, err := os.Stat(filepath.Join(dir, "users")); err != nil {
		t.Error(err) // what is retained stays
	}
	c.berth(t, "delete", "pv/by-hand", "priorityclass/by-hand", "--timeout=60s")
}

// A volume of a zone is not used on a node of another; its pod waits, says so, and is placed when the node comes into the
// zone (VolumeZone).
func TestVolumesOfAZone(t *testing.T) {
	c := sharedCluster(t)
	s := newSets(t, c, "of-a-zone")
	c.berth(t, "label", "node", "worker-2", "topology.kubernetes.io/zone=near")
	defer c.berth(t, "label", "node", "worker-2", "topology.kubernetes.io/zone-")
	c.berthIn(t, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolume
metadata: {name: of-a-zone, labels: {topology.kubernetes.io/zone: faraway}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  persistentVolumeReclaimPolicy: Retain
  hostPath: {path: %s}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data, namespace: %[2]s}
spec: {accessModes: [ReadWriteOnce], storageClassName: "", volumeName: of-a-zone, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: user, namespace: %[2]s}
spec:
  nodeSelector: {kubernetes.io/hostname: worker-2}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: none, command: [/bin/sh, -c, 'exec sleep 36000'], volumeMounts: [{name: data, mountPath: /data}]}
  volumes:
  - {name: data, persistentVolumeClaim: {claimName: data}}
`, t.TempDir(), s.ns), "apply", "-f", "-")
	const why = "node(s) had no available volume zone"
	s.eventually(t, "the pod to wait", func(context.Context) error {
		out := s.kubectl("get", "pod", "user", "-o", "jsonpath={.status.conditions[?(@.type=='PodScheduled')].message}")
		if !strings.Contains(out, why) {
			return fmt.Errorf("it says %q", out)
		}
		return nil
	})
	has(t, "why", s.kubectl("why", "user"), why)
	c.berth(t, "label", "--overwrite", "node", "worker-2", "topology.kubernetes.io/zone=faraway")
	c.waitRunning(t, s.ns, "user")
	s.kubectl("delete", "pod/user", "pvc/data", "--timeout=60s")
	c.berth(t, "delete", "pv/of-a-zone", "--timeout=60s")
}
