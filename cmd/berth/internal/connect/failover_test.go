package connect

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/config"
)

// saying answers every request alike.
type saying struct {
	code int
	body string
}

func (s *saying) RoundTrip(*http.Request) (*http.Response, error) {
	h := http.Header{}
	if s.code == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	return &http.Response{StatusCode: s.code, Status: "503 Service Unavailable", Header: h, Body: io.NopCloser(strings.NewReader(s.body))}, nil
}

// Servers without a leader: that is said at once, once, and not for longer than
// the patience lasts.
func TestALeaderIsNotWaitedForInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: http.StatusServiceUnavailable,
			Message: "the cluster has no leader at the moment: of 3 voting servers b and c do not answer server a",
		}
		bodies := make([]string, 2) // kubectl's verbs ask for either form
		for i, form := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
			info, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), form)
			b, err := runtime.Encode(scheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion), status)
			if err != nil {
				t.Fatal(err)
			}
			bodies[i] = string(b)
		}
		var told []string
		next := &saying{http.StatusServiceUnavailable, ""}
		f := &failover{
			next: next, targets: []*url.URL{{Scheme: "https", Host: "a"}}, answers: new(answers),
			patience: leaderPatience, notice: func(text string) { told = append(told, text) },
		}
		ask := func() (again bool) {
			t.Helper()
			req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://a/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := f.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != next.body {
				t.Errorf("the answer became %q, %v", b, err)
			}
			return resp.Header.Get("Retry-After") != ""
		}
		for _, body := range append(bodies, bodies...) {
			next.code, next.body = http.StatusServiceUnavailable, body
			told = nil
			began := time.Now()
			for ask() {
				time.Sleep(time.Second)
			}
			if took := time.Since(began); took != leaderPatience {
				t.Errorf("it was tried for %s", took)
			}
			if len(told) != 1 || !strings.Contains(told[0], "b and c do not answer server a") {
				t.Errorf("it was told %q", told)
			}
			next.code, next.body = http.StatusOK, "{}"
			ask() // a leader is there, and goes again
		}
		next.code, next.body = http.StatusServiceUnavailable, bodies[0]
		f.patience = 0
		for range 100 {
			if !ask() {
				t.Fatal("it was given up, and should go on")
			}
			time.Sleep(time.Second)
		}
	})
}

// Who is refused already when asking what there is learns who that is and why, as
// with any other request.
func TestARefusedDiscoverySaysWho(t *testing.T) {
	const who = `forbidden: User "berth:worker:w9" cannot get path "/api"`
	b, err := json.Marshal(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
		Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: who,
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &failover{
		next: &saying{http.StatusForbidden, string(b)}, targets: []*url.URL{{Scheme: "https", Host: "a"}}, answers: new(answers),
	}
	d, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: "https://a", Transport: f})
	if err != nil {
		t.Fatal(err)
	}
	_, lists, err := d.ServerGroupsAndResources()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), who) {
		t.Errorf("%v, %v", lists, err)
	}
	_, err = d.ServerResourcesForGroupVersion("apps/v1")
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), who) {
		t.Error(err)
	}
}

// A server whose process is stopped accepts connections and says nothing: it is not
// waited for longer than for one that cannot be dialled, and once by all clients
// of a command.
func TestASilentServerIsWaitedForOnce(t *testing.T) {
	c := New(&config.Flags{}, func(string) string { return "" })
	c.conn = &config.Connection{SkipVerify: true}
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	well := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(well.Close)
	var dialled atomic.Int64
	for range 2 {
		cfg, err := c.configFor(trust{}, []string{"https://" + silent.Addr().String(), well.URL}, &c.learnt)
		if err != nil {
			t.Fatal(err)
		}
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if addr == silent.Addr().String() {
				dialled.Add(1)
			}
			return dial(ctx, network, addr)
		}
		client, err := rest.HTTPClientFor(cfg)
		if err != nil {
			t.Fatal(err)
		}
		bound := time.Duration(0)
		for rt := client.Transport; ; {
			if at, ok := rt.(*http.Transport); ok {
				bound = at.TLSHandshakeTimeout
				break
			}
			rt = rt.(interface{ WrappedRoundTripper() http.RoundTripper }).WrappedRoundTripper()
		}
		if bound != dialTimeout {
			t.Errorf("a handshake may last %s", bound)
		}
		resp, err := client.Get("https://nobody/")
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
	}
	if n := dialled.Load(); n != 1 {
		t.Errorf("the silent server was asked %d times", n)
	}
}
