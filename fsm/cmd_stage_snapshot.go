package fsm

import (
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// StageSnapshot keeps a piece of a snapshot that is to be restored on every
// server. Pieces come in order. The first one (Offset 0) gives up whatever else
// was staged. A piece that is there already is passed over, so that one whose
// outcome was not known can be sent again.
//
// Refuses: 400 without an ID, or for an empty piece; 409 for a piece that does
// not follow what is staged; 413 for more than MaxStagedBytes.
type StageSnapshot struct {
	// ID is another one for each restore.
	ID string `msgpack:"id"`
	// Offset is where the piece belongs in the stream, in bytes.
	Offset int64 `msgpack:"offset"`
	// Data is a piece of the snapshot, compressed as a whole by DEFLATE.
	Data []byte `msgpack:"data"`
}

// Apply implements Command.
func (c *StageSnapshot) Apply(tx *Tx) Result {
	if c.ID == "" || c.Offset < 0 || len(c.Data) == 0 {
		return refuseBadRequest("StageSnapshot: an ID and a piece are needed")
	}
	last, _ := tx.view.lastStaged()
	var staged int64
	if last != nil && last.ID == c.ID {
		staged = last.end()
	}
	switch {
	case c.Offset+int64(len(c.Data)) <= staged:
		return Result{}
	case c.Offset != 0 && c.Offset != staged:
		return Result{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: fmt.Sprintf(
			"StageSnapshot: %d bytes of restore %q are staged, and the piece begins at %d: another restore has begun, or it took too long",
			staged, c.ID, c.Offset)}
	case c.Offset+int64(len(c.Data)) > MaxStagedBytes:
		return Result{Code: http.StatusRequestEntityTooLarge, Reason: metav1.StatusReasonRequestEntityTooLarge, Message: fmt.Sprintf(
			"StageSnapshot: a snapshot may have %d bytes when it is compressed, and this one has more", int64(MaxStagedBytes))}
	}
	tx.view.cache.work += int64(len(c.Data) / bytesPerUnit)
	if c.Offset == 0 {
		tx.dropStaged()
	}
	put(tx, tx.view.staged, stagedKey(c.Offset), &stagedPiece{
		ID: c.ID, Offset: c.Offset, Data: c.Data, TimeUnixNano: tx.view.TimeUnixNano(),
	})
	return Result{}
}
