package apiserver

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	core "k8s.io/kubernetes/pkg/apis/core"

	"github.com/berth-dev/berth/fsm"
)

// TestEncodedOnce: of many watchers one encodes an object, once a form, and what
// an encoder writes into its copy is in no other's.
func TestEncodedOnce(t *testing.T) {
	o := &encodedOnce{object: &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}}}
	var encodings atomic.Int32
	var running sync.WaitGroup
	for i := range 40 {
		running.Go(func() {
			id := runtime.Identifier(fmt.Sprint(i % 2))
			var b bytes.Buffer
			err := o.CacheEncode(id, func(obj runtime.Object, w io.Writer) error {
				encodings.Add(1)
				obj.(*core.ConfigMap).Kind = "written " + string(id)
				_, err := io.WriteString(w, obj.(*core.ConfigMap).Kind)
				return err
			}, &b)
			if want := "written " + string(id); err != nil || b.String() != want {
				t.Errorf("got %q, %v, want %q", &b, err, want)
			}
		})
	}
	running.Wait()
	if n := encodings.Load(); n != 2 {
		t.Errorf("two forms were encoded %d times", n)
	}
	o.GetObjectMeta().SetName("another")
	if m := o.object.(*core.ConfigMap); m.Kind != "" || m.Name != "c" {
		t.Errorf("the shared object was changed: %s %s", m.Kind, m.Name)
	}
}

// watchStream opens a watch and gives its lines' end: what is read from it is one
// event a line.
func watchStream(b testing.TB, client *http.Client, url, accept string) *bufio.Reader {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	resp, err := client.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { resp.Body.Close() })
	if resp.StatusCode != http.StatusOK {
		b.Fatalf("status %d", resp.StatusCode)
	}
	return bufio.NewReaderSize(resp.Body, 64<<10)
}

// BenchmarkWatchers tells 100 watchers of a change of a config map of 20 kB.
func BenchmarkWatchers(b *testing.B) {
	d := newDouble(b)
	s := start(b, d, nil)
	client := httpClient(b, s.config(b, "watcher", "system:masters"))
	url := fmt.Sprintf("https://%s/api/v1/namespaces/default/configmaps?watch=true&resourceVersion=%d", s.Addr(), d.View().Revision())
	const watchers = 100
	streams := make([]*bufio.Reader, watchers)
	for i := range streams {
		streams[i] = watchStream(b, client, url, "application/json")
	}
	data := map[string]string{}
	for i := range 100 {
		data[fmt.Sprint("key", i)] = strings.Repeat("<value>", 30)
	}
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "c"}, Data: data}
	change := func(n int) {
		cm.Labels = map[string]string{"n": fmt.Sprint(n)}
		raw, err := cm.Marshal()
		if err != nil {
			b.Fatal(err)
		}
		d.must(b, &fsm.PutObject{Resource: "configmaps", Raw: raw, Create: n == 0})
		var running sync.WaitGroup
		for _, r := range streams {
			running.Go(func() {
				for {
					_, err := r.ReadSlice('\n')
					if err == bufio.ErrBufferFull {
						continue
					}
					if err != nil {
						b.Error(err)
					}
					return
				}
			})
		}
		running.Wait()
	}
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		change(n)
		n++
	}
}
