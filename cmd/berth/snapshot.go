package main

import (
	"errors"
	"io"

	"github.com/berth-dev/berth/cmd/berth/internal/verb"
	"github.com/berth-dev/berth/fsm"
)

// inspectSnapshot restores a snapshot into an empty state, which checks it whole,
// and counts what is there.
func inspectSnapshot(r io.Reader) (verb.SnapshotSummary, error) {
	s := fsm.NewState()
	if err := s.Restore(r); err != nil {
		if why := errors.Unwrap(err); why != nil {
			err = why // that it was to be restored here says nothing to who asks
		}
		return verb.SnapshotSummary{}, err
	}
	v := s.View()
	return verb.SnapshotSummary{
		Index: v.Index(), Revision: v.Revision(), Digest: v.Digest(),
		Tables: []verb.TableCount{
			{Table: "pods", Count: v.Pods.Len()},
			{Table: "nodes", Count: v.Nodes.Len()},
			{Table: "namespaces", Count: v.Namespaces.Len()},
			{Table: "priority classes", Count: v.PriorityClasses.Len()},
			{Table: "queue entries", Count: v.Queue.Len()},
			{Table: "nominations", Count: v.Nominations.Len()},
			{Table: "preemptions", Count: v.Preemptions.Len()},
			{Table: "events", Count: v.Events.Len()},
			{Table: "other objects", Count: v.Objects.Len()},
		},
	}, nil
}
