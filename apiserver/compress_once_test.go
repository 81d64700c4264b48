package apiserver

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCompressedOnce: what is asked for again is not compressed again, and is what it was.
func TestCompressedOnce(t *testing.T) {
	body, etag := strings.Repeat("a description ", 1000), `"1"`
	c := &compressOnce{next: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Accept-Encoding") != "" {
			t.Error("it is asked for compressed")
		}
		w.Header().Set("ETag", etag)
		if r.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, body)
	})}
	get := func(header ...string) *http.Response {
		r := httptest.NewRequest(http.MethodGet, "/openapi/v2", nil)
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		w := httptest.NewRecorder()
		c.ServeHTTP(w, r)
		return w.Result()
	}
	read := func(resp *http.Response) string {
		t.Helper()
		from := io.Reader(resp.Body)
		if resp.Header.Get("Content-Encoding") == "gzip" {
			var err error
			if from, err = gzip.NewReader(resp.Body); err != nil {
				t.Fatal(err)
			}
		}
		b, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	for range 2 {
		resp := get("Accept-Encoding", "gzip, deflate")
		if got := read(resp); resp.StatusCode != http.StatusOK || resp.Header.Get("Content-Encoding") != "gzip" || resp.Header.Get("ETag") != etag || got != body {
			t.Errorf("%d %v: %.40q", resp.StatusCode, resp.Header, got)
		}
	}
	if len(c.kept) != 1 {
		t.Errorf("kept are %d", len(c.kept))
	}
	if key := etag + " "; &c.compressed(key, nil)[0] != &c.compressed(key, []byte("never looked at"))[0] {
		t.Error("it is compressed again")
	}
	if resp := get(); resp.Header.Get("Content-Encoding") != "" || read(resp) != body {
		t.Error("who takes nothing compressed gets it so")
	}
	if resp := get("Accept-Encoding", "gzip", "If-None-Match", etag); resp.StatusCode != http.StatusNotModified || read(resp) != "" {
		t.Errorf("who has it is told %d", resp.StatusCode)
	}
	body, etag = strings.Repeat("another one ", 1000), `"2"`
	if got := read(get("Accept-Encoding", "gzip")); got != body {
		t.Errorf("what has changed is still %.40q", got)
	}
	for i := range 2 * compressedAnswers {
		c.compressed(strings.Repeat("x", i), []byte("small"))
	}
	if len(c.kept) > compressedAnswers {
		t.Errorf("kept are %d", len(c.kept))
	}
}
