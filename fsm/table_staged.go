package fsm

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/codec"
)

// MaxStagedBytes bounds what a snapshot that is being restored may have when it
// is compressed.
const MaxStagedBytes = 1 << 30

// StagedSeconds is how long what is staged of a snapshot waits for its next
// piece, or to be restored.
const StagedSeconds = 600

// stagedPiece is a piece of a snapshot that is being restored.
type stagedPiece struct {
	ID     string `msgpack:"id"`
	Offset int64  `msgpack:"offset"`
	Data   []byte `msgpack:"data,omitempty"`
	// TimeUnixNano is when it was staged, by the state's time.
	TimeUnixNano int64 `msgpack:"time_unix_nano"`
	// Revision is, of the row that tells of the last restore, RestoredAt.
	Revision int64 `msgpack:"revision,omitempty"`
}

func (p *stagedPiece) end() int64 { return p.Offset + int64(len(p.Data)) }

func stagedKey(offset int64) string { return fmt.Sprintf("piece/%016x", offset) }

// restoredKey is the row that says which restore was the last to be carried out.
const restoredKey = "restored"

// What is staged is bookkeeping: nobody watches it.
var stagedTable = &tableDef[*stagedPiece]{
	Name:      "stagedsnapshots",
	Canonical: codec.Canonical[*stagedPiece](codec.Msgpack),
	Bytes:     func(_ *live, p *stagedPiece) int { return smallBytes + len(p.Data) },
	Marshal:   packRow[stagedPiece],
	Unmarshal: unpackRow[stagedPiece],
}

const stagedPrefix = "piece/"

func (v *View) eachStaged(f func(p *stagedPiece)) {
	v.staged.Scan(stagedPrefix, func(_ string, p *stagedPiece) bool {
		f(p)
		return true
	})
}

func (v *View) lastStaged() (last *stagedPiece, ok bool) {
	v.staged.Reverse(func(key string, p *stagedPiece) bool {
		if strings.HasPrefix(key, stagedPrefix) {
			last, ok = p, true
		}
		return !ok
	})
	return last, ok
}

// StagedSnapshot is the ID of the restore whose pieces are staged, and when the
// last of them was; "" if there is none.
func (v *View) StagedSnapshot() (id string, sinceUnixNano int64) {
	if last, ok := v.lastStaged(); ok {
		return last.ID, last.TimeUnixNano
	}
	return "", 0
}

// SinceSeen is the LogVersion from which on proposals say by which revision they were decided.
const SinceSeen = 32

// RestoredAt is the revision from which on the state goes on that the last restore brought; 0: there was none, or before SinceSeen.
// What was decided by an earlier one is not about this state.
func (v *View) RestoredAt() int64 {
	if p, ok := v.staged.Get(restoredKey); ok {
		return p.Revision
	}
	return 0
}

// IsLate says whether the state by which something was decided, or found to be so, is gone; 0 is never.
func (v *View) IsLate(seen int64) bool { return seen != 0 && seen < v.RestoredAt() }

func (tx *Tx) refuseLate(seen int64) (r Result, late bool) {
	if !tx.view.IsLate(seen) {
		return Result{}, false
	}
	return Result{Code: http.StatusConflict, Reason: metav1.StatusReasonConflict,
		Message: "this was decided by a state that is gone: a snapshot was restored meanwhile"}, true
}

// restoredID is the last restore that was carried out.
func (v *View) restoredID() string {
	if p, ok := v.staged.Get(restoredKey); ok {
		return p.ID
	}
	return ""
}

// stagedReader reads all pieces in their order.
func (v *View) stagedReader() io.Reader {
	var pieces []io.Reader
	v.eachStaged(func(p *stagedPiece) { pieces = append(pieces, bytes.NewReader(p.Data)) })
	return io.MultiReader(pieces...)
}

// SinceEntryGoesOn is the LogVersion from which on the commands behind a restore, in its entry, are carried out as any.
const SinceEntryGoesOn = 29

// replace makes a restored state the live one, and remembers which restore it
// was. Its index, time and version are those of the log that goes on.
func (tx *Tx) replace(restored *live, id string) {
	at := tx.view.Position
	at.SkipTo(max(at.Revision(), restored.Revision()) + tx.view.skippedAtRestore())
	before := restored.Version()
	restored.Position = at.WithRowsOf(restored.Position)
	restored.beginRules(before)
	if before := tx.view.Version(); before >= SinceEntryGoesOn {
		restored.bill, tx.walked, tx.addressed = tx.bill, 0, 0
	}
	*tx.view = *restored
	tx.Undo(0) // what the entry did before is gone with the state
	tx.replaced = at.Revision()
	tx.dropStaged() // the snapshot may have been saved during another restore
	if tx.view.Version() >= SinceNothingOlder {
		tx.markAll()
	}
	row := &stagedPiece{ID: id, TimeUnixNano: at.TimeUnixNano()}
	if tx.view.Version() >= SinceSeen {
		row.Revision = tx.replaced
	}
	put(tx, tx.view.staged, restoredKey, row)
}

func (tx *Tx) dropStaged() {
	var keys []string
	tx.view.staged.Scan(stagedPrefix, func(key string, _ *stagedPiece) bool {
		keys = append(keys, key)
		return true
	})
	for _, key := range keys {
		remove(tx, tx.view.staged, key)
	}
}
