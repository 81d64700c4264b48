package fsm

// ReleaseNominations ends the nominations whose deadline has passed by the
// state's time: their victims did not go in time, so the pods are decided
// anew. Others are left alone.
//
// Refuses nothing.
type ReleaseNominations struct {
	Pods []PodRef `msgpack:"pods"`
}

// Apply implements Command.
func (c *ReleaseNominations) Apply(tx *Tx) Result {
	for _, ref := range c.Pods {
		n, ok := tx.view.Nominations.Get(ref.Key)
		if ok && string(n.UID) == ref.UID && n.DeadlineUnixNano <= tx.view.timeUnixNano {
			tx.releaseNomination(n, "the victims did not end before the deadline")
		}
	}
	return Result{}
}
