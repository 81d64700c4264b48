package pullrecords

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/berth-dev/berth/disk"
	"github.com/berth-dev/berth/worker/runtime"
)

// What begins the names of files; a hash of what they are about follows, so that one that cannot be read is known by its name.
const (
	imagePrefix = "image-"
	pullPrefix  = "pull-"
)

// version is that of what is in the files.
const version = 1

// maxFileBytes bounds what is read of a file. What is written is less.
const maxFileBytes = 1 << 20

// grant is who may use an image under a name without asking its registry. Without Anyone and Key it is nobody, and says that it was, or may have been, fetched under that name.
type grant struct {
	Repository string `json:"repository"`
	// Anyone: the registry gave it to the worker without any credentials of a pod's.
	Anyone bool              `json:"anyone,omitempty"`
	Key    *runtime.ImageKey `json:"key,omitempty"`
}

// image is the record of an image that was fetched here. Under a name of which there is no grant nobody fetched it: that somebody has pushed a copy of what was preloaded to a
// registry of his own, and fetched that, takes it away from nobody.
type image struct {
	Version int     `json:"version"`
	Ref     string  `json:"ref"`
	Grants  []grant `json:"grants"` // the newest last
	// More: it may have been fetched under names of which there is no grant.
	More bool `json:"more,omitempty"`
}

// pull is the record of images that are being fetched from a repository.
type pull struct {
	Version    int    `json:"version"`
	Repository string `json:"repository"`
	// Before are the images of the repository, by their refs, that were here before and were not fetched under its name.
	Before []string `json:"before"`
}

// sealed is what a file has: a record, and a hash of it.
type sealed struct {
	SHA256 string          `json:"sha256"`
	Record json.RawMessage `json:"record"`
}

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func seal(record any) ([]byte, error) {
	raw, err := json.Marshal(record)
	if err != nil {
		return nil, err
	}
	return json.Marshal(sealed{hash(raw), raw})
}

var errDamaged = errors.New("it is damaged")

func unseal(b []byte, record any) error {
	var s sealed
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if s.SHA256 != hash(s.Record) {
		return errDamaged
	}
	return json.Unmarshal(s.Record, record)
}

// imageFile and pullFile are the names of files.
func imageFile(ref string) string       { return imagePrefix + hash([]byte(ref)) }
func pullFile(repository string) string { return pullPrefix + hash([]byte(repository)) }

// load reads all records. One that cannot be read counts as one that grants nothing to anybody.
func (r *Records) load() error {
	entries, err := r.files.ReadDir(r.opts.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := e.Name()
		var record any
		var i image
		var p pull
		switch {
		case strings.HasPrefix(name, imagePrefix):
			record = &i
		case strings.HasPrefix(name, pullPrefix):
			record = &p
		default:
			continue // a write that was cut off is swept, and others' files are not looked at
		}
		b, err := disk.ReadFile(r.files, filepath.Join(r.opts.Dir, name), maxFileBytes)
		if err == nil {
			err = unseal(b, record)
		}
		if record == &i {
			if err == nil && (i.Version != version || imageFile(i.Ref) != name) {
				err = errDamaged
			}
			if err != nil {
				i = image{More: true}
			}
			r.images[name] = &known{image: i}
		} else {
			if err == nil && (p.Version != version || pullFile(p.Repository) != name) {
				err = errDamaged
			}
			if err != nil {
				p = pull{}
			}
			r.pulls[name] = &underWay{pull: p, unsure: r.opts.Now()}
		}
		if err != nil {
			r.log.Warn("a record of images that were fetched cannot be read; registries are asked again", "file", name, "error", err)
		}
	}
	return nil
}

func (r *Records) write(name string, record any) error {
	b, err := seal(record)
	if err != nil {
		return err
	}
	if len(b) > maxFileBytes {
		return fmt.Errorf("the record %s would have %d bytes, more than %d", name, len(b), maxFileBytes)
	}
	return r.files.Write(filepath.Join(r.opts.Dir, name), b, 0o600)
}

func (r *Records) remove(name string) error {
	return r.files.Remove(filepath.Join(r.opts.Dir, name))
}
