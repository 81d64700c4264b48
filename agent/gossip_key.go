package agent

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/cluster"
)

// The key of gossip of an agent that has made its CA itself, beside that CA, and its checksum. The key is alone in its file, for
// operators copy what the file holds.
const (
	gossipKeyFile = "gossip-key"
	gossipSumFile = "gossip-key.sha256"
)

// foundGossipKey makes the key of a cluster that begins, unless it is there: the agent may have ended before it had a CA.
func foundGossipKey(dir string) error {
	for _, file := range []string{gossipKeyFile, gossipSumFile} {
		if _, err := os.Lstat(filepath.Join(dir, file)); !errors.Is(err, fs.ErrNotExist) {
			return err // ownGossipKey tells whether it is whole
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("data_dir: making the directory of the gossip key: %w", err)
	}
	raw := make([]byte, 32)
	if _, err := rand.Read(raw); err != nil {
		return fmt.Errorf("making a gossip key: %w", err)
	}
	key := base64.StdEncoding.EncodeToString(raw)
	if err := atomicfile.Write(filepath.Join(dir, gossipKeyFile), []byte(key+"\n"), 0o600); err != nil {
		return fmt.Errorf("keeping the gossip key: %w", err)
	}
	return writeGossipSum(dir, key)
}

// ownGossipKey reads the key that the agent made when it founded its cluster. With another one it would gossip with nobody, and
// without a word: so one that is lost or damaged is refused.
func ownGossipKey(dir string) (string, error) {
	path, sumPath := filepath.Join(dir, gossipKeyFile), filepath.Join(dir, gossipSumFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", lostGossipKey(path, sumPath, "is missing, and the other members know the cluster by it")
	}
	if err != nil {
		return "", fmt.Errorf("the gossip key: %w", err)
	}
	key := strings.TrimSpace(string(b))
	if raw, err := cluster.DecodeKey(key); err != nil || len(raw) == 0 {
		return "", lostGossipKey(path, sumPath, "is damaged")
	}
	sum, err := os.ReadFile(sumPath)
	switch {
	case errors.Is(err, fs.ErrNotExist): // the key is of a version that wrote none
		return key, writeGossipSum(dir, key)
	case err != nil:
		return "", fmt.Errorf("the gossip key's checksum: %w", err)
	case string(sum) != gossipSum(key):
		return "", lostGossipKey(path, sumPath, "is damaged or is another key: it has not the checksum in "+sumPath)
	}
	return key, nil
}

func lostGossipKey(path, sumPath, what string) error {
	return fmt.Errorf("%s %s: put it back from a copy, or from gossip.encryption_key of another member, and remove %s if the key is right; "+
		"if there is no other member, make another key (`berth operator gossip-key`), write it into the file and remove %s", path, what, sumPath, sumPath)
}

func gossipSum(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:]) + "\n"
}

func writeGossipSum(dir, key string) error {
	if err := atomicfile.Write(filepath.Join(dir, gossipSumFile), []byte(gossipSum(key)), 0o600); err != nil {
		return fmt.Errorf("keeping the gossip key's checksum: %w", err)
	}
	return nil
}
