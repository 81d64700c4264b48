package fsm

import (
	"fmt"
	"strings"
)

// maxApplyFailures is how many are kept, the oldest going first.
const maxApplyFailures = 256

// ApplyFailure is the record of a part of the log that could not be carried
// out on any server, because doing it made the state machine panic. It was
// undone. The record holds nothing that could differ between servers.
type ApplyFailure struct {
	Index uint64 `msgpack:"index"`
	// Place counts the failures of one entry from 1.
	Place   int32  `msgpack:"place"`
	Command string `msgpack:"command"`
	// Part names what in the command it was about; "" if it was the whole.
	Part         string `msgpack:"part,omitempty"`
	User         string `msgpack:"user,omitempty"`
	TimeUnixNano int64  `msgpack:"time_unix_nano"`
}

// The failures are bookkeeping: nobody watches them.
var applyFailureTable = &tableDef[*ApplyFailure]{
	Name:      "applyfailures",
	Marshal:   packRow[ApplyFailure],
	Unmarshal: unpackRow[ApplyFailure],
}

func (tx *Tx) recordFailure(f *ApplyFailure) {
	t := tx.view.ApplyFailures
	put(tx, t, fmt.Sprintf("%016x/%04x", f.Index, f.Place), f)
	for t.Len() > maxApplyFailures {
		oldest, _, _ := t.Min()
		remove(tx, t, oldest)
	}
}

// LastApplyFailures are the newest so many, newest first.
func (v *View) LastApplyFailures(most int) []*ApplyFailure {
	var out []*ApplyFailure
	v.ApplyFailures.Reverse(func(_ string, f *ApplyFailure) bool {
		if len(out) == most {
			return false
		}
		out = append(out, f)
		return true
	})
	return out
}

// maxCutBytes bounds names in bookkeeping that somebody else chose.
const maxCutBytes = 256

// cut is a text that is bounded, and valid UTF-8.
func cut(s string) string {
	if len(s) > maxCutBytes {
		s = s[:maxCutBytes]
	}
	return strings.ToValidUTF8(s, "")
}
