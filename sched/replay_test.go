package sched_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
	"github.com/berth-dev/berth/sched"
	"github.com/berth-dev/berth/sched/replay"
)

// TestReplayDecidesTheSame: whatever happened, the log is enough to decide every plan again, and each comes out the
// same. Only plans that lie over one that was lost can not be decided again, because nobody knows what that one was.
func TestReplayDecidesTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		life := sched.Live(t, false)
		r := replayed(t, life, fsm.NewState())
		if skipped := r.Report.SkippedAtStart + r.Report.SkippedUnknown + r.Report.SkippedOld; skipped > 0 && life.Lost == 0 {
			t.Fatalf("%d plans were skipped and none was lost: %+v", skipped, r.Report)
		}
		if got, want := r.State.View().Digest(), life.End.Digest(); got != want {
			t.Fatalf("the replay ends in another state")
		}
	})
}

// replayed decides a life again, from a state on.
func replayed(t *rapid.T, life *sched.Life, from *fsm.State) *replay.Replayer {
	r := &replay.Replayer{State: from, Log: life.Log, Keep: 3}
	if err := r.Run(life.Log.Last()); err != nil {
		t.Fatal(err)
	}
	if r.Report.Different > 0 {
		t.Fatalf("came out otherwise: %+v", r.Report)
	}
	return r
}

// TestReplayFromTheMiddle: a snapshot and the entries after it are enough too.
func TestReplayFromTheMiddle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		life := sched.Live(t, false)
		first := &replay.Replayer{State: fsm.NewState(), Log: life.Log}
		if err := first.Run(uint64(rapid.IntRange(1, int(life.Log.Last())).Draw(t, "from"))); err != nil {
			t.Fatal(err)
		}
		replayed(t, life, first.State.View().Fork())
	})
}

// TestPanicIsReplayed: that a pod was set aside is in the log, and a replay, in which nothing panics, takes it from
// there.
func TestPanicIsReplayed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) { replayed(t, sched.Live(t, true), fsm.NewState()) })
}
