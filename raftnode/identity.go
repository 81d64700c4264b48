package raftnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

const identityFile = "identity.json"

// identity says whose data directory it is: which server's, and of which
// cluster. The cluster's ID is drawn by the server that bootstraps it. The
// others take it over from the first server that connects to them while they
// have none, and keep it before anything else is said on that connection.
// From then on no connection with another cluster's server goes beyond the
// greeting.
type identity struct {
	dir string // empty: in memory

	mu   sync.Mutex
	file identityRecord
}

type identityRecord struct {
	Format  int    `json:"format"`
	Server  string `json:"server"`
	Cluster string `json:"cluster,omitempty"`
	// Founder: this server drew the cluster's ID, and so is the only one that
	// may still have to begin the cluster's log.
	Founder bool `json:"founder,omitempty"`
	// Met are the servers of the cluster that this one has greeted. Who has
	// been met and comes without a cluster has lost its data: it must not
	// vote as if it had what it once acknowledged.
	Met []string `json:"met,omitempty"`
}

// openIdentity reads the identity in a data directory, or writes a new one
// for an empty directory.
func openIdentity(dir, server string) (*identity, error) {
	id := &identity{dir: dir, file: identityRecord{Format: 1, Server: server}}
	if dir == "" {
		return id, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat(filepath.Join(dir, raftDir, logFile)); err == nil {
			return nil, fmt.Errorf("data directory %s holds a log and no %s: it is not clear whose it is", dir, identityFile)
		}
		return id, id.keep(id.file)
	}
	if err != nil {
		return nil, fmt.Errorf("read the server's identity: %w", err)
	}
	var have identityRecord
	if err := json.Unmarshal(b, &have); err != nil || have.Server == "" {
		return nil, fmt.Errorf("%s is damaged", path)
	}
	if have.Server != server {
		return nil, &ForeignDataError{Dir: dir, What: "server", Has: have.Server, Want: server}
	}
	id.file = have
	return id, nil
}

func (id *identity) cluster() string {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.file.Cluster
}

// adopt makes this server one of a cluster's. It does nothing if it is that
// already, and fails if it is another's.
func (id *identity) adopt(cluster string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	switch id.file.Cluster {
	case cluster:
		return nil
	case "":
		next := id.file
		next.Cluster = cluster
		if err := id.keep(next); err != nil {
			return err
		}
		id.file = next
		return nil
	}
	return &ForeignDataError{Dir: id.where(), What: "cluster", Has: id.file.Cluster, Want: cluster}
}

// membership is the cluster and whether this server founded it.
func (id *identity) membership() (cluster string, founder bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.file.Cluster, id.file.Founder
}

// found makes this server the founder of a cluster, unless it is one already:
// a bootstrap that was cut off goes on with the ID that it has.
func (id *identity) found(cluster string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.file.Cluster != "" {
		return nil
	}
	next := id.file
	next.Cluster, next.Founder = cluster, true
	if err := id.keep(next); err != nil {
		return err
	}
	id.file = next
	return nil
}

func (id *identity) hasMet(server string) bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	return slices.Contains(id.file.Met, server)
}

// meet remembers a server of the cluster.
func (id *identity) meet(server string) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if slices.Contains(id.file.Met, server) {
		return nil
	}
	next := id.file
	next.Met = append(slices.Clone(next.Met), server)
	slices.Sort(next.Met)
	if err := id.keep(next); err != nil {
		return err
	}
	id.file = next
	return nil
}

func (id *identity) where() string {
	if id.dir == "" {
		return "(memory)"
	}
	return id.dir
}

func (id *identity) keep(r identityRecord) error {
	if id.dir == "" {
		return nil
	}
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("keep the server's identity: %w", err)
	}
	if err := writeFileSync(filepath.Join(id.dir, identityFile), append(b, '\n')); err != nil {
		return fmt.Errorf("keep the server's identity: %w", err)
	}
	return nil
}

// writeFileSync replaces a file whole: after a crash it is the old or the new
// one.
func writeFileSync(path string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // fails once it is renamed
	if _, err := f.Write(b); err != nil {
		return errors.Join(err, f.Close())
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes what was renamed in a directory last.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
