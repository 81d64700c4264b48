package controller

import (
	"github.com/berth-dev/berth/fsm"
)

const (
	// EventSeconds is how long an event is kept.
	EventSeconds = 3600
	// eventsAtOnce bounds the events that one command removes.
	eventsAtOnce = 4096
)

// Events removes events that are too old.
func Events(v *fsm.View, nowUnixNano int64) []fsm.Command {
	limit := nowUnixNano - seconds(EventSeconds)
	if oldest, ok := v.OldestEventUnixNano(); !ok || oldest >= limit {
		return nil
	}
	return []fsm.Command{&fsm.DeleteEvents{BeforeUnixNano: limit, Limit: eventsAtOnce}}
}

// StagedSnapshots gives up a restore that does not go on: whoever asked for it is
// gone.
func StagedSnapshots(v *fsm.View, nowUnixNano int64) []fsm.Command {
	id, since := v.StagedSnapshot()
	if id == "" || nowUnixNano-since < seconds(fsm.StagedSeconds) {
		return nil
	}
	return []fsm.Command{&fsm.AbandonSnapshot{ID: id}}
}

// Nominations releases the nominations whose deadline has passed: their
// victims did not go in time (NM7).
func Nominations(v *fsm.View, nowUnixNano int64) []fsm.Command {
	var late []fsm.PodRef
	v.Nominations.Scan("", func(key string, n *fsm.Nomination) bool {
		if n.DeadlineUnixNano <= nowUnixNano {
			late = append(late, fsm.PodRef{Key: key, UID: string(n.UID)})
		}
		return len(late) < Batch
	})
	if len(late) == 0 {
		return nil
	}
	return []fsm.Command{&fsm.ReleaseNominations{Pods: late}}
}
