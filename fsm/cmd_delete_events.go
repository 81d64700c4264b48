package fsm

import corev1 "k8s.io/api/core/v1"

// DeleteEvents removes one event by its key, or the events last seen before a
// time, oldest first and at most Limit of them.
//
// Refuses: 404 if the event named by Key is not there; 409 if a precondition
// fails.
type DeleteEvents struct {
	Key            string       `msgpack:"key,omitempty"`
	Precondition   Precondition `msgpack:"precondition"`
	BeforeUnixNano int64        `msgpack:"before_unix_nano,omitempty"`
	Limit          int32        `msgpack:"limit,omitempty"`
}

// Apply implements Command.
func (c *DeleteEvents) Apply(tx *Tx) Result {
	v := tx.view
	if c.Key != "" {
		old, ok := v.Events.Get(c.Key)
		if !ok {
			return refuseNotFound(eventResource.groupResource(), nameOfKey(c.Key))
		}
		if r, ok := c.Precondition.check(old, eventResource); !ok {
			return r
		}
		remove(tx, v.Events, c.Key)
		return Result{Table: v.Events.Name(), Object: old, Deleted: true}
	}
	for range c.Limit {
		_, key, ok := v.eventOrder.Min()
		if !ok {
			break
		}
		if e, _ := v.Events.Get(key); lastSeenUnixNano(e) >= c.BeforeUnixNano {
			break
		}
		remove(tx, v.Events, key)
	}
	return Result{}
}

// lastSeenUnixNano is the newest of the times that an event carries: which of
// them are set depends on the API by which it came.
func lastSeenUnixNano(e *corev1.Event) int64 {
	last := max(e.LastTimestamp.UnixNano(), e.CreationTimestamp.UnixNano())
	if !e.EventTime.IsZero() {
		last = max(last, e.EventTime.UnixNano())
	}
	if e.Series != nil {
		last = max(last, e.Series.LastObservedTime.UnixNano())
	}
	return last
}
