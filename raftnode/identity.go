package raftnode

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/disk"
)

const (
	identityFile     = "identity.json"
	maxIdentityBytes = 1 << 20
)

// identity says whose data directory it is: which server's, and of which
// cluster. The cluster's ID is drawn by the server that bootstraps it. The
// others take it over when they are admitted (standing.go), and keep it before
// anything else is said on that connection. From then on no connection with
// another cluster's server goes beyond the greeting.
type identity struct {
	dir   string // empty: in memory
	files atomicfile.Files

	writing sync.Mutex // held while the file is written, which may hang
	closed  bool

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
	copyOf
	// Peers are the servers of the cluster that this one has greeted, as they
	// were then.
	Peers map[string]copyOf `json:"peers,omitempty"`
}

// copyOf tells which data of a server these are: it may have lost them and begun
// anew, and the lost ones may come back.
type copyOf struct {
	// Incarnation was drawn when the data directory was made.
	Incarnation string `json:"incarnation"`
	// Admitted is the last entry of the leader's log when the server was
	// admitted with this data; that of the founding has none.
	Admitted position `json:"admitted"`
}

// openIdentity reads the identity in a data directory, or writes a new one for
// an empty directory, which is then fresh.
func openIdentity(files atomicfile.Files, dir, server string) (_ *identity, fresh bool, err error) {
	id := &identity{dir: dir, files: files, file: identityRecord{
		Format: 2, Server: server, copyOf: copyOf{Incarnation: uuid.NewString()},
	}}
	if dir == "" {
		return id, true, nil
	}
	path := filepath.Join(dir, identityFile)
	b, err := disk.ReadFile(files, path, maxIdentityBytes)
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := files.Lstat(filepath.Join(dir, raftDir)); err == nil {
			return nil, false, &DamagedFileError{path, "is missing, and it is not clear whose the data beside it are", startOver(dir)}
		}
		return id, true, nil // written when the promises are there
	}
	if err != nil {
		return nil, false, &DamagedFileError{path, fmt.Sprintf("can not be read (%v)", err), startOver(dir)}
	}
	var have identityRecord
	if err := openRecord(b, &have); err != nil || have.Format != 2 || have.Server == "" || have.Incarnation == "" {
		return nil, false, &DamagedFileError{path, "is damaged", startOver(dir)}
	}
	if have.Server != server {
		return nil, false, &ForeignDataError{Dir: dir, What: "server", Has: have.Server, Want: server}
	}
	id.file = have
	return id, false, nil
}

func (id *identity) record() identityRecord {
	id.mu.Lock()
	defer id.mu.Unlock()
	return id.file
}

func (id *identity) cluster() string { return id.record().Cluster }

// change keeps what f makes of the record. f must not change what is shared with
// the record before: maps are replaced.
func (id *identity) change(f func(*identityRecord)) error {
	return id.whileOpen(func() error {
		next := id.record()
		f(&next)
		if err := id.keep(next); err != nil {
			return err
		}
		id.mu.Lock()
		defer id.mu.Unlock()
		id.file = next
		return nil
	})
}

// whileOpen is for whoever writes into the data directory beside Raft: it is given
// back when nobody does any more.
func (id *identity) whileOpen(write func() error) error {
	id.writing.Lock()
	defer id.writing.Unlock()
	if id.closed {
		return os.ErrClosed
	}
	return write()
}

// close waits for whoever writes (whileOpen), and lets nobody begin.
func (id *identity) close() {
	id.writing.Lock()
	defer id.writing.Unlock()
	id.closed = true
}

// found makes this server the founder of a cluster, unless it is one already:
// a bootstrap that was cut off goes on with the ID that it has.
func (id *identity) found(cluster string) error {
	if id.cluster() != "" {
		return nil
	}
	return id.change(func(r *identityRecord) { r.Cluster, r.Founder = cluster, true })
}

// keepFirst writes the identity of a new data directory.
func (id *identity) keepFirst() error { return id.change(func(*identityRecord) {}) }

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
	b, err := sealRecord(r)
	if err == nil {
		err = id.files.Write(filepath.Join(id.dir, identityFile), b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("keep the server's identity: %w", err)
	}
	return nil
}
