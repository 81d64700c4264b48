package raftnode

import (
	"math/rand/v2"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk/platter"
)

// TestAReplacedSuffixIsCutOffAnywhere: wherever a process ends, with the power or without, while it writes entries where others had been that it
// has acknowledged, the next one starts with what was there before them, and with every entry that was stored again.
func TestAReplacedSuffixIsCutOffAnywhere(t *testing.T) {
	entries := func(from, to, term uint64) (out []*raft.Log) {
		for i := from; i <= to; i++ {
			out = append(out, &raft.Log{Index: i, Term: term, Type: raft.LogCommand, Data: make([]byte, 3000)})
		}
		return out
	}
	const reached, from = 12, 6
	cut := 0
	for name, replace := range map[string]struct {
		drop func(s *storage) error
		term uint64
		left uint64 // of the log before
	}{
		"entries of a new leader": {func(s *storage) error { return s.DeleteRange(from, reached) }, 3, from - 1},
		// The first entries that a new leader sends may be older than what they replace.
		"older entries":                      {func(s *storage) error { return s.DeleteRange(from, reached) }, 1, from - 1},
		"a snapshot that reaches less far":   {func(s *storage) error { return s.DeleteRange(1, reached) }, 3, 0},
		"a log that was lost and comes anew": {func(s *storage) error { return s.DeleteRange(1, reached) }, 2, 0},
	} {
		for changes := 1; changes < 40; changes++ {
			for seed := range uint64(6) {
				p := platter.New(rand.New(rand.NewPCG(seed, uint64(changes))), "data")
				open := func(fresh bool) (m *platter.Mounted, s *storage) {
					m = p.Mount()
					s, err := openStorage(Config{DataDir: "/data", Disk: m, segmentBytes: 20_000, MaxEntryBytes: 4096}, watchDisk(m), fresh, hclog.NewNullLogger(), func() error { return nil })
					if err != nil {
						t.Fatalf("%s: after %d changes, power lost: %t, the next start: %v", name, changes, seed%2 == 1, err)
					}
					return m, s
				}
				m, s := open(true)
				must(t, s.StoreLogs(entries(1, from, 2)))
				must(t, s.StoreLogs(entries(from+1, reached, 2)))
				must(t, s.close()) // the promises are synced
				must(t, s.log.Close())
				m.End()
				m, s = open(false)
				m.Light(changes, func() {})
				stored, err := uint64(0), replace.drop(s)
				for i := uint64(from); err == nil && i < reached+3; i += 2 {
					if err = s.StoreLogs(entries(i, i+1, replace.term)); err == nil {
						stored = i + 1
					}
				}
				if err != nil {
					cut++
				}
				m.End()
				_ = s.Close() // its disk is gone
				if seed%2 == 1 {
					p.LosePower()
				}
				m, s = open(false)
				last, err := s.LastIndex()
				must(t, err)
				if last < max(stored, min(replace.left, from-1)) {
					t.Fatalf("%s: after %d changes the log ends at %d, and %d had been stored again", name, changes, last, stored)
				}
				for i := uint64(from); i <= stored; i++ {
					var l raft.Log
					if err := s.GetLog(i, &l); err != nil || l.Term != replace.term {
						t.Fatalf("%s: after %d changes entry %d is %+v, %v", name, changes, i, l.Term, err)
					}
				}
				must(t, s.Close())
				m.End()
			}
		}
	}
	if cut == 0 {
		t.Error("nothing was cut off")
	}
}

// TestDamageBeforeAReplacedSuffixIsDamage: what is said of entries that are written again takes nothing from those before them, nor from those
// that are stored since.
func TestDamageBeforeAReplacedSuffixIsDamage(t *testing.T) {
	p := &promises{kept: promisesRecord{Format: 1, Acknowledged: position{2, 12}}}
	at := func(first uint64) uint64 {
		must(t, p.replace(first))
		r := p.record()
		return r.stored()
	}
	take := func(term, index uint64) uint64 {
		must(t, p.acknowledge([]*raft.Log{{Term: term, Index: index}}))
		r := p.record()
		return r.stored()
	}
	for i, got := range []struct{ is, want uint64 }{
		{at(13), 12}, {at(6), 5}, {take(1, 7), 7}, {at(8), 7}, {take(1, 9), 9}, {at(9), 8}, {take(3, 10), 10}, {at(11), 10}, {take(3, 40), 40},
	} {
		if got.is != got.want {
			t.Errorf("step %d: the log is whole up to %d, want %d", i, got.is, got.want)
		}
	}
}
