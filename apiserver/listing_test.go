package apiserver

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/fsm"
)

// TestListingsAreWhatUpstreamWrites compares every form of a list, written row
// by row, with upstream's of the whole list.
func TestListingsAreWhatUpstreamWrites(t *testing.T) {
	d := manyPods(t, 3)
	event := &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "e", UID: "e"}, Reason: "<Why>", Message: "\u2028 \"so\" \\"}
	d.must(t, &fsm.PutEvent{Event: fsm.EventWire{Object: event}, Create: true})
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: types.UID("n"), Labels: map[string]string{"a": "{[,:]}"}}}
	d.must(t, &fsm.PutNode{Node: fsm.NodeWire{Object: node}, Create: true})
	s := start(t, d, nil)
	client := httpClient(t, s.config(t, "lister", "system:masters"))
	for _, path := range []string{
		"/api/v1/pods", "/api/v1/pods?limit=2", "/api/v1/pods?labelSelector=app%3Dnone", "/api/v1/namespaces/default/events", "/api/v1/nodes",
		"/apis/events.k8s.io/v1/events", "/api/v1/configmaps", "/apis/berth.dev/v1/queueentries", "/apis/berth.dev/v1/preemptions",
		"/apis/scheduling.k8s.io/v1/priorityclasses", "/apis/apps/v1/replicasets",
	} {
		for _, accept := range []string{"application/json", "application/json, */*", "application/vnd.kubernetes.protobuf"} {
			if strings.HasPrefix(path, "/apis/berth.dev") && strings.HasSuffix(accept, "protobuf") {
				continue
			}
			url := "https://" + s.Addr().String() + path
			if strings.HasSuffix(accept, "*/*") {
				url += map[bool]string{true: "&", false: "?"}[strings.Contains(path, "?")] + "pretty=true"
			}
			byRow := fetch(t, client, url, accept)
			whole := fetch(t, client, url, accept+orTable)
			if !bytes.Equal(byRow, whole) || len(whole) < 20 {
				t.Errorf("%s as %s: row by row\n%.2000s\nand whole\n%.2000s", path, accept, byRow, whole)
			}
		}
	}
}

func fetch(t testing.TB, client *http.Client, url, accept string) []byte {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s as %s: status %d, %v: %s", url, accept, resp.StatusCode, err, b)
	}
	return b
}

// TestAnswersShare: what lists hold while they are answered is bounded, for one
// client and for all; what is beyond is refused with 429, and what never fits
// with 413.
func TestAnswersShare(t *testing.T) {
	row := &corev1.ConfigMap{Data: map[string]string{"a": strings.Repeat("x", 1<<20)}}
	lists := func(mebibytes int) []any { return slices.Repeat([]any{&fsm.Object{Value: row}}, mebibytes) }
	s := newShareTest()
	answers := make(chan error)
	s.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.Atoi(r.URL.Query().Get("list"))
		if err != nil {
			t.Error(err)
		}
		answers <- answerFrom(r.Context()).take(lists(n))
		<-s.release
	})
	begin := func(user, query, accept string) error {
		r := s.request(user, "/api/v1/configmaps?"+query, nil, 0)
		r.Method = http.MethodGet
		r.Header.Set("Accept", accept)
		s.running.Go(func() { s.ServeHTTP(httptest.NewRecorder(), r) })
		return <-answers
	}
	const table, yaml = "application/json;as=Table;g=meta.k8s.io;v=v1", "application/yaml"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	must(begin("a", "list=60", ""))
	must(begin("a", "list=60", ""))
	err := begin("a", "list=60", "")
	wantStatus(t, err, http.StatusTooManyRequests, `user "a" has lists under way that hold`)
	if after, ok := apierrors.SuggestsClientDelay(err); !ok || after != retryAfterSeconds {
		t.Errorf("it does not say when to come again: %v", err)
	}
	wantStatus(t, begin("b", "list=200", table), http.StatusRequestEntityTooLarge, "200 objects as a table or metadata")
	wantStatus(t, begin("b", "list=20", yaml), http.StatusRequestEntityTooLarge, "20 objects as YAML")
	must(begin("b", "list=100", table)) // more than a client's share, but all that it has
	wantStatus(t, begin("b", "list=1", ""), http.StatusTooManyRequests, `user "b" has lists under way that hold`)
	wantStatus(t, begin("c", "list=9000", ""), http.StatusTooManyRequests, "lists under way hold")
	must(begin("c", "list=10", ""))
	close(s.release)
	s.running.Wait()
	if len(s.clients) != 0 || s.answers != 0 {
		t.Errorf("left: %v, %d bytes", s.clients, s.answers)
	}
	s.release = make(chan struct{})
	for _, user := range []string{"c", "d", "e", "f"} {
		must(begin(user, "list=9000", "")) // it takes all of a client's share, and no more
	}
	wantStatus(t, begin("g", "list=9000", ""), http.StatusTooManyRequests, "lists under way hold")
	close(s.release)
	s.running.Wait()
}

// FuzzIndenter compares with the standard library.
func FuzzIndenter(f *testing.F) {
	for _, s := range []string{`{}`, `[]`, `{"a":[]}`, `{"a":[{},{"b":"\\\"{,"}],"c":1e3}` + "\n", ` [ 1 , "x" , null ] `} {
		f.Add([]byte(s), 3)
	}
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		var want, got bytes.Buffer
		if !json.Valid(b) || json.Indent(&want, bytes.TrimSpace(b), "", "  ") != nil {
			return
		}
		i := &indenter{w: &got}
		for rest := b; len(rest) > 0; {
			n := min(len(rest), max(1, piece))
			if _, err := i.Write(rest[:n]); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		if got.String() != want.String() {
			t.Fatalf("%q: got %q, want %q", b, &got, &want)
		}
	})
}
