package main

import (
	"io"
	"strings"
)

// leaseless takes one line out of what `describe node` prints: that a node's lease was not found. Workers have none, they are heard by their
// streams, and nothing is wrong with them.
type leaseless struct{ out io.Writer }

// Write implements io.Writer. Whole objects are written at a time.
func (l leaseless) Write(p []byte) (int, error) {
	lines := strings.SplitAfter(string(p), "\n")
	kept := lines[:0]
	for _, line := range lines {
		if !(strings.HasPrefix(line, "Lease:") && strings.Contains(line, "Failed to get lease: leases") && strings.HasSuffix(strings.TrimSpace(line), "not found")) {
			kept = append(kept, line)
		}
	}
	if _, err := io.WriteString(l.out, strings.Join(kept, "")); err != nil {
		return 0, err
	}
	return len(p), nil
}

// unrepeated leaves out a line that is the one before it.
type unrepeated struct {
	out  io.Writer
	last string
}

// Write implements io.Writer. Whole lines are written at a time.
func (u *unrepeated) Write(p []byte) (int, error) {
	if string(p) == u.last {
		return len(p), nil
	}
	u.last = string(p)
	return u.out.Write(p)
}
