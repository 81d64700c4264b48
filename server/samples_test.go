package server

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/berth-dev/berth/docs"
	"github.com/berth-dev/berth/rpc"
	"github.com/berth-dev/berth/sample"
)

func saidOf(t *testing.T, cpu int64) *rpc.Sample {
	body, err := (&sample.Node{WindowNano: 1e9, Used: sample.Amount{NanoCPU: cpu}}).Encode()
	if err != nil {
		t.Fatal(err)
	}
	return &rpc.Sample{Body: body}
}

// usageIsKnownEverywhere: a server that was told nothing asks the others; what a
// worker may not say is nowhere.
func usageIsKnownEverywhere(t *testing.T, c *testCluster) {
	told, asked := c.servers[0], c.servers[1]
	told.WorkerSample("n-1", saidOf(t, 7))
	asked.WorkerSample("n-2", saidOf(t, 8))
	told.WorkerSample("n-3", &rpc.Sample{Body: []byte("nonsense")})
	told.WorkerSample("n-3", &rpc.Sample{AgeNano: -1, Body: saidOf(t, 1).Body})
	told.WorkerSample("n-3", &rpc.Sample{AgeNano: 1 << 60, Body: saidOf(t, 1).Body})
	nodes := []string{"n-3", "n-2", "n-1", "n-4"}
	for _, s := range c.servers {
		samples, err := usage{s}.Of(t.Context(), nodes)
		if err != nil {
			t.Fatal(err)
		}
		for node, want := range map[string]int64{"n-1": 7, "n-2": 8, "n-3": 0, "n-4": 0} {
			got, ok := samples.Sample(node)
			if ok != (want != 0) || ok && got.Used.NanoCPU != want {
				t.Errorf("%s knows of %s: %v, %v", s.Name(), node, ok, got)
			}
		}
	}
	told.samples.store.Forget("n-1")
	asked.samples.store.Forget("n-2")
}

// Many nodes are asked for in parts.
func TestSamplesInParts(t *testing.T) {
	s := &Server{samples: newSamples(), shares: newShares()}
	big := &sample.Node{WindowNano: 1e9}
	for i := range 900 {
		p := sample.Pod{UID: fmt.Sprintf("%0200d", i)}
		big.Pods = append(big.Pods, p)
	}
	body, err := big.Encode()
	if err == nil && len(body) < sample.MaxBytes/2 {
		err = errors.New("the sample is too small for this test")
	}
	if err != nil {
		t.Fatal(err)
	}
	var nodes []string
	for i := range 100 {
		nodes = append(nodes, fmt.Sprintf("n-%03d", i))
		s.WorkerSample(nodes[i], &rpc.Sample{Body: body})
	}
	var got []string
	for rounds := 0; len(got) < len(nodes); rounds++ {
		resp, err := handler{s}.Samples(t.Context(), &rpc.SamplesRequest{Nodes: nodes[len(got):]})
		if err != nil || rounds == len(nodes) || len(resp.Samples) == 0 {
			t.Fatalf("%d rounds, %d nodes, %v", rounds, len(got), err)
		}
		size := 0
		for _, one := range resp.Samples {
			got, size = append(got, one.Node), size+len(one.Sample.Body)
		}
		if size > samplesBytes || resp.More != (len(got) < len(nodes)) {
			t.Fatalf("an answer of %d bytes, more: %v", size, resp.More)
		}
	}
	if !slices.Equal(got, nodes) {
		t.Errorf("%q were answered", got)
	}
}

// samples holds the row of what a node uses: so much is taken, and no more.
func (d *door) samples(t *testing.T, r docs.Row) {
	n := r.Numbers(t, 4)
	told := 0
	taken := func(node *sample.Node, age time.Duration) bool {
		body, err := msgpack.Marshal(node)
		if err != nil {
			t.Fatal(err)
		}
		told++
		name := fmt.Sprint("limits", told) // each has a share of its own
		d.WorkerSample(name, &rpc.Sample{AgeNano: int64(age), Body: body})
		_, ok := d.Server.samples.Sample(name)
		d.Server.samples.store.Forget(name)
		return ok
	}
	for more, want := range []bool{true, false} {
		long := &sample.Node{WindowNano: 1, Pods: make([]sample.Pod, 1000)}
		for i := range long.Pods {
			long.Pods[i].UID = fmt.Sprintf("%0190d", i)
		}
		body, err := msgpack.Marshal(long)
		if err != nil {
			t.Fatal(err)
		}
		// The last pods make it as long as it may be, or one byte longer.
		for i, missing := len(long.Pods)-1, int(n[0])-len(body)+more; missing > 0; i-- {
			x := min(missing, 50)
			long.Pods[i].UID += strings.Repeat("x", x)
			missing -= x
		}
		pods := &sample.Node{WindowNano: 1, Pods: make([]sample.Pod, int(n[1])+more)}
		for i := range pods.Pods {
			pods.Pods[i].UID = fmt.Sprint(i)
		}
		containers := &sample.Node{WindowNano: 1, Pods: []sample.Pod{{UID: "a", Containers: make([]sample.Container, int(n[2])+more)}}}
		for i := range containers.Pods[0].Containers {
			containers.Pods[0].Containers[i].Name = fmt.Sprint(i)
		}
		amount := &sample.Node{WindowNano: 1, Used: sample.Amount{MemoryBytes: n[3] + int64(more), NanoCPU: n[3]}}
		for what, node := range map[string]*sample.Node{"bytes": long, "pods": pods, "containers": containers, "an amount": amount} {
			if got := taken(node, 0); got != want {
				t.Errorf("%s, %d more than the most: taken is %v", what, more, got)
			}
		}
	}
	honest := &sample.Node{WindowNano: 1}
	if !taken(honest, 2*time.Minute-time.Second) || taken(honest, 2*time.Minute+time.Second) {
		t.Error("of how old a sample may be something else is said")
	}
}

// TestSamplesAreTakenNowAndThen: a worker that tells what it uses again and again is heard now and then.
func TestSamplesAreTakenNowAndThen(t *testing.T) {
	s := newShares()
	s.get("liar").samples.SetLimit(0)
	taken := 0
	for range 100 * workerSamples {
		if s.takeSample("liar") {
			taken++
		}
	}
	if taken != workerSamples || !s.takeSample("honest") {
		t.Errorf("%d samples were taken", taken)
	}
}
