package apiserver

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/endpoints/request"
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
		if err := checkSelectors(query); (err != nil) != refused {
			t.Errorf("a query of %d bytes: %v", len(query), err)
		}
	}
}

// Long selectors are charged, and wait when nothing is left, however few are asked for at a time.
func TestLongSelectorsArePaced(t *testing.T) {
	long := &request.RequestInfo{IsResourceRequest: true, Verb: "list", Namespace: "default", LabelSelector: longSelector(4096)}
	short := &request.RequestInfo{IsResourceRequest: true, Verb: "list", Namespace: "default", LabelSelector: "app=web"}
	synctest.Test(t, func(t *testing.T) {
		f := flowControl{shares: &userShare{most: 8, lists: 8, users: map[string]*atWork{}}, pace: &pace{share: 0.25}}
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
