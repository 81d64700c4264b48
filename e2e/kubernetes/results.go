package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
)

// What a spec can come to. Whatever else the tests say is a failure.
const (
	passed  = "passed"
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
