package agent

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/worker"
	"github.com/berth-dev/berth/worker/runtime/fake"
	"github.com/berth-dev/berth/worker/runtime/hugepages"
)

// asked is a runtime that knows what it can do once it was asked how it is, and answers.
type asked struct {
	*fake.Runtime
	away, systemd bool
	version       string
}

func (a *asked) Version() string { return a.version }

func (a *asked) Check(context.Context) error {
	if a.away {
		return errors.New("it does not answer")
	}
	a.version = "1"
	return nil
}

func (a *asked) Hugepages() bool { return a.version != "" && !a.systemd }

// A node has the hugepages that its pods can have, by what the runtime says; what is kept back of some is no hindrance before it says it.
func TestHugepagesOfANode(t *testing.T) {
	pools, err := hugepages.Read(hugepages.Dir)
	if err != nil || len(pools) == 0 {
		t.Skipf("this machine has no hugepages: %v", err)
	}
	name := hugepages.Resource(pools[0].PageBytes)
	none := resource.MustParse("0")
	for what, c := range map[string]struct {
		rt    asked
		there bool
		fails bool
	}{
		"it answers":              {asked{}, true, false},
		"it answers, and has not": {asked{systemd: true}, false, true},
		"it is away":              {asked{away: true}, false, false},
	} {
		rt := &c.rt
		rt.Runtime = fake.New(fake.NewTimeline(nil))
		node, err := newNode(&WorkerConfig{Node: worker.NodeConfig{Name: "n"}}, rt)
		if err != nil {
			t.Fatal(err)
		}
		if _, there := node.Status.Capacity[name]; there != c.there {
			t.Errorf("%s: it has %v", what, node.Status.Capacity)
		}
		keeps := worker.NodeConfig{Name: "n", Reserved: corev1.ResourceList{name: none}}
		if _, err := newNode(&WorkerConfig{Node: keeps}, rt); (err != nil) != c.fails {
			t.Errorf("%s: with some that are kept back: %v", what, err)
		}
	}
}
