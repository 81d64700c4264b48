package fsm

// PutEvent creates (Create) or replaces an event that a client or a worker
// reports.
//
// Refuses: 404 or 403 for a namespace that is missing or on its way out; 409
// if an event to be created exists, or for a stale revision; 404 if one to be
// replaced does not; 413 for one of more than 64 KiB.
type PutEvent struct {
	Event    EventWire `msgpack:"event"`
	Create   bool      `msgpack:"create,omitempty"`
	Revision int64     `msgpack:"revision,omitempty"`
}

// Apply implements Command.
func (c *PutEvent) Apply(tx *Tx) Result {
	event := c.Event.Object
	if event == nil || event.Name == "" {
		return refuseBadRequest("PutEvent without an event that has a name")
	}
	if r, ok := checkEventSize(event); !ok {
		return r
	}
	v := tx.view
	key := event.Namespace + "/" + event.Name
	old, known := v.Events.Get(key)
	switch {
	case c.Create && known:
		return refuseExists(eventResource.groupResource(), event.Name)
	case c.Create:
		if r, ok := v.checkNamespace(event.Namespace, eventResource, event.Name); !ok {
			return r
		}
	case !known:
		return refuseNotFound(eventResource.groupResource(), event.Name)
	default:
		if r, ok := (Precondition{UID: string(event.UID), Revision: c.Revision}).check(old, eventResource); !ok {
			return r
		}
	}
	tx.putEvent(event, max(1, int(*v.SchedulerConfig().Spec.EventLimit)))
	return Result{Table: v.Events.Name(), Object: event}
}
