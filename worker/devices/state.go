package devices

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/berth-dev/berth/atomicfile"
)

// state is what is kept on the disk.
type state struct {
	Resources map[string][]string `json:"resources"`
	Grants    []grant             `json:"grants"`
}

// seal puts a checksum into a line before the state.
func seal(raw []byte) []byte {
	sum := sha256.Sum256(raw)
	return append(append([]byte(hex.EncodeToString(sum[:])), '\n'), raw...)
}

// open reads that, and what was written before there were checksums.
func open(kept []byte) (s state, err error) {
	raw := kept
	if !bytes.HasPrefix(kept, []byte("{")) {
		if _, raw, _ = bytes.Cut(kept, []byte("\n")); !bytes.Equal(kept, seal(raw)) {
			return s, errors.New("its checksum is wrong")
		}
	}
	return s, json.Unmarshal(raw, &s)
}

// load reads it. What cannot be read is an error: a device could be given to two.
func (r *Registry) load(now time.Time) error {
	raw, err := os.ReadFile(r.opts.State)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var s state
	if err == nil {
		s, err = open(raw)
	}
	if err != nil {
		return fmt.Errorf("who has which devices, in %s: %w; drain the node, remove the file and start the worker again", r.opts.State, err)
	}
	r.grants = s.Grants
	for name, ids := range s.Resources {
		k := newKind(now)
		k.awaited = true
		for _, id := range ids {
			k.devices[id] = &pluginapi.Device{ID: id, Health: pluginapi.Unhealthy}
		}
		r.resources[name] = k
	}
	return nil
}

// save keeps it; r.mu is held.
func (r *Registry) save() error {
	s := state{Resources: map[string][]string{}, Grants: r.grants}
	for name, k := range r.resources {
		if !k.over {
			s.Resources[name] = slices.Sorted(maps.Keys(k.devices))
		}
	}
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return atomicfile.Write(r.opts.State, seal(raw), 0o600)
}
