package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// What a spec can come to. Whatever else the tests say is a failure.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// result is what became of one spec, and of which Berth.
type result struct {
	Name    string  `json:"name"`
	State   string  `json:"state"`
	Why     string  `json:"why,omitempty"` // of a skip or a failure
	Seconds float64 `json:"seconds"`
	Berth   string  `json:"berth"`
}

// results are the newest of every spec, by name: several runs add up to a whole.
type results map[string]result

func readResults(path string) (results, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return results{}, nil
	}
	if err != nil {
		return nil, err
	}
	out := results{}
	if err := json.Unmarshal(raw, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// write replaces the file whole: an end in the midst loses nothing.
func (r results) write(path string) error {
	raw, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", append(raw, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// sections of the page, by the state of what they list.
var sections = map[string]string{failed: "What failed", skipped: "What was skipped", passed: "What passed"}

// inPage is a line of what became of a spec, and said the reason that it gave for a skip or a failure.
var (
	inPage = regexp.MustCompile(`^\* (.*) \((\d+) s, ([^)]*)\)$`)
	said   = regexp.MustCompile("^  — `(.*)`$")
)

// withPage adds what an earlier page tells of specs of which nothing is known: a run of some specs in a clone of the repository leaves
// the others as they were.
func (r results) withPage(path string) (results, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, err
	}
	out, state, last := results{}, "", ""
	for line := range strings.Lines(string(raw)) {
		line = strings.TrimRight(line, "\n")
		if title, is := strings.CutPrefix(line, "## "); is {
			state = stateOf(title)
			continue
		}
		if m := inPage.FindStringSubmatch(line); m != nil && state != "" && !strings.HasPrefix(m[1], outside) {
			last = m[1]
			seconds, _ := strconv.ParseFloat(m[2], 64) // they are digits
			out[last] = result{Name: last, State: state, Seconds: seconds, Berth: m[3]}
		} else if m := said.FindStringSubmatch(line); m != nil && last != "" {
			one := out[last]
			one.Why = m[1]
			out[last] = one
		}
	}
	maps.Copy(out, r)
	return out, nil
}

func stateOf(title string) string {
	for state, of := range sections {
		if of == title {
			return state
		}
	}
	return ""
}
