package store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
)

// A snapshot is: the magic, a length-prefixed msgpack header, then for every
// table a length-prefixed name, the number of rows and the rows (length-
// prefixed key and value), and last the SHA-256 of all that came before.

const snapshotMagic = "BERTHSNAP"

// ErrSnapshot means that a snapshot stream is damaged or not one of Berth's.
var ErrSnapshot = errors.New("not a valid snapshot")

// snapshotHeader says which state a snapshot holds.
type snapshotHeader struct {
	Format       uint8  `msgpack:"format"`
	Index        uint64 `msgpack:"index"`
	Term         uint64 `msgpack:"term"`
	Revision     int64  `msgpack:"revision"`
	TimeUnixNano int64  `msgpack:"time_unix_nano"`
	Tables       int    `msgpack:"tables"`
	// Version is the state's (see Position.Version).
	Version int `msgpack:"version,omitempty"`
}

const maxFieldBytes = 1 << 30

// WriteSnapshot streams the tables of the state at a position, whose revision in
// the header may be a later one: a cluster that goes back to an old snapshot
// must not hand out a revision twice, or its clients' watches would go wrong.
func WriteSnapshot[S any](w io.Writer, at Position, revision int64, tables []AnyTable[S]) error {
	sum := sha256.New()
	out := &fieldWriter{w: bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)}
	tables = inhabited(tables)
	header, err := Marshal(snapshotHeader{
		Format: 1, Index: at.index, Term: at.term, Revision: max(revision, at.revision),
		TimeUnixNano: at.timeUnixNano, Tables: len(tables), Version: at.version,
	})
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	out.raw([]byte(snapshotMagic))
	out.bytes(header)
	if err := writeTables(out, tables); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if err := out.w.Flush(); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	if _, err := w.Write(sum.Sum(nil)); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return nil
}

// inhabited are the tables that have rows. The others are left out of snapshots
// and digests, so that a table that is new to the rules is in none before an
// entry of those rules has put something into it: older servers do not know it.
func inhabited[S any](tables []AnyTable[S]) []AnyTable[S] {
	return slices.DeleteFunc(slices.Clone(tables), func(t AnyTable[S]) bool { return t.Len() == 0 })
}

func writeTables[S any](out *fieldWriter, tables []AnyTable[S]) error {
	for _, t := range tables {
		out.bytes([]byte(t.Name()))
		out.number(uint64(t.Len()))
		err := t.encodeRows(func(key string, row []byte) error {
			out.bytes([]byte(key))
			out.bytes(row)
			return out.err
		})
		if err != nil {
			return fmt.Errorf("table %s: %w", t.Name(), err)
		}
	}
	return out.err
}

// DigestFormat is how digests are taken. Those of another format can not be
// compared.
const DigestFormat = 1

// Digests are fingerprints of a state: two servers at the same index have the
// same ones.
type Digests struct {
	// Whole is that of everything: of the tables that have rows, and of the
	// position's revision, time and version.
	Whole  string
	Tables []TableDigest
}

// TableDigest is a fingerprint of one table's rows.
type TableDigest struct {
	Table  string `msgpack:"table"`
	Digest string `msgpack:"digest"`
}

// DigestsOf reads all tables. A row that does not encode counts as the reason why.
func DigestsOf[S any](at Position, tables []AnyTable[S]) Digests {
	var out Digests
	whole := sha256.New()
	all := &fieldWriter{w: bufio.NewWriter(whole)}
	all.number(uint64(at.revision))
	all.number(uint64(at.timeUnixNano))
	all.number(uint64(at.version))
	for _, t := range inhabited(tables) {
		sum := sha256.New()
		rows := &fieldWriter{w: bufio.NewWriterSize(sum, 1<<16)}
		if err := writeTables(rows, []AnyTable[S]{t}); err != nil {
			rows.bytes([]byte(err.Error()))
		}
		_ = rows.w.Flush() // a hash does not fail
		d := sum.Sum(nil)
		all.bytes(d)
		out.Tables = append(out.Tables, TableDigest{t.Name(), hex.EncodeToString(d)})
	}
	_ = all.w.Flush() // a hash does not fail
	out.Whole = hex.EncodeToString(whole.Sum(nil))
	return out
}

// Differing are the tables whose rows are not the same, in their order.
func (d Digests) Differing(other Digests) []string {
	var out []string
	digests := map[string]string{}
	for _, t := range other.Tables {
		digests[t.Table] = t.Digest
	}
	for _, t := range d.Tables {
		if digests[t.Table] != t.Digest {
			out = append(out, t.Table)
		}
		delete(digests, t.Table)
	}
	return append(out, slices.Sorted(maps.Keys(digests))...)
}

// ReadSnapshot fills a new state from a snapshot, which goes by rules up to the
// version that is known: the tables, which are empty, and then all that is derived
// from them, in the order of the tables. A table whose Index reads another comes
// after it.
func ReadSnapshot[S any](r io.Reader, version int, s S, at *Position, tables []AnyTable[S]) error {
	in := &fieldReader{r: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
	h, err := in.header()
	if err != nil {
		return err
	}
	if h.Version > version {
		return fmt.Errorf("%w of version %d, where version %d is known: %w", ErrSnapshot, h.Version, version, ErrNewerVersion)
	}
	*at = Position{index: h.Index, term: h.Term, revision: h.Revision, timeUnixNano: h.TimeUnixNano, version: h.Version}
	byName := map[string]AnyTable[S]{}
	for _, t := range tables {
		byName[t.Name()] = t
	}
	for range h.Tables {
		if err := readTable(in, s, byName); err != nil {
			return err
		}
	}
	if err := in.checksum(); err != nil {
		return err
	}
	for _, t := range tables {
		if err := t.reindex(s, at); err != nil {
			return fmt.Errorf("%w: table %s: %w", ErrSnapshot, t.Name(), err)
		}
	}
	return nil
}

func readTable[S any](in *fieldReader, s S, byName map[string]AnyTable[S]) error {
	name, err := in.bytes()
	if err != nil {
		return err
	}
	t, ok := byName[string(name)]
	if !ok {
		return fmt.Errorf("%w: table %q is not known to this version", ErrSnapshot, name)
	}
	rows, err := in.number()
	if err != nil {
		return err
	}
	for range rows {
		key, err := in.bytes()
		if err != nil {
			return err
		}
		row, err := in.bytes()
		if err != nil {
			return err
		}
		if err := t.restoreRow(s, string(key), row); err != nil {
			return fmt.Errorf("%w: table %s, row %s: %w", ErrSnapshot, name, key, err)
		}
	}
	return nil
}

type fieldWriter struct {
	w   *bufio.Writer
	err error
}

func (f *fieldWriter) raw(b []byte) {
	if f.err == nil {
		_, f.err = f.w.Write(b)
	}
}

func (f *fieldWriter) number(n uint64) {
	var buf [binary.MaxVarintLen64]byte
	f.raw(buf[:binary.PutUvarint(buf[:], n)])
}

func (f *fieldWriter) bytes(b []byte) {
	f.number(uint64(len(b)))
	f.raw(b)
}

type fieldReader struct {
	r   *bufio.Reader
	sum hash.Hash
}

func (f *fieldReader) header() (snapshotHeader, error) {
	var h snapshotHeader
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(f.r, magic); err != nil || string(magic) != snapshotMagic {
		return h, fmt.Errorf("%w: it does not start as one", ErrSnapshot)
	}
	f.sum.Write(magic)
	b, err := f.bytes()
	if err != nil {
		return h, err
	}
	if err := Unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: header: %w", ErrSnapshot, err)
	}
	if h.Format != 1 {
		return h, fmt.Errorf("%w: format %d is not known to this version", ErrSnapshot, h.Format)
	}
	return h, nil
}

func (f *fieldReader) number() (uint64, error) {
	n, err := binary.ReadUvarint(f.r)
	if err != nil {
		return 0, fmt.Errorf("%w: it ends too early", ErrSnapshot)
	}
	var buf [binary.MaxVarintLen64]byte
	f.sum.Write(buf[:binary.PutUvarint(buf[:], n)])
	return n, nil
}

func (f *fieldReader) bytes() ([]byte, error) {
	n, err := f.number()
	if err != nil {
		return nil, err
	}
	if n > maxFieldBytes {
		return nil, fmt.Errorf("%w: a field of %d bytes", ErrSnapshot, n)
	}
	b := make([]byte, min(n, 1<<16))
	_, err = io.ReadFull(f.r, b)
	if rest := n - uint64(len(b)); err == nil && rest > 0 {
		// Grow with what is there, not with what a damaged length claims.
		buf := bytes.NewBuffer(b)
		_, err = io.CopyN(buf, f.r, int64(rest))
		b = buf.Bytes()
	}
	if err != nil {
		return nil, fmt.Errorf("%w: it ends too early", ErrSnapshot)
	}
	f.sum.Write(b)
	return b, nil
}

func (f *fieldReader) checksum() error {
	want := f.sum.Sum(nil)
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f.r, got); err != nil {
		return fmt.Errorf("%w: the checksum is missing", ErrSnapshot)
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%w: the checksum does not match", ErrSnapshot)
	}
	return nil
}
