package server

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/controller"
	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/guard"
	"github.com/berth-dev/berth/store"
)

// wishes is a reconciler that wants what it was given, once.
type wishes struct {
	wants   []controller.Work
	settled map[string]controller.Outcome
}

func (*wishes) Reset(*fsm.View)                                     {}
func (*wishes) Observe(*fsm.View, []store.Change)                   {}
func (w *wishes) Pending() bool                                     { return len(w.wants) > 0 }
func (*wishes) NextUnixNano() (int64, bool)                         { return 0, false }
func (w *wishes) Settle(_ *fsm.View, o controller.Outcome, _ int64) { w.settled[o.Work.For] = o }
func (w *wishes) Step(_ *fsm.View, _ int64, most int) []controller.Work {
	n := min(most, len(w.wants))
	out := w.wants[:n]
	w.wants = w.wants[n:]
	return out
}

// TestWhoIsAskedHoldsUpNobodyElse: works that wait for somebody's answer are not in the way of others, and
// there are only so many of a namespace.
func TestWhoIsAskedHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, w, answers := newWorkLog(), &wishes{settled: map[string]controller.Outcome{}}, make(chan struct{})
		for i := range 3 * worksAtOnce {
			w.wants = append(w.wants,
				controller.Work{For: fmt.Sprintf("slow/%d", i), Commands: []fsm.Command{&fsm.AdmitPods{}}},
				controller.Work{For: fmt.Sprintf("quick/%d", i), Commands: []fsm.Command{&fsm.DeletePod{Key: "quick/none"}}})
		}
		loop := &workLoop{
			guard: guard.Unguarded,
			state: l.state, clock: runningClock(), propose: l.propose, log: hclog.NewNullLogger(),
			asks: func(w controller.Work) bool { return strings.HasPrefix(w.For, "slow/") },
			ask: func(ctx context.Context, w controller.Work) ([]fsm.Result, error) {
				select {
				case <-answers:
				case <-ctx.Done():
				}
				return make([]fsm.Result, len(w.Commands)), ctx.Err()
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { loop.run(ctx, w); close(ended) }()
		synctest.Wait()
		refused := 0
		for name, o := range w.settled {
			if len(o.Results) > 0 && o.Results[0].Code == http.StatusTooManyRequests {
				refused++
			} else if strings.HasPrefix(name, "slow/") {
				t.Errorf("%s was settled", name)
			}
		}
		if quick := len(w.settled) - refused; quick != 3*worksAtOnce || refused != 3*worksAtOnce-worksAskedOfNamespace {
			t.Errorf("%d were done and %d refused", quick, refused)
		}
		close(answers)
		synctest.Wait()
		if len(w.settled) != 6*worksAtOnce || len(loop.asking) > 0 {
			t.Errorf("%d are settled, and %v are not", len(w.settled), loop.asking)
		}
		cancel()
		<-ended
	})
}

// TestTogether: what was carried out in parts is refused if one part was, and is as new as the newest.
func TestTogether(t *testing.T) {
	done, refused := fsm.Result{Revision: 5}, fsm.Result{Revision: 7, Code: http.StatusForbidden, Message: "no"}
	if r := together([]fsm.Result{done, refused, done}, nil); !r.Refused() || r.Revision != 7 {
		t.Errorf("%+v", r)
	}
	if r := together([]fsm.Result{done}, context.DeadlineExceeded); r.Code != http.StatusInternalServerError || r.Revision != 5 {
		t.Errorf("%+v", r)
	}
	if r := together(nil, nil); r.Refused() || r.Revision != 0 {
		t.Errorf("%+v", r)
	}
}
