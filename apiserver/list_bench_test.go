package apiserver

import (
	"fmt"
	"io"
	"net/http"
	"runtime"
	"runtime/metrics"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/fsm"
)

// manyPods is a state with pods as people write them: some environment, some
// annotations.
func manyPods(b testing.TB, n int) *double {
	d := newDouble(b)
	pod := testPod("")
	pod.GenerateName, pod.Namespace = "p-", "default"
	pod.Annotations = map[string]string{"example.com/note": strings.Repeat("words ", 50)}
	for i := range 10 {
		pod.Spec.Containers[0].Env = append(pod.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", i), Value: "value"})
	}
	for n > 0 {
		count := min(n, 1000)
		d.must(b, &fsm.AdmitPods{Template: fsm.PodWire{Object: pod.DeepCopy()}, Count: int32(count)})
		n -= count
	}
	return d
}

// peak samples the live and dead objects of the heap until it is stopped.
func peak() (stop func() uint64) {
	var most uint64
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		sample := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}}
		t := time.NewTicker(5 * time.Millisecond)
		defer t.Stop()
		for {
			metrics.Read(sample)
			most = max(most, sample[0].Value.Uint64())
			select {
			case <-done:
				return
			case <-t.C:
			}
		}
	}()
	return func() uint64 {
		close(done)
		<-stopped
		return most
	}
}

// listForm is a form in which a list can be asked for.
type listForm struct{ name, query, accept string }

// byRow are the forms that are written row by row.
var byRow = []listForm{
	{"json", "", "application/json"},
	{"pretty", "?pretty=true", "application/json"},
	{"protobuf", "", "application/vnd.kubernetes.protobuf"},
}

// BenchmarkLists lists 30,000 pods twenty times at once, for one user. What is
// refused is asked for again when the answer says so.
func BenchmarkLists(b *testing.B) {
	s := start(b, manyPods(b, 30_000), nil)
	client := httpClient(b, s.config(b, "lister", "system:masters"))
	for _, form := range slices.Concat(byRow, []listForm{
		{"metadata", "", "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"},
		{"table", "", "application/json;as=Table;g=meta.k8s.io;v=v1"},
	}) {
		b.Run(form.name, func(b *testing.B) {
			for b.Loop() {
				runtime.GC()
				stop := peak()
				var running sync.WaitGroup
				for range 20 {
					running.Go(func() { listOnce(b, client, "https://"+s.Addr().String()+"/api/v1/pods"+form.query, form.accept) })
				}
				running.Wait()
				b.ReportMetric(float64(stop())/(1<<20), "peak-MiB")
			}
		})
	}
}

func listOnce(b *testing.B, client *http.Client, url, accept string) {
	for {
		req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url, nil)
		if err != nil {
			b.Error(err)
			return
		}
		req.Header.Set("Accept", accept)
		resp, err := client.Do(req)
		if err != nil {
			b.Error(err)
			return
		}
		n, err := io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusTooManyRequests && resp.Header.Get("Retry-After") != "":
			<-time.NewTimer(time.Second).C
			continue
		case err != nil || resp.StatusCode != http.StatusOK || n < 1<<20:
			b.Errorf("status %d, %d bytes, %v", resp.StatusCode, n, err)
		}
		return
	}
}

// orTable has upstream's list made: who would also take a table is answered from
// that.
const orTable = ", application/json;as=Table;g=meta.k8s.io;v=v1;q=0.1"

// BenchmarkList lists 30,000 pods once, row by row and of the whole list.
func BenchmarkList(b *testing.B) {
	s := start(b, manyPods(b, 30_000), nil)
	client := httpClient(b, s.config(b, "lister", "system:masters"))
	for _, form := range byRow {
		for how, also := range map[string]string{"by-row": "", "whole": orTable} {
			b.Run(form.name+"/"+how, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					listOnce(b, client, "https://"+s.Addr().String()+"/api/v1/pods"+form.query, form.accept+also)
				}
			})
		}
	}
}
