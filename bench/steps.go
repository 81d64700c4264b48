package bench

import (
	"bytes"
	"os"
	"strings"
	"time"
)

const electionWon = "election won"

// What a new leader's log says of how it became one, in order.
func stepsOfElection() [3]struct{ what, marker string } {
	return [...]struct{ what, marker string }{
		{"gone, by the word of a majority, after ", "the leader's process is gone"},
		{"elected after ", electionWon},
		{"leading after ", ": leading: "},
	}
}

// logged is how long each server's log is.
func (ps *processes) logged() map[*process]int {
	out := map[*process]int{}
	for _, p := range ps.servers {
		if b, err := os.ReadFile(p.logFile()); err == nil {
			out[p] = len(b)
		}
	}
	return out
}

// steps says what the server's log tells, from a place in it on, of its election
// after a kill. What is not there is left out: a leader that was only thought to be
// silent is missed after a timeout, and nobody calls it gone.
func (p *process) steps(from int, killed time.Time) string {
	b, err := os.ReadFile(p.logFile())
	if err != nil || len(b) < from {
		return "its log can not be read"
	}
	var out []string
	lines := bytes.Split(b[from:], []byte("\n"))
	for _, step := range stepsOfElection() {
		for i, line := range lines {
			at, ok := timeOf(line)
			if ok && bytes.Contains(line, []byte(step.marker)) {
				out, lines = append(out, step.what+inSeconds(at.Sub(killed))), lines[i+1:]
				break
			}
		}
	}
	return p.name + " " + strings.Join(out, ", ")
}

// elected is when the server was elected, by what its log tells from a place in it on; at the latest when it was
// seen to lead.
func (p *process) elected(from int, seen time.Time) time.Time {
	b, err := os.ReadFile(p.logFile())
	if err != nil || len(b) < from {
		return seen
	}
	for _, line := range bytes.Split(b[from:], []byte("\n")) {
		if at, ok := timeOf(line); ok && at.Before(seen) && bytes.Contains(line, []byte(electionWon)) {
			seen = at
		}
	}
	return seen
}

// timeOf is the time with which a line of a log begins.
func timeOf(line []byte) (time.Time, bool) {
	first, _, _ := bytes.Cut(line, []byte(" "))
	at, err := time.Parse("2006-01-02T15:04:05.000Z0700", string(first))
	return at, err == nil
}
