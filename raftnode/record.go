package raftnode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// A record is a small file that this package keeps: one line of JSON, and before
// it a line with the checksum of that.

var errRecord = errors.New("its checksum is wrong")

// sealRecord returns the bytes of a record.
func sealRecord(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(fmt.Appendf(nil, "%016x\n", xxhash.Sum64(b)), append(b, '\n')...), nil
}

// openRecord reads a record at the beginning of b into v.
func openRecord(b []byte, v any) error {
	sum, rest, ok := bytes.Cut(b, []byte("\n"))
	body, _, whole := bytes.Cut(rest, []byte("\n"))
	want, err := strconv.ParseUint(string(sum), 16, 64)
	if !ok || !whole || err != nil || len(sum) != 16 || xxhash.Sum64(body) != want {
		return errRecord
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("%w: %w", errRecord, err)
	}
	return nil
}

// DamagedFileError says that a file of the data directory does not hold what was
// written to it, or is gone, and what to do.
type DamagedFileError struct {
	File, What, Remedy string
}

func (e *DamagedFileError) Error() string {
	return fmt.Sprintf("%s %s; %s", e.File, e.What, e.Remedy)
}

// startOver is what to do where a server's data as a whole can not be trusted.
func startOver(dir string) string {
	return fmt.Sprintf("if the other servers of the cluster run, remove everything in %s and start this server again, and it gets its "+
		"data from them; if it is the only one, restore a snapshot in a new cluster (berth operator snapshot restore)", dir)
}
