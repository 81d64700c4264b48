package fsm

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/berth-dev/berth/store"
)

// sampleOf is the sample of each registered command. A command without one
// fails the test that asks.
func sampleOf(t testing.TB) map[uint16]Command {
	t.Helper()
	out := map[uint16]Command{}
	for _, c := range samples() {
		n, err := registry.NumberOf(c)
		if err != nil {
			t.Fatal(err)
		}
		out[n] = c
	}
	for _, r := range commands {
		if out[r.Number] == nil {
			t.Fatalf("command %T (%d) has no sample: add it to samples()", r.New(), r.Number)
		}
	}
	return out
}

// TestSamplesAreComplete: a field that is left out in the sample would not be
// in the golden bytes.
func TestSamplesAreComplete(t *testing.T) {
	for _, c := range sampleOf(t) {
		requireFilled(t, fmt.Sprintf("%T", c), reflect.ValueOf(c).Elem())
	}
}

func requireFilled(t *testing.T, path string, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero() && v.Kind() != reflect.Struct:
		t.Errorf("%s is empty in its sample", path)
	case v.Kind() == reflect.Slice && v.Type().Elem().Kind() == reflect.Struct:
		for i := range v.Len() {
			requireFilled(t, fmt.Sprintf("%s[%d]", path, i), v.Index(i))
		}
	case v.Kind() == reflect.Pointer && v.Elem().Kind() == reflect.Struct && v.Elem().Type().PkgPath() == reflect.TypeOf(PodRef{}).PkgPath():
		requireFilled(t, path, v.Elem())
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				requireFilled(t, path+"."+f.Name, v.Field(i))
			}
		}
	}
}

func TestEveryCommandSurvivesItsBytes(t *testing.T) {
	for _, c := range sampleOf(t) {
		entry, err := EncodeEntry(Header{TimeUnixNano: 7, Server: "s1"}, []Proposal{{User: "bob", Groups: []string{"b", "a"}, Command: c}})
		if err != nil {
			t.Fatalf("%T: %v", c, err)
		}
		h, ps, err := DecodeEntry(entry)
		if err != nil {
			t.Fatalf("%T: %v", c, err)
		}
		if h != (Header{TimeUnixNano: 7, Server: "s1"}) || ps[0].User != "bob" || !reflect.DeepEqual(ps[0].Groups, []string{"b", "a"}) {
			t.Errorf("%T: header or proposer lost: %+v %+v", c, h, ps[0])
		}
		again, err := EncodeEntry(h, ps)
		if err != nil || !bytes.Equal(entry, again) {
			t.Errorf("%T: other bytes after a round trip (%v)", c, err)
		}
		forwarded, err := EncodeProposals(ps)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := DecodeProposals(forwarded); err != nil || !reflect.DeepEqual(back, ps) {
			t.Errorf("%T: forwarding changes it (%v)", c, err)
		}
	}
}

// TestGoldenBytes keeps the bytes of every command, and with them its number
// and its fields' names. A log outlives the version that wrote it: never
// rewrite a golden file for a change that is not an addition.
func TestGoldenBytes(t *testing.T) {
	rewrite := flag.Lookup("rewrite").Value.String() == "true"
	known := map[string]bool{}
	for _, c := range sampleOf(t) {
		name := snake(reflect.TypeOf(c).Elem().Name()) + ".hex"
		known[name] = true
		path := filepath.Join("testdata", "golden", name)
		got, err := EncodeProposal(Proposal{User: "bob", Groups: []string{"b", "a"}, Command: c})
		if err != nil {
			t.Fatal(err)
		}
		text := wrap(hex.EncodeToString(got))
		if rewrite {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(want) != text {
			t.Errorf("%T is encoded in other bytes than before: logs that exist could not be read, or servers would differ.\nbefore:\n%s\nnow:\n%s", c, want, text)
		}
	}
	files, _ := filepath.Glob(filepath.Join("testdata", "golden", "*.hex"))
	for _, f := range files {
		if !known[filepath.Base(f)] {
			t.Errorf("%s belongs to no command: a number that was used once stays registered for ever", f)
		}
	}
}

func wrap(s string) string {
	var b strings.Builder
	for len(s) > 96 {
		b.WriteString(s[:96] + "\n")
		s = s[96:]
	}
	return b.String() + s + "\n"
}

func TestNumbersAreUnique(t *testing.T) {
	seen := map[uint16]bool{}
	for _, r := range commands {
		if seen[r.Number] || r.Number == 0 {
			t.Errorf("number %d of %T is not its own", r.Number, r.New())
		}
		seen[r.Number] = true
		if r.Since < 1 || r.Since > LogVersion {
			t.Errorf("%T is known since %d, the log's version is %d", r.New(), r.Since, LogVersion)
		}
	}
}

func TestUnknownStopsTheServer(t *testing.T) {
	unknown, err := store.Marshal(map[string]any{
		"format": store.EntryFormat, "commands": []any{map[string]any{"n": 65535, "command": map[string]any{}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	newer, err := store.Marshal(map[string]any{"format": store.EntryFormat + 1})
	if err != nil {
		t.Fatal(err)
	}
	rules, err := EncodeEntry(Header{Version: LogVersion + 1}, []Proposal{{Command: new(Checkpoint)}})
	if err != nil {
		t.Fatal(err)
	}
	field, err := store.Marshal(map[string]any{
		"format": store.EntryFormat, "commands": []any{map[string]any{"n": 24, "command": map[string]any{"urgently": true}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, entry := range map[string][]byte{"field": field, "command": unknown, "format": newer, "version": rules} {
		s := NewState()
		before := s.View().Digest()
		if _, err := s.Apply(1, 1, entry); !errors.Is(err, store.ErrUnknownCommand) && !errors.Is(err, store.ErrNewerVersion) {
			t.Errorf("an unknown %s: %v", name, err)
		}
		if s.View().Digest() != before {
			t.Errorf("an unknown %s changed the state", name)
		}
	}
}

// transcriptLogs replays every transcript and returns the log that it wrote.
func transcriptLogs(t testing.TB) map[string][][]byte {
	t.Helper()
	logs := map[string][][]byte{}
	for _, pattern := range []string{"testdata/*.txt", "testdata/rules/*.txt"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			s := newTranscript(t)
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			datadriven.RunTestFromStringAny(t, string(text), func(_ testing.TB, d *datadriven.TestData) string {
				s.directive(d)
				return d.Expected
			})
			logs[f] = s.log
		}
	}
	return logs
}

// TestSnapshotAtEveryIndex replays the log of every transcript: at each index
// the snapshot's restoration is the same state with the same indexes, and ends
// as the original does when it applies the rest.
func TestSnapshotAtEveryIndex(t *testing.T) {
	for name, log := range transcriptLogs(t) {
		final := replay(t, NewState(), 0, log).View().Digest()
		s := NewState()
		for i, entry := range log {
			if _, err := s.Apply(uint64(i+1), 1, entry); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			restored := restoredFrom(t, s.View())
			compareViews(t, fmt.Sprintf("%s at index %d", name, i+1), s.View(), restored.View())
			replay(t, restored, i+1, log[i+1:])
			if restored.View().Digest() != final {
				t.Fatalf("%s: restored at index %d it ends otherwise", name, i+1)
			}
		}
	}
}

func replay(t testing.TB, s *State, applied int, log [][]byte) *State {
	t.Helper()
	for i, entry := range log {
		if _, err := s.Apply(uint64(applied+i+1), 1, entry); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestResultsTravel: a forwarded command's result arrives as it was.
func TestResultsTravel(t *testing.T) {
	w := newTranscript(t)
	w.run("cluster", nil, "node n1 cpu=1\npod web cpu=1\nobject configmaps settings\npod other cpu=1\nbind other n1")
	var results []Result
	for _, line := range []string{"pod last priority=7", "pod last", "delete-object configmaps settings", "class a value=2000000001", "node n2"} {
		cmd, args, err := datadriven.ParseLine(line)
		if err != nil {
			t.Fatal(err)
		}
		var ws words
		for _, a := range args {
			ws = append(ws, argText(a))
		}
		results = append(results, w.apply(proposals[cmd](w, ws, "")...)...)
	}
	results = append(results, w.apply(w.plan(nil, "bind web n1\nbind other n1")...)...)
	b, err := EncodeResults(results)
	if err != nil {
		t.Fatal(err)
	}
	for i := range results {
		results[i].Raw, results[i].Work = nil, 0 // what it cost does not travel
		if p := results[i].Plan; p != nil {
			p.Weight, p.Work = 0, 0
		}
	}
	back, err := DecodeResults(b)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, results) {
		t.Errorf("sent %+v\ngot  %+v", results, back)
	}
	if back[1].Err() == nil || back[0].Err() != nil {
		t.Error("refusals are errors, results are not")
	}
}
