package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Whoever names the directory above those of several servers is told which to name.
func TestReplayNamesTheDirectoriesOfServers(t *testing.T) {
	dir := t.TempDir()
	a := &app{}
	err := a.runReplay(replayFlags{dataDir: dir})
	if err == nil || !strings.Contains(err.Error(), dir+" is not the data directory of a server") || strings.Contains(err.Error(), "give one") {
		t.Errorf("an empty directory: %v", err)
	}
	for _, server := range []string{"server-1", "server-2"} {
		if err := os.MkdirAll(filepath.Join(dir, server, "server"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	want := "give one of the data directories in it: " + filepath.Join(dir, "server-1") + ", " + filepath.Join(dir, "server-2")
	if err := a.runReplay(replayFlags{dataDir: dir}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a development cluster's: %v, want %q", err, want)
	}
}
