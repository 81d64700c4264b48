package fsm

import (
	"bytes"
	"testing"

	"github.com/berth-dev/berth/store"
)

func TestJoinedEntryIsTheSameEntry(t *testing.T) {
	ps := []Proposal{
		{User: "a", Groups: []string{"x", "y"}, Command: &PutObject{Resource: "configmaps", Raw: []byte("one")}},
		{Command: &DeletePriorityClass{Name: "gone"}},
		{User: "b", Command: &Checkpoint{}},
	}
	for n := range len(ps) + 1 {
		for _, h := range []Header{{}, {TimeUnixNano: 1 << 60, Server: "s1"}} {
			want, err := EncodeEntry(h, ps[:n])
			if err != nil {
				t.Fatal(err)
			}
			parts := make([]store.Encoded, n)
			for i, p := range ps[:n] {
				if parts[i], err = EncodeProposal(p); err != nil {
					t.Fatal(err)
				}
			}
			got, err := store.JoinEntry(h, parts)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got, want) {
				t.Errorf("%d proposals: joined\n%x\nencoded\n%x", n, got, want)
			}
			size := 0
			for _, p := range parts {
				size += len(p)
			}
			if len(got) > size+store.EntryOverheadBytes {
				t.Errorf("%d proposals: an entry of %d bytes for %d bytes of proposals", n, len(got), size)
			}
		}
	}
}
