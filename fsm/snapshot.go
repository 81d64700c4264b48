package fsm

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

	corev1 "k8s.io/api/core/v1"
)

// A snapshot is: the magic, a length-prefixed msgpack header, then for every
// table a length-prefixed name, the number of rows and the rows (length-
// prefixed key and value), and last the SHA-256 of all that came before.

const snapshotMagic = "BERTHSNAP"

// ErrSnapshot means that a snapshot stream is damaged or not one of Berth's.
var ErrSnapshot = errors.New("not a valid snapshot")

// SnapshotHeader says which state a snapshot holds.
type SnapshotHeader struct {
	Format       uint8  `msgpack:"format"`
	Index        uint64 `msgpack:"index"`
	Term         uint64 `msgpack:"term"`
	Revision     int64  `msgpack:"revision"`
	TimeUnixNano int64  `msgpack:"time_unix_nano"`
	Tables       int    `msgpack:"tables"`
}

const maxFieldBytes = 1 << 30

// Write streams the view as a snapshot. It holds no lock.
func (v *View) Write(w io.Writer) error {
	return v.WriteAt(w, v.revision)
}

// WriteAt is Write with another revision in the header, never a lower one: a
// cluster that goes back to an old snapshot must not hand out a revision
// twice, or its clients' watches would go wrong.
func (v *View) WriteAt(w io.Writer, revision int64) error {
	sum := sha256.New()
	out := &fieldWriter{w: bufio.NewWriterSize(io.MultiWriter(w, sum), 1<<16)}
	header, err := marshal(SnapshotHeader{
		Format: 1, Index: v.index, Term: v.term, Revision: max(revision, v.revision),
		TimeUnixNano: v.timeUnixNano, Tables: len(v.tables()),
	})
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	out.raw([]byte(snapshotMagic))
	out.bytes(header)
	if err := v.writeTables(out); err != nil {
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

func (v *View) writeTables(out *fieldWriter) error {
	for _, t := range v.tables() {
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

// Digest is a fingerprint of everything in the state's tables and of its
// revision: two servers at the same index have the same one.
func (v *View) Digest() string {
	sum := sha256.New()
	out := &fieldWriter{w: bufio.NewWriterSize(sum, 1<<16)}
	out.number(uint64(v.revision))
	out.number(uint64(v.timeUnixNano))
	if err := v.writeTables(out); err != nil {
		panic(fmt.Sprintf("fsm: digest: %v", err)) // rows that were stored encode
	}
	_ = out.w.Flush() // a hash does not fail
	return hex.EncodeToString(sum.Sum(nil))
}

// ReadSnapshotHeader reads what a snapshot says of itself, without its tables.
func ReadSnapshotHeader(r io.Reader) (SnapshotHeader, error) {
	in := &fieldReader{r: bufio.NewReader(r), sum: sha256.New()}
	return in.header()
}

// Restore replaces the state by the one in a snapshot stream. On an error the
// state is as it was.
func (s *State) Restore(r io.Reader) error {
	in := &fieldReader{r: bufio.NewReaderSize(r, 1<<16), sum: sha256.New()}
	h, err := in.header()
	if err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	v := newView()
	v.cache = newCache()
	v.cache.restored = map[*corev1.Container]*admittedSpec{}
	v.position = position{index: h.Index, term: h.Term, revision: h.Revision, timeUnixNano: h.TimeUnixNano}
	byName := map[string]anyTable{}
	for _, t := range v.tables() {
		byName[t.Name()] = t
	}
	for range h.Tables {
		if err := in.table(v.cache, byName); err != nil {
			return fmt.Errorf("restore: %w", err)
		}
	}
	if err := in.checksum(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	for _, t := range v.tables() {
		if err := t.reindex(v); err != nil {
			return fmt.Errorf("restore: %w: table %s: %w", ErrSnapshot, t.Name(), err)
		}
	}
	v.cache.restored = nil
	v.touchedBudgets = nil // their statuses are those of the snapshot
	s.live = v
	s.feed.reset(v.revision, s.publish)
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

func (f *fieldReader) header() (SnapshotHeader, error) {
	var h SnapshotHeader
	magic := make([]byte, len(snapshotMagic))
	if _, err := io.ReadFull(f.r, magic); err != nil || string(magic) != snapshotMagic {
		return h, fmt.Errorf("%w: it does not start as one", ErrSnapshot)
	}
	f.sum.Write(magic)
	b, err := f.bytes()
	if err != nil {
		return h, err
	}
	if err := unmarshal(b, &h); err != nil {
		return h, fmt.Errorf("%w: header: %w", ErrSnapshot, err)
	}
	if h.Format != 1 {
		return h, fmt.Errorf("%w: format %d is not known to this version", ErrSnapshot, h.Format)
	}
	return h, nil
}

func (f *fieldReader) table(c *cache, byName map[string]anyTable) error {
	name, err := f.bytes()
	if err != nil {
		return err
	}
	t, ok := byName[string(name)]
	if !ok {
		return fmt.Errorf("%w: table %q is not known to this version", ErrSnapshot, name)
	}
	rows, err := f.number()
	if err != nil {
		return err
	}
	for range rows {
		key, err := f.bytes()
		if err != nil {
			return err
		}
		row, err := f.bytes()
		if err != nil {
			return err
		}
		if err := t.restoreRow(c, string(key), row); err != nil {
			return fmt.Errorf("%w: table %s, row %s: %w", ErrSnapshot, name, key, err)
		}
	}
	return nil
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
