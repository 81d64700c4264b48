package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// shareTest is a handler whose requests last until they are let go.
type shareTest struct {
	*fairShare
	entered chan struct{}
	release chan struct{}
	running sync.WaitGroup
}

func newShareTest() *shareTest {
	s := &shareTest{entered: make(chan struct{}), release: make(chan struct{})}
	s.fairShare = &fairShare{
		turns: newTurns(), clients: map[string]*underway{}, bodyBytes: 3 << 20,
		longRunning: func(r *http.Request, _ *request.RequestInfo) bool { return r.URL.Query().Get("watch") != "" },
		next: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			s.entered <- struct{}{}
			<-s.release
		}),
	}
	return s
}

func (s *shareTest) request(name, url string, body io.Reader, length int64) *http.Request {
	r := httptest.NewRequest(http.MethodPost, url, body)
	r.ContentLength = length
	ctx := request.WithUser(r.Context(), &user.DefaultInfo{Name: name})
	return r.WithContext(request.WithRequestInfo(ctx, &request.RequestInfo{LabelSelector: r.URL.Query().Get("labelSelector")}))
}

// begins starts requests, which have to be let in.
func (s *shareTest) begins(n int, name, url string, length int64) {
	for range n {
		var body io.Reader
		if length != 0 {
			body = strings.NewReader("x")
		}
		s.running.Go(func() { s.ServeHTTP(httptest.NewRecorder(), s.request(name, url, body, length)) })
		<-s.entered
	}
}

// refused makes one request, which has to be refused unread.
func (s *shareTest) refused(t *testing.T, name, url string, length int64, want string) {
	t.Helper()
	w := httptest.NewRecorder()
	body := &counter{}
	s.ServeHTTP(w, s.request(name, url, body, length))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != "1" || !strings.Contains(w.Body.String(), want) {
		t.Errorf("got %d %v %s, want 429 with %q", w.Code, w.Header(), w.Body, want)
	}
	if body.read != 0 {
		t.Errorf("%d bytes of what was refused were read", body.read)
	}
}

type counter struct{ read int }

func (c *counter) Read(b []byte) (int, error) { c.read += len(b); return len(b), nil }

// TestFairShare: a client has its share of requests, of streams and of bytes;
// others have theirs meanwhile, and what ends makes room.
func TestFairShare(t *testing.T) {
	const pods, watch = "/api/v1/namespaces/default/pods", "/api/v1/pods?watch=true"
	for name, tt := range map[string]struct {
		url    string
		length int64
		n      int
		want   string
	}{
		"requests":                  {pods, 0, maxClientRequests, "512 requests under way"},
		"watches":                   {watch, 0, maxClientStreams, "2048 watches, logs and streams open"},
		"bytes":                     {pods, 1 << 20, maxClientBytes >> 21, "requests of 67108864 bytes under way"},
		"watches of long selectors": {watch + "&labelSelector=" + url.QueryEscape(longSelector(maxSelectorBytes-100)), 0, maxClientBytes / (maxSelectorBytes * selectorByteHolds), "bytes under way"},
		"bytes of short bodies":     {pods, freeShapeBytes - 1, maxClientRequests, "512 requests under way"},
		"bytes of unknown length":   {pods, -1, maxClientBytes / (2 * 3 << 20), "bytes under way"},
		"more than a body may have": {pods, 1 << 40, maxClientBytes / (2 * 3 << 20), "bytes under way"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newShareTest()
			s.begins(tt.n, "greedy", tt.url, tt.length)
			length := tt.length
			if length == 0 {
				length = 1
			}
			s.refused(t, "greedy", tt.url, length, tt.want)
			s.begins(1, "other", tt.url, tt.length)
			s.release <- struct{}{}
			s.release <- struct{}{}
			close(s.release)
			s.running.Wait()
			if len(s.clients) != 0 || s.bytes != 0 {
				t.Errorf("left: %v, %d bytes", s.clients, s.bytes)
			}
			s.running.Go(func() { s.ServeHTTP(httptest.NewRecorder(), s.request("greedy", tt.url, nil, 0)) })
			<-s.entered
			s.running.Wait()
		})
	}
}

// TestFairShareOfAll: all clients together are bounded in bytes.
func TestFairShareOfAll(t *testing.T) {
	s := newShareTest()
	for i := range maxBytes / maxClientBytes {
		s.begins(maxClientBytes>>22, string(rune('a'+i)), "/", 2<<20)
	}
	s.refused(t, "new", "/", 2<<20, "requests of 536870912 bytes are under way")
	s.begins(1, "new", "/", 0)
	close(s.release)
	s.running.Wait()
}
