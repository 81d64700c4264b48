package clustertest

import (
	"fmt"

	"github.com/berth-dev/berth/fsm"
)

// Log is a log of what was applied to a cluster.
type Log struct {
	// Term is the one that entries are of from now on.
	Term uint64

	entries [][]byte
	terms   []uint64
}

// Add adds an entry of one command.
func (l *Log) Add(nowUnixNano int64, c fsm.Command) {
	b, err := fsm.EncodeEntry(fsm.Header{Version: fsm.LogVersion, TimeUnixNano: nowUnixNano},
		[]fsm.Proposal{{User: "test", Groups: []string{"system:masters"}, Command: c}})
	if err != nil {
		panic(err)
	}
	l.entries, l.terms = append(l.entries, b), append(l.terms, l.Term)
}

// Last is the index of the newest entry; the first is 1.
func (l *Log) Last() uint64 { return uint64(len(l.entries)) }

// Entry implements replay.Log.
func (l *Log) Entry(index uint64) (term uint64, entry []byte, err error) {
	if index == 0 || index > l.Last() {
		return 0, nil, fmt.Errorf("there is no entry %d", index)
	}
	return l.terms[index-1], l.entries[index-1], nil
}

// apply adds an entry and applies it.
func (l *Log) apply(state *fsm.State, nowUnixNano int64, c fsm.Command) fsm.Result {
	l.Add(nowUnixNano, c)
	i := l.Last()
	results, err := state.Apply(i, l.terms[i-1], l.entries[i-1])
	if err != nil {
		panic(err)
	}
	return results[0]
}
