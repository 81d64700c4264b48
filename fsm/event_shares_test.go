package fsm

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// TestEventsAreShared: when there are too many, the namespace with most of them loses its oldest, whoever's came last.
func TestEventsAreShared(t *testing.T) {
	type kept struct {
		key   string
		share int64
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := newMemory(t)
		const limit = 20
		m.apply(&ConfigureScheduler{JSON: worstConfig(map[string]any{"eventLimit": limit})})
		in := map[string][]kept{}
		for _, ns := range []string{"default", "b", "c"} {
			if ns != "default" {
				m.apply(&PutNamespace{Create: true, Namespace: NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}}})
			}
		}
		for i := range rapid.IntRange(1, 80).Draw(rt, "events") {
			put := eventOf(fmt.Sprint("e", i), worldStart.Add(time.Duration(i)*time.Second), rapid.IntRange(0, 300).Draw(rt, "bytes"))
			e := put.Event.Object
			e.Namespace = rapid.SampledFrom([]string{"default", "default", "default", "b", "c"}).Draw(rt, "namespace")
			m.apply(put)
			stored, ok := m.state.View().Events.Get(e.Namespace + "/" + e.Name)
			if !ok { // its own namespace has most, and nothing older
				stored = e
			}
			in[e.Namespace] = append(in[e.Namespace], kept{e.Namespace + "/" + e.Name, int64(stored.Size()) + eventWeight})
			total := 0
			for _, of := range in {
				total += len(of)
			}
			if total > limit {
				largest, most := "", int64(-1)
				for _, ns := range []string{"b", "c", "default"} {
					sum := int64(0)
					for _, k := range in[ns] {
						sum += k.share
					}
					if sum >= most {
						largest, most = ns, sum
					}
				}
				in[largest] = in[largest][1:]
			}
			var want, got []string
			for _, of := range in {
				for _, k := range of {
					want = append(want, k.key)
				}
			}
			m.state.View().Events.Scan("", func(key string, _ *corev1.Event) bool {
				got = append(got, key)
				return true
			})
			if slices.Sort(want); !slices.Equal(got, want) {
				rt.Fatalf("there are %v, and should be %v", got, want)
			}
		}
	})
}
