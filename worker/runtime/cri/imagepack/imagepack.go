// Package imagepack makes small container images for tests, without a registry and without a builder: as a tar in the OCI
// layout, which containerd imports, and behind a registry that serves them. It must never be part of the product.
package imagepack

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	goruntime "runtime"
	"strings"
	"time"
)

// File is one file of an image. A directory has no Data and the mode bit of one; Link is where a symbolic link leads.
type File struct {
	Path string
	Mode int64
	Data []byte
	Link string
	Dir  bool
	UID  int
}

// Image is what an image is made of. Names are full: registry, path and tag.
type Image struct {
	Names      []string
	Files      []File
	Over       [][]File // further layers, each over those before
	Entrypoint []string
	Cmd        []string
	Env        []string
	User       string
	WorkingDir string
}

const (
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
	typeIndex    = "application/vnd.oci.image.index.v1+json"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// packed is an image as its blobs, by digest.
type packed struct {
	manifest descriptor
	blobs    map[string][]byte
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func pack(i *Image) (*packed, error) {
	var err error
	p := &packed{blobs: map[string][]byte{}}
	add := func(mediaType string, b []byte) descriptor {
		d := digest(b)
		p.blobs[d] = b
		return descriptor{MediaType: mediaType, Digest: d, Size: len(b)}
	}
	marshal := func(v any) []byte {
		b, merr := json.Marshal(v)
		if merr != nil && err == nil {
			err = merr
		}
		return b
	}
	var layers []descriptor
	var diffs []string
	for _, files := range append([][]File{i.Files}, i.Over...) {
		one, err := layer(files)
		if err != nil {
			return nil, err
		}
		layers = append(layers, add(typeLayer, one))
		diffs = append(diffs, digest(one))
	}
	config := add(typeConfig, marshal(map[string]any{
		"architecture": goruntime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": i.Env, "Entrypoint": i.Entrypoint, "Cmd": i.Cmd, "User": i.User, "WorkingDir": i.WorkingDir},
		"rootfs": map[string]any{"type": "layers", "diff_ids": diffs},
	}))
	p.manifest = add(typeManifest, marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": config, "layers": layers,
	}))
	return p, err
}

func layer(files []File) ([]byte, error) {
	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	for _, f := range files {
		h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: f.Mode, Size: int64(len(f.Data)), ModTime: time.Unix(0, 0),
			Uid: f.UID, Gid: f.UID, Format: tar.FormatPAX, Typeflag: tar.TypeReg}
		switch {
		case f.Dir:
			h.Typeflag, h.Name = tar.TypeDir, h.Name+"/"
		case f.Link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.Link
		}
		if err := tw.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.Path, err)
		}
		if _, err := tw.Write(f.Data); err != nil {
			return nil, fmt.Errorf("packing %s: %w", f.Path, err)
		}
	}
	return out.Bytes(), tw.Close()
}

// Write packs images into one tar that `ctr images import` takes.
func Write(w io.Writer, images ...*Image) error {
	tw := tar.NewWriter(w)
	put := func(name string, b []byte) error {
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(b)), ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		_, err := tw.Write(b)
		return err
	}
	if err := put("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	done := map[string]bool{}
	var manifests []descriptor
	for _, i := range images {
		p, err := pack(i)
		if err != nil {
			return err
		}
		for d, b := range p.blobs {
			if done[d] {
				continue
			}
			done[d] = true
			if err := put("blobs/sha256/"+strings.TrimPrefix(d, "sha256:"), b); err != nil {
				return err
			}
		}
		for _, name := range i.Names {
			m := p.manifest
			m.Annotations = map[string]string{"io.containerd.image.name": name}
			manifests = append(manifests, m)
		}
	}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": manifests})
	if err == nil {
		err = put("index.json", index)
	}
	if err != nil {
		return err
	}
	return tw.Close()
}
