package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	berthmodel "github.com/berth-dev/berth/model"
)

// TestEndpointsAreMirrored: what somebody writes into Endpoints is in endpoint slices, by which services are carried, as
// long as it is there.
func TestEndpointsAreMirrored(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "mirrored")
	const manifest = `
apiVersion: v1
kind: Service
metadata: {name: outside}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: outside}
subsets: [{addresses: [{ip: %s}], ports: [{name: http, port: 8080}]}]
`
	shows := func(want string) {
		t.Helper()
		c.eventually(t, "slices with "+want, func(ctx context.Context) error {
			list, err := c.Reader().Kube.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=outside"})
			if err != nil {
				return err
			}
			got := ""
			for i := range list.Items {
				for j := range list.Items[i].Endpoints {
					got += fmt.Sprintf("%s:%d", list.Items[i].Endpoints[j].Addresses[0], *list.Items[i].Ports[0].Port)
				}
			}
			if got != want {
				return fmt.Errorf("there are %q", got)
			}
			return nil
		})
	}
	c.berthIn(t, fmt.Sprintf(manifest, "192.0.2.1"), "apply", "-n", ns, "-f", "-")
	shows("192.0.2.1:8080")
	c.berthIn(t, fmt.Sprintf(manifest, "192.0.2.2"), "apply", "-n", ns, "-f", "-")
	shows("192.0.2.2:8080")
	c.berth(t, "delete", "endpoints", "outside", "-n", ns)
	shows("")
}

// followedManifest: its pods end when they may, are ready unless they are told not to be, and say that they have heard it.
const followedManifest = `apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: web}
spec:
  replicas: 3
  serviceName: web
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 100
      containers:
      - name: main
        image: none
        env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        command: [/bin/sh, -c, 'trap "while [ ! -e %[1]s/leave ]; do sleep 0.1; done; exit 0" TERM; while :; do sleep 0.2 & wait $!; done']
        readinessProbe:
          periodSeconds: 1
          failureThreshold: 1
          exec: {command: [/bin/sh, -c, 'if [ -e %[1]s/unready-$POD ]; then touch %[1]s/heard-$POD; exit 1; fi; rm -f %[1]s/heard-$POD']}
`

// idleServices have no pods, and are newer: a leader that begins looks at them first.
const idleServices = 40

// followed is a service with three pods.
type followed struct {
	*cluster
	ns, dir string
}

// Who ends gets nothing new: its endpoint says so while the pod is still there. And whatever becomes of pods while nobody leads, the next
// leader's services lead to those that there are, also where it has many of them to look at.
func TestEndpointsFollowTheirPods(t *testing.T) {
	c := sharedCluster(t)
	f := &followed{c, c.namespace(t, "followed"), t.TempDir()}
	c.berthIn(t, fmt.Sprintf(followedManifest, f.dir), "apply", "-n", f.ns, "-f", "-")
	t.Cleanup(func() {
		if err := c.Reader().Kube.AppsV1().StatefulSets(f.ns).Delete(context.Background(), "web", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	c.waitRunning(t, f.ns, "web-0", "web-1", "web-2")
	f.agree(t)
	for i := range idleServices {
		_, err := c.Reader().Kube.CoreV1().Services(f.ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("idle-%d", i)},
			Spec: corev1.ServiceSpec{Selector: map[string]string{"app": "none"}, Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	f.ends(t, "web-2")
	f.changesUnseen(t)
	c.verify(t, 3)
	c.berth(t, "delete", "-n", f.ns, "services", "--all")
}

func (f *followed) touch(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), nil, 0o644); err != nil {
		t.Fatal(err)
	}
}

// endpoint is what is said of a pod.
type endpoint struct {
	name                        string
	ready, serving, terminating bool
}

func endpointsOf(slices ...discoveryv1.EndpointSlice) map[types.UID]endpoint {
	out := map[types.UID]endpoint{}
	for i := range slices {
		for _, e := range slices[i].Endpoints {
			out[e.TargetRef.UID] = endpoint{e.TargetRef.Name, *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating}
		}
	}
	return out
}

// ends deletes a pod, which goes when it may, and that is not before its endpoint says that it ends: who has nobody else may go on there for as
// long as the pod's probe says that it serves.
func (f *followed) ends(t *testing.T, name string) {
	t.Helper()
	kube := f.Reader().Kube
	pod := f.waitRunning(t, f.ns, name)[0]
	w, err := kube.DiscoveryV1().EndpointSlices(f.ns).Watch(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if err := kube.CoreV1().Pods(f.ns).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		slice, ok := e.Object.(*discoveryv1.EndpointSlice)
		if !ok || e.Type == watch.Deleted {
			t.Fatalf("the watch says %+v", e)
		}
		said, there := endpointsOf(*slice)[pod.UID]
		if !there {
			t.Fatal("the endpoint is gone, and the pod is not")
		}
		if said == (endpoint{name, false, true, true}) {
			f.touch(t, "unready-"+name)
			continue
		}
		if said == (endpoint{name, false, false, true}) {
			break
		}
		if said.terminating || !said.ready {
			t.Errorf("the endpoint says %+v", said)
		}
	}
	if _, err := os.Stat(filepath.Join(f.dir, "heard-"+name)); err != nil {
		t.Errorf("the endpoint says that it does not serve before its probe does: %v", err)
	}
	if err := os.Remove(filepath.Join(f.dir, "unready-"+name)); err != nil {
		t.Fatal(err)
	}
	if now, err := kube.CoreV1().Pods(f.ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil || now.UID != pod.UID || now.DeletionTimestamp == nil {
		t.Errorf("the pod is not there any more: %v", err)
	}
	f.touch(t, "leave")
	f.eventually(t, "the next "+name, func(ctx context.Context) error {
		now, err := kube.CoreV1().Pods(f.ns).Get(ctx, name, metav1.GetOptions{})
		if err == nil && (now.UID == pod.UID || !podReady(now)) {
			err = errors.New("it is not there")
		}
		return err
	})
	f.agree(t)
}

// changesUnseen changes all pods while nobody leads, or just before: one goes at once, one is not ready any more, one is again.
func (f *followed) changesUnseen(t *testing.T) {
	t.Helper()
	f.touch(t, "unready-web-1")
	f.eventually(t, "web-1 not to be ready", func(ctx context.Context) error {
		p, err := f.Reader().Kube.CoreV1().Pods(f.ns).Get(ctx, "web-1", metav1.GetOptions{})
		if err == nil && podReady(p) {
			err = errors.New("it is")
		}
		return err
	})
	f.agree(t)
	gone := f.waitRunning(t, f.ns, "web-0")[0]
	leader, other := f.waitLeader(t), f.followers(t)[0]
	err := leader.Kube.CoreV1().Pods(f.ns).Delete(t.Context(), gone.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	other.Signal(syscall.SIGSTOP) // the third has no majority
	leader.Kill()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(f.dir, "unready-web-1")); err != nil {
		t.Fatal(err)
	}
	f.touch(t, "unready-web-2")
	f.eventually(t, "the probes to have told", func(context.Context) error {
		_, ready := os.Stat(filepath.Join(f.dir, "heard-web-1"))
		_, unready := os.Stat(filepath.Join(f.dir, "heard-web-2"))
		if !errors.Is(ready, os.ErrNotExist) || unready != nil {
			return fmt.Errorf("web-1: %v, web-2: %v", ready, unready)
		}
		return nil
	})
	other.Signal(syscall.SIGCONT)
	f.waitLeader(t)
	f.waitRunning(t, f.ns, "web-0", "web-1")
	f.eventually(t, "web-2 not to be ready", func(ctx context.Context) error {
		p, err := f.Reader().Kube.CoreV1().Pods(f.ns).Get(ctx, "web-2", metav1.GetOptions{})
		if err == nil && podReady(p) {
			err = errors.New("it is")
		}
		return err
	})
	if said := f.agree(t); said[gone.UID].name != "" {
		t.Errorf("the endpoints are %+v", said)
	}
	f.restart(t, leader)
}

// agree waits until endpoint slices and Endpoints say of the pods what these say themselves, and of no others.
func (f *followed) agree(t *testing.T) (said map[types.UID]endpoint) {
	t.Helper()
	f.eventually(t, "the endpoints to be those of the pods", func(ctx context.Context) error {
		kube := f.Reader().Kube
		pods, err := kube.CoreV1().Pods(f.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=web"})
		if err != nil {
			return err
		}
		slices, err := kube.DiscoveryV1().EndpointSlices(f.ns).List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		if err != nil {
			return err
		}
		old, err := kube.CoreV1().Endpoints(f.ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := map[types.UID]bool{}
		for i := range old.Subsets {
			for _, a := range old.Subsets[i].Addresses {
				ready[a.TargetRef.UID] = true
			}
			for _, a := range old.Subsets[i].NotReadyAddresses {
				ready[a.TargetRef.UID] = false
			}
		}
		said = endpointsOf(slices.Items...)
		if len(said) != len(pods.Items) || len(ready) != len(pods.Items) {
			return fmt.Errorf("of %d pods there are %+v, and %v", len(pods.Items), said, ready)
		}
		for i := range pods.Items {
			p := &pods.Items[i]
			if want := (endpoint{p.Name, podReady(p), berthmodel.Ready(p), p.DeletionTimestamp != nil}); said[p.UID] != want || ready[p.UID] != want.ready {
				return fmt.Errorf("of %+v it is said that %+v, and that it is ready: %t", want, said[p.UID], ready[p.UID])
			}
		}
		return nil
	})
	return said
}
