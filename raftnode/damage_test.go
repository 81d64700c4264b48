package raftnode

import (
	"bytes"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/berth-dev/berth/fsm"
)

var damages = flag.Int("damages", 300, "how many data directories are damaged at random")

// victim is the data directory of a stopped server of three, with two snapshots
// and a log of several files, and what it held.
type victim struct {
	dir    string
	digest string
	last   uint64
}

func newVictim(t *testing.T) victim {
	dir := t.TempDir()
	v := victim{dir: filepath.Join(dir, "b")}
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, 3, onDiskWithSnapshots(dir, 20, 10, 4000))
		c.must(namespace())
		for i := range 60 {
			c.must(create(fmt.Sprint(i), "a value"))
			if i%25 == 0 {
				<-time.After(time.Second) // a snapshot
			}
		}
		<-time.After(time.Second)
		c.must(create("last", "1"))
		c.same()
		v.digest, v.last = c.nodes["b"].state.View().Digest(), c.nodes["b"].AppliedIndex()
	})
	return v
}

// files are all of a directory, by their paths in it.
func filesBelow(t *testing.T, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			rel, err := filepath.Rel(dir, path)
			out = append(out, rel)
			return err
		}
		return err
	}))
	return out
}

// spoil does one random damage to a file, and says which.
func spoil(t *testing.T, r *rand.Rand, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	at := func() int { return r.IntN(max(len(b), 1)) }
	what := ""
	switch kind := r.IntN(8); {
	case kind <= 1 && len(b) > 0:
		i, bit := at(), r.IntN(8)
		b[i] ^= 1 << bit
		what = fmt.Sprintf("bit %d of byte %d flipped", bit, i)
	case kind == 2:
		b = b[:at()]
		what = fmt.Sprintf("cut to %d bytes", len(b))
	case kind == 3:
		from := at()
		to := min(len(b), from+1+r.IntN(4096))
		clear(b[from:to])
		what = fmt.Sprintf("bytes %d to %d zeroed", from, to)
	case kind == 4:
		must(t, os.Remove(path))
		return "removed"
	case kind == 5:
		from := at()
		for i := from; i < min(len(b), from+1+r.IntN(512)); i++ {
			b[i] = byte(r.Uint32())
		}
		what = fmt.Sprintf("garbage from byte %d on", from)
	case kind == 6:
		must(t, os.Remove(path))
		must(t, os.Mkdir(path, 0o700))
		return "is a directory"
	default:
		b = append(b, make([]byte, 1+r.IntN(64))...)
		b[len(b)-1] = byte(r.Uint32())
		what = "longer"
	}
	must(t, os.WriteFile(path, b, 0o600))
	return what
}

// TestEveryDamage: whatever is done to whichever file of a stopped server, it says
// in one sentence which file is damaged and what to do, or it starts with the state
// that it had, or it starts without a vote; it never panics, and never goes on
// with another state.
func TestEveryDamage(t *testing.T) {
	v := newVictim(t)
	files := filesBelow(t, v.dir)
	outcomes := map[string]int{} // how many of each
	for i := range *damages {
		seed := uint64(i)
		r := rand.New(rand.NewPCG(seed, 1))
		dir := filepath.Join(t.TempDir(), "d")
		must(t, os.CopyFS(dir, os.DirFS(v.dir)))
		for range 1 + r.IntN(2)*r.IntN(2) {
			file := files[r.IntN(len(files))]
			if st, err := os.Stat(filepath.Join(dir, file)); err != nil || !st.Mode().IsRegular() {
				continue // that was the damage before
			}
			what := file + ": " + spoil(t, r, filepath.Join(dir, file))
			if testing.Verbose() {
				t.Logf("%d: %s", seed, what)
			}
		}
		outcome := v.reopen(t, dir, seed)
		outcomes[outcome]++
		must(t, os.RemoveAll(dir))
	}
	t.Log(outcomes)
	for _, o := range []string{"refused", "whole"} {
		if outcomes[o] == 0 {
			t.Errorf("nothing was %s: %v", o, outcomes)
		}
	}
}

// reopen starts a server on damaged data, alone, and says what came of it.
func (v victim) reopen(t *testing.T, dir string, seed uint64) (outcome string) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("damage %d: a panic: %v", seed, p)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		_, transport := raft.NewInmemTransport("b")
		state := fsm.NewState()
		n, err := Open(Config{ID: "b", DataDir: dir, NoFsync: true, Transport: transport, Logger: testLogger(), segmentBytes: 4000}, state)
		if err != nil {
			outcome = "refused"
			if s := err.Error(); !strings.Contains(s, dir) || !strings.Contains(s, "remove ") && !strings.Contains(s, "restore a snapshot") ||
				strings.Count(s, "\n") > 0 {
				t.Errorf("damage %d is told as %q", seed, s)
			}
			return
		}
		defer func() { must(t, n.Shutdown()) }()
		select {
		case err := <-n.Fatal():
			outcome = "stopped"
			if !strings.Contains(err.Error(), dir) {
				t.Errorf("damage %d ends it with %q", seed, err)
			}
			return
		case <-time.After(100 * time.Millisecond):
		}
		outcome = "whole"
		switch last := n.raft.LastIndex(); {
		case n.promises.mayVote() != nil:
			outcome = "without a vote"
		case last < v.last:
			t.Errorf("damage %d: it votes, and its log ends at %d and not at %d", seed, last, v.last)
		}
		if outcome == "whole" {
			v.replay(t, n, state, seed)
		}
	})
	return outcome
}

// replay applies what is not known to be committed: the state must be what it was.
func (v victim) replay(t *testing.T, n *Node, state *fsm.State, seed uint64) {
	t.Helper()
	scratch := fsm.NewState()
	var copied bytes.Buffer
	must(t, state.View().Write(&copied))
	must(t, scratch.Restore(&copied))
	m, err := newMachine(scratch, func(error) {}, n.logger, n.metrics)
	must(t, err)
	for i := state.View().Index() + 1; i <= v.last; i++ {
		var l raft.Log
		must(t, n.log.GetLog(i, &l))
		if err, bad := m.applyOne(&l).(error); bad {
			t.Fatalf("damage %d: entry %d: %v", seed, i, err)
		}
	}
	if got := scratch.View().Digest(); got != v.digest {
		t.Errorf("damage %d: it goes on with another state", seed)
	}
}
