package raftnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/fsm"
)

// TestArchive: what a stopped server leaves behind leads to its state, from the
// oldest snapshot that it keeps as from the newest, and reading changes nothing.
func TestArchive(t *testing.T) {
	dir := t.TempDir()
	var want string
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 1, onDiskWithSnapshots(dir, 20, 5, 1000))
		c.must(namespace())
		for i := range 60 {
			c.must(create(fmt.Sprint(i), "1"))
			if i%30 == 0 {
				<-time.After(time.Second) // a snapshot
			}
		}
		<-time.After(time.Second)
		c.must(create("last", "1"))
		want = c.leader().state.View().Digest()
		c.kill("a")
	})
	a, err := OpenArchive(filepath.Join(dir, "a"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if len(a.snapshots) == 0 || a.first < 2 {
		t.Fatalf("the log was never trimmed: %d snapshots, entries from %d", len(a.snapshots), a.first)
	}
	for _, before := range []uint64{0, a.Last()} {
		state, err := a.StateBefore(before)
		if err != nil {
			t.Fatal(err)
		}
		if got := end(t, a, state); got != want {
			t.Errorf("from the state before %d the log ends in another state", before)
		}
	}
	if _, err := a.StateBefore(1); err == nil || !strings.Contains(err.Error(), "no state of before entry") {
		t.Errorf("a state of before the log: %v", err)
	}
	if _, _, err := a.Entry(a.Last() + 1); err == nil || !strings.Contains(err.Error(), "there is no entry") {
		t.Errorf("an entry after the log: %v", err)
	}
}

func end(t *testing.T, a *Archive, state *fsm.State) string {
	t.Helper()
	for i := state.View().Index() + 1; i <= a.Last(); i++ {
		term, entry, err := a.Entry(i)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := state.Apply(i, term, entry); err != nil {
			t.Fatal(err)
		}
	}
	return state.View().Digest()
}

func TestArchiveOfNothing(t *testing.T) {
	dir := t.TempDir()
	if _, err := OpenArchive(dir); err == nil || !strings.Contains(err.Error(), "is not the data directory of a server") {
		t.Errorf("an empty directory: %v", err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("reading has left %v", left)
	}
}
