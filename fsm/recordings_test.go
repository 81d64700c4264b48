package fsm

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A recording is worth something only as long as it is what servers of its time
// wrote: recorded anew under changed rules, it says that nothing has changed. So
// the sum of each is kept beside it, and is written once.

// sumsFile is where, as sha256sum writes and checks it.
const sumsFile = "sums"

// errRecorded refuses to record a version a second time.
var errRecorded = errors.New("its logs are recorded, and servers may have gone by its rules: raise LogVersion for a rule that changes. " +
	"Only as long as the version has landed nowhere, take its line out of " + sumsFile + " and record it anew")

// record writes what the logs of a version are, and their sum.
func record(dir string, version int, entries []byte) error {
	sums, err := readSums(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	name := recordingName(version)
	sum := recordingSum(entries)
	if before, ok := sums[name]; ok && before != sum {
		return fmt.Errorf("record version %d of the rules: %w", version, errRecorded)
	} else if ok {
		return nil
	}
	if err := os.WriteFile(filepath.Join(dir, name), entries, 0o644); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, sumsFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s  %s\n", sum, name)
	return errors.Join(err, f.Close())
}

func recordingName(version int) string { return filepath.Base(behaviourFile(version, "entries")) }

func recordingSum(entries []byte) string {
	sum := sha256.Sum256(entries)
	return hex.EncodeToString(sum[:])
}

// readSums are the sums of all recordings by name.
func readSums(dir string) (map[string]string, error) {
	b, err := os.ReadFile(filepath.Join(dir, sumsFile))
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if _, twice := out[name]; !ok || twice {
			return nil, fmt.Errorf("%s: %q is no line of it, or there twice", sumsFile, lines.Text())
		}
		out[name] = sum
	}
	return out, nil
}

// checkRecordings: every version up to the newest has a recording, and it is the one that was made.
func checkRecordings(dir string, newest int) error {
	sums, err := readSums(dir)
	if err != nil {
		return err
	}
	var wrong []error
	for version := 2; version <= newest; version++ {
		name := recordingName(version)
		entries, err := os.ReadFile(filepath.Join(dir, name))
		switch sum, ok := sums[name]; {
		case err != nil:
			wrong = append(wrong, err)
		case !ok:
			wrong = append(wrong, fmt.Errorf("%s has no line in %s (go test ./fsm -run TestBehaviour -rewrite-corpus)", name, sumsFile))
		case sum != recordingSum(entries):
			wrong = append(wrong, fmt.Errorf("%s is not what was recorded: version %d: %w", name, version, errRecorded))
		}
	}
	return errors.Join(wrong...)
}

// TestRecordingsStay: the logs of every version are those that were recorded when the version was made.
func TestRecordingsStay(t *testing.T) {
	if err := checkRecordings(filepath.Dir(behaviourFile(LogVersion, "entries")), LogVersion); err != nil {
		t.Error(err)
	}
}

// TestRecordOnce: a version's logs are recorded once, and what is put in their place is seen.
func TestRecordOnce(t *testing.T) {
	dir := t.TempDir()
	for version := 2; version <= 3; version++ {
		if err := record(dir, version, []byte(fmt.Sprint("logs of ", version))); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(record(dir, 3, []byte("logs of 3")), checkRecordings(dir, 3)); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := record(dir, 3, []byte("others")); !errors.Is(err, errRecorded) {
		t.Errorf("others under the same version: %v", err)
	}
	if err := checkRecordings(dir, 4); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a version without a recording: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordingName(2)), []byte("others"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkRecordings(dir, 3); !errors.Is(err, errRecorded) {
		t.Errorf("others in the place of what was recorded: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, recordingName(4)), []byte("copied here"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkRecordings(dir, 4); err == nil || !strings.Contains(err.Error(), "v4.entries has no line") {
		t.Errorf("one without a line: %v", err)
	}
}
