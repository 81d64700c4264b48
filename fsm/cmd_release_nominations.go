package fsm

// ReleaseNominations ends the nominations whose deadline has passed by the
// state's time, and lets their pods be decided anew: the victims did not go in
// time, or the pod did not come. Others are left alone.
//
// Refuses nothing.
type ReleaseNominations struct {
	Pods []PodRef `msgpack:"pods"`
}

// Apply implements Command.
func (c *ReleaseNominations) Apply(tx *Tx) Result {
	for _, ref := range c.Pods {
		tx.part(ref.Key, func() { tx.expireNomination(ref) })
	}
	return Result{}
}

func (tx *Tx) expireNomination(ref PodRef) {
	n, ok := tx.view.Nominations.Get(ref.Key)
	if !ok || string(n.UID) != ref.UID || n.DeadlineUnixNano > tx.view.TimeUnixNano() {
		return
	}
	why := "the victims did not end before the deadline"
	if !n.Waits() {
		why = "the pod did not take its place before the deadline"
	}
	tx.releaseNomination(n, why)
}
