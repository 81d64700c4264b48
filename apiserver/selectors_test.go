package apiserver

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	restclient "k8s.io/client-go/rest"
)

// longSelector has about so many bytes.
func longSelector(bytes int) string {
	var b strings.Builder
	b.WriteString("k in (v")
	for i := 0; b.Len() < bytes-8; i++ {
		fmt.Fprintf(&b, ",v%d", i)
	}
	return b.String() + ")"
}

// Selectors that are too long are refused before anything reads them, whoever asks.
func TestLongSelectors(t *testing.T) {
	s := share(t)
	pods := s.client(t).CoreV1().Pods("default")
	_, err := pods.List(t.Context(), metav1.ListOptions{LabelSelector: longSelector(maxSelectorBytes + 100)})
	wantStatus(t, err, 400, "there may be 16384")
	if _, err = pods.List(t.Context(), metav1.ListOptions{LabelSelector: longSelector(maxSelectorBytes)}); err != nil {
		t.Error(err)
	}
	half := url.QueryEscape(longSelector(maxSelectorBytes/2 + 100))
	for query, refused := range map[string]bool{
		"labelSelector=" + half:                                          false,
		"labelSelector=" + half + "&fieldSelector=" + half:               true,
		"labelSelector=" + half + "&labelSelector=" + half:               true,
		"command=" + half + "&command=" + half + "&labelSelector=a":      false,
		"labelSelector=" + half + "&fieldSelector=" + half + "&%zz=none": true,
	} {
		if _, err := checkSelectors(query); (err != nil) != refused {
			t.Errorf("a query of %d bytes: %v", len(query), err)
		}
	}
}

// Long selectors are charged, and wait when nothing is left, however few are asked for at a time.
func TestLongSelectorsArePaced(t *testing.T) {
	long := &request.RequestInfo{IsResourceRequest: true, Verb: "list", Namespace: "default", LabelSelector: longSelector(4096)}
	short := &request.RequestInfo{IsResourceRequest: true, Verb: "list", Namespace: "default", LabelSelector: "app=web"}
	synctest.Test(t, func(t *testing.T) {
		f := flowControl{shares: &userShare{most: 8, lists: 8, calm: 8, users: map[string]*atWork{}}, pace: &pace{share: 0.25}}
		took := func(info *request.RequestInfo, times int) time.Duration {
			began := time.Now()
			for range times {
				f.pace.ask("calm")
				end, err := f.begin(t.Context(), "storm", info)
				if err != nil {
					t.Fatal(err)
				}
				end()
			}
			return time.Since(began)
		}
		if waited := took(short, 10_000); waited > 0 {
			t.Errorf("short ones waited for %s", waited)
		}
		times := int(3 * paceBurst / selectorCosts(long))
		if waited := took(long, times); waited < asksFor {
			t.Errorf("%d of a second's work in all waited for %s", times, waited)
		}
	})
}

// BenchmarkSelectors reads the longest selectors that may be, of one term with many values and of many terms. A request costs four times
// what it takes to read them, and once what objects are asked by takes.
func BenchmarkSelectors(b *testing.B) {
	for name, text := range map[string]string{"values": longSelector(maxSelectorBytes), "absent": absences(b).String()} {
		read := func(b *testing.B) labels.Selector {
			s, err := labels.Parse(text)
			if err != nil {
				b.Fatal(err)
			}
			return s
		}
		whole := read(b)
		for what, do := range map[string]func(b *testing.B){"read": func(b *testing.B) { read(b) }, "asked": func(*testing.B) { selectsLabels(whole) }} {
			b.Run(name+"/"+what, func(b *testing.B) {
				began := processorTime(b)
				for b.Loop() {
					do(b)
				}
				b.ReportMetric(float64(processorTime(b)-began)/float64(b.N)/float64(len(text)), "cpu-ns/byte")
			})
		}
	}
}

// TestSelectorsOfStrangers: what takes long to be read is not read for somebody who is not known, and who is, is asked about once more
// only where there is that much.
func TestSelectorsOfStrangers(t *testing.T) {
	asked := 0
	who := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		asked++
		switch r.Header.Get("Authorization") {
		case "Bearer ann":
			return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
		case "Bearer bad":
			return nil, false, errors.New("it has ended")
		}
		return nil, false, nil
	})
	long := "watch=1&labelSelector=" + url.QueryEscape(longSelector(freeSelectorBytes+100))
	for _, tt := range []struct {
		shows, query string
		want         bool
		asked        int
	}{
		{"Bearer ann", long, true, 1},
		{"Bearer bad", long, false, 1},
		{"", long, false, 1},
		{"", "labelSelector=a", true, 0},
		{"", "labelSelector=a&x=" + strings.Repeat("x", 1000), true, 0},
	} {
		asked = 0
		r := httptest.NewRequest(http.MethodGet, "/api/v1/pods?"+tt.query, nil)
		if tt.shows != "" {
			r.Header.Set("Authorization", tt.shows)
		}
		n, err := checkSelectors(r.URL.RawQuery)
		if err != nil {
			t.Fatal(err)
		}
		if got := known(r.WithContext(withShown(r)), who, n); got != tt.want || asked != tt.asked {
			t.Errorf("%q with %.40s: %t, he was asked about %d times", tt.shows, tt.query, got, asked)
		}
	}
}

// TestLongSelectorsOfNobody: nothing is done for somebody who is not known, and nothing else than he has asked for.
func TestLongSelectorsOfNobody(t *testing.T) {
	s := share(t)
	nobody := s.anonymous()
	client, err := restclient.HTTPClientFor(nobody)
	if err != nil {
		t.Fatal(err)
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodDelete,
		nobody.Host+"/api/v1/namespaces/default/pods?labelSelector="+url.QueryEscape(longSelector(1000)), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusUnauthorized || !strings.Contains(string(body), "Unauthorized") {
		t.Errorf("%d %s", resp.StatusCode, body)
	}
}
