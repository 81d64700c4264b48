package server

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/apiserver"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/owners"
)

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"replicas":2,"selector":{"matchLabels":{"app":"web"}},
"template":{"metadata":{"labels":{"app":"web"}},"spec":{"containers":[{"name":"main","image":"none"}]}}}}`

// workloadsAreKept: a Deployment that one server was given is kept by the leader, and
// by the next one. That all of their goroutines end with a leadership is asked when the
// tests are over.
func workloadsAreKept(t *testing.T, c *testCluster) {
	const path = "/apis/apps/v1/namespaces/default/deployments"
	if code, body := c.call(c.followers()[0], http.MethodPost, path, deployment, true); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	settled := func(replicas int32) func(v *fsm.View) bool {
		return func(v *fsm.View) bool {
			o, ok := v.Objects.Get(fsm.ObjectKey("deployments", "default", "web"))
			if !ok {
				return false
			}
			pods := int32(0)
			v.ScanReplicaSets("default", func(rs *appsv1.ReplicaSet) bool {
				if metav1.IsControlledBy(rs, o.Value) {
					pods += v.TallyOf(owners.IDOf(rs)).Active
				}
				return true
			})
			d := o.Value.(*appsv1.Deployment)
			return pods == replicas && d.Status.Replicas == replicas && d.Status.ObservedGeneration == d.Generation
		}
	}
	leader := c.leader()
	await(t, leader, "the Deployment's pods", settled(2))
	before := leader.begin(t.Context())
	before.term--
	over := context.WithValue(t.Context(), here{}, &seat{fence: leader.newFence(before)})
	for _, s := range c.servers {
		if _, err := s.Propose(over, fsm.Proposal{Command: &fsm.Checkpoint{}}); !errors.Is(err, apiserver.ErrNoLeader) {
			t.Errorf("%s proposed for a leadership that is over: %v", s.Name(), err)
		}
	}
	if err := leader.node.TransferLeadership(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another leader", func() bool { return c.leader() != leader })
	if code, body := c.call(leader, http.MethodDelete, path+"/web?propagationPolicy=Background", "", true); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	if code, body := c.call(leader, http.MethodPost, path, deployment, true); code != http.StatusCreated {
		t.Fatalf("%d %s", code, body)
	}
	await(t, c.leader(), "the Deployment's pods, by the new leader", settled(2))
	if code, body := c.call(leader, http.MethodDelete, path+"/web?propagationPolicy=Background", "", true); code != http.StatusOK {
		t.Fatalf("%d %s", code, body)
	}
	await(t, c.leader(), "the pods' end", func(v *fsm.View) bool {
		left := false
		v.ScanReplicaSets("default", func(*appsv1.ReplicaSet) bool {
			left = true
			return false
		})
		return !left
	})
}

// counting is a way to the API that counts how many are on it at the same time.
type counting struct {
	mu        sync.Mutex
	now, most int
	arrived   chan struct{}
	goOn      chan struct{}
}

func (c *counting) RoundTrip(*http.Request) (*http.Response, error) {
	c.mu.Lock()
	c.now++
	c.most = max(c.most, c.now)
	c.mu.Unlock()
	c.arrived <- struct{}{}
	<-c.goOn
	c.mu.Lock()
	c.now--
	c.mu.Unlock()
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

// A controller that asks for many things at once gets them a few at a time, so that the leader has cores left for its
// heartbeats; what waits when its leadership ends is refused.
func TestControllersAskAFewThingsAtATime(t *testing.T) {
	const places, asks = 3, 50
	leading, end := context.WithCancel(t.Context())
	next := &counting{arrived: make(chan struct{}, asks), goOn: make(chan struct{})}
	f := &fencedRequests{&fence{reign: reign{lasting: leading}, state: fsm.NewState(), astray: func() bool { return false }, places: make(chan struct{}, places)}, next}
	results := make(chan error, asks)
	for range asks {
		go func() {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", http.NoBody)
			if err == nil {
				_, err = f.RoundTrip(r)
			}
			results <- err
		}()
	}
	for range places {
		<-next.arrived
	}
	for range asks / 2 { // as many go and come
		next.goOn <- struct{}{}
		<-next.arrived
	}
	end()
	refused, answered := 0, 0
	for range asks - places {
		if err := <-results; errors.Is(err, context.Canceled) {
			refused++
		} else if err == nil {
			answered++
		}
	}
	close(next.goOn)
	for range places {
		if err := <-results; err != nil {
			t.Error(err)
		}
	}
	if answered != asks/2 || refused != asks-asks/2-places || next.most != places {
		t.Errorf("%d were answered and %d refused, %d at a time", answered, refused, next.most)
	}
}
