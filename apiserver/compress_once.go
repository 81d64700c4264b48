package apiserver

import (
	"bytes"
	"compress/gzip"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/server/mux"
)

// compressOnce compresses an answer that is large and seldom another one, and keeps that: compressing the description of the API takes a
// third of a second, and everybody who is known may ask for it.
type compressOnce struct {
	next http.Handler

	mu   sync.Mutex
	kept map[string][]byte // compressed, by ETag and type
}

// compressedAnswers is how many are kept: the description of all, and those of groups and their versions.
const compressedAnswers = 128

// compressing is where handlers are registered whose answers are compressed once.
type compressing struct{ at *mux.PathRecorderMux }

// Handle implements handler.PathHandler of kube-openapi.
func (c compressing) Handle(path string, h http.Handler) { c.at.Handle(path, &compressOnce{next: h}) }

// ServeHTTP implements http.Handler.
func (c *compressOnce) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	accepts := strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	plain := r.Clone(r.Context())
	plain.Header.Del("Accept-Encoding")
	if !accepts {
		c.next.ServeHTTP(w, plain)
		return
	}
	answer := &inMemory{header: http.Header{}, code: http.StatusOK}
	c.next.ServeHTTP(answer, plain)
	maps.Copy(w.Header(), answer.header)
	etag := answer.header.Get("ETag")
	if answer.code != http.StatusOK || etag == "" || r.Method != http.MethodGet {
		w.WriteHeader(answer.code)
		_, _ = w.Write(answer.body.Bytes()) // who is gone is not told
		return
	}
	body := c.compressed(etag+" "+answer.header.Get("Content-Type"), answer.body.Bytes())
	w.Header().Set("Content-Encoding", "gzip")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write(body) // #nosec G705 -- what another handler has said, with its type
}

// compressed is what a body comes to, which follows from its key. Whoever asks meanwhile waits for it.
func (c *compressOnce) compressed(key string, body []byte) []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kept, ok := c.kept[key]; ok {
		return kept
	}
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	_, _ = z.Write(body) // into memory
	_ = z.Close()
	if len(c.kept) >= compressedAnswers || c.kept == nil {
		c.kept = map[string][]byte{}
	}
	c.kept[key] = out.Bytes()
	return out.Bytes()
}

// inMemory is an answer that is not sent yet.
type inMemory struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

// Header implements http.ResponseWriter.
func (a *inMemory) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *inMemory) WriteHeader(code int) { a.code = code }

// Write implements http.ResponseWriter.
func (a *inMemory) Write(b []byte) (int, error) { return a.body.Write(b) }
