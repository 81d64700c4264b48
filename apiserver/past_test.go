package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/storage"
	"pgregory.net/rapid"

	"github.com/berth-dev/berth/fsm"
)

// Every revision can be listed on every server, whether it has kept the view or
// not: what has changed since is undone.
func TestMoments(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		d := newDouble(t)
		d.must(t, &fsm.PutNamespace{Create: true, Namespace: fsm.NamespaceWire{Object: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}}}})
		tb := &tables{kind: configMapKind(), prefix: "/configmaps/", backend: d, pins: newPins(time.Now), attrs: storage.DefaultNamespaceScopedAttr}
		type seen struct {
			revision int64
			rows     []string
		}
		all := func(at moment, prefix, from string) []string {
			var out []string
			at.rows.scan(at.view, prefix, from, func(key string, row any) bool {
				out = append(out, key+"@"+row.(*fsm.Object).Value.GetResourceVersion())
				return true
			})
			return out
		}
		var history []seen
		there := map[string]bool{}
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			ns := rapid.SampledFrom([]string{"b", "default"}).Draw(rt, "namespace")
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "name")
			key := ns + "/" + name
			if there[key] && rapid.Bool().Draw(rt, "goes") {
				d.must(t, &fsm.DeleteObject{Resource: "configmaps", Namespace: ns, Name: name})
				delete(there, key)
			} else {
				d.must(t, putConfigMap(ns, name, fmt.Sprint(len(history)), !there[key]))
				there[key] = true
			}
			v := d.View()
			history = append(history, seen{v.Revision(), all(tb.now(v), "", "")})
		}
		for _, h := range history {
			at, err := tb.momentAt(context.Background(), "", h.revision)
			if err != nil {
				rt.Fatal(err)
			}
			if got := all(at, "", ""); !slices.Equal(got, h.rows) {
				rt.Fatalf("at %d: %v, want %v", h.revision, got, h.rows)
			}
			from := rapid.SampledFrom([]string{"", "b/b", "default/", "default/c\x00", "z"}).Draw(rt, "from")
			var want []string
			for _, row := range h.rows {
				if key, _, _ := strings.Cut(row, "@"); key >= from && strings.HasPrefix(key, "default/") {
					want = append(want, row)
				}
			}
			of, err := tb.momentAt(context.Background(), "default/", h.revision)
			if err != nil {
				rt.Fatal(err)
			}
			for _, at := range []moment{at, of} {
				if got := all(at, "default/", max("default/", from)); !slices.Equal(got, want) {
					rt.Fatalf("at %d from %q: %v, want %v", h.revision, from, got, want)
				}
			}
			before, err := tb.rowsBefore(context.Background(), "default/", h.revision, d.View().Revision())
			for key := range before {
				if !strings.HasPrefix(key, "default/") || err != nil {
					rt.Fatalf("%s is kept for a list of another namespace, %v", key, err)
				}
			}
			for _, row := range h.rows {
				key, _, _ := strings.Cut(row, "@")
				if _, ok := at.rows.get(at.view, key); !ok {
					rt.Fatalf("at %d: %s is not there", h.revision, key)
				}
			}
			rows := 0
			at.rows.scan(at.view, "", "", func(string, any) bool { rows++; return rows < 2 })
			if rows > 2 {
				rt.Fatal("a scan went on when it was told to stop")
			}
		}
	})
}
