package agent

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/uuid"

	"github.com/berth-dev/berth/atomicfile"
)

// workerID reads the identity of a worker from its data directory, or makes one. By it the servers know the machine, and the
// worker its sandboxes: with another one it would run every pod a second time. So one that is damaged is refused.
func workerID(dataDir string) (string, error) {
	if dataDir == "" {
		return uuid.NewString(), nil
	}
	if err := os.MkdirAll(dataDir, 0o711); err != nil { // #nosec G301 -- containers reach their volumes below it, and see no names in it
		return "", fmt.Errorf("data directory: %w", err)
	}
	path := filepath.Join(dataDir, "worker-id")
	b, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return "", lostID(path, fmt.Sprintf("can not be read (%v)", err))
	default:
		id, ok := readID(string(b))
		if !ok {
			return "", lostID(path, "is damaged")
		}
		return id, nil
	}
	id := uuid.NewString()
	if err := atomicfile.Write(path, []byte(writtenID(id)), 0o600); err != nil {
		return "", fmt.Errorf("keep the worker's identity: %w", err)
	}
	return id, nil
}

func lostID(path, what string) error {
	return fmt.Errorf("%s %s; end what this worker still runs, remove it, and start the worker again: it is another machine then", path, what)
}

// writtenID is an identity as it is kept: with a checksum.
func writtenID(id string) string {
	sum := sha256.Sum256([]byte(id))
	return id + " " + hex.EncodeToString(sum[:8]) + "\n"
}

// readID reads that, and what was written before there were checksums.
func readID(kept string) (id string, ok bool) {
	id, _, summed := strings.Cut(strings.TrimSuffix(kept, "\n"), " ")
	if !summed {
		parsed, err := uuid.Parse(id)
		return id, err == nil && parsed.String() == id && kept == id+"\n"
	}
	return id, kept == writtenID(id)
}
