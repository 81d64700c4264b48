package queue

import (
	"fmt"
	"strings"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/model"
)

// What becomes of an entry: each function gives another one, which is not
// stored yet.

const (
	// freeRefusals is how many refusals in a row cost no backoff: one happens to
	// everybody whose node has changed meanwhile.
	freeRefusals = 1
	// setAsideSeconds is the first backoff of a pod that was set aside, which
	// doubles each time in a row, up to maxSetAsideSeconds.
	setAsideSeconds    = 10
	maxSetAsideSeconds = 300
	// maxTold bounds in bytes what a row keeps of a refusal or a panic.
	maxTold = 1 << 10
)

// SetAside is what went wrong when the scheduler decided about a pod.
type SetAside struct {
	// Kind is a word in CamelCase, "Panic" for one.
	Kind string `msgpack:"kind"`
	// Message is a line for people. What is beyond 1 KiB is cut off when it is
	// applied.
	Message string `msgpack:"message"`
}

// Told is what people are told of it.
func (s *SetAside) Told() string {
	return fmt.Sprintf("the scheduler could not decide about the pod (%s: %s); it is set aside for a while",
		told(s.Kind), told(s.Message))
}

// told cuts a text down to what a row may keep.
func told(s string) string {
	if len(s) <= maxTold {
		return s
	}
	return strings.ToValidUTF8(s[:maxTold], "")
}

// Woken is a waiting entry that is ready now, or finishes its backoff first.
func (e *Entry) Woken(nowUnixNano int64) *Entry {
	next := *e
	next.State = berthv1.QueueActive
	if next.BackoffUntilUnixNano > nowUnixNano {
		next.State = berthv1.QueueBackoff
	}
	return &next
}

// AtOnce is an entry that is tried at once: the victims of its pod are gone.
func (e *Entry) AtOnce() *Entry {
	next := *e
	next.State, next.BackoffUntilUnixNano = berthv1.QueueActive, 0
	return &next
}

// Refused is an entry about whose pod a decision was refused. From the second
// in a row on the pod is not tried again for a second at least: whatever the
// scheduler and the state machine do not agree upon, they do not do so more
// often. A waiting pod goes on waiting, but no room is kept for it meanwhile.
func (e *Entry) Refused(why string, nowUnixNano int64, spec *berthv1.SchedulerConfigurationSpec) *Entry {
	next := *e
	next.Refusals++
	next.Refusal = told(why)
	if next.Refusals > freeRefusals {
		most := max(int64(*spec.PodMaxBackoffSeconds), 1)
		until := nowUnixNano + int64(model.Seconds(doubled(1, most, next.Refusals-freeRefusals)))
		next.BackoffUntilUnixNano = max(next.BackoffUntilUnixNano, until)
	}
	if e.IsTried() {
		next.State = berthv1.QueueActive
		if next.Refusals > freeRefusals {
			next.State = berthv1.QueueBackoff
		}
	}
	return &next
}

// uncountedSeconds is how long a pod is left alone while it is counted whom its
// rules are about.
const uncountedSeconds = 1

// Uncounted is an entry about whose pod nothing was decided, since it is not
// counted yet whom its rules are about.
func (e *Entry) Uncounted(why string, nowUnixNano int64) *Entry {
	next := *e
	next.BackoffUntilUnixNano = max(next.BackoffUntilUnixNano, nowUnixNano+int64(model.Seconds(uncountedSeconds)))
	if e.IsTried() {
		next.State = berthv1.QueueBackoff
		next.Diagnosis = &Diagnosis{Message: why}
	}
	return &next
}

// PutAside is an entry whose pod is out of the scheduler's sight for 10 s, the
// next time in a row for 20, and so on to 5 min. Nothing wakes it before; its
// turn passes to the next of its group. revision is that of the attempt.
func (e *Entry) PutAside(what *SetAside, revision, nowUnixNano int64) *Entry {
	next := *e
	next.State = berthv1.QueueSetAside
	next.TimesSetAside++
	next.SetAside = &SetAside{Kind: told(what.Kind), Message: told(what.Message)}
	next.LastAttemptRevision = revision
	backoff := model.Seconds(doubled(setAsideSeconds, maxSetAsideSeconds, next.TimesSetAside))
	next.BackoffUntilUnixNano = nowUnixNano + int64(backoff)
	if next.BlockedSinceUnixNano == 0 {
		next.BlockedSinceUnixNano = nowUnixNano
	}
	return &next
}

// Attempt is one that found no place.
type Attempt struct {
	Revision int64
	UnixNano int64
	// Failed: the attempt itself failed, and says nothing about nodes.
	Failed bool
	// Refused: nobody looked, since that would take too much. It serves its time, as who failed.
	Refused bool
	// Made: what the pod waits for is being made for it. That is no attempt that counts, and it is tried as soon as it is there.
	Made bool
	// Diagnosis is why it found none.
	Diagnosis *Diagnosis
	// State is that of the pod from now on: Backoff is Active where the backoff
	// is over by now.
	State berthv1.QueueState
}

// Attempted is an entry after an attempt (QU5).
func (e *Entry) Attempted(a Attempt, spec *berthv1.SchedulerConfigurationSpec) *Entry {
	next := *e
	if a.Failed {
		next.Errors++
	} else {
		next.Errors = 0
		if a.Refused {
			next.Errors = e.Errors + 1
		}
		if !a.Made {
			next.Attempts++
		}
		next.Refusals, next.Refusal = 0, ""
		next.SetAside, next.TimesSetAside = nil, 0
		next.Diagnosis = a.Diagnosis
	}
	next.LastAttemptRevision = a.Revision
	next.BackoffUntilUnixNano = a.UnixNano
	if !a.Made {
		next.BackoffUntilUnixNano += next.backoff(a.Failed || a.Refused, spec)
	}
	if next.BlockedSinceUnixNano == 0 {
		next.BlockedSinceUnixNano = a.UnixNano
	}
	next.State = a.State
	if a.State == berthv1.QueueBackoff && next.BackoffUntilUnixNano <= a.UnixNano {
		next.State = berthv1.QueueActive
	}
	return &next
}

// backoff is min(initial<<(n-1), max) in nanoseconds, n being the number of
// consecutive errors or of fruitless attempts; a maximum of 0 switches it off
// (QU5).
func (e *Entry) backoff(failed bool, spec *berthv1.SchedulerConfigurationSpec) int64 {
	n := e.Attempts
	if failed {
		n = e.Errors
	}
	return int64(model.Seconds(doubled(int64(*spec.PodInitialBackoffSeconds), int64(*spec.PodMaxBackoffSeconds), n)))
}

// doubled is least, doubled for each of times beyond the first, and at most
// most.
func doubled(least, most int64, times int32) int64 {
	for ; times > 1 && least < most; times-- {
		least *= 2
	}
	return min(least, most)
}
