package e2e

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

// users work until ctx ends; then they look at what they were promised.
func (c *chaos) users(t *testing.T, ctx context.Context) *sync.WaitGroup {
	for i, value := range []int32{0, 100, 1000} {
		makeClass(t, c.cluster, fmt.Sprintf("class-%d", i), value)
	}
	for i := range chaosSets {
		c.furnish(t, fmt.Sprintf("set-%d", i), fmt.Sprintf("class-%d", i))
	}
	var users sync.WaitGroup
	h := &history{began: time.Now(), count: map[string]int{}}
	var probers sync.WaitGroup
	for i := range linearClients {
		random := rand.New(rand.NewPCG(c.rand.Uint64(), uint64(i)))
		p := &prober{h: h, id: i, ns: chaosSpace, kube: c.balanced(t, i%chaosServers, nil), random: random, seen: map[string]podState{}}
		probers.Go(func() {
			for ctx.Err() == nil {
				p.step(context.Background())
				chaosPause(ctx, 100*time.Millisecond)
			}
		})
	}
	users.Go(func() {
		probers.Wait()
		result, _ := porcupine.CheckOperationsVerbose(model.ToModel(), h.settle(), 5*time.Minute)
		c.tell("%d requests for registers: %v: %s", len(h.ops), h.count, result)
		if result == porcupine.Illegal {
			c.checker.violated("no order explains what the clients were answered")
		}
		for what := range maps.Keys(h.count) {
			if strings.Contains(what, wrong) {
				c.checker.violated("no answer that there should be: %s", what)
			}
		}
	})
	kube := c.balanced(t, 1, nil)
	submitting, tending := rand.New(rand.NewPCG(c.rand.Uint64(), 1)), rand.New(rand.NewPCG(c.rand.Uint64(), 2))
	users.Go(func() { c.submit(ctx, kube, submitting) })
	users.Go(func() { c.tend(ctx, kube, tending) })
	return &users
}

// furnish makes a ReplicaSet under a budget.
func (c *chaos) furnish(t *testing.T, name, class string) {
	t.Helper()
	labels := map[string]string{"set": name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	least := intstr.FromInt32(1)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &least, Selector: selector},
	}
	if _, err := c.Reader().Kube.PolicyV1().PodDisruptionBudgets(chaosSpace).Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := pod("", "", "exec sleep 100000", cpu("500m"))
	p.Spec.PriorityClassName, p.Labels, p.Spec.TerminationGracePeriodSeconds = class, labels, new(int64(2))
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.ReplicaSetSpec{
		Replicas: new(int32(3)), Selector: selector,
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: p.Spec},
	}}
	if _, err := c.Reader().Kube.AppsV1().ReplicaSets(chaosSpace).Create(t.Context(), set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// submit makes pods that run once, of three priorities.
func (c *chaos) submit(ctx context.Context, kube kubernetes.Interface, r *rand.Rand) {
	acknowledged := map[types.UID]string{}
	for i := 0; ctx.Err() == nil; i++ {
		name, code := fmt.Sprintf("job-%d", i), r.IntN(2)*r.IntN(100)
		command := fmt.Sprintf("echo started >> %s; sleep %d; exit %d", filepath.Join(c.starts, name), 1+r.IntN(20), code)
		p := pod(chaosSpace, name, command, cpu(fmt.Sprintf("%dm", 200+100*r.IntN(20))), class(fmt.Sprintf("class-%d", r.IntN(3))))
		p.Spec.RestartPolicy, p.Spec.TerminationGracePeriodSeconds = corev1.RestartPolicyNever, new(int64(r.IntN(4)))
		p.Annotations = map[string]string{exitAnnotation: fmt.Sprint(code)}
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		if got, err := kube.CoreV1().Pods(chaosSpace).Create(one, p, metav1.CreateOptions{}); err == nil {
			acknowledged[got.UID] = name
		}
		cancel()
		chaosPause(ctx, 600*time.Millisecond)
	}
	chaosPause(context.Background(), 10*time.Second) // who watches comes to know of the last ones
	c.checker.acknowledged(acknowledged)
	c.tell("%d pods were acknowledged", len(acknowledged))
}

// tend scales, and deletes what has ended, and now and then what has not.
func (c *chaos) tend(ctx context.Context, kube kubernetes.Interface, r *rand.Rand) {
	for ctx.Err() == nil {
		chaosPause(ctx, 5*time.Second)
		one, cancel := context.WithTimeout(ctx, 5*time.Second)
		set, patch := fmt.Sprintf("set-%d", r.IntN(chaosSets)), fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, r.IntN(6))
		_, _ = kube.AppsV1().ReplicaSets(chaosSpace).Patch(one, set, types.MergePatchType, patch, metav1.PatchOptions{}) // or it stays as it is
		list, err := kube.CoreV1().Pods(chaosSpace).List(one, metav1.ListOptions{})
		cancel()
		if err != nil {
			continue
		}
		c.checker.exits(c.starts, list.Items)
		for i := range list.Items {
			p := &list.Items[i]
			if _, ours := p.Annotations[exitAnnotation]; !ours || p.DeletionTimestamp != nil || !podOver(p) && r.IntN(50) > 0 {
				continue
			}
			one, cancel := context.WithTimeout(ctx, 5*time.Second)
			only := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))}
			_ = kube.CoreV1().Pods(chaosSpace).Delete(one, p.Name, only) // or the next time
			cancel()
		}
	}
}
