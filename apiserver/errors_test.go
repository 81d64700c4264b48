package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	restclient "k8s.io/client-go/rest"
)

// TestBackendErrors: what a client is told when the log does not take a write,
// and whether it may simply try again.
func TestBackendErrors(t *testing.T) {
	d := newDouble(t)
	s := start(t, d, nil)
	client := s.client(t).CoreV1().RESTClient()
	create := func() *restclient.Request {
		return client.Post().Namespace("default").Resource("pods").Body(testPod("p")).MaxRetries(0)
	}
	for _, c := range []struct {
		name       string
		err        error
		code       int32
		part       string
		retryAfter string
	}{
		{"no leader", fmt.Errorf("forward: %w", ErrNoLeader), 503, "the cluster has no leader at the moment; nothing was done", "1"},
		{"busy", fmt.Errorf("queue: %w", ErrBusy), 429, "too many writes are waiting; nothing was done", "1"},
		{"unknown", fmt.Errorf("wait: %w", ErrUnknownOutcome), 504, "the outcome is unknown", ""},
		{"timeout", context.DeadlineExceeded, 504, "the outcome is unknown", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			d.failPropose.Store(&c.err)
			defer d.failPropose.Store(nil)
			wantStatus(t, create().Do(context.Background()).Error(), c.code, c.part)
			header := retryAfterOf(t, s)
			if header != c.retryAfter {
				t.Errorf("Retry-After is %q, want %q", header, c.retryAfter)
			}
		})
	}
	t.Run("reads", func(t *testing.T) {
		err := fmt.Errorf("read index: %w", ErrNoLeader)
		d.failRead.Store(&err)
		defer d.failRead.Store(nil)
		get := client.Get().Namespace("default").Resource("configmaps").Name("kube-root-ca.crt").MaxRetries(0)
		wantStatus(t, get.Do(context.Background()).Error(), 503, "no leader")
		// A client that takes what this server has is answered.
		stale := client.Get().Namespace("default").Resource("configmaps").Name("kube-root-ca.crt").Param("resourceVersion", "0")
		if err := stale.Do(context.Background()).Error(); err != nil {
			t.Fatal(err)
		}
	})
}

// retryAfterOf creates something and looks at the answer's header.
func retryAfterOf(t testing.TB, s *testServer) string {
	t.Helper()
	pod := testPod("q")
	pod.APIVersion, pod.Kind = "v1", "Pod"
	body, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := httpClient(t, s.config(t, "root", "system:masters")).Post("https://"+s.Addr().String()+"/api/v1/namespaces/default/pods", "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	return resp.Header.Get("Retry-After")
}
