package apiserver

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/proxy"
)

// Links of a page are written anew when it is short, and what is not is handed on as it comes.
func TestProxiedPages(t *testing.T) {
	const link = `<a href="/x">x</a>`
	packed := func(n int) string {
		var b bytes.Buffer
		w := gzip.NewWriter(&b)
		_, _ = w.Write(bytes.Repeat([]byte(" "), n))
		_, _ = io.WriteString(w, link)
		_ = w.Close()
		return b.String()
	}
	for name, c := range map[string]struct {
		body, encoding string
		never, anew    bool
	}{
		"short":               {body: link, anew: true},
		"packed":              {body: packed(10), encoding: "gzip", anew: true},
		"unpacks to much":     {body: packed(unpackedPage), encoding: "gzip"},
		"not packed":          {body: link, encoding: "gzip"},
		"long":                {body: strings.Repeat(" ", pageBytes) + link},
		"as long as may":      {body: strings.Repeat(" ", pageBytes-len(link)) + link, anew: true},
		"of an APIService":    {body: link, never: true},
		"packed in other way": {body: link, encoding: "br"},
	} {
		for _, counted := range []bool{true, false} {
			back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "text/html; charset=utf-8")
				w.Header().Set("Content-Encoding", c.encoding)
				if counted {
					w.Header().Set("Content-Length", strconv.Itoa(len(c.body)))
				} else {
					w.(http.Flusher).Flush()
				}
				_, _ = io.WriteString(w, c.body)
			}))
			answer := throughPages(t, back, c.never)
			body, err := io.ReadAll(answer.Body)
			if err != nil {
				t.Error(err)
			}
			if same := string(body) == c.body; same == c.anew {
				t.Errorf("%s, of a length that is told: %t; it is as it was: %t", name, counted, same)
			}
			if kind := answer.Header.Get("Content-Type"); !strings.EqualFold(kind, "text/html; charset=utf-8") {
				t.Errorf("%s is %q", name, kind)
			}
			back.Close()
		}
	}
}

// A page without an end goes on to who reads it.
func TestPagesWithoutEnd(t *testing.T) {
	ended, end := context.WithCancel(t.Context())
	back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		_, _ = w.Write(make([]byte, pageBytes+1))
		w.(http.Flusher).Flush()
		<-ended.Done()
	}))
	defer back.Close()
	defer end()
	if _, err := io.ReadFull(throughPages(t, back, false).Body, make([]byte, pageBytes)); err != nil {
		t.Error(err)
	}
}

func throughPages(t *testing.T, back *httptest.Server, never bool) *http.Response {
	location, err := url.Parse(back.URL)
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		to := pages{&http.Transport{DisableKeepAlives: true, DisableCompression: true}, never}
		proxy.NewUpgradeAwareHandler(location, to, true, false, badGateway{}).ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	client := &http.Client{Transport: &http.Transport{DisableCompression: true, DisableKeepAlives: true}}
	answer, err := client.Get(front.URL + "/proxy/")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer
}
