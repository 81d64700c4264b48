package raftlog

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/disk"
)

const (
	magic  = "BERTHLOG"
	format = 2
	// headBytes is the part of the header that every format has, and all of that of format 1.
	headBytes   = len(magic) + 4 + 8 + 4
	seedBytes   = 4
	headerBytes = headBytes + seedBytes + 4
	frameBytes  = 4 + 4
	bodyBytes   = 8 + 8 + 8 + 8 + 1 + 4 // of an entry without data and extensions
	extension   = ".log"
)

// DamageError says that a file of the log does not hold what was written.
type DamageError struct {
	File string
	// Offset is where in the file, in bytes; Entry is the index of the entry
	// there, 0 if it is none.
	Offset int64
	Entry  uint64
	What   string
}

func (e *DamageError) Error() string {
	if e.Entry == 0 {
		return fmt.Sprintf("%s is damaged at byte %d: %s", e.File, e.Offset, e.What)
	}
	return fmt.Sprintf("%s is damaged at byte %d, where log entry %d should be: %s", e.File, e.Offset, e.Entry, e.What)
}

// segment is one file of the log.
type segment struct {
	path    string
	file    disk.File
	first   uint64
	seed    []byte  // of the frames' checksums; none in files of format 1
	offsets []int64 // where the frame of entry first+i begins
	end     int64   // where the next frame goes
	size    int64   // of the file: what is behind end is zero
}

func (s *segment) last() uint64 { return s.first + uint64(len(s.offsets)) - 1 }

func segmentPath(dir string, first uint64) string {
	return filepath.Join(dir, fmt.Sprintf("%020d%s", first, extension))
}

// firstOf is the index in a segment's name.
func firstOf(name string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, extension)
	if !ok || len(digits) != 20 {
		return 0, false
	}
	first, err := strconv.ParseUint(digits, 10, 64)
	return first, err == nil && first > 0
}

// checksum is the CRC-32C of parts, one after the other.
func checksum(parts ...[]byte) (sum uint32) {
	table := crc32.MakeTable(crc32.Castagnoli) // made once
	for _, p := range parts {
		sum = crc32.Update(sum, table, p)
	}
	return sum
}

// header is that of a new file.
func header(first uint64, seed []byte) []byte { return seal(append(head(first, format), seed...)) }

// head is the beginning of a header, with a checksum of its own.
func head(first uint64, format uint32) []byte {
	b := append(make([]byte, 0, headerBytes), magic...)
	b = binary.LittleEndian.AppendUint32(b, format)
	b = binary.LittleEndian.AppendUint64(b, first)
	return seal(b)
}

func seal(b []byte) []byte { return binary.LittleEndian.AppendUint32(b, checksum(b)) }

// newSeed is chosen for each file, and known to nobody who has things written into it: bytes of an entry that look like a frame are none.
func newSeed() []byte {
	seed := make([]byte, seedBytes)
	_, _ = rand.Read(seed) // it does not fail
	return seed
}

// appendFrame appends an entry's frame to b. write is the index of the first
// entry that is written together with it.
func (s *segment) appendFrame(b []byte, l *raft.Log, write uint64) []byte {
	at := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(bodyBytes+len(l.Extensions)+len(l.Data)))
	b = append(b, 0, 0, 0, 0) // the checksum's place
	b = binary.LittleEndian.AppendUint64(b, l.Index)
	b = binary.LittleEndian.AppendUint64(b, write)
	b = binary.LittleEndian.AppendUint64(b, l.Term)
	var appended int64
	if !l.AppendedAt.IsZero() {
		appended = l.AppendedAt.UnixNano()
	}
	b = binary.LittleEndian.AppendUint64(b, uint64(appended))
	b = append(b, byte(l.Type))
	b = binary.LittleEndian.AppendUint32(b, uint32(len(l.Extensions)))
	b = append(b, l.Extensions...)
	b = append(b, l.Data...)
	binary.LittleEndian.PutUint32(b[at+4:], checksum(s.seed, b[at:at+4], b[at+frameBytes:]))
	return b
}

// decodeBody fills l with what is in a frame's body, which it goes on using.
func decodeBody(b []byte, l *raft.Log) error {
	if len(b) < bodyBytes {
		return errors.New("the frame is shorter than an entry")
	}
	extensions := int64(binary.LittleEndian.Uint32(b[33:]))
	if extensions > int64(len(b)-bodyBytes) {
		return errors.New("the extensions are longer than the entry")
	}
	*l = raft.Log{
		Index: binary.LittleEndian.Uint64(b), Term: binary.LittleEndian.Uint64(b[16:]), Type: raft.LogType(b[32]),
	}
	if nanos := int64(binary.LittleEndian.Uint64(b[24:])); nanos != 0 {
		l.AppendedAt = time.Unix(0, nanos)
	}
	rest := b[bodyBytes:]
	if extensions > 0 {
		l.Extensions = rest[:extensions:extensions]
	}
	if data := rest[extensions:]; len(data) > 0 {
		l.Data = data
	}
	return nil
}

// frameReader reads a segment from its beginning to the first frame that is not
// right.
type frameReader struct {
	s    *segment
	size int64
	in   *bufio.Reader
	body []byte
}

// next returns the next entry, whose bytes are good until the call after. It is
// io.EOF at the end of the file, and *DamageError where no right frame is.
func (r *frameReader) next(l *raft.Log) error {
	s := r.s
	damaged := func(format string, args ...any) error {
		return &DamageError{s.path, s.end, s.first + uint64(len(s.offsets)), fmt.Sprintf(format, args...)}
	}
	if s.end == r.size {
		return io.EOF
	}
	var head [frameBytes]byte
	if at, err := io.ReadFull(r.in, head[:min(frameBytes, r.size-s.end)]); err != nil {
		return fmt.Errorf("read %s: %w", s.path, err)
	} else if head == ([frameBytes]byte{}) { // no frame has these
		return r.zeroes(s.end+int64(at), damaged)
	} else if at < frameBytes {
		return damaged("the file ends within the entry")
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if s.end+frameBytes+n > r.size {
		return damaged("the file ends within the entry")
	}
	if int64(cap(r.body)) < n {
		r.body = make([]byte, n+n/2)
	}
	body := r.body[:n]
	if _, err := io.ReadFull(r.in, body); err != nil {
		return fmt.Errorf("read %s: %w", s.path, err)
	}
	if checksum(s.seed, head[:4], body) != binary.LittleEndian.Uint32(head[4:]) {
		return damaged("its checksum is wrong")
	}
	if err := decodeBody(body, l); err != nil {
		return damaged("%s", err)
	}
	if want := s.first + uint64(len(s.offsets)); l.Index != want {
		return damaged("there is entry %d", l.Index)
	}
	s.offsets = append(s.offsets, s.end)
	s.end += frameBytes + n
	return nil
}

// cutOff tells whether what ended the reading is a write that was cut off, and
// not damage: the frames from here on were never acknowledged. One write is
// synced before the next begins; so a later one behind it is a proof that they
// were.
func (r *frameReader) cutOff(err error, acknowledged uint64) bool {
	s := r.s
	next := s.first + uint64(len(s.offsets))
	var damage *DamageError
	if !errors.As(err, &damage) || next <= acknowledged {
		return false
	}
	later, err := r.laterWrite(next)
	return err == nil && !later
}

// laterWrite looks for a frame behind the end of what was read that was written
// after the one that should be there.
func (r *frameReader) laterWrite(next uint64) (bool, error) {
	rest := make([]byte, r.size-r.s.end)
	if _, err := r.s.file.ReadAt(rest, r.s.end); err != nil {
		return false, err
	}
	for at := 0; at+frameBytes+bodyBytes <= len(rest); at++ {
		n := int64(binary.LittleEndian.Uint32(rest[at:]))
		body := rest[at+frameBytes:]
		index, write := binary.LittleEndian.Uint64(body), binary.LittleEndian.Uint64(body[8:])
		if n < int64(bodyBytes) || n > int64(len(body)) || write <= next || index < write || index-next > uint64(len(rest)) {
			continue
		}
		if checksum(r.s.seed, rest[at:at+4], body[:n]) == binary.LittleEndian.Uint32(rest[at+4:]) {
			return true, nil
		}
	}
	return false, nil
}

// zeroes makes sure that there is nothing in the rest of the file, which is room
// made for entries to come.
func (r *frameReader) zeroes(at int64, damaged func(string, ...any) error) error {
	if int64(cap(r.body)) < zeroBlock {
		r.body = make([]byte, zeroBlock)
	}
	for at < r.size {
		block := r.body[:min(zeroBlock, r.size-at)]
		if _, err := io.ReadFull(r.in, block); err != nil {
			return fmt.Errorf("read %s: %w", r.s.path, err)
		}
		for _, b := range block {
			if b != 0 {
				return damaged("there are zeroes, and something behind them")
			}
		}
		at += int64(len(block))
	}
	return io.EOF
}

const zeroBlock = 64 << 10

// errUnbegun means that a file ends within its header. The header is synced
// before anything follows it: there were no entries, or the file was cut.
var errUnbegun = errors.New("the file ends within its header")

// openSegment checks the header of a file and gives a reader of its frames.
func openSegment(on disk.Disk, path string, first uint64, writable bool) (*segment, *frameReader, error) {
	flag := os.O_RDONLY
	if writable {
		flag = os.O_RDWR
	}
	if st, err := on.Lstat(path); err == nil && !st.Mode().IsRegular() {
		return nil, nil, &DamageError{path, 0, 0, "it is not a file"}
	}
	f, err := on.OpenFile(path, flag, 0)
	if err != nil {
		return nil, nil, err
	}
	s := &segment{path: path, file: f, first: first}
	st, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	s.size = st.Size()
	in := bufio.NewReaderSize(f, 256<<10)
	if err := s.readHeader(in); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return s, &frameReader{s: s, size: st.Size(), in: in}, nil
}

// readHeader reads a file up to its first frame.
func (s *segment) readHeader(in io.Reader) error {
	if s.size < int64(headBytes) {
		return errUnbegun
	}
	b := make([]byte, headBytes, headerBytes)
	if _, err := io.ReadFull(in, b); err != nil {
		return fmt.Errorf("read %s: %w", s.path, err)
	}
	v := binary.LittleEndian.Uint32(b[len(magic):])
	damaged := func(what string) error { return &DamageError{s.path, 0, 0, what} }
	switch {
	case !bytes.Equal(b, head(s.first, v)):
		return damaged("its header is wrong")
	case v > format:
		return damaged(fmt.Sprintf("it has format %d, and this version knows up to %d", v, format))
	case v == 1:
	case v != format:
		return damaged("its header is wrong")
	case s.size < int64(headerBytes):
		return errUnbegun
	default:
		b = b[:headerBytes] // #nosec G602 -- it has room for all of it
		if _, err := io.ReadFull(in, b[headBytes:]); err != nil {
			return fmt.Errorf("read %s: %w", s.path, err)
		}
		s.seed = b[headBytes : headBytes+seedBytes] // #nosec G602 -- as above
		if !bytes.Equal(b, header(s.first, s.seed)) {
			return damaged("its header is wrong")
		}
	}
	s.end = int64(len(b))
	return nil
}

// read returns an entry with bytes of its own.
func (s *segment) read(index uint64, l *raft.Log) error {
	at := s.offsets[index-s.first]
	end := s.end
	if i := int(index-s.first) + 1; i < len(s.offsets) {
		end = s.offsets[i]
	}
	b := make([]byte, end-at)
	if _, err := s.file.ReadAt(b, at); errors.Is(err, io.EOF) {
		return &DamageError{s.path, at, index, "the file ends within the entry"}
	} else if err != nil {
		return fmt.Errorf("read %s: %w", s.path, err)
	}
	if int(binary.LittleEndian.Uint32(b)) != len(b)-frameBytes ||
		checksum(s.seed, b[:4], b[frameBytes:]) != binary.LittleEndian.Uint32(b[4:]) {
		return &DamageError{s.path, at, index, "its checksum is wrong"}
	}
	if err := decodeBody(b[frameBytes:], l); err != nil {
		return &DamageError{s.path, at, index, err.Error()}
	}
	if l.Index != index {
		return &DamageError{s.path, at, index, fmt.Sprintf("there is entry %d", l.Index)}
	}
	return nil
}
