package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestDamagedServer: an agent on whose server's data something was done does not start, and says in one sentence which file or
// directory it is and what to do. With the data as they were it starts.
func TestDamagedServer(t *testing.T) {
	c := newCluster(t, server("server-1", "bootstrap_expect = 1"))
	s := c.waitLeader(t)
	c.put(t, "before")
	s.Signal(syscall.SIGTERM)
	<-s.Exited()
	kept, data := filepath.Join(t.TempDir(), "kept"), filepath.Join(s.DataDir, "server")
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	check(os.CopyFS(kept, os.DirFS(data)))
	change := func(f func(b []byte) []byte) func(string) {
		return func(path string) {
			b, err := os.ReadFile(path)
			check(err)
			check(os.WriteFile(path, f(b), 0o600))
		}
	}
	flip := change(func(b []byte) []byte {
		at := bytes.LastIndex(b, []byte("before")) // in the last entry
		if at < 0 {
			at = len(b) / 2
		}
		b[at] ^= 4
		return b
	})
	zero := change(func(b []byte) []byte { return make([]byte, len(b)) })
	gone := func(path string) { check(os.RemoveAll(path)) }
	logs, err := filepath.Glob(filepath.Join(kept, "raft", "log", "*.log"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	segment := filepath.Join("raft", "log", filepath.Base(logs[len(logs)-1]))
	for what, d := range map[string]struct {
		file   string
		damage func(path string)
		says   []string
	}{
		"the identity has a flipped bit": {"identity.json", flip, []string{"identity.json is damaged; ", "remove everything in "}},
		"the identity is gone":           {"identity.json", gone, []string{"identity.json is missing, ", "remove everything in "}},
		"the promises are zeroes":        {"promises", zero, []string{"promises is damaged, ", "remove everything in "}},
		"an entry has a flipped bit":     {segment, flip, []string{segment + " is damaged at byte ", "restore a snapshot"}},
		"the log is gone":                {filepath.Join("raft", "log"), gone, []string{"has lost entries", "peers.json"}},
		"the list of servers is none": {filepath.Join("raft", "peers.json"), func(path string) { check(os.WriteFile(path, []byte("["), 0o600)) },
			[]string{"peers.json: ", "correct it, or remove it"}},
		"a file is a directory": {"promises", func(path string) { gone(path); check(os.Mkdir(path, 0o700)) }, []string{"promises can not be opened", "remove everything in "}},
	} {
		check(os.RemoveAll(data))
		check(os.CopyFS(data, os.DirFS(kept)))
		d.damage(filepath.Join(data, d.file))
		r := run(t, nil, "", "agent", "-config", s.Config)
		says := sentence(t, r)
		if r.code != 1 || !strings.Contains(says, data) {
			t.Errorf("%s: status %d: %q", what, r.code, says)
		}
		has(t, what, says, d.says...)
	}
	check(os.RemoveAll(data))
	check(os.CopyFS(data, os.DirFS(kept)))
	c.restart(t, s)
}
