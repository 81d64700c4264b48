package raftlog

import (
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk/platter"
)

// TestWhatIsReadOutlastsALossOfPower: a process is killed at each moment of a write, maybe before it has synced. What the next one reads, and
// acknowledges to others, is there also when the power goes then.
func TestWhatIsReadOutlastsALossOfPower(t *testing.T) {
	read := 0
	for changes := 1; changes < 12; changes++ {
		for seed := range uint64(20) {
			p := platter.New(rand.New(rand.NewPCG(seed, uint64(changes))), "data")
			open := func() (m *platter.Mounted, l *Log, last uint64) {
				m = p.Mount()
				l, err := Open("/data/log", Options{Disk: m, SegmentBytes: 200})
				if err != nil {
					t.Fatalf("after %d changes: %v", changes, err)
				}
				if last, err = l.LastIndex(); err != nil {
					t.Fatal(err)
				}
				return m, l, last
			}
			m, l, _ := open()
			for i := uint64(1); i < 4; i++ {
				if err := l.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 50)}); err != nil {
					t.Fatal(err)
				}
			}
			m.Light(changes, func() {})
			for i := uint64(4); i < 8 && l.StoreLog(&raft.Log{Index: i, Term: 1, Data: make([]byte, 50)}) == nil; i++ {
			}
			m.End()
			m, _, acknowledged := open()
			m.End()
			p.LosePower()
			if _, _, last := open(); last < acknowledged {
				t.Fatalf("after %d changes the log reached up to entry %d, and without power up to %d", changes, acknowledged, last)
			}
			if acknowledged > 3 {
				read++
			}
		}
	}
	if read == 0 {
		t.Error("nobody read what was written when he was killed")
	}
}
