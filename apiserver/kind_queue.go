package apiserver

import (
	"encoding/hex"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/api/berthv1"
	"github.com/berth-dev/berth/budgets"
	"github.com/berth-dev/berth/fsm"
)

func queueEntryKind() *kind {
	return &kind{
		resource:  berthv1.Resource(berthv1.ResourceQueueEntries),
		rows:      rowsOf("queueentries", func(v *fsm.View) fsm.Table[*fsm.QueueEntry] { return v.Queue }),
		newObject: func() runtime.Object { return new(berthv1.QueueEntry) },
		present: func(v *fsm.View) presenter {
			asked := 0
			var positions map[string]int32
			return func(row any, into runtime.Object) error {
				e := row.(*fsm.QueueEntry)
				out := into.(*berthv1.QueueEntry)
				showQueueEntry(v, e, out)
				if e.State != berthv1.QueueActive {
					return nil
				}
				if asked++; asked == 1 { // it may be the only one
					out.Status.Position = queuePosition(v, e.Key())
					return nil
				}
				if positions == nil { // once for a whole list
					positions = queuePositions(v)
				}
				out.Status.Position = positions[e.Key()]
				return nil
			}
		},
		// The position changes with every other entry's, so a watch could
		// never keep it right: it shows none.
		presentChange: func(v *fsm.View) presenter {
			return func(row any, into runtime.Object) error {
				showQueueEntry(v, row.(*fsm.QueueEntry), into.(*berthv1.QueueEntry))
				return nil
			}
		},
	}
}

// queuePosition looks no further than to the one that is asked about.
func queuePosition(v *fsm.View, key string) (position int32) {
	v.InOrder(func(at int32, e *fsm.QueueEntry) bool {
		if e.Key() != key {
			return true
		}
		position = at
		return false
	})
	return position
}

func queuePositions(v *fsm.View) map[string]int32 {
	positions := make(map[string]int32, v.Queue.Len())
	v.InOrder(func(position int32, e *fsm.QueueEntry) bool {
		positions[e.Key()] = position
		return true
	})
	return positions
}

func showQueueEntry(v *fsm.View, e *fsm.QueueEntry, out *berthv1.QueueEntry) {
	*out = berthv1.QueueEntry{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: e.Namespace, Name: e.Name, UID: e.UID,
			ResourceVersion:   strconv.FormatInt(e.Revision, 10),
			CreationTimestamp: metav1.NewTime(time.Unix(0, e.EnqueuedUnixNano).UTC().Truncate(time.Second)),
		},
		Status: berthv1.QueueEntryStatus{
			PodUID:                e.UID,
			Priority:              e.Priority,
			State:                 e.State,
			Attempts:              e.Attempts,
			Errors:                e.Errors,
			FirstEnqueuedRevision: e.EnqueuedRevision,
			LastAttemptRevision:   e.LastAttemptRevision,
			BlockedSince:          microTime(e.BlockedSinceUnixNano),
			SortKey:               hex.EncodeToString([]byte(v.QueueSortKey(e))),
		},
	}
	out.Status.Refusals = e.Refusals
	out.Status.Refusal = fsm.ShownRefusal(e.Refusal, func(namespace string) bool { return namespace == e.Namespace }) // whoever reads it
	if e.SetAside != nil {
		out.Status.SetAside = e.TimesSetAside
		out.Status.SetAsideReason, out.Status.SetAsideMessage = e.SetAside.Kind, e.SetAside.Message
	}
	if e.State == berthv1.QueueBackoff || e.State == berthv1.QueueSetAside {
		out.Status.BackoffUntil = microTime(e.BackoffUntilUnixNano)
	}
	out.Status.NominatedNode, out.Status.Reserved = e.Promised().Node, e.Promised().Reserved
	if d := e.Diagnosis; d != nil {
		out.Status.Message = budgets.Shown(d.Message, func(namespace string) bool { return namespace == e.Namespace })
		out.Status.Reasons = d.API()
	}
}

func microTime(unixNano int64) *metav1.MicroTime {
	if unixNano == 0 {
		return nil
	}
	return &metav1.MicroTime{Time: time.Unix(0, unixNano).UTC().Truncate(time.Microsecond)}
}
