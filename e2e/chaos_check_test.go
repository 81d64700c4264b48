package e2e

import (
	"context"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/agent/fleet"
	berthmodel "github.com/berth-dev/berth/model"
)

// chaosChecker holds what every server tells against the others, and against what
// must never be.
type chaosChecker struct {
	mu     sync.Mutex
	shown  map[string]shownAt // by resourceVersion
	bound  map[types.UID]string
	seen   map[types.UID]bool
	gone   map[types.UID]bool
	broken []string
	looks  int
}

type shownAt struct {
	uid types.UID
	sum uint64
	by  string
}

func newChaosChecker() *chaosChecker {
	return &chaosChecker{shown: map[string]shownAt{}, bound: map[types.UID]string{}, seen: map[types.UID]bool{}, gone: map[types.UID]bool{}}
}

func (k *chaosChecker) violated(format string, args ...any) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.broken = append(k.broken, fmt.Sprintf(format, args...))
}

// violations are told once each.
func (k *chaosChecker) violations() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Compact(slices.Clone(k.broken))
}

// follow lists and watches the pods of one server until ctx ends.
func (k *chaosChecker) follow(ctx context.Context, p *fleet.Process) {
	for ctx.Err() == nil {
		k.followOnce(ctx, p)
		chaosPause(ctx, pollEvery)
	}
}

func (k *chaosChecker) followOnce(ctx context.Context, p *fleet.Process) {
	pods := p.Kube.CoreV1().Pods(metav1.NamespaceAll)
	one, cancel := context.WithTimeout(ctx, askTimeout)
	list, err := pods.List(one, metav1.ListOptions{})
	cancel()
	if err != nil {
		return
	}
	last := map[types.UID]*corev1.Pod{}
	for i := range list.Items {
		pod := &list.Items[i]
		k.show(p.Name, pod)
		last[pod.UID] = pod
	}
	w, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion, TimeoutSeconds: new(int64(60))})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		pod, ok := e.Object.(*corev1.Pod)
		if !ok || e.Type == watch.Error {
			return
		}
		k.show(p.Name, pod)
		if old := last[pod.UID]; old != nil {
			k.step(p.Name, old, pod)
		}
		last[pod.UID] = pod
		if e.Type == watch.Deleted {
			delete(last, pod.UID)
			k.mu.Lock()
			k.gone[pod.UID] = true
			k.mu.Unlock()
		}
	}
}

// show: one revision means one thing on all servers, and a pod is bound once.
func (k *chaosChecker) show(by string, p *corev1.Pod) {
	b, err := p.Marshal()
	if err != nil {
		k.violated("pod %s can not be encoded: %v", p.Name, err)
	}
	h := fnv.New64a()
	h.Write(b)
	mine := shownAt{p.UID, h.Sum64(), by}
	k.mu.Lock()
	first, known := k.shown[p.ResourceVersion]
	if !known {
		k.shown[p.ResourceVersion] = mine
	}
	k.seen[p.UID] = true
	node := k.bound[p.UID]
	if p.Spec.NodeName != "" {
		k.bound[p.UID] = p.Spec.NodeName
	}
	k.looks++
	k.mu.Unlock()
	if known && (first.uid != mine.uid || first.sum != mine.sum) {
		k.violated("revision %s: server %s shows pod %s with other content than server %s", p.ResourceVersion, by, p.Name, first.by)
	}
	if node != "" && p.Spec.NodeName != "" && node != p.Spec.NodeName {
		k.violated("pod %s was bound to %s, and is bound to %s", p.Name, node, p.Spec.NodeName)
	}
}

// step looks at one change of a pod.
func (k *chaosChecker) step(by string, old, now *corev1.Pod) {
	over := old.Status.Phase == corev1.PodSucceeded || old.Status.Phase == corev1.PodFailed
	switch {
	case old.Spec.NodeName != "" && now.Spec.NodeName == "":
		k.violated("server %s: pod %s is bound no longer", by, now.Name)
	case old.DeletionTimestamp != nil && now.DeletionTimestamp == nil:
		k.violated("server %s: pod %s was to go, and is not any more", by, now.Name)
	case over && old.Status.Phase != now.Status.Phase:
		k.violated("server %s: pod %s was %s, and is %s", by, now.Name, old.Status.Phase, now.Status.Phase)
	}
}

// capacity: no node holds more than it has, in what one list shows.
func (k *chaosChecker) capacity(ctx context.Context, p *fleet.Process) {
	list, err := p.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	nodes, err := p.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	used := map[string]berthmodel.Resources{}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName != "" && !podOver(pod) {
			used[pod.Spec.NodeName] = used[pod.Spec.NodeName].Add(berthmodel.PodRequest(pod))
		}
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		u, room := used[n.Name], berthmodel.Allocatable(n)
		if u.MilliCPU > room.MilliCPU || u.MemoryBytes > room.MemoryBytes || u.Pods > room.Pods {
			k.violated("server %s, revision %s: node %s holds %dm cpu and %d pods, and has %dm and %d",
				p.Name, list.ResourceVersion, n.Name, u.MilliCPU, u.Pods, room.MilliCPU, room.Pods)
		}
	}
}

func podOver(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// exits: how a container ended is what it did, or a signal; and none that never
// restarts was started twice.
func (k *chaosChecker) exits(dir string, pods []corev1.Pod) {
	for i := range pods {
		p := &pods[i]
		want, ours := p.Annotations[exitAnnotation]
		if !ours || len(p.Status.ContainerStatuses) == 0 {
			continue
		}
		t := p.Status.ContainerStatuses[0].State.Terminated
		if t == nil {
			continue
		}
		signalled := t.ExitCode == 137 || t.ExitCode == 143
		if got := fmt.Sprint(t.ExitCode); got != want && !signalled {
			k.violated("pod %s ended with status %s (%s), and its container with %s", p.Name, got, t.Reason, want)
		}
		if p.Status.Phase == corev1.PodSucceeded && t.ExitCode != 0 {
			k.violated("pod %s succeeded with status %d", p.Name, t.ExitCode)
		}
	}
	entries, _ := os.ReadDir(dir) // none: no pod has started yet
	for _, e := range entries {
		b, _ := os.ReadFile(filepath.Join(dir, e.Name())) // what is there of it
		if n := strings.Count(string(b), "\n"); n > 1 {
			k.violated("the container of pod %s, which never restarts, was started %d times", e.Name(), n)
		}
	}
}

// acknowledged pods must have been seen by somebody.
func (k *chaosChecker) acknowledged(uids map[types.UID]string) {
	k.mu.Lock()
	var lost []string
	for uid, name := range uids {
		if !k.seen[uid] {
			lost = append(lost, name)
		}
	}
	k.mu.Unlock()
	for _, name := range lost {
		k.violated("pod %s was acknowledged, and no server ever showed it", name)
	}
}

// unsettled says what has not come to rest in a cluster in which nothing goes wrong
// any more.
func unsettled(ctx context.Context, p *fleet.Process) error {
	list, err := p.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	nodes, err := p.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	free := map[string]berthmodel.Resources{}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		lost := func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, "node.kubernetes.io/") }
		switch {
		case !nodeReady(n) || slices.ContainsFunc(n.Spec.Taints, lost):
			return fmt.Errorf("node %s is not ready, or has taints: %v", n.Name, n.Spec.Taints)
		case len(n.Spec.Taints) == 0:
			free[n.Name] = berthmodel.Allocatable(n)
		}
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName == "" || podOver(pod) {
			continue
		}
		if pod.DeletionTimestamp != nil || pod.Spec.SchedulerName == corev1.DefaultSchedulerName && pod.Status.Phase != corev1.PodRunning {
			return fmt.Errorf("pod %s on %s is %s, and its deletion: %v", pod.Name, pod.Spec.NodeName, pod.Status.Phase, pod.DeletionTimestamp)
		}
		r, f := berthmodel.PodRequest(pod), free[pod.Spec.NodeName] // of one with a taint less than nothing
		f.MilliCPU, f.Pods = f.MilliCPU-r.MilliCPU, f.Pods-r.Pods
		free[pod.Spec.NodeName] = f
	}
	for i := range list.Items {
		pod := &list.Items[i]
		if pod.Spec.NodeName != "" || podOver(pod) || pod.Spec.SchedulerName != corev1.DefaultSchedulerName {
			continue
		}
		if pod.Status.NominatedNodeName != "" || pod.DeletionTimestamp != nil {
			return fmt.Errorf("pod %s is on its way", pod.Name)
		}
		for name, f := range free {
			if r := berthmodel.PodRequest(pod); r.MilliCPU <= f.MilliCPU && r.Pods <= f.Pods {
				return fmt.Errorf("pod %s waits, and %s has room", pod.Name, name)
			}
		}
	}
	return nil
}
