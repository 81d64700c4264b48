package fsm

import (
	"bytes"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// restoredRevisions are skipped by a restore, beyond every revision that this
// cluster has handed out, or the snapshot's had before it was saved: none may mean
// two things, also where the snapshot's cluster went on afterwards, and its clients
// and workers come here. It is far more than a cluster makes in the life of a backup.
const restoredRevisions = 1 << 32

// SinceFarRestores is the LogVersion from which on so many are skipped; before,
// a million were, which a cluster makes in an hour.
const SinceFarRestores = 26

// skippedAtRestore is how many revisions a restore skips.
func (v *live) skippedAtRestore() int64 {
	if v.Version() < SinceFarRestores {
		return 1 << 20
	}
	return restoredRevisions
}

// RestoreSnapshot replaces the whole state by the snapshot that is staged. It is
// checked whole before anything changes; what is wrong with it is the same on
// every server, for all have the same pieces. Revisions go on above all that
// were handed out, and the feed begins anew. The state's time and version stay.
//
// Refuses: 409 if not all of the restore is staged; 400 if the snapshot is
// damaged, or goes by rules that this cluster does not know yet.
type RestoreSnapshot struct {
	ID string `msgpack:"id"`
	// Bytes and SHA256 are those of all pieces together.
	Bytes  int64  `msgpack:"bytes"`
	SHA256 []byte `msgpack:"sha256"`
}

// Apply implements Command.
func (c *RestoreSnapshot) Apply(tx *Tx) Result {
	if tx.view.restoredID() == c.ID && c.ID != "" {
		return Result{} // whoever asked did not hear the answer
	}
	last, ok := tx.view.lastStaged()
	if !ok || last.ID != c.ID || last.end() != c.Bytes {
		return Result{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict, Message: fmt.Sprintf(
			"RestoreSnapshot: restore %q is not staged whole: another one has begun, or it took too long", c.ID)}
	}
	sum := sha256.New()
	tx.view.eachStaged(func(p *stagedPiece) { sum.Write(p.Data) })
	if !bytes.Equal(sum.Sum(nil), c.SHA256) {
		return refuseBadRequest("RestoreSnapshot: the pieces that are staged are not those that were sent")
	}
	restored, err := readLive(io.LimitReader(flate.NewReader(tx.view.stagedReader()), MaxSnapshotBytes))
	if err != nil {
		return refuseBadRequest("RestoreSnapshot: " + err.Error())
	}
	if restored.Version() > tx.view.Version() {
		return refuseBadRequest(fmt.Sprintf("RestoreSnapshot: the snapshot goes by version %d of the rules, and this cluster by %d: upgrade all servers first",
			restored.Version(), tx.view.Version()))
	}
	tx.replace(restored, c.ID)
	return Result{}
}
