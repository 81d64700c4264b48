package worker

import (
	"fmt"
	"reflect"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/worker/runtime"
	"github.com/berth-dev/berth/worker/runtime/fake"
)

// The list is the same whatever the runtime's order, and bounded.
func TestNodeImages(t *testing.T) {
	got, err := NodeImages(fake.New(fake.NewTimeline(nil),
		runtime.Image{Names: []string{"b:1"}, SizeBytes: 10},
		runtime.Image{Names: []string{"a:2", "a:1", "a:6", "a:5", "a:4", "a:3"}, SizeBytes: 10},
		runtime.Image{SizeBytes: 1000},
		runtime.Image{Names: []string{"large"}, SizeBytes: 99}))
	want := []corev1.ContainerImage{
		{Names: []string{"large"}, SizeBytes: 99},
		{Names: []string{"a:1", "a:2", "a:3", "a:4", "a:5"}, SizeBytes: 10},
		{Names: []string{"b:1"}, SizeBytes: 10},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	var many []runtime.Image
	for i := range 60 {
		many = append(many, runtime.Image{Names: []string{fmt.Sprintf("i%02d", i)}, SizeBytes: int64(i)})
	}
	if got, _ = NodeImages(fake.New(fake.NewTimeline(nil), many...)); len(got) != 50 || got[49].SizeBytes != 10 {
		t.Errorf("%d images, down to %v", len(got), got[len(got)-1])
	}
	if got, err := NodeImages(struct{ runtime.Runtime }{}); len(got) != 0 || err != nil {
		t.Errorf("a runtime without images has %v, %v", got, err)
	}
}

// pulling is a runtime whose images change.
type pulling struct {
	*fake.Runtime
	mu     sync.Mutex
	images []runtime.Image
}

func (p *pulling) Images() ([]runtime.Image, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.images, nil
}

// A change of the images is reported, at most once a minute, and stands in what the next connection begins with.
func TestAgentReportsImages(t *testing.T) {
	s, clk := newServers(), newStepClock()
	rt := &pulling{Runtime: fake.New(fake.NewTimeline(clk)), images: []runtime.Image{{Names: []string{"web:1"}, SizeBytes: 1}}}
	_, _ = run(t, Options{Node: testNode(t), Uplink: s, Runtime: rt, Clock: clk, Observe: nothingShort})
	began := clk.Now()
	s.await(t, "the image is reported", func() bool {
		clk.Step(time.Second)
		return len(s.nodes) > 0
	})
	if images := s.nodes[0].Images; len(images) != 1 || images[0].Names[0] != "web:1" {
		t.Errorf("reported: %v", images)
	}
	if took := clk.Since(began); took < imagesReportIdle {
		t.Errorf("reported after %s", took)
	}
	s.await(t, "the node is registered with it", func() bool {
		n := len(s.registered)
		return n == 2 && len(s.registered[1].Status.Images) == 1
	})
}
