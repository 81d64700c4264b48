package sched

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/fsm"
)

// TestPropertyReservation: whatever happens around a reservation, no plan that makes, renews or minds one is refused
// when nothing came between, steps come to an end, there is one at a time, and its pod waits.
func TestPropertyReservation(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.IntRange(1, 5).Draw(t, "nodes")
		w := newWorld(t, nodes)
		w.Configure(func(s *berthv1.SchedulerConfigurationSpec) {
			after := int32(1)
			s.Reservation.AfterSeconds = &after
		})
		for range rapid.IntRange(1, 12).Draw(t, "rounds") {
			w.happen(nodes)
			for turn := 0; ; turn++ {
				p := w.step(rapid.IntRange(1, 8).Draw(t, "max"))
				if p == nil {
					break
				}
				if refused := w.commit(p); len(refused) > 0 {
					t.Fatalf("refused: %v\n%s", refused, describe(p.Command))
				}
				if turn > 200 {
					t.Fatalf("steps do not come to an end:\n%s", describe(p.Command))
				}
			}
			w.oneReservation()
			w.checkView()
		}
	})
}

func (w *world) oneReservation() {
	v := w.State.View()
	reserved := 0
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if !n.Reserved {
			return true
		}
		reserved++
		if r := v.Reservation(); r == nil || r.Key() != key {
			w.t.Fatalf("%s has a reservation that is not found", key)
		}
		return true
	})
	if reserved > 1 || reserved == 0 && v.Reservation() != nil {
		w.t.Fatalf("%d reservations", reserved)
	}
}
