package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

// A server whose state differs from the others' must not serve, vote or lead: it
// is wrong, or it was made from entries that are. It stops, and its data are set
// aside when it starts again: then it has none, and is admitted anew and filled
// by the others like any server that has lost its disk. The note is written
// before it stops, so that no crash and no restart brings the data back.

const (
	condemnedFile  = "differs.json"
	setAsidePrefix = "set-aside-"
)

// Difference says where a server's state is another one than the others'.
type Difference struct {
	// Index is the log entry after which the states were compared.
	Index uint64 `json:"index"`
	// EqualAt is an earlier entry after which they were equal; 0: not known.
	EqualAt uint64 `json:"equalAt,omitempty"`
	// Tables are those that differ.
	Tables []string `json:"tables,omitempty"`
}

func (d Difference) String() string {
	out := fmt.Sprintf("at log entry %d", d.Index)
	if d.EqualAt > 0 {
		out += fmt.Sprintf(" (not yet at %d)", d.EqualAt)
	}
	switch len(d.Tables) {
	case 0:
		return out + ", in what its revision, time or version is"
	case 1:
		return out + ", in table " + d.Tables[0]
	}
	return out + ", in the tables " + strings.Join(d.Tables, ", ")
}

// Condemn stops this server, whose state differs from the others', for good with
// the data that it has.
func (n *Node) Condemn(d Difference) {
	n.condemned.Store(&d)
	what := fmt.Errorf("this server's state differs from that of the other servers %s: it stops, and is filled anew by them when it is started again", d)
	if n.c.DataDir != "" {
		b, err := json.Marshal(d)
		if err == nil {
			err = n.id.whileOpen(func() error {
				return atomicfile.Files{Disk: n.disk}.Write(filepath.Join(n.c.DataDir, condemnedFile), append(b, '\n'), 0o600)
			})
		}
		if err != nil {
			what = fmt.Errorf("%w; but its data could not be marked, so remove everything in %s before that: %w", what, n.c.DataDir, err)
		}
	}
	n.fail(what)
}

// Condemned is where this server's state was found to differ; nil if it was not.
func (n *Node) Condemned() *Difference { return n.condemned.Load() }

// setAside takes the data of a condemned server out of the way: the directory is
// empty then, but for them. They are kept for whoever wants to know how they came
// to differ, those of the last time only.
func setAside(files atomicfile.Files, dir string, logger hclog.Logger) error {
	if dir == "" {
		return nil
	}
	note := filepath.Join(dir, condemnedFile)
	b, err := disk.ReadFile(files, note, maxIdentityBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var d Difference
	if err := json.Unmarshal(b, &d); err != nil {
		return fmt.Errorf("%s is damaged: this server's data differ from the others'; remove everything in %s, and it gets its data from them: %w", note, dir, err)
	}
	aside := fmt.Sprintf("%s%d", setAsidePrefix, d.Index)
	if err := moveAside(files, dir, aside); err != nil {
		return fmt.Errorf("set the data in %s aside, which differ from the others': %w", dir, err)
	}
	logger.Warn("this server's data differed from the others'; they were set aside, and it joins as one without data",
		"difference", d.String(), "kept", filepath.Join(dir, aside))
	return nil
}

// moveAside may be cut off anywhere and goes on at the next start: the note is
// removed last.
func moveAside(files atomicfile.Files, dir, aside string) error {
	if err := disk.MkdirAll(files, filepath.Join(dir, aside), 0o700); err != nil {
		return err
	}
	entries, err := files.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		switch {
		case name == aside || name == condemnedFile:
			continue
		case strings.HasPrefix(name, setAsidePrefix):
			err = disk.RemoveAll(files, filepath.Join(dir, name))
		default:
			err = files.Disk.Rename(filepath.Join(dir, name), filepath.Join(dir, aside, name))
		}
		if err != nil {
			return err
		}
	}
	if err := errors.Join(disk.SyncDir(files, filepath.Join(dir, aside)), disk.SyncDir(files, dir)); err != nil {
		return err
	}
	return files.Remove(filepath.Join(dir, condemnedFile))
}
