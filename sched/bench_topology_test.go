package sched

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched/clustertest"
)

// BenchmarkTopology: 5,000 nodes in 10 zones and what pods may ask of each other, against pods that ask for nothing.
func BenchmarkTopology(b *testing.B) {
	const pods = 20_000
	cases := []struct {
		name, terms string
	}{
		{"plain", ""},
		{"unique-labels", "far=" + hostKey + ":app=A"}, // as of a StatefulSet: every pod a class of its own
		{"hard-zone-and-host", "spread=" + zoneKey + ":1:app=A spread=" + hostKey + ":1:app=A"},
		{"host-anti-affinity", "far=" + hostKey + ":app=A"},
		{"zone-affinity", "near=" + zoneKey + ":app=A"},
		{"soft-zone-and-host", "spread=" + hostKey + ":3:app=A:soft spread=" + zoneKey + ":5:app=A:soft"},
		{"preferred-anti-affinity", "far=" + hostKey + ":app=A:w=100"},
	}
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				h := newHarness()
				for i := range benchNodes {
					h.PutNode(clustertest.Node(fmt.Sprintf("node-%d cpu=32 mem=64Gi pods=110 label=%s=node-%d label=%s=zone-%d", i, hostKey, i,
						zoneKey, i%10)))
				}
				var specs []string
				for app := range 10 { // ten workloads
					label := fmt.Sprintf("app=a%d", app)
					specs = append(specs, "p cpu=100m mem=128Mi label="+label+" "+strings.ReplaceAll(c.terms, "app=A", label))
				}
				if c.name == "unique-labels" {
					h.admitUnique(pods, specs...)
				} else {
					h.admit(pods, specs...)
				}
				h.drive(b, pods, "placements")
			}
		})
	}
}

// admitUnique creates pods that have one label each that no other has.
func (h *harness) admitUnique(count int, specs ...string) {
	for i := range count {
		p := clustertest.Pod(fmt.Sprintf("%s label=pod=%d", specs[i%len(specs)], i))
		p.Namespace, p.Name = "default", fmt.Sprintf("pod-%d", i)
		p.UID = types.UID(fmt.Sprintf("1b4e28ba-2fa1-11d2-883f-%012x", i))
		h.Must(&fsm.AdmitPod{Pod: fsm.PodWire{Object: p}})
	}
}
