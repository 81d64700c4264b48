package fsm

// DeleteEvents removes one event by its key, or the events that came, or changed,
// before a time (by the state's time, within ten seconds), oldest first and at most Limit of them.
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
		tx.forgetArrivals()
		return Result{Table: v.Events.Name(), Object: old, Deleted: true}
	}
	tx.removeEventsBefore(c.BeforeUnixNano, c.Limit)
	return Result{}
}
