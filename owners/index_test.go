package owners

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"
)

// UIDs in references are whatever somebody wrote.
var uids = []types.UID{"a", "b", "a\x00ns1", "a\x00ns1\x00pods/p0", "a\x00\xff", "", "ns1"}

func references(t *rapid.T) []metav1.OwnerReference {
	var out []metav1.OwnerReference
	for i, uid := range rapid.SliceOfNDistinct(rapid.SampledFrom(uids), 0, 3, rapid.ID).Draw(t, "owners") {
		yes, controller := true, i == 0 && rapid.Bool().Draw(t, "controller")
		out = append(out, metav1.OwnerReference{UID: uid, Controller: &controller})
		if rapid.Bool().Draw(t, "blocks") {
			out[i].BlockOwnerDeletion = &yes
		}
	}
	return out
}

// dying has an object be deleted in the foreground, or almost.
func dying(t *rapid.T, o metav1.Object) {
	if rapid.Bool().Draw(t, "ends") {
		o.SetDeletionTimestamp(&metav1.Time{})
	}
	if rapid.Bool().Draw(t, "in the foreground") {
		o.SetFinalizers([]string{metav1.FinalizerDeleteDependents})
	}
}

// The index answers as a walk over all objects would, at every moment, and a
// change of a fork does not reach what it was forked from.
func TestIndexAgainstAWalk(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := new(Index)
		pods, objects := map[string]*corev1.Pod{}, map[string]*corev1.ConfigMap{}
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			ns, name := rapid.SampledFrom([]string{"ns", "ns1"}).Draw(t, "ns"), rapid.SampledFrom([]string{"p0", "p1", "p2"}).Draw(t, "name")
			key := ns + "/" + name
			before, was := x, dump(x)
			forked := x.Fork()
			x = &forked
			if rapid.Bool().Draw(t, "pod") {
				var next *corev1.Pod
				if rapid.IntRange(0, 3).Draw(t, "goes") > 0 {
					next = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, OwnerReferences: references(t)}}
					next.Labels = map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
					dying(t, next)
					next.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Failed"}).Draw(t, "phase")
				}
				if next == nil && pods[key] == nil {
					continue
				}
				x.PutPod(key, pods[key], next)
				if pods[key] = next; next == nil {
					delete(pods, key)
				}
			} else {
				var old, next metav1.Object
				if o, ok := objects[key]; ok {
					old = o
				}
				delete(objects, key)
				if rapid.IntRange(0, 3).Draw(t, "goes") > 0 {
					o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID(key), OwnerReferences: references(t)}}
					dying(t, o)
					next, objects[key] = o, o
				}
				if old != nil || next != nil {
					x.Put("configmaps", old, next)
				}
			}
			if dump(before) != was {
				t.Fatal("a change of a fork reached what it was forked from")
			}
			again := new(Index)
			for _, p := range pods {
				again.PutPod(p.Namespace+"/"+p.Name, nil, p)
			}
			for _, o := range objects {
				again.Put("configmaps", nil, o)
			}
			if dump(again) != dump(x) {
				t.Fatalf("made anew:\n%s\nkept up:\n%s", dump(again), dump(x))
			}
			check(t, x, pods, objects)
		}
	})
}

func check(t *rapid.T, x *Index, pods map[string]*corev1.Pod, objects map[string]*corev1.ConfigMap) {
	for _, uid := range uids {
		for _, ns := range []string{"ns", "ns1", ""} {
			var want, got, waiting []string
			wantBlocked := [2]bool{}
			tallies := map[string]int32{}
			note := func(resource string, o metav1.Object) {
				if ns != "" && o.GetNamespace() != ns {
					return
				}
				for _, r := range o.GetOwnerReferences() {
					if r.UID != uid {
						continue
					}
					name := resource + "/" + o.GetNamespace() + "/" + o.GetName()
					want = append(want, name)
					switch {
					case r.BlockOwnerDeletion == nil:
					case WaitsForDependents(o):
						waiting = append(waiting, name)
						wantBlocked[0] = true
					default:
						wantBlocked[1] = true
					}
				}
			}
			for _, p := range pods {
				note(Pods, p)
				if c := ControllerOf(p); c != nil && c.UID == uid && uid != "" && (ns == "" || p.Namespace == ns) {
					tallies[labels.Set(p.Labels).String()]++
				}
			}
			for _, o := range objects {
				note("configmaps", o)
			}
			last := ""
			x.Dependents(ID{ns, uid}, "", func(at string, k Key, _ Dependent) bool {
				got = append(got, k.Resource+"/"+k.Namespace+"/"+k.Name)
				last = at
				return true
			})
			if a, b := x.Blocked(ID{ns, uid}); [2]bool{a, b} != wantBlocked {
				t.Fatalf("%q in %q waits for those that wait: %t, for others: %t; want %v", uid, ns, a, b, wantBlocked)
			}
			x.Waiting(ID{ns, uid}, func(k Key) bool {
				i := slices.Index(waiting, k.Resource+"/"+k.Namespace+"/"+k.Name)
				if i < 0 {
					t.Fatalf("%v waits for nobody, or nobody for it", k)
				}
				waiting = slices.Delete(waiting, i, i+1)
				return true
			})
			if len(waiting) > 0 {
				t.Fatalf("%v wait, too", waiting)
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(want, got) {
				t.Fatalf("dependents of %q in %q: %v, want %v", uid, ns, got, want)
			}
			x.Dependents(ID{ns, uid}, last, func(at string, k Key, _ Dependent) bool {
				if last != "" {
					t.Fatalf("%v comes after the last", k)
				}
				return false
			})
			if uid == "" {
				continue
			}
			x.Tallies(ID{ns, uid}, func(c *Tally) bool {
				tallies[labels.Set(c.Labels).String()] -= c.Pods
				return true
			})
			for l, n := range tallies {
				if n != 0 {
					t.Fatalf("pods of %q in %q with %s: off by %d", uid, ns, l, n)
				}
			}
		}
	}
}

func dump(x *Index) string {
	var b strings.Builder
	x.Describe(func(line string) { fmt.Fprintf(&b, "%q\n", line) })
	return b.String()
}
