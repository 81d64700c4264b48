// Package vault keeps what must not stand in the log in clear: the contents of secrets, and of whatever else
// an EncryptionConfiguration names. Who proposes an object seals it first, so entries, rows, snapshots and
// what servers send each other hold an envelope; who shows an object opens it. The state machine
// sees envelopes only, so all servers apply the same bytes, though each encryption draws its own.
//
// What the state machine goes by stays in clear: names, labels, owners, finalizers, the type of a secret.
//
// It must never write a key, or what was opened, anywhere.
package vault

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/berth-dev/berth/apiserver/yamlfile"
	"github.com/berth-dev/berth/fsm"
)

const (
	// graceOfBefore is the least time for which what has begun with the keys of before may end with them.
	graceOfBefore = 10 * time.Second
)

// Config says what a Vault is made of.
type Config struct {
	// File has an EncryptionConfiguration of apiserver.config.k8s.io; "": nothing is sealed, and nothing opened.
	File string
	// Server is the server's name, by which upstream's metrics tell servers apart.
	Server string
	Logger hclog.Logger
}

// Vault seals and opens by the newest reading of its file. While that cannot be read or is wrong,
// what it said before counts.
type Vault struct {
	config Config
	watch  yamlfile.Watch
	book   atomic.Pointer[book]

	failures, refusedFiles atomic.Int64

	mu     sync.Mutex
	looked *look
}

// Open reads the file.
func Open(c Config) (*Vault, error) {
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	v := &Vault{config: c}
	if c.File == "" {
		v.book.Store(&book{opened: newCache(), close: func() {}})
		return v, nil
	}
	v.watch = yamlfile.NewWatch(c.File)
	b, err := read(c.File, c.Server)
	if err != nil {
		return nil, fmt.Errorf("the encryption configuration:\n%w", err)
	}
	v.book.Store(b)
	return v, nil
}

// Run follows the file until ctx ends, and closes what asks for keys then.
func (v *Vault) Run(ctx context.Context) {
	defer func() { v.book.Load().close() }()
	if v.config.File == "" {
		<-ctx.Done()
		return
	}
	yamlfile.Follow(ctx, v.follow)
}

// follow reads the file if it is another one than it was.
func (v *Vault) follow() {
	if !v.watch.Changed() {
		return
	}
	b, err := read(v.config.File, v.config.Server)
	if err != nil {
		v.refusedFiles.Add(1)
		v.config.Logger.Error("the encryption configuration has changed and cannot be read; what it said before counts", "error", err)
		return
	}
	old := v.book.Swap(b)
	time.AfterFunc(max(old.grace, graceOfBefore), old.close)
	v.config.Logger.Info("the encryption configuration has changed, and was read again", "file", v.config.File)
}

// File is what the vault was read from; "": nothing is sealed.
func (v *Vault) File() string { return v.config.File }

// Fingerprint tells one configuration from another, and nothing of its keys; "" without a file.
func (v *Vault) Fingerprint() string {
	hash := v.book.Load().hash
	if hash == "" {
		return ""
	}
	return fmt.Sprintf("%.8x", sha256.Sum256([]byte(hash)))
}

// Failures counts what could not be opened or sealed.
func (v *Vault) Failures() int64 { return v.failures.Load() }

// RefusedFiles counts the readings of the file that were refused.
func (v *Vault) RefusedFiles() int64 { return v.refusedFiles.Load() }

// Sealable says whether a resource of the table of plain objects is one that can be sealed: the state machine
// reads nothing of it but its metadata.
func Sealable(resource string) bool {
	if resource == secrets || resource == configMaps {
		return true
	}
	kind, ok := fsm.KindOf(resource)
	return ok && kind.Custom
}

const secrets, configMaps = "secrets", "configmaps"
