package whatif

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/sched/clustertest"
)

// TestTranscripts replays testdata/*.txt; -rewrite regenerates what the system answers.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		cl := clustertest.New()
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "cluster": // one node, pod or other object a line
				if err := cl.Put(d.Input); err != nil {
					return err.Error()
				}
				return "ok"
			case "queue":
				return cl.DescribeQueue()
			case "plan": // what would become of pods
				return plan(t, cl, d.Input)
			}
			t.Fatalf("unknown verb %s", d.Cmd)
			return ""
		})
	})
}

// plan reads pods, one a line, and says where they would go.
func plan(t *testing.T, cl *clustertest.Cluster, input string) string {
	var pods []*corev1.Pod
	for _, line := range strings.Split(strings.TrimSpace(input), "\n") {
		p := clustertest.Pod(strings.TrimPrefix(line, "pod "))
		p.Namespace, p.UID = "default", types.UID("asked-"+p.Name)
		if p.Spec.Priority != nil {
			p.Spec.PriorityClassName = cl.Class(*p.Spec.Priority, nil)
		}
		pods = append(pods, p)
	}
	before := cl.State.View().Digest()
	var b strings.Builder
	f, err := Foresee(t.Context(), cl.State.View(), Asker{User: "test"}, nil, pods)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range f.Placements {
		switch {
		case o.Node != "":
			fmt.Fprintf(&b, "%s -> %s\n", o.Key, o.Node)
		case o.NominatedNode != "":
			var victims []string
			for _, v := range o.Victims {
				victims = append(victims, v.Key)
			}
			fmt.Fprintf(&b, "%s -> %s after %s\n", o.Key, o.NominatedNode, strings.Join(victims, ", "))
		default:
			fmt.Fprintf(&b, "%s: %s\n", o.Key, o.Message)
		}
	}
	if cl.State.View().Digest() != before {
		t.Error("asking changed the state")
	}
	return b.String()
}
