package fsm

// AbandonSnapshot gives up a restore that was staged and not carried out: its
// pieces are forgotten. One of another ID is left alone.
//
// Refuses nothing.
type AbandonSnapshot struct {
	ID string `msgpack:"id"`
}

// Apply implements Command.
func (c *AbandonSnapshot) Apply(tx *Tx) Result {
	if last, ok := tx.view.lastStaged(); ok && last.ID == c.ID {
		tx.dropStaged()
	}
	return Result{}
}
