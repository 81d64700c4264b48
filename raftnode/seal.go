package raftnode

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
)

// A seal is the checksum that travels with a log entry, in its Extensions: one
// byte for what it covers, and eight of XXH64.
//
// Whoever proposes an entry makes one of its data (sealData). When the leader has
// given the entry its place in the log, it checks that and makes one of the whole
// entry (sealEntry), Raft's own entries included. From then on the seal is checked
// whenever the entry is read from a log, comes from another server, is sent to
// one, or is about to be applied.
const (
	sealData  = 1
	sealEntry = 2
	sealBytes = 1 + 8
)

// errSeal means that an entry is not what was proposed.
var errSeal = errors.New("its checksum is wrong")

func newSeal(kind byte, sum uint64) []byte {
	return binary.BigEndian.AppendUint64([]byte{kind}, sum)
}

// sealOfData is the seal of an entry that has no place yet.
func sealOfData(data []byte) []byte { return newSeal(sealData, xxhash.Sum64(data)) }

func entrySum(l *raft.Log) uint64 {
	var place [17]byte
	place[0] = byte(l.Type)
	binary.BigEndian.PutUint64(place[1:], l.Index)
	binary.BigEndian.PutUint64(place[9:], l.Term)
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(place[:]) // never fails
	_, _ = d.Write(l.Data)
	return d.Sum64()
}

// checkSeal makes sure that an entry is the one that a leader has stored.
func checkSeal(l *raft.Log) error {
	x := l.Extensions
	if len(x) != sealBytes || x[0] != sealEntry || binary.BigEndian.Uint64(x[1:]) != entrySum(l) {
		return fmt.Errorf("log entry %d of term %d is damaged: %w", l.Index, l.Term, errSeal)
	}
	return nil
}

// seal gives an entry that this leader has just made its seal. Others have one.
func seal(l *raft.Log) error {
	x := l.Extensions
	switch {
	case len(x) == 0: // one of Raft's own
	case len(x) != sealBytes || x[0] != sealData:
		return checkSeal(l)
	case binary.BigEndian.Uint64(x[1:]) != xxhash.Sum64(l.Data):
		return fmt.Errorf("the proposed log entry %d was damaged in memory: %w", l.Index, errSeal)
	}
	l.Extensions = newSeal(sealEntry, entrySum(l))
	return nil
}

// checkSeals checks entries that another server sends.
func checkSeals(logs []*raft.Log) error {
	for _, l := range logs {
		if err := checkSeal(l); err != nil {
			return err
		}
	}
	return nil
}

// sealedLog is the log as Raft sees it.
type sealedLog struct {
	*cache
	guard *guard
	// making is whether what is stored now is of this server's own making:
	// anything else must bear a seal.
	making func() bool
	// mayMake is nil, or why it must make none.
	mayMake func() error
}

// GetLog implements raft.LogStore. A leader sends what it reads here.
func (s *sealedLog) GetLog(index uint64, l *raft.Log) error {
	if err := s.cache.GetLog(index, l); err != nil {
		return err
	}
	return s.guard.damage(checkSeal(l))
}

// peek reads an entry for whoever is none of Raft's goroutines. What is wrong with it ends nobody: Raft finds that by itself.
func (s *sealedLog) peek(index uint64, l *raft.Log) error {
	if err := s.guard.durable.GetLog(index, l); err != nil {
		return err
	}
	return checkSeal(l)
}

// StoreLog implements raft.LogStore.
func (s *sealedLog) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *sealedLog) StoreLogs(logs []*raft.Log) error {
	check := checkSeal
	if s.making() {
		if err := s.mayMake(); err != nil {
			return s.guard.stop(err)
		}
		check = seal
	}
	for _, l := range logs {
		if err := check(l); err != nil {
			return s.guard.damage(err)
		}
	}
	return s.cache.StoreLogs(logs)
}
