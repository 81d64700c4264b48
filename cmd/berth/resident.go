package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sys/unix"
)

// startSettled is how long after its start an agent has done what it does once.
const startSettled = 10 * time.Second

// pieceBytes is how much of the program's file is mapped at most for each byte of it that is used.
const pieceBytes = 32 << 10

// letGoOfStart gives the pages of the program's own file back that the start has touched, once it is over: they are most of what a worker has
// resident, and what of them is used is mapped again from the page cache. The returned function sees to it that nothing is given back any more.
func letGoOfStart(log hclog.Logger) (stop func()) {
	t := time.AfterFunc(startSettled, func() {
		if given, err := unmapProgram(); err != nil {
			log.Warn("the pages of the program that its start has touched stay resident", "error", err)
		} else {
			log.Debug("gave back the pages of the program that its start has touched", "bytes", given)
		}
	})
	return func() { t.Stop() }
}

// unmapProgram has the kernel take the pages of this program's file out of the process, and returns how many bytes were resident. They stay in
// the page cache for as long as there is memory.
func unmapProgram() (bytes int64, err error) {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	f, err := os.Open("/proc/self/smaps")
	if err != nil {
		return 0, err
	}
	defer func() { _ = f.Close() }() // it was only read
	all, err := mappingsOf(f, program)
	if err != nil {
		return 0, fmt.Errorf("reading what is mapped: %w", err)
	}
	for _, m := range all {
		if !m.clean() {
			continue
		}
		if err := m.inPieces(); err != nil {
			return bytes, err
		}
		if err := advise(m.from, m.to, unix.MADV_DONTNEED); err != nil {
			return bytes, err
		}
		bytes += m.residentBytes
	}
	return bytes, nil
}

// mapping is a part of a file in the address space.
type mapping struct {
	from, to      uintptr
	mode          string // r-xp
	residentBytes int64
	ownBytes      int64 // what differs from the file, or is held: it would be lost
	known         bool  // whether there is any was told
}

// clean says whether nothing is lost when its pages go: nobody writes to it or has.
func (m *mapping) clean() bool {
	return m.known && m.ownBytes == 0 && strings.HasPrefix(m.mode, "r-") && strings.HasSuffix(m.mode, "p")
}

// inPieces makes many mappings of one: since Linux 6.18 the kernel maps as much around a byte as lies together in the page cache, which is 2 MiB, but
// not beyond the mapping. What tells a piece from the next is whether a dump of the process has it; the file's pages are in none, but for the first.
func (m *mapping) inPieces() error {
	for at := m.from + pieceBytes; at < m.to; at += 2 * pieceBytes {
		if err := advise(at, min(at+pieceBytes, m.to), unix.MADV_DONTDUMP); err != nil {
			return err
		}
	}
	return nil
}

func advise(from, to uintptr, advice uintptr) error {
	if _, _, e := unix.Syscall(unix.SYS_MADVISE, from, to-from, advice); e != 0 {
		return fmt.Errorf("advice %d of memory at %x to %x: %w", advice, from, to, e)
	}
	return nil
}

// mappingsOf are those of a file, of what the kernel tells of a process's memory (smaps).
func mappingsOf(smaps io.Reader, path string) ([]mapping, error) {
	var out []mapping
	ours := false
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		line := lines.Text()
		name, rest, _ := strings.Cut(line, " ")
		if !strings.HasSuffix(name, ":") {
			m, of, err := parseMapping(line)
			if err != nil {
				return nil, err
			}
			if ours = of == path; ours {
				out = append(out, m)
			}
			continue
		}
		if !ours {
			continue
		}
		var kib int64
		if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
			continue // VmFlags and the like
		}
		m := &out[len(out)-1]
		switch name {
		case "Rss:":
			m.residentBytes = kib << 10
		case "Anonymous:": // not Private_Dirty, which is also what the disk does not have yet of a new file
			m.known = true
			m.ownBytes += kib << 10
		case "Swap:", "Locked:":
			m.ownBytes += kib << 10
		}
	}
	return out, lines.Err()
}

// parseMapping reads the line that a mapping begins with, and what it is of.
func parseMapping(line string) (m mapping, path string, err error) {
	var offset, inode uint64
	var device string
	if _, err := fmt.Sscanf(line, "%x-%x %s %x %s %d", &m.from, &m.to, &m.mode, &offset, &device, &inode); err != nil {
		return m, "", fmt.Errorf("%q: %w", line, err)
	}
	if i := strings.IndexByte(line, '/'); i >= 0 {
		path = line[i:]
	}
	return m, path, nil
}
