package fsm

// Checkpoint changes nothing: every server keeps the view that it has after
// this entry for a while, so that their digests can be compared at the same
// index.
//
// Refuses nothing.
type Checkpoint struct{}

// Apply implements Command.
func (c *Checkpoint) Apply(tx *Tx) Result {
	tx.checkpoint = true
	return Result{}
}
