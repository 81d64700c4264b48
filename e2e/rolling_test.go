package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/agent/fleet"
)

// Clients go on creating pods while every server is restarted, one after the
// other. What was acknowledged is there afterwards, and is bound.
func TestRollingRestartUnderLoad(t *testing.T) {
	c := sharedCluster(t)
	ns := c.namespace(t, "rolling")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var clients sync.WaitGroup
	loads := make([]*load, 3)
	for i := range loads {
		loads[i] = &load{c: c, ns: ns, name: fmt.Sprintf("client-%d", i), kube: c.balanced(t, i, nil), acknowledged: map[string]types.UID{}}
		clients.Go(func() { loads[i].run(ctx) })
	}
	created := func() (n int64) {
		for _, l := range loads {
			n += l.created.Load()
		}
		return n
	}
	progress := func(what string) {
		t.Helper()
		from := created()
		c.eventually(t, "pods to be created "+what, func(context.Context) error {
			if n := created(); n < from+20 {
				return fmt.Errorf("%d were", n-from)
			}
			return nil
		})
	}
	progress("before the restarts")
	for _, s := range c.Servers() {
		s.Signal(syscall.SIGTERM)
		select {
		case <-s.Exited():
		case <-time.After(patience):
			t.Fatalf("%s does not end when it is told to", s.Name)
		}
		if code := s.ExitCode(); code != 0 {
			t.Errorf("%s ended with status %d:\n%s", s.Name, code, s.LogTail(10))
		}
		progress("while " + s.Name + " is away")
		c.restart(t, s)
		progress("after " + s.Name + " came back")
	}
	stop()
	clients.Wait()
	total := 0
	for _, l := range loads {
		for _, err := range l.refused {
			t.Errorf("%s was refused: %v", l.name, err)
		}
		total += len(l.acknowledged)
	}
	c.eventually(t, "all that was acknowledged to be bound", func(ctx context.Context) error {
		list, err := c.Reader().Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		have, waiting := map[string]types.UID{}, 0
		for _, p := range list.Items {
			have[p.Name] = p.UID
			if p.Spec.NodeName == "" {
				waiting++
			}
		}
		for _, l := range loads {
			for name, uid := range l.acknowledged {
				if have[name] != uid {
					t.Fatalf("pod %s was acknowledged with UID %s, and there is %q", name, uid, have[name])
				}
			}
		}
		if waiting > 0 {
			return fmt.Errorf("%d of %d pods wait", waiting, len(list.Items))
		}
		return nil
	})
	t.Logf("%d pods were acknowledged", total)
	c.verify(t, 3)
}

// load is one client that creates pods, one after the other.
type load struct {
	c            *cluster
	ns, name     string
	kube         kubernetes.Interface
	created      atomic.Int64
	acknowledged map[string]types.UID
	refused      []error
}

func (l *load) run(ctx context.Context) {
	for i := 0; ctx.Err() == nil; i++ {
		p := pod(l.ns, fmt.Sprintf("%s-%d", l.name, i), "exec sleep 1000", pretended)
		for ctx.Err() == nil {
			got, err := l.kube.CoreV1().Pods(l.ns).Create(ctx, p, metav1.CreateOptions{})
			if err == nil {
				l.acknowledged[p.Name] = got.UID
				l.created.Add(1)
				break
			}
			if apierrors.IsAlreadyExists(err) {
				break // an attempt whose outcome was not known
			}
			if !transient(err) && ctx.Err() == nil {
				l.refused = append(l.refused, fmt.Errorf("pod %s: %w", p.Name, err))
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(pollEvery):
			}
		}
	}
}

// transient: trying again is right.
func transient(err error) bool {
	var status apierrors.APIStatus
	return !errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err)
}

// balancer sends each request to a server that can be connected to, as a load
// balancer would.
type balancer struct {
	servers []*fleet.Process
	trips   []http.RoundTripper
	next    atomic.Int64
}

// balanced is a client of all servers; it begins with the first given. seen is
// told of every request.
func (c *cluster) balanced(t testing.TB, first int, seen func(*http.Request)) kubernetes.Interface {
	t.Helper()
	b := &balancer{servers: c.Servers()}
	b.next.Store(int64(first))
	for _, s := range b.servers {
		trip, err := transportOf(s)
		if err != nil {
			t.Fatal(err)
		}
		b.trips = append(b.trips, trip)
	}
	config := c.Servers()[0].RESTConfig()
	kube, err := kubernetes.NewForConfigAndClient(config, &http.Client{Transport: roundTrip(func(r *http.Request) (*http.Response, error) {
		if seen != nil {
			seen(r)
		}
		return b.RoundTrip(r)
	})})
	if err != nil {
		t.Fatal(err)
	}
	return kube
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// RoundTrip implements http.RoundTripper.
func (b *balancer) RoundTrip(r *http.Request) (*http.Response, error) {
	var last error
	for range b.servers {
		i := int(b.next.Load()) % len(b.servers)
		again := r.Clone(r.Context())
		again.URL.Host = b.servers[i].HTTP()
		if r.GetBody != nil {
			body, err := r.GetBody()
			if err != nil {
				return nil, err
			}
			again.Body = body
		}
		resp, err := b.trips[i].RoundTrip(again)
		if err == nil {
			return resp, nil
		}
		last = err
		b.next.CompareAndSwap(int64(i), int64(i+1)%int64(len(b.servers)))
		if !errors.Is(err, syscall.ECONNREFUSED) {
			break // it may have been done
		}
	}
	return nil, last
}
