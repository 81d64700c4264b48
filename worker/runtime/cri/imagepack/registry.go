package imagepack

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
)

// Registry serves images by the part of the registry protocol that pulls them. Names within it have no registry in front:
// "team/web:1".
type Registry struct {
	mu     sync.Mutex
	blobs  map[string][]byte
	tags   map[string]descriptor
	user   string // empty: anybody may pull
	secret string
}

// NewRegistry returns an empty registry; with a user only that one may pull.
func NewRegistry(user, secret string) *Registry {
	return &Registry{blobs: map[string][]byte{}, tags: map[string]descriptor{}, user: user, secret: secret}
}

// Push adds an image under its names.
func (r *Registry) Push(i *Image) error {
	p, err := pack(i)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for d, b := range p.blobs {
		r.blobs[d] = b
	}
	for _, name := range i.Names {
		r.tags[name] = p.manifest
	}
	return nil
}

// ServeHTTP implements http.Handler.
func (r *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if user, secret, ok := req.BasicAuth(); r.user != "" && (!ok || user != r.user || secret != r.secret) {
		w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
		http.Error(w, "who are you?", http.StatusUnauthorized)
		return
	}
	path := strings.TrimPrefix(req.URL.Path, "/v2/")
	name, ref, manifest := strings.Cut(path, "/manifests/")
	if !manifest {
		_, ref, _ = strings.Cut(path, "/blobs/")
	}
	r.mu.Lock()
	if m, ok := r.tags[name+":"+ref]; manifest && ok {
		ref = m.Digest
	}
	b, ok := r.blobs[ref]
	r.mu.Unlock()
	switch {
	case path == "":
		return
	case !ok:
		http.NotFound(w, req)
		return
	}
	kind := "application/octet-stream"
	if manifest {
		kind = typeManifest
	}
	w.Header().Set("Content-Type", kind)
	w.Header().Set("Docker-Content-Digest", ref)
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	if req.Method != http.MethodHead {
		_, _ = w.Write(b) // a client that went away tries again
	}
}
