package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// zoneGrace is how long a node may be silent here. One of the rates is one node in letGoEvery, and stamps are whole seconds.
	zoneGrace  = 10 * time.Second
	letGoEvery = 10 * time.Second
	// largeZone is a zone of more than 50 nodes, the one that is well among them.
	largeZone = 54
	// endedKept is how many pods that have ended are kept, and orphanQuarantine how long a node is gone before its pods are collected.
	endedKept        = 12_500
	orphanQuarantine = 40 * time.Second
)

// zones is a cluster of nodes that nobody is behind, in zones, two of which have a worker, which only pretends.
type zones struct {
	*cluster
	ns string
}

// Of three zones one is lost whole, and most of two others, one of which is large (PD12): the pods of the first are let go one node after
// another, of the large one of a single node, and of the small one of none that was lost when the others were. A StatefulSet's pod with a volume comes back when somebody says that
// its node is out of service, and not before (PD11). Pods of a node that is gone have failed before they go (GC2), and of those that
// have ended the first go that were evicted, and then the oldest (GC1).
func TestZonesThatAreLost(t *testing.T) {
	t.Parallel() // it waits, mostly
	in := func(zone string) string { return fmt.Sprintf("labels = { %q = %q }", corev1.LabelTopologyZone, zone) }
	c := newCluster(t, server("server-1", "bootstrap_expect = 1", fmt.Sprintf("scheduler { node_grace = %q }", zoneGrace)),
		worker("b-well", fakeRuntime, in("b")), worker("d-well", fakeRuntime, in("d"), "max_pods = 20000"))
	if err := c.waitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	z := &zones{c, c.namespace(t, "zones")}
	var ended sync.WaitGroup
	defer ended.Wait()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	orphan := z.orphan(ctx, t)
	var lost []string
	for i := range largeZone - 1 {
		lost = append(lost, fmt.Sprintf("d-%d", i))
	}
	z.post(t, "d", lost...)
	z.post(t, "b", "b-0", "b-1", "b-2")
	for _, name := range []string{"b-0", "b-1", "b-2"} {
		create(t, c.Reader().Kube, z.guest(name))
	}
	db := z.set(t)

	ended.Go(func() { z.endMany(ctx, t) })
	z.letGo(t, append(lost, "b-0", "b-1", "b-2"), db)
	again := z.outOfService(t, db)
	ended.Wait()
	z.keepsTheNewest(t)
	orphan(t)
	z.untouched(t)
	c.verify(t, 1)
	has(t, "the volume", c.berth(t, "get", "pvc", "data-db-0", "-n", z.ns), "Bound", "shared")
	t.Logf("db-0 was on %s, and is on %s", db.Spec.NodeName, again.Spec.NodeName)
}

// post makes nodes that are well, as somebody else's agents do, or says so again of those that are there.
func (z *zones) post(t *testing.T, zone string, names ...string) {
	t.Helper()
	nodes := z.Reader().Kube.CoreV1().Nodes()
	room := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("8Gi"), corev1.ResourcePods: resource.MustParse("10")}
	for _, name := range names {
		n := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
			Status: corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}},
		}
		_, err := nodes.Create(t.Context(), n, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			var patch []byte
			if patch, err = json.Marshal(map[string]any{"status": map[string]any{"conditions": n.Status.Conditions}}); err == nil {
				_, err = nodes.Patch(t.Context(), name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// guest is a pod of a node that tolerates its loss for a second.
func (z *zones) guest(node string) *corev1.Pod {
	p := pod(z.ns, "guest-of-"+node, "")
	p.Spec.NodeName, p.Spec.Tolerations = node, shortly
	return p
}

var shortly = []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(1))}}

// orphan makes a pod on a node that goes at once, and gives what looks at its end.
func (z *zones) orphan(ctx context.Context, t *testing.T) func(t *testing.T) {
	t.Helper()
	kube := z.Reader().Kube
	z.post(t, "none", "gone")
	p := z.guest("gone")
	create(t, kube, p)
	w, err := kube.CoreV1().Pods(z.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + p.Name})
	if err != nil {
		t.Fatal(err)
	}
	left := time.Now()
	if err := kube.CoreV1().Nodes().Delete(t.Context(), "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T) {
		t.Helper()
		defer w.Stop()
		failed := false
		for late := time.After(patience); ; {
			select {
			case e, ok := <-w.ResultChan():
				p, isPod := e.Object.(*corev1.Pod)
				if !ok || !isPod {
					t.Fatalf("the watch of the orphan ended: %+v", e)
				}
				why := condition(p, corev1.DisruptionTarget)
				switch {
				case e.Type == watch.Deleted && !failed:
					t.Fatalf("it is gone, and had not failed: %+v", p.Status)
				case e.Type == watch.Deleted:
					return
				case p.Status.Phase == corev1.PodFailed && (why == nil || why.Reason != "DeletionByPodGC" || why.Message != "PodGC: node no longer exists"):
					t.Errorf("it failed, and says %+v", p.Status.Conditions)
				case p.Status.Phase == corev1.PodFailed && why.LastTransitionTime.Sub(left) < orphanQuarantine-time.Second:
					t.Errorf("it failed after %s, of %s", why.LastTransitionTime.Sub(left), orphanQuarantine)
				case p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodFailed:
					t.Errorf("it is told to end, and has not failed: %+v", p.Status)
				}
				failed = failed || p.Status.Phase == corev1.PodFailed
			case <-late:
				t.Fatal("nobody collects the orphan")
			}
		}
	}
}

const dbManifest = `apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  storageClassName: ""
  claimRef: {namespace: %[1]s, name: data-db-0}
  hostPath: {path: /nowhere}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: %[1]s}
spec:
  replicas: 1
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      affinity:
        nodeAffinity:
          requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [a, d]}]}]}
          preferredDuringSchedulingIgnoredDuringExecution: [{weight: 100, preference: {matchExpressions: [{key: topology.kubernetes.io/zone, operator: In, values: [a]}]}}]
      tolerations: [{key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute, tolerationSeconds: 1}]
      containers: [{name: main, image: none, volumeMounts: [{name: data, mountPath: /data}]}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], storageClassName: "", resources: {requests: {storage: 1Gi}}}
`

var zoneA = []string{"a-0", "a-1", "a-2"}

// set makes a StatefulSet of one pod, and gives the pod, which is in the zone that will be lost. Others of that zone have a guest.
func (z *zones) set(t *testing.T) *corev1.Pod {
	t.Helper()
	z.post(t, "a", zoneA...)
	z.eventually(t, "zone a to take pods", func(ctx context.Context) error {
		z.post(t, "a", zoneA...)
		for _, name := range zoneA {
			n, err := z.Reader().Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil || len(n.Spec.Taints) > 0 {
				return errors.Join(err, fmt.Errorf("%s has the taints %+v", name, n.Spec.Taints))
			}
		}
		return nil
	})
	z.berthIn(t, fmt.Sprintf(dbManifest, z.ns), "apply", "-f", "-")
	var db *corev1.Pod
	z.eventually(t, "db-0 to be bound", func(ctx context.Context) (err error) {
		z.post(t, "a", zoneA...)
		if db, err = z.Reader().Kube.CoreV1().Pods(z.ns).Get(ctx, "db-0", metav1.GetOptions{}); err == nil && db.Spec.NodeName == "" {
			err = fmt.Errorf("it waits: %+v", db.Status.Conditions)
		}
		return err
	})
	if !slices.Contains(zoneA, db.Spec.NodeName) {
		t.Fatalf("db-0 is on %s", db.Spec.NodeName)
	}
	for _, name := range zoneA {
		create(t, z.Reader().Kube, z.guest(name))
	}
	return db
}

// letGo waits until all of zone a is let go, and looks at when, and at who else was.
func (z *zones) letGo(t *testing.T, others []string, db *corev1.Pod) {
	t.Helper()
	z.eventually(t, "zone a to be let go", func(ctx context.Context) error {
		list, err := z.Reader().Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		at, lost, small, large := []time.Time{}, 0, 0, 0
		for i := range list.Items {
			n := &list.Items[i]
			if slices.Contains(others, n.Name) && !nodeReady(n) {
				lost++
			}
			taint := slices.IndexFunc(n.Spec.Taints, func(t corev1.Taint) bool {
				return t.Key == corev1.TaintNodeUnreachable && t.Effect == corev1.TaintEffectNoExecute
			})
			switch {
			case taint < 0:
			case strings.HasPrefix(n.Name, "a-"):
				at = append(at, n.Spec.Taints[taint].TimeAdded.Time)
			case strings.HasPrefix(n.Name, "b-"):
				small++
			case strings.HasPrefix(n.Name, "d-"):
				large++
			}
		}
		slices.SortFunc(at, time.Time.Compare)
		for i := range at[min(1, len(at)):] {
			if apart := at[i+1].Sub(at[i]); apart < letGoEvery-time.Second {
				t.Fatalf("two nodes of the lost zone were let go within %s", apart)
			}
		}
		// The first of a zone goes at the rate of one of which little is lost, if it is lost before the others.
		if small > 1 || large > 1 {
			t.Fatalf("of the zones that are lost for the most part %d and %d nodes were let go", small, large)
		}
		if len(at) < len(zoneA) || lost < len(others) || large == 0 {
			return fmt.Errorf("%d nodes were let go, of the others %d of %d are lost, and %d of the large zone were let go", len(at), lost, len(others), large)
		}
		return nil
	})
	for _, name := range append([]string{db.Name}, "guest-of-a-0", "guest-of-a-1", "guest-of-a-2") {
		z.eventually(t, name+" to be told to end", func(ctx context.Context) error {
			p, err := z.Reader().Kube.CoreV1().Pods(z.ns).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if why := condition(p, corev1.DisruptionTarget); p.DeletionTimestamp == nil || why == nil || why.Reason != "DeletionByTaintManager" {
				return fmt.Errorf("its conditions are %+v", p.Status.Conditions)
			}
			return nil
		})
	}
}

// outOfService: the StatefulSet's pod, of which nobody says that it has ended, is not made again before its node is said to be
// out of service. Then it is, elsewhere, with the same claim; pods of other nodes go on ending.
func (z *zones) outOfService(t *testing.T, db *corev1.Pod) (again *corev1.Pod) {
	t.Helper()
	pods := z.Reader().Kube.CoreV1().Pods(z.ns)
	if p, err := pods.Get(t.Context(), db.Name, metav1.GetOptions{}); err != nil || p.UID != db.UID || p.DeletionTimestamp == nil {
		t.Fatalf("db-0 is another: %+v, %v", p, err)
	}
	z.berth(t, "taint", "node", db.Spec.NodeName, corev1.TaintNodeOutOfService+"=nodeshutdown:NoExecute")
	z.eventually(t, "db-0 to run elsewhere", func(ctx context.Context) (err error) {
		if again, err = pods.Get(ctx, db.Name, metav1.GetOptions{}); err == nil && (again.UID == db.UID || !podReady(again)) {
			err = fmt.Errorf("it is %s on %s", again.Status.Phase, again.Spec.NodeName)
		}
		return err
	})
	if again.Spec.NodeName != "d-well" {
		t.Errorf("it runs on %s", again.Spec.NodeName)
	}
	for _, name := range zoneA {
		_, err := pods.Get(t.Context(), "guest-of-"+name, metav1.GetOptions{})
		if gone := apierrors.IsNotFound(err); gone != (name == db.Spec.NodeName) {
			t.Errorf("the guest of %s: gone %t, %v", name, gone, err)
		}
	}
	return again
}

// untouched: pods of the small zone stay, whose nodes are not let go.
func (z *zones) untouched(t *testing.T) {
	t.Helper()
	stay := 0
	for _, name := range []string{"b-0", "b-1", "b-2"} {
		p, err := z.Reader().Kube.CoreV1().Pods(z.ns).Get(t.Context(), "guest-of-"+name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p.DeletionTimestamp == nil {
			stay++
		}
	}
	if stay < 2 {
		t.Errorf("%d of the small zone's three pods stay", stay)
	}
}

const (
	endedSpace = "ended"
	// oldest are the pods that ended before the others, and are too many with the one that is evicted.
	oldest     = 20
	evictedPod = "c-00000"
	// endAtOnce is how many are made at a time.
	endAtOnce = 32
)

// endedPod ends at once, but for the last one, whose status somebody else writes.
func endedPod(name string) *corev1.Pod {
	p := pod(endedSpace, name, "", policy(corev1.RestartPolicyNever))
	p.Annotations = map[string]string{"fake.berth.dev/run-seconds": "0"}
	if p.Spec.NodeName = "d-well"; name == evictedPod {
		p.Spec.NodeName, p.Spec.SchedulerName = "", "nobody"
	}
	return p
}

// endMany makes pods that end, more than are kept: the oldest first, and last one that is evicted.
func (z *zones) endMany(ctx context.Context, t *testing.T) {
	kube := z.Reader().Kube
	_, err := kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: endedSpace}}, metav1.CreateOptions{})
	if err != nil {
		t.Error(err)
		return
	}
	for _, part := range []struct {
		name string
		many int
	}{{"a", oldest}, {"b", endedKept}, {"c", 1}} {
		names := make(chan string)
		var making sync.WaitGroup
		for range endAtOnce {
			making.Go(func() {
				for name := range names {
					if ctx.Err() != nil {
						continue // the test is over
					}
					body, err := json.Marshal(endedPod(name))
					if err == nil {
						err = kube.CoreV1().RESTClient().Post().Namespace(endedSpace).Resource("pods").Body(body).SetHeader("Content-Type", "application/json").Do(ctx).Error()
					}
					if err != nil {
						t.Errorf("make %s: %v", name, err)
					}
				}
			})
		}
		for i := range part.many {
			names <- fmt.Sprintf("%s-%05d", part.name, i)
		}
		close(names)
		making.Wait()
	}
	if _, err := kube.CoreV1().Pods(endedSpace).Patch(ctx, evictedPod, types.MergePatchType,
		[]byte(`{"status":{"phase":"Failed","reason":"Evicted"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Error(err)
	}
}

// keepsTheNewest waits until as many are left as are kept, and looks at which.
func (z *zones) keepsTheNewest(t *testing.T) {
	t.Helper()
	pods := z.Reader().Kube.CoreV1().Pods(endedSpace)
	z.eventually(t, "those that are too many to go", func(ctx context.Context) error {
		for _, name := range append(numbered("a", oldest), evictedPod) {
			if _, err := pods.Get(ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(err, fmt.Errorf("%s is there", name))
			}
		}
		return nil
	})
	list, err := pods.List(t.Context(), metav1.ListOptions{Limit: 1})
	if err != nil {
		t.Fatal(err)
	}
	if list.RemainingItemCount == nil || *list.RemainingItemCount != endedKept-1 || list.Items[0].Name != "b-00000" {
		t.Errorf("%s and %v others are left of %d", list.Items[0].Name, list.RemainingItemCount, endedKept)
	}
}

func numbered(name string, many int) (out []string) {
	for i := range many {
		out = append(out, fmt.Sprintf("%s-%05d", name, i))
	}
	return out
}
