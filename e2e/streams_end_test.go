package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
)

// Who is in a pod and says nothing leaves it after a while, though client and servers tell each other all the time that they are there; who goes on talking leaves
// it later.
func TestStreamsEnd(t *testing.T) { byRuntime(t, streamsEnd) }

func streamsEnd(t *testing.T, d realDaemon) {
	c := oneWorker(t, d, "stream_idle_timeout = \"6s\"\n  stream_max_duration = \"20s\"")
	create(t, c.Reader().Kube, imaged("silent", "exec sleep 1000"))
	c.waitRunning(t, "default", "silent")
	ended := make(chan error)
	begin := func(what string, told []string, run func(ctx context.Context) error) {
		go func() {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			err := run(ctx)
			switch {
			case ctx.Err() != nil:
				err = fmt.Errorf("%s does not end: %w", what, ctx.Err())
			case err == nil:
				err = fmt.Errorf("%s ends as if all were well", what)
			case len(told) > 0 && !slices.ContainsFunc(told, func(why string) bool { return strings.Contains(err.Error(), why) }):
				err = fmt.Errorf("%s is not told why it ends: %w", what, err)
			default:
				err = nil
			}
			ended <- err
		}()
	}
	streams := 0
	for protocol := range protocols {
		for what, s := range map[string]session{
			"exec":     {command: []string{"sleep", "1000"}},
			"attach":   {part: "attach"},
			"a talker": {command: []string{"/bin/sh", "-c", "while :; do echo on; sleep 1; done"}},
		} {
			s.server, s.ns, s.pod, s.protocol, s.StreamOptions = c.Reader(), "default", "silent", protocol, remotecommand.StreamOptions{Stdout: io.Discard}
			begin(what+" by "+protocol, []string{"nothing was said for 6s", "it was open for 20s"}, s.run)
			streams++
		}
	}
	// Its protocol has no words for that.
	begin("port-forward", nil, func(ctx context.Context) error { return forwardsNothing(ctx, c) })
	streams++
	for range streams {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	log := c.Workers()[0].LogTail(100)
	for why, want := range map[string]int{`why="nothing was said"`: 5, `why="it was open"`: 2} {
		if n := strings.Count(log, why); n != want {
			t.Errorf("its log has %d times %s, not %d:\n%s", n, why, want, log)
		}
	}
}

// forwardsNothing has a port of a pod forwarded to which nobody connects.
func forwardsNothing(ctx context.Context, c *cluster) error {
	transport, upgrader, err := spdy.RoundTripperFor(c.Reader().RESTConfig())
	if err != nil {
		return err
	}
	url := c.Reader().Kube.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("silent").SubResource("portforward").URL()
	d := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", url)
	f, err := portforward.New(d, []string{"0:8080"}, ctx.Done(), make(chan struct{}), io.Discard, io.Discard)
	if err != nil {
		return err
	}
	return f.ForwardPorts()
}
